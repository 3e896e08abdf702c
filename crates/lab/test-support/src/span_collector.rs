// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A collector of OpenTelemetry for tests: takes what is posted to it by OTLP over HTTP, and keeps the bodies.
//!
//! The bodies are protobuf, in which every text stands as it is: so a test can look for a name without a decoder.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long to wait for spans, which are sent within seconds on a machine with nothing else to do.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a sender may be silent within a request.
const READ_WAIT: Duration = Duration::from_secs(30);

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Post {
    /// The path of the request.
    pub path: String,
    /// The value of `content-type`.
    pub media: String,
    /// The body.
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Kept {
    posts: Mutex<Vec<Post>>,
    is_over: AtomicBool,
}

/// A collector, which ends when it is dropped.
pub struct SpanCollector {
    address: SocketAddr,
    kept: Arc<Kept>,
    thread: Option<JoinHandle<()>>,
}

impl SpanCollector {
    /// Starts a collector at a free port of this machine.
    pub fn start() -> SpanCollector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (address, kept) = (listener.local_addr().expect("bound"), Arc::<Kept>::default());
        let keep = Arc::clone(&kept);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if keep.is_over.load(Ordering::Acquire) {
                    return;
                }
                // A sender that breaks off loses its own request alone.
                let _ = stream.and_then(|stream| answer(stream, &keep));
            }
        });
        SpanCollector { address, kept, thread: Some(thread) }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What has arrived so far.
    pub fn posts(&self) -> Vec<Post> {
        self.kept.posts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether one of the bodies contains a text.
    pub fn has(&self, text: &str) -> bool {
        let contains = |post: &Post| post.body.windows(text.len()).any(|bytes| bytes == text.as_bytes());
        self.posts().iter().any(contains)
    }

    /// Waits until bodies with all of these texts have arrived.
    pub fn wait_for(&self, texts: &[&str]) {
        let begun = Instant::now();
        while let Some(missing) = texts.iter().find(|text| !self.has(text)) {
            assert!(begun.elapsed() < WAIT_MAX, "no span has '{missing}'; {} requests came", self.posts().len());
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for SpanCollector {
    fn drop(&mut self) {
        self.kept.is_over.store(true, Ordering::Release);
        // Wakes the thread.
        let _ = TcpStream::connect(self.address);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn answer(stream: TcpStream, kept: &Kept) -> std::io::Result<()> {
    stream.set_read_timeout(Some(READ_WAIT))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut media) = (0, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "content-type" => media = value.trim().to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    kept.posts.lock().unwrap_or_else(PoisonError::into_inner).push(Post { path, media, body });
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}
