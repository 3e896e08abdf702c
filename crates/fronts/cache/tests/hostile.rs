// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Clients that send half requests, announce huge lengths, open many connections, or do not read: each is refused or
//! waits, and other clients are served meanwhile.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, Reply, Running, WAIT_MAX, can_run, request};

const TIER: &str = "dram:size=96MiB";

fn serves(server: &Running) {
    assert_eq!(server.client().ask_text("PING"), Reply::Status("PONG".into()));
}

/// Returns the resident memory of the server.
fn resident_bytes(server: &Running) -> u64 {
    memory(server, "VmRSS:")
}

/// Returns the peak resident memory of the server.
fn resident_bytes_peak(server: &Running) -> u64 {
    memory(server, "VmHWM:")
}

fn memory(server: &Running, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a figure");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn bytes_that_are_no_request_end_the_connection_with_an_error() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    for (bytes, error) in [
        (&b"*1\r\n$1048577\r\n"[..], "ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$-5\r\n", "ERR Protocol error: invalid bulk length"),
        (b"*1000000000\r\n", "ERR Protocol error: invalid multibulk length"),
        (b"*1\r\nPING\r\n", "ERR Protocol error: expected '$', got 'P'"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "ERR wrong number of arguments for 'get' command"),
        (b"POST / HTTP/1.1\r\n\r\n", "ERR this is not an HTTP server"),
    ] {
        let mut client = server.client();
        client.send(bytes);
        assert_eq!(client.reply(), Reply::Error(error.into()), "{}", bytes.escape_ascii());
        assert!(client.is_ended());
    }
    // Requests before the malformed one are carried out.
    let mut client = server.client();
    client.send(b"SET k v\r\nGET k\r\n*x\r\nGET k\r\n");
    assert_eq!((client.reply(), client.reply()), (Reply::ok(), Reply::bytes(b"v")));
    assert!(matches!(client.reply(), Reply::Error(_)));
    assert!(client.is_ended());
    serves(&server);
}

#[test]
fn half_requests_wait_and_take_the_memory_of_what_has_arrived() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let before = resident_bytes(&server);
    let announce = |_| {
        let mut client = server.client();
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\nonly this");
        client
    };
    let mut clients: Vec<Client> = (0..200).map(announce).collect();
    serves(&server);
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 100 << 20, "200 announced values of 1 MiB took {grown} bytes");
    // The connection may end in the middle, on one side or on both.
    clients.drain(..100).for_each(drop);
    clients.drain(..90).for_each(|mut client| client.shut_down_writing());
    let mut client = clients.pop().expect("some are left");
    client.send(&vec![b'.'; (1 << 20) - 9]);
    client.send(b"\r\nSTRANGE\r\n");
    assert_eq!(client.reply(), Reply::ok());
    assert!(matches!(client.reply(), Reply::Error(_)));
    serves(&server);
}

#[test]
fn more_connections_than_allowed_are_refused_and_the_others_are_served() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &["--connections", "20"]);
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.ask_text("PING"), Reply::Status("PONG".into())));
    for _ in 0..50 {
        let mut refused = server.client();
        assert!(matches!(refused.try_reply(), None | Some(Reply::Error(_))));
        assert!(refused.is_ended());
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.ask_text("PING"), Reply::Status("PONG".into())));
    drop(clients);
    let started = Instant::now();
    loop {
        let mut client = server.client();
        if client.try_send(&request(&[b"PING"])) && client.try_reply() == Some(Reply::Status("PONG".into())) {
            break;
        }
        assert!(started.elapsed() < WAIT_MAX);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client that asks for far more than it reads gets no more than fits the buffers, and then its requests wait.
#[test]
fn a_client_that_does_not_read_waits_alone() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let value = vec![b'v'; 1 << 20];
    assert_eq!(server.client().ask(&[b"SET", b"k", &value]), Reply::ok());
    let (mut slow, before) = (server.client(), resident_bytes(&server));
    let count = 300;
    slow.send(&request(&[b"GET", b"k"]).repeat(count));
    for _ in 0..50 {
        serves(&server);
    }
    let grown = resident_bytes(&server).saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for a client that reads nothing");
    for _ in 0..count {
        assert_eq!(slow.reply(), Reply::bytes(&value));
    }
}

