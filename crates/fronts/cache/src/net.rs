// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The sockets of a server: accepts clients, and says which of them have sent something.
//!
//! epoll(7), level-triggered. Nothing here waits while contexts have work: between two contexts, [`Net::look`] gets a
//! time limit of zero, and only checks what has arrived.
//!
//! Threads: the server's.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

pub use self::connection::{Batch, OUTPUT_BYTES_HIGH};
use self::connection::{Connection, READ_BYTES};

mod connection;

/// Maximum number of events that are taken at a time.
const EVENTS_MAX: usize = 64;
/// Maximum number of clients that are accepted at a time.
const ACCEPTS_MAX: usize = 64;
/// How often the server looks for clients that leave their replies unread, and how long accepting pauses when the
/// process has no descriptor for another client.
const CHECK_EVERY: Duration = Duration::from_secs(1);
const LISTENER: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

/// The number of a connection. Numbers of closed connections are used again.
pub type ConnectionIndex = usize;

/// The listening socket and all connections.
#[derive(Debug)]
pub struct Net {
    epoll: OwnedFd,
    listener: TcpListener,
    /// Readable when the server is to end; kept open for that.
    _end: UnixStream,
    connections: Vec<Option<Connection>>,
    free: Vec<ConnectionIndex>,
    connections_max: usize,
    /// Maximum value of `buffered`.
    buffers_max: usize,
    /// Memory of the buffers of all connections.
    buffered: usize,
    /// Connections with something to decode.
    queue: VecDeque<ConnectionIndex>,
    /// The buffer through which bytes are read from sockets.
    received: Vec<u8>,
    checked_at: Instant,
    /// True while the process has no descriptor for another client.
    is_paused: bool,
    /// Clients that were accepted so far, and those that were refused.
    pub accepted: u64,
    /// Clients that were refused so far.
    pub refused: u64,
    /// Connections that were ended so far, because the buffers of all connections together had grown too large.
    pub evicted: u64,
    /// Whether the process was asked to end.
    pub has_ended: bool,
}

