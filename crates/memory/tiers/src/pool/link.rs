// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A connection to the host's agent: messages out, messages in, and the exchange that closes a volume.
//!
//! Threads: the one that has opened it. In another thread its descriptor may be another file's, so nothing is done
//! there.

use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{Answer, Decoder, Denial, Request, VERSION, encode};
use rustix::thread::{Pid, gettid};

/// How long the kernel may take to carry a message to the agent. Messages are short.
const SEND_WAIT: Duration = Duration::from_millis(500);
/// How long the agent has to note that the volume was closed.
pub(super) const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Bytes that are read at a time, and how often in one turn.
const READ_BYTES: usize = 16 << 10;
const READS_MAX: usize = 128;

/// One use of a volume by this process, as its agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The socket of the agent.
    pub(super) agent: PathBuf,
    pub(super) volume: String,
    pub(super) session: u64,
}

impl Use {
    /// Connects to the agent and asks for the volume.
    pub(super) fn connect(&self, holds: Vec<u64>) -> io::Result<Link> {
        let stream = UnixStream::connect(&self.agent)?;
        stream.set_write_timeout(Some(SEND_WAIT))?;
        let mut link = Link { stream: Some(stream), opener: gettid(), decoder: Decoder::default() };
        let (volume, session) = (self.volume.clone(), self.session);
        link.send(&Request::Open { version: VERSION, volume, session, holds })?;
        Ok(link)
    }

    /// Notifies the agent that this process has closed the volume, and waits until it has noted that.
    pub(super) fn close(&self, deadline: Instant) -> io::Result<()> {
        self.connect(Vec::new())?.close(deadline)
    }
}

/// A connection. Its descriptor is in the table of the thread that has opened it; in others, the number may be another
/// file's.
pub(super) struct Link {
    /// `None` once it was left to its thread.
    stream: Option<UnixStream>,
    opener: Pid,
    pub(super) decoder: Decoder,
}

impl Drop for Link {
    fn drop(&mut self) {
        if gettid() != self.opener {
            // Closed with its thread, or in its process.
            self.stream.take().into_iter().for_each(mem::forget);
        }
    }
}

impl Link {
    /// The socket, in the thread that has opened it.
    pub(super) fn stream(&self) -> io::Result<&UnixStream> {
        let is_ours = gettid() == self.opener;
        self.stream.as_ref().filter(|_| is_ours).ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Closes the volume, and waits until the agent has noted that. It then ends the connection. An agent that has
    /// denied the volume may have ended it before; its answer can still be read.
    fn close(mut self, deadline: Instant) -> io::Result<()> {
        let sent = self.send(&Request::Close);
        self.stream()?.set_nonblocking(false)?;
        loop {
            match self.decoder.take().map_err(io::Error::other)? {
                Some(Answer::Denied(Denial::Busy { .. } | Denial::NotRecorded { .. })) => {
                    return Err(ErrorKind::ResourceBusy.into());
                }
                // Another attempt would get the same answer.
                Some(Answer::Denied(_)) => return Ok(()),
                Some(_) => continue,
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream()?.set_read_timeout(Some(left))?;
            match self.receive() {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return sent,
                received => received?,
            }
        }
    }

    pub(super) fn send(&mut self, request: &Request) -> io::Result<()> {
        let frame = encode(request).map_err(io::Error::other)?;
        let mut stream = self.stream()?;
        stream.set_nonblocking(false)?;
        stream.write_all(&frame)?;
        stream.set_nonblocking(true)
    }

    /// The next message that has arrived.
    pub(super) fn next(&mut self) -> io::Result<Option<Answer>> {
        for _ in 0..READS_MAX {
            if let Some(answer) = self.decoder.take().map_err(io::Error::other)? {
                return Ok(Some(answer));
            }
            match self.receive() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    pub(super) fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        let mut stream = self.stream()?;
        match stream.read(&mut bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.decoder.push(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}
