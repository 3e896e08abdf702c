// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tests the program from the side of the command that starts it: a listening socket, and questions for texts.
//!
//! Two problems that the tests guard against: clients that connected and sent nothing kept scrapers from the metrics,
//! and many scrapers could have kept the command busy with writing texts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use aquifer_config::scrape::{ASK, READY, TEXT_BYTES_MAX, head};

/// More connections than are served at the same time.
const CROWD: usize = 128;
/// The longest that one connection is served.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Far longer than anything here takes, even on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// The program, and this test in the place of the command.
struct Exporter {
    child: Child,
    socket: UnixStream,
    address: SocketAddr,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Exporter {
    fn start() -> Exporter {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (socket, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-metrics"));
        command.stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(theirs)).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let exporter = Exporter { child, socket, address };
        assert_eq!(exporter.read(), READY);
        exporter
    }

    /// Returns the next byte from the program.
    fn read(&self) -> u8 {
        let mut byte = [0];
        (&self.socket).read_exact(&mut byte).expect("the program is there");
        byte[0]
    }

    fn answer(&self, text: &str) {
        (&self.socket).write_all(&head(text.len())).unwrap();
        (&self.socket).write_all(text.as_bytes()).unwrap();
    }

    /// Returns a connection on which a request was sent.
    fn asking(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: donor\r\n\r\n").as_bytes()).unwrap();
        stream
    }

    /// Waits until the program exits. Returns its exit status, and what it has printed.
    fn ended(mut self) -> (Option<i32>, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

fn received(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Forty clients that sent nothing used to make every other client wait for ten seconds.
#[test]
fn slow_clients_keep_nobody_from_the_metrics() {
    let exporter = Exporter::start();
    let _slow: Vec<TcpStream> = (0..CROWD).map(|_| TcpStream::connect(exporter.address).unwrap()).collect();
    let scraper = exporter.asking("GET /metrics");
    // A scraper that is served immediately never reaches this timeout.
    scraper.set_read_timeout(Some(TIMEOUT / 2)).unwrap();
    assert_eq!(exporter.read(), ASK);
    exporter.answer("figure 1\n");
    let text = received(scraper);
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\nfigure 1\n"), "{text}");
}

#[test]
fn scrapes_that_come_meanwhile_share_the_next_text() {
    let exporter = Exporter::start();
    let first = exporter.asking("GET /metrics");
    assert_eq!(exporter.read(), ASK);
    let crowd: Vec<TcpStream> = (0..20).map(|_| exporter.asking("GET /metrics")).collect();
    // This request needs no text. Its answer shows that all requests before it have been read.
    assert!(received(exporter.asking("GET /")).starts_with("HTTP/1.1 404"));
    exporter.answer("figure 1\n");
    assert!(received(first).ends_with("figure 1\n"));
    assert_eq!(exporter.read(), ASK);
    exporter.answer("figure 2\n");
    for scraper in crowd {
        assert!(received(scraper).ends_with("figure 2\n"));
    }
    exporter.socket.set_nonblocking(true).unwrap();
    let more = (&exporter.socket).read(&mut [0]).unwrap_err();
    assert_eq!(more.kind(), std::io::ErrorKind::WouldBlock, "nobody waits for a third text");
}

#[test]
fn requests_other_than_scrapes_ask_for_no_text() {
    let exporter = Exporter::start();
    assert!(received(exporter.asking("POST /metrics")).starts_with("HTTP/1.1 405"));
    // The program does not read this request to its end, so writing the rest may fail, and so may reading the answer.
    let mut stream = TcpStream::connect(exporter.address).unwrap();
    let _ = stream.write_all(&[b'x'; 1 << 20]).and_then(|()| stream.read_to_end(&mut Vec::new()));
    let scraper = exporter.asking("HEAD /metrics");
    assert_eq!(exporter.read(), ASK);
    exporter.answer("figure 1\n");
    let text = received(scraper);
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("content-length: 9\r\n"), "{text}");
}

/// The signals are meant for the command: a donor that is stopping is scraped until it has its memory back.
#[test]
fn it_ends_when_the_command_does_and_not_before() {
    let exporter = Exporter::start();
    for signal in ["-HUP", "-INT", "-TERM"] {
        let sent = Command::new("kill").arg(signal).arg(exporter.child.id().to_string()).status();
        assert!(sent.expect("kill(1) is everywhere").success());
    }
    let scraper = exporter.asking("GET /metrics");
    assert_eq!(exporter.read(), ASK);
    exporter.answer("figure 1\n");
    assert!(received(scraper).ends_with("figure 1\n"));
    exporter.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(exporter.ended(), (Some(0), String::new()));
}

#[test]
fn a_text_without_bounds_ends_it() {
    let exporter = Exporter::start();
    (&exporter.socket).write_all(&head(TEXT_BYTES_MAX + 1)).unwrap();
    let line = "aquifer-metrics: no metrics are served: the command announces a text without bounds\n";
    assert_eq!(exporter.ended(), (Some(1), line.into()));
}

#[test]
fn by_hand_it_says_what_to_use() {
    let program = || Command::new(env!("CARGO_BIN_EXE_aquifer-metrics"));
    let said = |output: &Output| {
        (
            output.status.code(),
            [output.stdout.clone(), output.stderr.clone()].map(|text| String::from_utf8(text).unwrap()),
        )
    };
    let line = "aquifer-metrics: this is not to be started by hand; use 'aquifer metrics --listen ADDRESS:PORT'\n";
    assert_eq!(said(&program().output().unwrap()), (Some(2), [String::new(), line.into()]));
    // A port alone is not enough: the answers to questions have to come from somewhere.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = program().stdin(OwnedFd::from(listener)).output().unwrap();
    assert_eq!(said(&output), (Some(2), [String::new(), line.into()]));
    let line = "aquifer-metrics: unexpected argument '--listen' found; see --help\n";
    assert_eq!(said(&program().arg("--listen").output().unwrap()), (Some(2), [String::new(), line.into()]));
    let (status, [help, nothing]) = said(&program().arg("--help").output().unwrap());
    assert!(help.contains("aquifer donor --metrics"), "{help}");
    assert_eq!((status, nothing), (Some(0), String::new()));
}
