// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One client: the bytes that it has sent and that are not decoded yet, and the replies that it has not read yet.
//!
//! Both have limits. A client whose replies pile up gets no further request carried out and nothing more read from its
//! socket, so it slows down only itself. One that reads nothing for a while is disconnected.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use crate::request::{Decoder, ProtocolFailure, REQUEST_BYTES_MAX, WORDS_MAX};

/// Bytes that are read at a time.
pub const READ_BYTES: usize = 64 << 10;
/// Maximum number of requests in a batch. Enough for the pipelines of common clients; a longer one takes several.
const BATCH_REQUESTS_MAX: usize = 128;
/// Maximum number of words in a batch of several requests, so that others do not wait for many long ones of one client.
const BATCH_WORDS_MAX: usize = WORDS_MAX;
/// Bytes of replies that wait for a client before its requests wait, too.
pub const OUTPUT_BYTES_HIGH: usize = 1 << 20;
/// Maximum number of bytes that wait to be decoded: a whole request, and the bytes that are read together with its
/// end.
const INPUT_BYTES_MAX: usize = REQUEST_BYTES_MAX + READ_BYTES;
/// How long a client may leave its replies unread.
pub const UNREAD_MAX: Duration = Duration::from_secs(60);
/// Memory of a buffer that is kept while it is empty.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Requests that have arrived, with their bytes.
#[derive(Debug, Default)]
pub struct Batch {
    /// The bytes of all of them.
    pub bytes: Vec<u8>,
    /// The words of each, as ranges of the bytes.
    pub requests: Vec<Vec<Range<usize>>>,
    /// Where each request begins in the bytes.
    pub starts: Vec<usize>,
    /// Why the bytes that follow cannot be decoded; the connection then ends.
    pub failure: Option<ProtocolFailure>,
}

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    decoder: Decoder,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of `output` was sent.
    sent: usize,
    /// When something was last sent while there was something to send.
    sent_at: Instant,
    /// True while a context works on a batch.
    pub is_busy: bool,
    /// Bytes of that batch.
    lent: usize,
    /// True if the input may have a whole request, which the last batch had no room for.
    has_more: bool,
    /// What [`buffered`](Self::buffered) was when it was last added to the sum of all connections.
    pub counted: usize,
    /// True while it is in the queue of connections with input.
    pub is_queued: bool,
    /// True when the client will send nothing more.
    has_ended: bool,
    /// True when nothing more is read, and the connection ends when the replies are sent.
    is_closing: bool,
    /// True when the socket has failed.
    pub is_broken: bool,
    /// What epoll(7) watches it for.
    pub watched: EventFlags,
}

