// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The daemon in its own process, and a client of its REST interface.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::WAIT_MAX;

pub(crate) type Failure = Box<dyn std::error::Error>;

const STATUS: &str = "/redfish/v1/Oem/Aquifer";
const CONNECTIONS: &str = "/redfish/v1/Fabrics/Aquifer/Connections";
/// The time between two checks of a slow step.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// The time between two checks of a bind: the shortest that does not occupy a CPU.
const LOOK_AT_BIND: Duration = Duration::from_millis(2);
/// A tick of proc(5) on x86-64.
const TICK_MS: u64 = 10;
/// How long a manager may take until it leads.
const LEADER_WAIT: Duration = Duration::from_secs(60);
/// The time limit for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// A running daemon. Dropping this ends it.
pub(crate) struct Running {
    child: Child,
    rest: String,
    /// The address at which ends register.
    pub(crate) control: SocketAddr,
    directory: PathBuf,
    token: String,
}

impl Running {
    /// Starts a daemon with its state in etcd at these URLs, or in a file.
    pub(crate) fn start(etcd: &[String]) -> Result<Running, Failure> {
        let directory = std::env::temp_dir().join(format!("aquifer-pool-scale-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let state = match etcd {
            [] => format!("state = {:?}\nlisten = \"127.0.0.1:0\"\n", directory.join("state")),
            endpoints => format!(
                "listen = \"127.0.0.1:0\"\n[state]\nkind = \"etcd\"\ndirectory = {:?}\n\
                 endpoints = {endpoints:?}\nprefix = {:?}\n",
                directory.join("state"),
                format!("scale-{}", std::process::id())
            ),
        };
        let config = directory.join("fabricd.toml");
        // A port that is free now: with etcd, the daemon listens there once it leads, and does not print where.
        let control = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        std::fs::write(&config, format!("{state}[control]\nlisten = \"{control}\"\n[peers]\nkind = \"registered\"\n"))?;
        let own = std::env::current_exe()?;
        let beside = own.parent().and_then(|examples| examples.parent()).map(|debug| debug.join("aquifer-fabricd"));
        let program = std::env::var_os("AQUIFER_FABRICD").map(PathBuf::from).or(beside).ok_or("no aquifer-fabricd")?;
        let mut child = Command::new(program).arg("--config").arg(&config).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let rest = first.rsplit('/').next().unwrap_or_default().to_owned();
        let mut manager = Running { child, rest, control, directory, token: String::new() };
        manager.log_in()?;
        Ok(manager)
    }

    fn log_in(&mut self) -> Result<(), Failure> {
        let file = self.directory.join("state/initial-password");
        let begun = Instant::now();
        while !file.exists() && begun.elapsed() < WAIT_MAX {
            std::thread::sleep(LOOK);
        }
        let password = std::fs::read_to_string(file)?;
        let body = json!({ "UserName": "admin", "Password": password.trim() });
        // With etcd, a manager leads some time after it has started.
        let (head, _) = loop {
            match self.ask("POST", "/redfish/v1/SessionService/Sessions", &body) {
                Err(_) if begun.elapsed() < LEADER_WAIT => std::thread::sleep(LOOK),
                answered => break answered?,
            }
        };
        let token = head.lines().find_map(|line| line.strip_prefix("x-auth-token: ")).ok_or("no token")?;
        self.token = format!("x-auth-token: {token}\r\n");
        Ok(())
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<(String, Value), Failure> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.rest)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{}content-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        if !head.starts_with("HTTP/1.1 2") {
            return Err(format!("{method} {path}: {head} {body}").into());
        }
        Ok((head.to_owned(), serde_json::from_str(body).unwrap_or_default()))
    }

    pub(crate) fn status(&self) -> Result<Value, Failure> {
        self.ask("GET", STATUS, &Value::Null).map(|(_, body)| body)
    }

    /// Returns whether everything is as desired.
    pub(crate) fn is_settled(&self) -> Result<bool, Failure> {
        Ok(self.status()?["IsSettled"] == true)
    }

    /// Returns the processor time that the daemon has used.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // After the name in parentheses; user and system time are the 14th and the 15th field, in ticks.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).ok_or("no processor time");
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * TICK_MS))
    }

    /// Waits until the status meets a condition.
    pub(crate) fn until(&self, holds: impl Fn(&Value) -> bool) -> Result<(), Failure> {
        let begun = Instant::now();
        while !holds(&self.status()?) {
            if begun.elapsed() > WAIT_MAX {
                return Err(format!("not within {WAIT_MAX:?}: {}", self.status()?).into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    pub(crate) fn apply(&self, declaration: &Value) -> Result<(), Failure> {
        let body = json!({ "Declaration": declaration });
        self.ask("POST", &format!("{STATUS}/Actions/Aquifer.Apply"), &body).map(drop)
    }

    /// Binds a volume, and waits until its host has it.
    pub(crate) fn bind(&self, volume: &str, host: &str) -> Result<(), Failure> {
        let chunk = format!("/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks/{volume}");
        let endpoint = format!("/redfish/v1/Fabrics/Aquifer/Endpoints/Host.{host}");
        let body = json!({ "MemoryChunkInfo": [{ "MemoryChunk": { "@odata.id": chunk } }],
                           "Links": { "InitiatorEndpoints": [{ "@odata.id": endpoint }] } });
        self.ask("POST", CONNECTIONS, &body)?;
        let begun = Instant::now();
        loop {
            let (_, connection) = self.ask("GET", &format!("{CONNECTIONS}/{volume}"), &Value::Null)?;
            if connection["Status"]["State"] == "Enabled" {
                return Ok(());
            }
            if begun.elapsed() > WAIT_MAX {
                return Err(format!("{volume} is not bound within {WAIT_MAX:?}").into());
            }
            std::thread::sleep(LOOK_AT_BIND);
        }
    }

    pub(crate) fn verify_audit(&self) -> Result<(), Failure> {
        self.ask("GET", &format!("{STATUS}/Audit/Verification"), &Value::Null).map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
