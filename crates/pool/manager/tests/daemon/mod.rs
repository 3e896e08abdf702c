// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real daemon on a free port with its own directory, and a client that writes HTTP by hand.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod judge;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aquifer_manager::SimulatedConfig;
use serde_json::{Value, json};

/// How long a test waits for what must come.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
pub const CHUNKS: &str = "/redfish/v1/Chassis/Pools/MemoryDomains/main/MemoryChunks";
pub const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
pub const CONNECTIONS: &str = "/redfish/v1/Fabrics/Aquifer/Connections";

pub fn directory(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Answer {
    /// Parses an answer that has arrived as a whole.
    pub fn parse(text: &str) -> Option<Answer> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let body = serde_json::from_str(body).unwrap_or(Value::Null);
        Some(Answer { status, head: head.to_owned(), body })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        line.split_once(": ").map(|(_, value)| value)
    }
}

/// Returns the smallest rack that the tests need.
pub fn rack(kill_at_effect: Option<u64>) -> SimulatedConfig {
    let capacity = "64GiB".parse().expect("a size");
    let (donors, hosts, devices) = (4, 2, 2);
    SimulatedConfig {
        donors,
        donor_capacity: capacity,
        hosts,
        devices,
        device_capacity: capacity,
        directory: None,
        kill_at_effect,
    }
}

/// Returns a loopback address that no other daemon of the tests has: a killed daemon's port may be given to the next
/// one.
pub fn address() -> String {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let (pid, number) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{}", 16 + pid % 200, 1 + pid / 200 % 250, 1 + number % 250)
}

/// Returns the text of a request, after which the daemon closes.
pub fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub struct Daemon {
    child: Child,
    pub address: String,
    /// Where donors and hosts register.
    pub control: Option<SocketAddr>,
    /// Where its metrics are, if its configuration says so.
    pub metrics: String,
    pub directory: PathBuf,
}

impl Daemon {
    /// Starts a daemon on a directory, which may hold the state of an earlier one.
    pub fn start(directory: &Path, peers: &SimulatedConfig, more: &str) -> Daemon {
        Daemon::start_with(directory, peers, "", &format!("[rounds]\nidle-ms = 50\nbusy-ms = 1\n{more}"))
    }

    /// Starts a daemon with further settings at the head and at the end of its configuration.
    pub fn start_with(directory: &Path, peers: &SimulatedConfig, head: &str, end: &str) -> Daemon {
        let mut config = format!(
            "{head}state = {:?}\nlisten = \"{}:0\"\n[peers]\nkind = \"simulated\"\ndonors = {}\nhosts = {}\ndevices = {}\n\
             donor-capacity = \"{}\"\ndevice-capacity = \"{}\"\n",
            directory.join("state"),
            address(),
            peers.donors,
            peers.hosts,
            peers.devices,
            peers.donor_capacity,
            peers.device_capacity
        );
        if let Some(number) = peers.kill_at_effect {
            config += &format!("kill-at-effect = {number}\n");
        }
        config += end;
        Daemon::launch(directory, &config, &[])
    }

    /// Starts a daemon whose donors and hosts register at this address.
    pub fn start_registered(directory: &Path, control: SocketAddr, kill_at_effect: Option<u64>) -> Daemon {
        let mut config = format!(
            "state = {:?}\nlisten = \"{}:0\"\n[control]\nlisten = \"{control}\"\n[peers]\nkind = \"registered\"\n",
            directory.join("state"),
            address()
        );
        if let Some(number) = kill_at_effect {
            config += &format!("kill-at-effect = {number}\n");
        }
        config += "[rounds]\nidle-ms = 50\nbusy-ms = 5\nsilent-seconds = 1\n";
        Daemon::launch(directory, &config, &[])
    }

