// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A channel's connection, in plain text or under TLS, with a deadline for everything that waits.
//!
//! One thread uses it. Another may end it by shutting the socket down.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};

use crate::failure::ChannelFailure;
use crate::message::{HEADER_BYTES, Message, decode, encode, payload_bytes};

/// How much memory is allocated for a message ahead of its bytes: an end cannot take memory by announcing bytes.
const STEP_BYTES: usize = 64 << 10;

/// A socket whose reads and writes end at a deadline, however the bytes trickle in.
struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // The kernel takes zero for "no limit".
        if left < Duration::from_millis(1) { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn late(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(into).map_err(late)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes).map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Layer {
    Client(Box<StreamOwned<ClientConnection, Timed>>),
    Plain(Timed),
    Server(Box<StreamOwned<ServerConnection, Timed>>),
}

/// A connection between an end and a manager, with or without TLS.
pub(crate) struct Stream(Layer);

impl Stream {
    fn timed(socket: TcpStream, within: Duration) -> io::Result<Timed> {
        socket.set_nodelay(true)?;
        Ok(Timed { socket, deadline: Instant::now() + within })
    }

    /// Creates a stream without TLS.
    pub(crate) fn plain(socket: TcpStream, within: Duration) -> io::Result<Stream> {
        Ok(Stream(Layer::Plain(Stream::timed(socket, within)?)))
    }

    /// Makes the handshake as an end, and returns its side of the stream.
    pub(crate) fn client(
        socket: TcpStream,
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
        within: Duration,
    ) -> Result<Stream, ChannelFailure> {
        let mut timed = Stream::timed(socket, within)?;
        let mut session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut timed)?;
        }
        Ok(Stream(Layer::Client(Box::new(StreamOwned::new(session, timed)))))
    }

    /// Makes the handshake as a manager, and returns its side of the stream.
    pub(crate) fn server(
        socket: TcpStream,
        config: &Arc<ServerConfig>,
        within: Duration,
    ) -> Result<Stream, ChannelFailure> {
        let mut timed = Stream::timed(socket, within)?;
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut timed)?;
        }
        Ok(Stream(Layer::Server(Box::new(StreamOwned::new(session, timed)))))
    }

    /// Returns the certificates that the other end has shown; none without TLS.
    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        match &self.0 {
            Layer::Client(stream) => stream.conn.peer_certificates().unwrap_or_default(),
            Layer::Plain(_) => &[],
            Layer::Server(stream) => stream.conn.peer_certificates().unwrap_or_default(),
        }
    }

    /// Bounds the time within which everything that follows has to end.
    pub(crate) fn within(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        match &mut self.0 {
            Layer::Client(stream) => stream.sock.deadline = deadline,
            Layer::Plain(timed) => timed.deadline = deadline,
            Layer::Server(stream) => stream.sock.deadline = deadline,
        }
    }

    /// Sends one message.
    pub(crate) fn send(&mut self, number: u32, message: &Message) -> Result<(), ChannelFailure> {
        self.send_bytes(&encode(number, message)?)
    }

    /// Sends a frame.
    pub(crate) fn send_bytes(&mut self, frame: &[u8]) -> Result<(), ChannelFailure> {
        self.write_all(frame)?;
        Ok(self.flush()?)
    }

    /// Receives one message of at most `max` bytes, and its number.
    pub(crate) fn receive(&mut self, max: usize) -> Result<(u32, Message), ChannelFailure> {
        self.receive_sized(max).map(|(number, message, _)| (number, message))
    }

    /// Receives one message of at most `max` bytes, its number, and its bytes.
    pub(crate) fn receive_sized(&mut self, max: usize) -> Result<(u32, Message, usize), ChannelFailure> {
        let mut header = [0; HEADER_BYTES];
        self.read_exact(&mut header)?;
        let (bytes, number) = payload_bytes(&header, max)?;
        let mut payload = Vec::new();
        while payload.len() < bytes {
            let start = payload.len();
            payload.resize(bytes.min(start + STEP_BYTES), 0);
            self.read_exact(&mut payload[start..])?;
        }
        Ok((number, decode(&payload)?, bytes))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Layer::Client(stream) => stream.read(into),
            Layer::Plain(timed) => timed.read(into),
            Layer::Server(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Layer::Client(stream) => stream.write(bytes),
            Layer::Plain(timed) => timed.write(bytes),
            Layer::Server(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Layer::Client(stream) => stream.flush(),
            Layer::Plain(timed) => timed.flush(),
            Layer::Server(stream) => stream.flush(),
        }
    }
}
