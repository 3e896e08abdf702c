// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager that is connected, and the packets in both directions.
//!
//! Threads: one reads what the manager sends and answers it (`server.rs`), and one writes to it what waits in its
//! outbox. So a manager that does not read delays only itself. Its own answers wait until its outbox has room. Any
//! other message for it does not wait: if there is no room for one, the connection ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aquifer_fmapi::{PACKET_BYTES, Received, packets};

/// How long a peer may take to read one message; then its connection ends.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a packet may take to arrive once its first byte has; then its connection ends.
const PACKET_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages of at most 8 KiB that wait to be written to a peer.
const OUTBOX_MAX: usize = 64;

/// A stream of packets in both directions, for a thread that reads and one that writes.
pub trait Stream: Send + Sync + 'static {
    /// Reads some bytes; `None` waits for ever.
    fn read(&self, into: &mut [u8], wait: Option<Duration>) -> io::Result<usize>;
    /// Writes some bytes.
    fn write(&self, bytes: &[u8], wait: Duration) -> io::Result<usize>;
    /// Ends it in both directions.
    fn end(&self);
}

/// Both kinds of stream have the same methods, of no common trait.
macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn read(&self, into: &mut [u8], wait: Option<Duration>) -> io::Result<usize> {
                self.set_read_timeout(wait)?;
                Read::read(&mut &*self, into)
            }

            fn write(&self, bytes: &[u8], wait: Duration) -> io::Result<usize> {
                self.set_write_timeout(Some(wait))?;
                Write::write(&mut &*self, bytes)
            }

            fn end(&self) {
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}

stream!(TcpStream);
stream!(UnixStream);

/// A manager that is connected.
pub struct Peer {
    stream: Arc<dyn Stream>,
    outbox: SyncSender<Received>,
    admitted: Instant,
    /// When its last message arrived.
    spoken: Mutex<Option<Instant>>,
}

impl Peer {
    /// Creates the peer of a manager that was admitted now, and what its writer writes.
    pub fn new(stream: Box<dyn Stream>) -> (Arc<Self>, Outbox) {
        let (stream, (outbox, waiting)) = (Arc::<dyn Stream>::from(stream), sync_channel(OUTBOX_MAX));
        let writer = Outbox { stream: Arc::clone(&stream), waiting };
        let peer = Self { stream, outbox, admitted: Instant::now(), spoken: Mutex::default() };
        (Arc::new(peer), writer)
    }

    /// Returns the next packet; none when the peer is gone, or has not sent the whole packet in time.
    pub fn read_packet(&self) -> Option<[u8; PACKET_BYTES]> {
        let (mut packet, mut have, mut deadline) = ([0; PACKET_BYTES], 0, None);
        while have < PACKET_BYTES {
            let wait = deadline.map(|it: Instant| it.saturating_duration_since(Instant::now()));
            if wait == Some(Duration::ZERO) {
                return None;
            }
            match self.stream.read(&mut packet[have..], wait) {
                Ok(0) => return None,
                Ok(more) => have += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
            deadline = deadline.or_else(|| Some(Instant::now() + PACKET_TIMEOUT));
        }
        Some(packet)
    }

    /// Notes that one of its messages has arrived.
    pub fn note_message(&self) {
        *self.spoken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns how long it has been since its last message, or since it was admitted, and whether it has sent any.
    pub fn silent_for(&self, now: Instant) -> (Duration, bool) {
        let spoken = *self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
        (now.saturating_duration_since(spoken.unwrap_or(self.admitted)), spoken.is_some())
    }

    /// Sends an answer to a request of its, on the thread that reads its requests: waits until there is room.
    pub fn answer(&self, message: Received) {
        // It fails when the writer has ended, and the stream with it.
        let _ = self.outbox.send(message);
    }

    /// Sends a message without waiting. A peer that does not read what it gets is cut off.
    pub fn send(&self, message: Received) {
        if self.outbox.try_send(message).is_err() {
            self.end();
        }
    }

    /// Ends its connection, and so its threads.
    pub fn end(&self) {
        self.stream.end();
    }
}

/// What waits to be written to a peer.
pub struct Outbox {
    stream: Arc<dyn Stream>,
    waiting: Receiver<Received>,
}

impl Outbox {
    /// Writes what waits, until the peer is gone. A peer that does not read a message in time is cut off.
    pub fn write(self) {
        let mut sequence = 0;
        while let Ok(message) = self.waiting.recv() {
            if self.write_one(&packets(&message, &mut sequence)).is_err() {
                self.stream.end();
                return;
            }
        }
    }

    fn write_one(&self, bytes: &[u8]) -> io::Result<()> {
        let (deadline, mut written) = (Instant::now() + WRITE_TIMEOUT, 0);
        while written < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.stream.write(&bytes[written..], left) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
