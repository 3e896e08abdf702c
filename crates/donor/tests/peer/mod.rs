// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that says exactly what it is told to say, also what no borrower would.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Patience, Security, Settings, Source};
use aquifer_wire::{BorrowerId, Figure, HEADER_BYTES, Header, Message, Refusal, SLAB_BYTES, Standing};

/// No answer takes so long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a donor has said.
pub type Lines = Arc<Mutex<Vec<String>>>;

/// Settings of a small donor on a port of its own.
pub fn settings(slabs: u64) -> Settings {
    Settings::new(([127, 0, 0, 1], 0).into(), slabs * SLAB_BYTES, Source::Anonymous, Security::Plain)
}

/// A donor that gives up on slow peers soon.
pub fn impatient(slabs: u64) -> Settings {
    let (frame, handshake) = (Duration::from_millis(200), Duration::from_millis(200));
    let patience = Patience { frame, handshake, ..Patience::default() };
    Settings { patience, ..settings(slabs) }
}

pub fn start(settings: Settings) -> (Donor, Lines) {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let donor = Donor::start(settings, Box::new(move |line| log.lock().unwrap().push(line.to_owned()))).unwrap();
    (donor, lines)
}

/// Waits until the donor stands so, with a bound.
pub fn wait_until(donor: &Donor, what: impl Fn(&Standing) -> bool) -> Standing {
    let start = Instant::now();
    loop {
        let standing = donor.standing();
        if what(&standing) {
            return standing;
        }
        assert!(start.elapsed() < PATIENCE, "the donor does not come to stand so: {standing:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn refused(donor: &Donor, refusal: Refusal) -> u64 {
    donor.standing().refused(refusal)
}

pub fn figure(donor: &Donor, figure: Figure) -> u64 {
    donor.standing().figure(figure)
}

/// A connection.
pub struct Peer {
    pub stream: TcpStream,
    pub next: u64,
    pub welcome: Option<Message>,
}

/// A lease as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub lease: u64,
    pub token: u64,
    pub range: u64,
}

impl Peer {
    /// Connects and says nothing.
    pub fn stranger(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { stream, next: 0, welcome: None }
    }

    /// Connects and is welcomed.
    pub fn borrower(address: SocketAddr, who: u128) -> Peer {
        let mut peer = Self::stranger(address);
        peer.send(Message::Hello { oldest: 1, newest: 1, borrower: BorrowerId(who) }, &[]);
        let (welcome, _) = peer.receive().expect("a donor greets back");
        let Message::Welcome { first_request, .. } = welcome else { panic!("not a welcome: {welcome:?}") };
        peer.next = first_request;
        peer.welcome = Some(welcome);
        peer
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        // The donor may have ended the connection already.
        let _ = self.stream.write_all(bytes);
    }

    pub fn frame(&self, message: Message, body: &[u8]) -> Vec<u8> {
        [&Header::new(self.next, message, body).encode()[..], body].concat()
    }

    pub fn send(&mut self, message: Message, body: &[u8]) {
        let frame = self.frame(message, body);
        self.send_bytes(&frame);
    }

    /// The next frame; `None` when the connection has ended.
    pub fn receive(&mut self) -> Option<(Message, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        self.stream.read_exact(&mut body).ok()?;
        header.check_body(&body).unwrap();
        Some((header.message, body))
    }

    /// Asks with the right number; what comes back.
    pub fn ask(&mut self, message: Message, body: &[u8]) -> (Message, Vec<u8>) {
        self.send(message, body);
        self.next = self.next.wrapping_add(1);
        self.receive().expect("an answer")
    }

    pub fn grant(&mut self, range: u64) -> Lease {
        match self.ask(Message::Grant { range }, &[]).0 {
            Message::Granted { lease, token, .. } => Lease { lease, token, range },
            other => panic!("not granted: {other:?}"),
        }
    }

    pub fn write(&mut self, lease: Lease, page: u64, byte: u8) -> Message {
        let Lease { lease, token, range } = lease;
        self.ask(Message::Write { lease, token, offset: range * SLAB_BYTES + page * 4096 }, &[byte; 4096]).0
    }

    pub fn read(&mut self, lease: Lease, page: u64) -> Result<Vec<u8>, Refusal> {
        let Lease { lease, token, range } = lease;
        let offset = range * SLAB_BYTES + page * 4096;
        match self.ask(Message::Read { lease, token, offset, bytes: 4096 }, &[]) {
            (Message::Found, body) => Ok(body),
            (Message::Error { refusal }, _) => Err(refusal),
            other => panic!("not an answer to a read: {other:?}"),
        }
    }

    /// Asserts that the donor refuses for this reason and ends the connection, without another byte.
    pub fn expect_the_end(&mut self, refusal: Refusal) {
        match self.receive() {
            Some((Message::Error { refusal: told }, _)) => assert_eq!(told, refusal),
            // What was not read when the connection ended takes the answer with it.
            None => {}
            other => panic!("not a refusal: {other:?}"),
        }
        assert!(self.receive().is_none(), "the connection goes on");
    }
}
