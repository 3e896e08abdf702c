// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that sends any bytes that a test asks for, including those that no borrower would send.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Files, Security, Settings, Source, Timeouts};
use aquifer_wire::{BorrowerId, DonorStatus, Figure, HEADER_BYTES, Header, Message, RangeIndex, Refusal, SLAB_BYTES};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::{Protection, good};

/// No answer takes this long.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// What a donor has said.
pub type Lines = Arc<Mutex<Vec<String>>>;

/// Settings of a small donor on its own port.
pub fn settings(slabs: u64) -> Settings {
    Settings::new(([127, 0, 0, 1], 0).into(), slabs * SLAB_BYTES, Source::Anonymous, Security::Plain)
}

/// A donor that gives up on slow peers soon.
pub fn impatient(slabs: u64) -> Settings {
    let (frame, handshake) = (Duration::from_millis(200), Duration::from_millis(200));
    let timeouts = Timeouts { frame, handshake, ..Timeouts::default() };
    Settings { timeouts, ..settings(slabs) }
}

pub fn start(settings: Settings) -> (Donor, Lines) {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let donor = Donor::start(settings, Box::new(move |line| log.lock().unwrap().push(line.to_owned()))).unwrap();
    (donor, lines)
}

/// Waits, within a time limit, until `what` is true of the donor's figures.
pub fn wait_until(donor: &Donor, what: impl Fn(&DonorStatus) -> bool) -> DonorStatus {
    let start = Instant::now();
    loop {
        let status = donor.status();
        if what(&status) {
            return status;
        }
        assert!(start.elapsed() < TIMEOUT, "the donor does not come to stand so: {status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn refused(donor: &Donor, refusal: Refusal) -> u64 {
    donor.status().refused(refusal)
}

pub fn figure(donor: &Donor, figure: Figure) -> u64 {
    donor.status().figure(figure)
}

/// Asserts that a refusal was reported once, however often there was one.
pub fn reported_once(lines: &Lines, refusal: Refusal) {
    let word = format!("({})", refusal.word());
    let reported = lines.lock().unwrap().iter().filter(|line| line.contains(&word)).count();
    assert_eq!(reported, 1, "{refusal}: {lines:?}");
}

/// What a connection's bytes go through.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.get_ref(),
        }
    }

    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket().shutdown(how)
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(into),
            Stream::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// A TLS session with these files, after its handshake.
fn session(mut stream: TcpStream, files: &Files) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let certificate = CertificateDer::from_pem_file(&files.cert).unwrap();
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).unwrap();
    let mut config = builder.with_root_certificates(roots).with_client_auth_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"aquifer/1".to_vec()];
    let name = ServerName::IpAddress(stream.peer_addr().unwrap().ip().into());
    let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
    while session.is_handshaking() || session.wants_write() {
        session.complete_io(&mut stream).unwrap();
    }
    StreamOwned::new(session, stream)
}

/// A connection to a donor, as a borrower opens one.
pub struct Peer {
    pub stream: Stream,
    pub next: u64,
    pub welcome: Option<Message>,
    /// Revocations, which the donor sends without a request.
    pub revoked: Vec<Message>,
}

/// A lease as its holder knows it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub lease: u64,
    pub token: u64,
    pub range: u64,
}

impl Peer {
    /// Connects and sends nothing, not even a handshake.
    pub fn stranger(address: SocketAddr) -> Peer {
        Self::connect(Protection::Plain, address)
    }

    /// Connects, performs the handshake if there is TLS, and sends nothing more.
    pub fn connect(protection: Protection, address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = match protection {
            Protection::Plain => Stream::Plain(stream),
            Protection::Tls => Stream::Tls(Box::new(session(stream, &good().borrower))),
        };
        Peer { stream, next: 0, welcome: None, revoked: Vec::new() }
    }

    /// Connects and is welcomed.
    pub fn borrower(address: SocketAddr, who: u128) -> Peer {
        Self::borrower_by(Protection::Plain, address, who)
    }

    /// The same, protected as the donor asks for.
    pub fn borrower_by(protection: Protection, address: SocketAddr, who: u128) -> Peer {
        Self::connect(protection, address).greet(who)
    }

    /// Connects with this certificate, and is welcomed.
    pub fn borrower_with(files: &Files, address: SocketAddr, who: u128) -> Peer {
        Self::connect_with(files, address).greet(who)
    }

    /// Connects and shakes hands with this certificate.
    pub fn connect_with(files: &Files, address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let stream = Stream::Tls(Box::new(session(stream, files)));
        Peer { stream, next: 0, welcome: None, revoked: Vec::new() }
    }

    fn greet(mut self, who: u128) -> Peer {
        let peer = &mut self;
        peer.send(Message::Hello { oldest: 1, newest: 1, borrower: BorrowerId(who) }, &[]);
        let (welcome, _) = peer.receive().expect("a donor greets back");
        let Message::Welcome { first_request, .. } = welcome else { panic!("not a welcome: {welcome:?}") };
        peer.next = first_request;
        peer.welcome = Some(welcome);
        self
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

    /// Sends a request with the right number, and returns the answer.
    pub fn ask(&mut self, message: Message, body: &[u8]) -> (Message, Vec<u8>) {
        self.send(message, body);
        self.next = self.next.wrapping_add(1);
        loop {
            match self.receive().expect("an answer") {
                (unasked @ Message::Revoke { .. }, _) => self.revoked.push(unasked),
                answer => return answer,
            }
        }
    }

    pub fn grant(&mut self, range: u64) -> Lease {
        match self.ask(Message::Grant { range: RangeIndex(range) }, &[]).0 {
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
            Some((Message::Error { refusal: reported }, _)) => assert_eq!(reported, refusal),
            // If the donor had not read everything when it ended the connection, the kernel discards the answer.
            None => {}
            other => panic!("not a refusal: {other:?}"),
        }
        assert!(self.receive().is_none(), "the connection goes on");
    }
}
