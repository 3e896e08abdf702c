// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A fabric manager in its own process, run by this test program, which starts itself for that; and a client that
//! writes HTTP by hand. It can be killed at any moment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The variable that makes this test program a manager; its value is the configuration file.
const CONFIGURATION: &str = "AQUIFER_TEST_MANAGER";
/// How long a test waits for what must come.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// Serves as a manager if this process is to be one; otherwise returns at once. A test `manager_program` calls it.
pub fn serve_if_asked() {
    let Some(file) = std::env::var_os(CONFIGURATION) else { return };
    let config = aquifer_manager::Config::read(Path::new(&file)).expect("a configuration");
    let failure = aquifer_manager::run(&config);
    panic!("the manager has ended: {:?}", failure.map_err(|failure| failure.to_string()));
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        line.split_once(": ").map(|(_, value)| value)
    }
}

pub struct Daemon {
    child: Child,
    pub address: String,
    pub directory: PathBuf,
}

impl Daemon {
    /// Starts a daemon on a directory, which may hold the state of an earlier one.
    pub fn start(directory: &Path, hosts: u32, more: &str) -> Daemon {
        let peers = format!("donors = 1\nhosts = {hosts}\ndonor-capacity = \"64GiB\"\n");
        Daemon::start_at(directory, "127.0.0.1:0", &peers, more).expect("it says where it listens")
    }

    /// Starts a daemon at an address, with its simulated peers. Returns `None` if it ends before it listens.
    pub fn start_at(directory: &Path, listen: &str, peers: &str, more: &str) -> Option<Daemon> {
        let config = format!(
            "state = {:?}\nlisten = {listen:?}\n[peers]\nkind = \"simulated\"\n{peers}[rounds]\nidle-ms = 50\n\
             busy-ms = 2\n{more}",
            directory.join("state")
        );
        let file = directory.join("fabricd.toml");
        std::fs::write(&file, config).expect("written");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["manager_program", "--exact", "--nocapture", "--test-threads=1"]).env(CONFIGURATION, &file);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map(|line| line.expect("text"));
        // The test program's own words may precede ours on the line.
        let found =
            lines.filter_map(|line| line.split_once("listening on http://").map(|(_, at)| at.to_owned())).next();
        match found {
            Some(address) => Some(Daemon { child, address, directory: directory.to_owned() }),
            None => {
                let _ = child.wait();
                None
            }
        }
    }

    /// Returns the number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Ends it at once, whatever it is doing.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends one request, and returns its answer.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}content-length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }

    /// Logs in with the first password, and returns the header with the token.
    pub fn login(&self) -> String {
        let password = std::fs::read_to_string(self.directory.join("state/initial-password")).expect("a password");
        let body = json!({ "UserName": "admin", "Password": password.trim() }).to_string();
        let answer = self.ask("POST", "/redfish/v1/SessionService/Sessions", "", &body);
        assert_eq!(answer.status, 201, "{answer:?}");
        format!("x-auth-token: {}\r\n", answer.header("x-auth-token").expect("a token"))
    }

    /// Waits until everything is as it is desired to be.
    pub fn settle(&self, token: &str) {
        let begun = Instant::now();
        let mut rounds = None;
        loop {
            let status = self.ask("GET", "/redfish/v1/Oem/Aquifer", token, "");
            assert_eq!(status.status, 200, "{status:?}");
            let now = status.body["Rounds"].as_u64().expect("a number");
            // Two rounds later at the earliest: the first may have begun before the last order.
            if status.body["IsSettled"] == true && now >= *rounds.get_or_insert(now) + 2 {
                return;
            }
            assert!(begun.elapsed() < WAIT_MAX, "it does not settle: {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
