// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A server for one test, and a client that reports what it receives byte by byte.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aquifer_test_support::{Random, skip};

/// How long a test waits for anything, on a machine that is busy.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

pub fn can_run() -> bool {
    match aquifer::probe() {
        Ok(()) => true,
        Err(why) => {
            skip(why.to_string());
            false
        }
    }
}

/// A server, which ends with this value.
pub struct Running {
    child: Child,
    pub address: SocketAddr,
}

impl Running {
    /// Starts a server over a tier, with the smallest budget that its index allows.
    pub fn start(tier: &str, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-cache"));
        command.args(["--listen", "127.0.0.1:0", "--dram", "24MiB", "--tier", tier]).args(more);
        if !more.contains(&"--size") {
            command.args(["--size", "48MiB"]);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it was built");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it says {line:?}"));
        Self { child, address: address.parse().expect("an address") }
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("it serves");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket");
        stream.set_write_timeout(Some(WAIT_MAX)).expect("a socket");
        Client { stream: BufReader::new(stream) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns a number of `INFO`.
    pub fn figure(&self, name: &str) -> u64 {
        let info = self.client().ask(&[b"INFO"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
    }

    /// Ends the server by a signal, and returns its status.
    pub fn end(mut self) -> Option<i32> {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
        let started = Instant::now();
        while started.elapsed() < WAIT_MAX {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reply, as the protocol has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    Error(String),
    Number(i64),
    Bytes(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Some(bytes.to_vec()))
    }

    pub fn nothing() -> Self {
        Self::Bytes(None)
    }

    #[track_caller]
    pub fn text(self) -> String {
        match self {
            Self::Bytes(Some(bytes)) => String::from_utf8(bytes).expect("it is text"),
            other => panic!("{other:?}"),
        }
    }
}

pub struct Client {
    stream: BufReader<TcpStream>,
}

/// Returns a request as an array of bulk strings.
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Sends what the server may refuse to read.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    #[track_caller]
    pub fn ask(&mut self, words: &[&[u8]]) -> Reply {
        self.send(&request(words));
        self.reply()
    }

    #[track_caller]
    pub fn ask_text(&mut self, line: &str) -> Reply {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("a reply")
    }

    /// Returns the next reply; `None` at the end of the connection.
    pub fn try_reply(&mut self) -> Option<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let (kind, rest) = line.strip_suffix("\r\n").expect("a line").split_at(1);
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("no number: {line:?}"));
        Some(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(number()),
            "$" if number() < 0 => Reply::Bytes(None),
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                self.stream.read_exact(&mut bytes).ok()?;
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Reply::Bytes(Some(bytes))
            }
            "*" => Reply::Array((0..number()).map(|_| self.try_reply()).collect::<Option<_>>()?),
            _ => panic!("no reply: {line:?}"),
        })
    }

    /// Returns whether a reply has begun to arrive.
    pub fn has_reply(&mut self) -> bool {
        let stream = self.stream.get_ref();
        stream.set_nonblocking(true).expect("a socket");
        let is_there = stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
        stream.set_nonblocking(false).expect("a socket");
        is_there || !self.stream.buffer().is_empty()
    }

    /// Returns whether the server ends the connection, after whatever it still sends.
    pub fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn shut_down_writing(&mut self) {
        self.stream.get_mut().shutdown(std::net::Shutdown::Write).expect("it is connected");
    }
}

/// Returns bytes that follow from a number, so that a wrong one is noticed.
pub fn numbered_bytes(number: u64, len: usize) -> Vec<u8> {
    let mut random = Random(number);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}