    /// Starts a daemon with a configuration, and with variables of its environment.
    pub fn launch(directory: &Path, config: &str, variables: &[(&str, String)]) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-fabricd"));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        Daemon::launch_by(directory, config, command)
    }

    /// Works like the function above, but starts the daemon with this command, to which it adds the arguments.
    pub fn launch_by(directory: &Path, config: &str, mut command: Command) -> Daemon {
        let file = directory.join("fabricd.toml");
        std::fs::write(&file, config).expect("written");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("log")).expect("a log");
        command.arg("--config").arg(&file);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = || {
            let mut line = String::new();
            output.read_line(&mut line).expect("a line, or the end");
            line.trim().to_owned()
        };
        let address = line().rsplit('/').next().unwrap_or_default().to_owned();
        let metrics = if config.contains("\nmetrics = ") { line() } else { String::new() };
        let metrics = metrics.trim_start_matches("metrics on http://").trim_end_matches("/metrics").to_owned();
        let control = if config.contains("\n[control]") { line() } else { String::new() };
        let control = control.rsplit(' ').next().and_then(|address| address.parse().ok());
        Daemon { child, address, metrics, control, directory: directory.to_owned() }
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it, or lets it go on.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|sent| sent.success()), "kill {signal}");
    }

    /// Returns the most memory that it ever had, in bytes (VmHWM, proc(5)).
    pub fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Returns the initial password.
    pub fn password(&self) -> String {
        let text = std::fs::read_to_string(self.directory.join("state/initial-password")).expect("the first password");
        text.trim().to_owned()
    }

    pub fn is_killed(&mut self) -> bool {
        self.address.is_empty() || self.child.try_wait().expect("a child").is_some()
    }

    /// Waits until the daemon has ended, and returns its exit code; `None` if the default action of a signal ended it.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().expect("a child").code()
    }

    pub fn wait_until_killed(&mut self) {
        self.child.wait().expect("a child");
    }

    /// Writes bytes and reads until the daemon closes.
    pub fn raw(&self, bytes: &[u8]) -> Option<String> {
        self.raw_at(&self.address, bytes)
    }

    /// Does the same at another of its addresses.
    pub fn raw_at(&self, address: &str, bytes: &[u8]) -> Option<String> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        // A daemon that refuses a request before it has read all of it may close the connection first.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
    }

    /// Sends one request, and returns its answer, or `None` if the daemon was killed.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Option<Answer> {
        Answer::parse(&self.raw(request(method, path, headers, body).as_bytes())?)
    }

    /// Logs in and returns the header with the token.
    pub fn login(&self, name: &str, password: &str) -> String {
        let body = json!({ "UserName": name, "Password": password }).to_string();
        let answer = self.ask("POST", SESSIONS, "", &body).expect("an answer");
        assert_eq!(answer.status, 201, "{answer:?}");
        format!("x-auth-token: {}\r\n", answer.header("x-auth-token").expect("a token"))
    }

    /// Waits until the pool is in the desired state. `false` if the daemon was killed.
    pub fn settle(&self, token: &str) -> bool {
        let begun = Instant::now();
        let mut rounds = None;
        while begun.elapsed() < WAIT_MAX {
            let Some(status) = self.ask("GET", "/redfish/v1/Oem/Aquifer", token, "") else { return false };
            assert_eq!(status.status, 200, "{status:?}");
            let now = status.body["Rounds"].as_u64().expect("a number");
            // Two rounds later at the earliest: the first may have begun before the last order.
            if status.body["IsSettled"] == true && now >= *rounds.get_or_insert(now) + 2 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not settle");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a pool of all donors, a zone with both hosts, and a bound volume.
pub fn declaration() -> Value {
    json!({
        "pools": { "main": { "donors": ["d0000", "d0001", "d0002", "d0003"], "devices": ["m000", "m001"] } },
        "zones": { "lab": { "quota": "200GiB", "hosts": ["h000", "h001"] } },
        "volumes": {
            "db": { "spec": { "size": "8GiB", "pool": "main", "zone": "lab", "class": "tcp",
                              "redundancy": { "mirror": { "copies": 2 } } }, "host": "h000" },
            "cache": { "spec": { "size": "4GiB", "pool": "main", "zone": "lab", "class": "tcp" } },
        },
    })
}

pub fn apply_body(declaration: &Value) -> String {
    json!({ "Declaration": declaration }).to_string()
}

pub fn bind_body(volume: &str, host: &str) -> String {
    json!({
        "MemoryChunkInfo": [{ "MemoryChunk": { "@odata.id": format!("{CHUNKS}/{volume}") } }],
        "Links": { "InitiatorEndpoints": [{ "@odata.id": format!("/redfish/v1/Fabrics/Aquifer/Endpoints/Host.{host}") }] },
    })
    .to_string()
}

pub const APPLY: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Apply";
