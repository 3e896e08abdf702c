// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The part of Redis' protocol (RESP2) that the trial needs: commands as arrays of words, sent in batches, and their
//! replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Timeout of one reply; a later reply counts as a hang.
const REPLY_MAX: Duration = Duration::from_secs(120);

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    batch: Vec<u8>,
    sent: usize,
}

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A line, or a number as text.
    Line(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// No value.
    Nil,
}

impl Client {
    /// Connects to a server's socket.
    pub fn connect(socket: &Path) -> Result<Self, String> {
        let stream = UnixStream::connect(socket).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(REPLY_MAX)).map_err(|error| error.to_string())?;
        Ok(Self { stream: BufReader::new(stream), batch: Vec::new(), sent: 0 })
    }

    /// Adds a command to the batch.
    pub fn add(&mut self, words: &[&[u8]]) {
        let _ = write!(self.batch, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.batch, "${}\r\n", word.len());
            self.batch.extend_from_slice(word);
            self.batch.extend_from_slice(b"\r\n");
        }
        self.sent += 1;
    }

    /// Sends the batch, and reads the replies.
    pub fn exchange(&mut self) -> Result<Vec<Reply>, String> {
        let failed = |error: std::io::Error| format!("the server does not answer: {error}");
        self.stream.get_mut().write_all(&self.batch).map_err(failed)?;
        self.batch.clear();
        (0..std::mem::take(&mut self.sent)).map(|_| self.reply()).collect()
    }

    /// Sends one command, and returns its reply.
    pub fn ask(&mut self, command: &str) -> Result<Reply, String> {
        let words: Vec<&[u8]> = command.split_whitespace().map(str::as_bytes).collect();
        self.add(&words);
        Ok(self.exchange()?.remove(0))
    }

    /// One value from INFO.
    pub fn info(&mut self, name: &str) -> Result<String, String> {
        let Reply::Bytes(bytes) = self.ask("INFO")? else { return Err("INFO has no text".to_owned()) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::to_owned).ok_or_else(|| format!("INFO has no {name}"))
    }

    fn reply(&mut self) -> Result<Reply, String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(|error| format!("the server does not answer: {error}"))?;
        let line = line.trim_end();
        let Some(kind) = line.chars().next() else { return Err("the server has closed the connection".to_owned()) };
        let rest = &line[1..];
        match kind {
            '+' | ':' => Ok(Reply::Line(rest.to_owned())),
            '$' if rest == "-1" => Ok(Reply::Nil),
            '$' => {
                let len: usize = rest.parse().map_err(|_| format!("a reply of '{line}'"))?;
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes).map_err(|error| format!("a reply ends early: {error}"))?;
                bytes.truncate(len);
                Ok(Reply::Bytes(bytes))
            }
            _ => Err(format!("the server says: {line}")),
        }
    }
}