impl Connection {
    /// Creates the connection of a socket that was accepted.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            decoder: Decoder::default(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            sent_at: Instant::now(),
            is_busy: false,
            lent: 0,
            has_more: false,
            counted: 0,
            is_queued: false,
            has_ended: false,
            is_closing: false,
            is_broken: false,
            watched: EventFlags::empty(),
        })
    }

    /// Returns the socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns whether a batch may begin.
    pub fn may_begin(&self) -> bool {
        !self.is_busy && !self.is_broken && !self.is_closing && self.unsent() < OUTPUT_BYTES_HIGH
    }

    /// Returns the memory of its buffers, and of the batch that a context works on. None once it is to end: that of a
    /// batch comes back when its context ends, and other connections must not end for it.
    pub fn buffered(&self) -> usize {
        let all = self.input.capacity() + self.output.capacity() + self.decoder.bytes() + self.lent;
        if self.is_broken { 0 } else { all }
    }

    /// Ends the connection, once no context works on a batch of it, and gives back its buffers now.
    pub fn discard(&mut self) {
        self.is_broken = true;
        (self.input, self.output, self.sent, self.decoder) = (Vec::new(), Vec::new(), 0, Decoder::default());
    }

    /// Returns whether more is to be read. What cannot be carried out yet is left to the client's side, so that the
    /// input has little more than one request.
    fn reads(&self) -> bool {
        let input_max = if self.is_busy || self.has_more { READ_BYTES } else { INPUT_BYTES_MAX };
        self.input.len() < input_max && !self.has_ended && !self.is_closing && !self.is_broken
    }

    /// Returns what epoll(7) is to watch the socket for.
    pub fn wanted(&self) -> EventFlags {
        let mut wanted = EventFlags::empty();
        wanted.set(EventFlags::IN, self.reads() && self.unsent() < OUTPUT_BYTES_HIGH);
        wanted.set(EventFlags::OUT, self.unsent() > 0);
        wanted
    }

    /// Returns whether the connection is over.
    pub fn is_over(&self) -> bool {
        !self.is_busy
            && (self.is_broken || self.unsent() == 0 && !self.is_queued && (self.has_ended || self.is_closing))
    }

    /// Returns whether the client has left its replies unread for too long.
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.unsent() > 0 && now.saturating_duration_since(self.sent_at) > UNREAD_MAX
    }

    /// Returns whether there are replies to send.
    pub fn has_unsent(&self) -> bool {
        self.unsent() > 0
    }

    /// Reads once, through a buffer of [`READ_BYTES`]: zeroing as much for each request takes longer than to copy it.
    pub fn receive(&mut self, buffer: &mut [u8]) {
        if !self.reads() {
            return;
        }
        match (&self.stream).read(buffer) {
            Ok(0) => self.has_ended = true,
            Ok(read) => self.input.extend_from_slice(&buffer[..read]),
            Err(error) if is_transient(&error) => {}
            Err(_) => self.is_broken = true,
        }
    }

    /// Takes the requests that have arrived whole. Returns `None` if there are none.
    pub fn take_batch(&mut self) -> Option<Batch> {
        let (mut batch, mut end, mut words_count) = (Batch::default(), 0, 0);
        self.has_more = true;
        while batch.requests.len() < BATCH_REQUESTS_MAX && words_count < BATCH_WORDS_MAX {
            match self.decoder.decode(&self.input[end..]) {
                Ok(None) => {
                    self.has_more = false;
                    break;
                }
                Ok(Some(request)) => {
                    let words = request.words.into_iter().map(|word| word.start + end..word.end + end);
                    // An empty line has no reply.
                    words_count += words.len();
                    if words.len() > 0 {
                        batch.requests.push(words.collect());
                        batch.starts.push(end);
                    }
                    end += request.bytes;
                }
                Err(failure) => {
                    batch.failure = Some(failure);
                    break;
                }
            }
        }
        batch.bytes = self.input.drain(..end).collect();
        self.lent = end;
        shrink(&mut self.input);
        let is_empty = batch.requests.is_empty() && batch.failure.is_none();
        (!is_empty).then_some(batch)
    }

    /// Adds replies, and sends what the socket takes. `undone` are the bytes of requests that were taken, but not
    /// carried out. `is_last`: no request is read after this one.
    pub fn reply(&mut self, replies: &[u8], undone: &[u8], is_last: bool) {
        if self.unsent() == 0 {
            self.sent_at = Instant::now();
        }
        self.lent = 0;
        if !undone.is_empty() {
            self.has_more = true;
            self.decoder = Decoder::default();
            self.input.splice(0..0, undone.iter().copied());
        }
        self.is_closing |= is_last;
        self.output.extend_from_slice(replies);
        self.send();
    }

    /// Sends what the socket takes.
    pub fn send(&mut self) {
        while self.unsent() > 0 && !self.is_broken {
            match (&self.stream).write(&self.output[self.sent..]) {
                Ok(0) => self.is_broken = true,
                Ok(sent) => {
                    self.sent += sent;
                    self.sent_at = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_broken = true,
            }
        }
        self.output.clear();
        self.sent = 0;
        shrink(&mut self.output);
    }
}

fn shrink(buffer: &mut Vec<u8>) {
    if buffer.is_empty() && buffer.capacity() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_batch_counts_until_it_is_replied_to_or_the_connection_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connection = Connection::new(listener.accept().unwrap().0).unwrap();
        let mut received = vec![0; READ_BYTES];
        let mut next = |connection: &mut Connection| {
            client.write_all(format!("GET {}\r\n", "k".repeat(4000)).as_bytes()).unwrap();
            loop {
                connection.receive(&mut received);
                if let Some(batch) = connection.take_batch() {
                    return batch.bytes.len();
                }
            }
        };
        let bytes = next(&mut connection);
        assert!(bytes > 4000 && connection.buffered() >= bytes);
        connection.reply(b"$-1\r\n", &[], false);
        let idle = connection.buffered();
        next(&mut connection);
        assert_eq!(connection.buffered(), idle + bytes, "its buffers are kept, and the batch is lent");
        connection.discard();
        assert_eq!(connection.buffered(), 0, "nobody else ends for a batch that a context has");
        assert!(connection.is_over());
    }
}
