// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shows the statistics of a program to the agent of its host, for the agent's metrics.
//!
//! `aquifer run` holds the statistics segment for as long as its program lives. It passes a descriptor of the segment
//! to the agent, with which the agent reads the numbers at each scrape: the agent may run as a user that cannot look
//! into the program. Without an agent, or without metrics there, nothing happens, and the launcher tries again now and
//! then: a program runs as well without being shown.
//!
//! Threads: the caller's. Nothing here waits: an agent that is stopped must not delay a signal for the program.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{Request, VERSION, encode};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The first pause after an agent was not there, or has ended the connection; each later one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
/// The longest such pause. A connection that lasts longer than this begins a new row of pauses.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The statistics of one program, shown to an agent whenever there is one.
#[derive(Debug)]
pub struct Showing {
    /// The socket of the agent.
    agent: PathBuf,
    /// The segment, opened for reading.
    segment: File,
    /// The connection over which the statistics are shown, and when it was made.
    link: Option<(UnixStream, Instant)>,
    /// When to connect next; `None` for at once.
    connect_at: Option<Instant>,
    pause: Duration,
}

impl Showing {
    /// Prepares to show a segment to the agent at this socket. Fails without /proc.
    pub fn new(agent: PathBuf, segment: BorrowedFd<'_>) -> io::Result<Showing> {
        let segment = File::open(format!("/proc/self/fd/{}", segment.as_raw_fd()))?;
        Ok(Showing { agent, segment, link: None, connect_at: None, pause: PAUSE_FIRST })
    }

    /// Connects to the agent if there is no connection and it is time to try. To be called about once a second.
    pub fn look(&mut self, now: Instant) {
        if let Some((link, since)) = &mut self.link {
            // The agent sends nothing except a denial, and then ends the connection.
            match link.read(&mut [0; 64]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                _ => {
                    if now.duration_since(*since) > PAUSE_MAX {
                        self.pause = PAUSE_FIRST;
                    }
                    self.link = None;
                    self.wait(now);
                }
            }
        } else if self.connect_at.is_none_or(|at| at <= now) {
            match self.connect() {
                Ok(link) => self.link = Some((link, now)),
                Err(_) => self.wait(now),
            }
        }
    }

    fn wait(&mut self, now: Instant) {
        self.connect_at = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Connects, and passes the descriptor with the request. Fails where that would wait.
    fn connect(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.agent.as_path())?)?;
        let request = encode(&Request::Statistics { version: VERSION }).map_err(io::Error::other)?;
        let descriptors = [self.segment.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        beside.push(SendAncillaryMessage::ScmRights(&descriptors));
        let sent = rustix::net::sendmsg(&socket, &[IoSlice::new(&request)], &mut beside, SendFlags::NOSIGNAL)?;
        // So few bytes are sent completely, or not at all.
        if sent == request.len() { Ok(socket.into()) } else { Err(ErrorKind::WriteZero.into()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_agent_is_tried_at_once_then_ever_more_rarely_and_again_when_it_is_back() {
        let directory = std::env::temp_dir().join(format!("aq-showing-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s");
        let file = File::open("/dev/null").unwrap();
        let mut showing = Showing::new(path.clone(), file.as_fd()).unwrap();
        let begun = Instant::now();
        let after = |s: u64| begun + Duration::from_secs(s);
        showing.look(begun);
        assert!(showing.link.is_none());
        let listener = UnixListener::bind(&path).unwrap();
        showing.look(after(4));
        assert!(showing.link.is_none(), "it is too early");
        showing.look(after(5));
        assert!(showing.link.is_some());
        let (agent, _) = listener.accept().unwrap();
        showing.look(after(6));
        assert!(showing.link.is_some(), "an agent that says nothing shows the statistics");
        drop(agent);
        // It had the second pause of its row, since the connection was short.
        showing.look(after(7));
        assert!(showing.link.is_none());
        assert_eq!(showing.connect_at, Some(after(17)));
        showing.look(after(17));
        let (agent, _) = listener.accept().unwrap();
        drop(agent);
        showing.look(after(117));
        assert_eq!(showing.connect_at, Some(after(122)), "the connection was a long one");
        let mut late = after(122);
        drop(listener);
        for _ in 0..10 {
            showing.look(late);
            late = showing.connect_at.unwrap();
        }
        showing.look(late);
        assert_eq!(showing.connect_at, Some(late + PAUSE_MAX));
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// A launcher that waited here would forward no signal to its program.
    #[test]
    fn an_agent_that_accepts_nobody_is_not_waited_for() {
        let directory = std::env::temp_dir().join(format!("aq-showing-full-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("s");
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(path.as_path()).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let file = File::open("/dev/null").unwrap();
        let mut showings: Vec<Showing> = (0..8).map(|_| Showing::new(path.clone(), file.as_fd()).unwrap()).collect();
        showings.iter_mut().for_each(|showing| showing.look(Instant::now()));
        let queued = showings.iter().filter(|showing| showing.link.is_some()).count();
        assert!((1..8).contains(&queued), "{queued}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}
