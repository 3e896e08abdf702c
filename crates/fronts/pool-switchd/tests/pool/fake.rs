// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager that answers as a test says, and counts what it is asked.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// What it answers to a method and a path without its query: a status and a body.
type Answers = dyn Fn(&str, &str) -> (u16, Value) + Send + Sync;

/// A manager at a port of its own. Its threads end with the test's process.
pub struct Fake {
    pub url: String,
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    answers: Arc<Mutex<Box<Answers>>>,
}

/// Answers as a manager with an empty pool does.
pub fn healthy(method: &str, path: &str) -> (u16, Value) {
    match (method, path.rsplit('/').next().unwrap_or_default()) {
        ("POST", "Sessions") => (201, json!({})),
        ("GET", "fmapi") => (200, json!({ "RoleId": "Operator" })),
        ("GET", "main" | "lab") => (200, json!({})),
        ("GET", "Aquifer") => (200, json!({ "Term": 1, "Version": 1, "Donors": { "Answering": 1, "All": 1 } })),
        ("GET", "Endpoints" | "MemoryChunks" | "ReleasedVolumes") => (200, json!({ "Members": [] })),
        _ => (404, error("there is nothing")),
    }
}

/// Returns the body of an error.
pub fn error(what: &str) -> Value {
    json!({ "error": { "code": "Base.1.18.GeneralError", "message": format!("{what}; look elsewhere") } })
}

impl Fake {
    pub fn start(answers: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let counts = Arc::new(Mutex::new(BTreeMap::new()));
        let answers: Arc<Mutex<Box<Answers>>> = Arc::new(Mutex::new(Box::new(answers)));
        let fake = Fake { url, counts: Arc::clone(&counts), answers: Arc::clone(&answers) };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away is no failure of a test.
                let _ = serve(stream, &counts, &answers);
            }
        });
        fake
    }

    /// Changes what it answers from now on.
    pub fn answer(&self, answers: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static) {
        *self.answers.lock().expect("no panic") = Box::new(answers);
    }

    /// Returns how often something was asked, by its method and the last name of its path.
    pub fn count(&self, what: &str) -> usize {
        self.counts.lock().expect("no panic").get(what).copied().unwrap_or_default()
    }

    /// Forgets what was asked.
    pub fn forget(&self) {
        self.counts.lock().expect("no panic").clear();
    }
}

fn serve(
    mut stream: TcpStream,
    counts: &Mutex<BTreeMap<String, usize>>,
    answers: &Mutex<Box<Answers>>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        text.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&text).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    stream.read_exact(&mut vec![0; length])?;
    let head = String::from_utf8_lossy(&text);
    let mut words = head.split([' ', '?']);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = path.rsplit('/').next().unwrap_or_default();
    *counts.lock().expect("no panic").entry(format!("{method} {name}")).or_default() += 1;
    let (status, body) = answers.lock().expect("no panic")(method, path);
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nconnection: close\r\nx-auth-token: t\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