#[test]
fn a_reply_that_would_be_too_long_is_refused_before_it_is_read() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let mut client = server.client();
    assert_eq!(client.ask(&[b"SET", b"k", &vec![b'v'; 1 << 20]]), Reply::ok());
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(std::iter::repeat_n(&b"k"[..], 1000)).collect();
    let Reply::Error(why) = client.ask(&words) else { panic!("a gigabyte") };
    assert!(why.contains("get fewer keys at a time"), "{why}");
    assert_eq!(client.ask_text("PING"), Reply::Status("PONG".into()));
}

#[test]
fn a_client_that_says_no_more_still_gets_its_replies() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let mut client = server.client();
    client.send(b"SET k v\r\nGET k\r\nGET");
    client.shut_down_writing();
    assert_eq!((client.reply(), client.reply()), (Reply::ok(), Reply::bytes(b"v")));
    assert!(client.is_ended());
    serves(&server);
}

/// All clients together cannot make the server take more memory than it allows: those with the largest buffers end.
#[test]
fn buffers_of_many_connections_are_bounded_together() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &["--buffers", "128MiB"]);
    let before = resident_bytes(&server);
    let mut word = b"$1048576\r\n".to_vec();
    word.resize(word.len() + (1 << 20), b'v');
    word.extend_from_slice(b"\r\n");
    let half = [&b"*20\r\n"[..], &word.repeat(15)].concat();
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = server.client();
        // An ended one cannot send any more.
        client.try_send(&half);
        clients.push(client);
    }
    serves(&server);
    let grown = resident_bytes_peak(&server).saturating_sub(before);
    assert!(grown < 192 << 20, "{grown} bytes for clients that send halves of large requests");
    assert!(server.figure("evicted_clients") >= 20);
    // Replies that are not read count, too, and small clients stay.
    let mut small = server.client();
    assert_eq!(small.ask(&[b"SET", b"k", &vec![b'v'; 1 << 20]]), Reply::ok());
    let words: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(std::iter::repeat_n(&b"k"[..], 14)).collect();
    let readers: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = server.client();
            client.try_send(&request(&words));
            client
        })
        .collect();
    let started = Instant::now();
    while server.figure("evicted_clients") < 45 {
        assert!(started.elapsed() < WAIT_MAX, "nobody is disconnected");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(small.ask_text("PING"), Reply::Status("PONG".into()));
    let grown = resident_bytes_peak(&server).saturating_sub(before);
    assert!(grown < 192 << 20, "{grown} bytes for clients that do not read");
    drop((clients, readers));
    // Their memory is free for others.
    assert_eq!(small.ask(&words), Reply::Array(vec![Reply::bytes(&vec![b'v'; 1 << 20]); 14]));
}

/// Requests that cannot be carried out yet stay on the client's side.
#[test]
fn a_pipeline_takes_no_memory_of_its_length() {
    if !can_run() {
        return;
    }
    let server = Running::start(TIER, &[]);
    let (count, before) = (3_000_000, resident_bytes_peak(&server));
    let mut sender = TcpStream::connect(server.address).expect("it serves");
    let mut reader = sender.try_clone().expect("a socket");
    reader.set_read_timeout(Some(WAIT_MAX)).expect("a socket");
    let sending = std::thread::spawn(move || {
        let some = b"PING\r\n".repeat(10_000);
        (0..count / 10_000).for_each(|_| sender.write_all(&some).expect("it serves"));
    });
    let mut left = count * "+PONG\r\n".len();
    let mut bytes = vec![0; 1 << 20];
    while left > 0 {
        let read = reader.read(&mut bytes).expect("a reply within the time");
        assert!(read > 0 && read <= left);
        left -= read;
    }
    sending.join().expect("it has sent everything");
    let grown = resident_bytes_peak(&server).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for a pipeline");
    serves(&server);
}