impl Net {
    /// Serves the listener. `end` becomes readable when the server is to end.
    pub fn new(listener: TcpListener, end: UnixStream, connections_max: usize, buffers_max: usize) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &end, EventData::new_u64(END), EventFlags::IN)?;
        Ok(Self {
            epoll,
            listener,
            _end: end,
            connections: Vec::new(),
            free: Vec::new(),
            connections_max,
            buffers_max,
            buffered: 0,
            queue: VecDeque::new(),
            received: vec![0; READ_BYTES],
            checked_at: Instant::now(),
            is_paused: false,
            accepted: 0,
            refused: 0,
            evicted: 0,
            has_ended: false,
        })
    }

    /// Returns the number of clients.
    pub fn connected(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Takes the next batch of requests.
    pub fn next_batch(&mut self) -> Option<(ConnectionIndex, Batch)> {
        while let Some(index) = self.queue.pop_front() {
            let Some(connection) = &mut self.connections[index] else { continue };
            connection.is_queued = false;
            let batch = if connection.may_begin() { connection.take_batch() } else { None };
            connection.is_busy |= batch.is_some();
            self.settle(index);
            if let Some(batch) = batch {
                return Some((index, batch));
            }
        }
        None
    }

    /// Takes the replies to a batch, and `undone`, the bytes of its requests that were not carried out.
    pub fn reply(&mut self, index: ConnectionIndex, replies: &[u8], undone: &[u8], is_last: bool) {
        let connection = self.connections[index].as_mut().expect("a busy connection stays");
        connection.is_busy = false;
        connection.reply(replies, undone, is_last);
        self.enqueue(index);
        self.settle(index);
    }

    /// Handles what has happened at the sockets; waits until something happens if `waits`.
    pub fn look(&mut self, waits: bool) -> io::Result<()> {
        let needs_check = || self.is_paused || self.connections.iter().flatten().any(Connection::has_unsent);
        let limit = match waits {
            false => Some(Duration::ZERO),
            true => needs_check().then_some(CHECK_EVERY),
        };
        let limit = limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 });
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut accepts = false;
        for event in events {
            match event.data.u64() {
                LISTENER => accepts = true,
                END => self.has_ended = true,
                index => self.serve(index as ConnectionIndex, event.flags),
            }
        }
        // After the events of all connections: a new one may get the number of one that has just ended.
        if accepts {
            self.accept()?;
        }
        self.check()
    }

    fn serve(&mut self, index: ConnectionIndex, flags: EventFlags) {
        let Some(connection) = &mut self.connections[index] else { return };
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            connection.is_broken = true;
        }
        if flags.contains(EventFlags::OUT) {
            connection.send();
        }
        if flags.contains(EventFlags::IN) {
            connection.receive(&mut self.received);
        }
        self.enqueue(index);
        self.settle(index);
    }

    fn enqueue(&mut self, index: ConnectionIndex) {
        let Some(connection) = &mut self.connections[index] else { return };
        if !connection.is_queued && connection.may_begin() {
            connection.is_queued = true;
            self.queue.push_back(index);
        }
    }

    /// Closes a connection that is over, and watches the others for what they need. Ends the connections with the
    /// largest buffers while all of them together are too large.
    fn settle(&mut self, index: ConnectionIndex) {
        self.settle_one(index);
        while self.buffered > self.buffers_max {
            let alive = |(index, connection): (usize, &Option<Connection>)| {
                connection.as_ref().filter(|connection| !connection.is_broken).map(|of| (of.buffered(), index))
            };
            // What is left is lent to contexts, and comes back.
            let Some((_, largest)) = self.connections.iter().enumerate().filter_map(alive).max() else { return };
            if let Some(connection) = &mut self.connections[largest] {
                connection.discard();
                self.evicted += 1;
            }
            self.settle_one(largest);
        }
    }

    fn settle_one(&mut self, index: ConnectionIndex) {
        let Some(connection) = &mut self.connections[index] else { return };
        let buffered = connection.buffered();
        self.buffered = self.buffered - connection.counted + buffered;
        connection.counted = buffered;
        // A broken socket would be reported again and again.
        let wanted = if connection.is_broken { None } else { Some(connection.wanted()) };
        if connection.is_over() {
            self.buffered -= connection.counted;
            self.connections[index] = None;
            self.free.push(index);
        } else if wanted != Some(connection.watched) {
            let data = EventData::new_u64(index as u64);
            let watched = match wanted {
                None => epoll::delete(&self.epoll, connection.stream()),
                Some(wanted) => epoll::modify(&self.epoll, connection.stream(), data, wanted),
            };
            connection.watched = wanted.unwrap_or(EventFlags::empty());
            connection.is_broken |= watched.is_err();
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                // No descriptor or no memory: the listener would be reported again and again.
                Err(_) => return self.pause(true),
            };
            if self.connected() >= self.connections_max {
                self.refused += 1;
                // Redis's text. A client that does not read it sees the end of the connection.
                let _ = stream.set_nonblocking(true);
                let _ = io::Write::write(&mut &stream, b"-ERR max number of clients reached\r\n");
                continue;
            }
            let Ok(mut connection) = Connection::new(stream) else { continue };
            connection.watched = connection.wanted();
            let index = self.free.pop().unwrap_or(self.connections.len());
            let data = EventData::new_u64(index as u64);
            let watched = epoll::add(&self.epoll, connection.stream(), data, connection.watched);
            if index == self.connections.len() {
                self.connections.push(None);
            }
            match watched {
                Ok(()) => {
                    self.connections[index] = Some(connection);
                    self.accepted += 1;
                }
                Err(_) => {
                    self.free.push(index);
                    self.refused += 1;
                }
            }
        }
        Ok(())
    }

    /// Stops or continues to accept clients.
    fn pause(&mut self, is_paused: bool) -> io::Result<()> {
        self.is_paused = is_paused;
        let flags = if is_paused { EventFlags::empty() } else { EventFlags::IN };
        Ok(epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)?)
    }

    /// Disconnects clients that leave their replies unread, and tries again to accept.
    fn check(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if now.saturating_duration_since(self.checked_at) < CHECK_EVERY {
            return Ok(());
        }
        self.checked_at = now;
        if self.is_paused {
            self.pause(false)?;
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = self.connections[index].as_mut().filter(|connection| connection.is_stuck(now)) {
                connection.is_broken = true;
                self.settle(index);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;

    /// A client whose connection was ended to free its buffers had hung up at the same moment, and its event then ended
    /// the connection of the client that was accepted in its place.
    #[test]
    fn a_client_that_was_just_accepted_does_not_get_the_event_of_the_one_before() {
        const BUFFERS_MAX: usize = 300 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (end, _ender) = UnixStream::pair().unwrap();
        let mut net = Net::new(listener, end, 10, BUFFERS_MAX).unwrap();
        let connect = || TcpStream::connect(address).unwrap();
        let (mut small, mut large) = (connect(), connect());
        let until = |net: &mut Net, is_so: &dyn Fn(&Net) -> bool| {
            let started = Instant::now();
            while !is_so(net) {
                assert!(started.elapsed() < Duration::from_secs(60));
                net.look(false).unwrap();
                std::thread::yield_now();
            }
        };
        until(&mut net, &|net| net.connected() == 2);
        // A reply that it does not read, so that its end is a reset.
        large.write_all(b"PING\r\n").unwrap();
        until(&mut net, &|net| !net.queue.is_empty());
        let (index, batch) = net.next_batch().unwrap();
        assert_eq!(batch.requests.len(), 1);
        net.reply(index, b"+PONG\r\n", &[], false);
        let part = [b"*1\r\n$1048576\r\n".as_slice(), &[b'v'; 200 << 10]].concat();
        large.write_all(&part).unwrap();
        // All of it has arrived here, and each look reads a part of it.
        (0..10).for_each(|_| net.look(false).unwrap());
        assert!(net.buffered > 200 << 10);
        // One after the other, so that the events are in this order.
        let pause = || std::thread::sleep(Duration::from_millis(50));
        small.write_all(&part[..60 << 10]).unwrap();
        pause();
        let _new = connect();
        pause();
        drop(large);
        pause();
        net.buffers_max = net.buffered;
        net.look(false).unwrap();
        assert_eq!((net.evicted, net.accepted, net.connected()), (1, 3, 2));
    }
}
