// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One program: it opens a volume, gets a view of it and every later one, and reports its progress. Or it asks for the
//! volumes that its user may open (`session/listing.rs`), or a launcher shows its program's statistics
//! (`session/statistics.rs`).
//!
//! A program that sends something that is not a message, or that is too slow to send or to read, loses its connection,
//! and nothing else.
//!
//! Threads: one for each program.

mod listing;
mod statistics;

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_agent_wire::{AMBIGUOUS_MAX, Answer, Decoder, Denial, NotAFrame, Request, VERSION, View, encode};
use aquifer_fabric::VolumeId;
use aquifer_sys::wakeup::{Wakeup, readable};
use aquifer_telemetry::Side;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::host::Shared;
use crate::host_state::{Opening, Refusal, UserId};
use crate::processes::Process;
use crate::server::{Admitted, deny};

/// How long a program has to open a volume.
const OPEN_WAIT: Duration = Duration::from_secs(5);
/// How long a program has to take a view. It takes views on a thread that may also wait for donors.
const VIEW_WAIT: Duration = Duration::from_secs(60);
/// One wait for a program or for a change.
const SLEEP: Duration = Duration::from_secs(60);
/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// Messages that a program may send in a second. A choice: a program reports about once a second.
const MESSAGES_PER_SECOND_MAX: u32 = 50;

/// Who has connected, as the kernel says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

pub(crate) struct Session {
    shared: Arc<Shared>,
    peer: Peer,
    stream: UnixStream,
    decoder: Decoder,
    /// Its place among the programs that are served.
    admitted: Option<Admitted>,
    /// The descriptor that came with the first message, if one did.
    given: Option<OwnedFd>,
    /// When the current second of messages began, and how many have come.
    second: (Instant, u32),
}

/// Replaces a name by its address in numbers: programs do not look up names while they run. If that fails, the program
/// reports it.
fn resolve(address: &mut String) {
    if address.parse::<SocketAddr>().is_err()
        && let Some(found) = address.to_socket_addrs().ok().and_then(|mut found| found.next())
    {
        *address = found.to_string();
    }
}

/// Why a session ends.
enum Ending {
    Denied(Denial),
    Lost,
}

impl From<io::Error> for Ending {
    fn from(_: io::Error) -> Ending {
        Ending::Lost
    }
}

impl From<NotAFrame> for Ending {
    fn from(failure: NotAFrame) -> Ending {
        Ending::Denied(Denial::Malformed { why: failure.to_string() })
    }
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, peer: Peer, stream: UnixStream, admitted: Admitted) -> Session {
        let (decoder, second) = (Decoder::default(), (Instant::now(), 0));
        Session { shared, peer, stream, decoder, admitted: Some(admitted), given: None, second }
    }

    /// Serves the program until it closes the volume, ends, or breaks the protocol.
    pub(crate) fn serve(mut self) {
        let ended = match self.first_request() {
            Ok(Request::List { version }) => self.list(version),
            Ok(Request::Statistics { version }) => self.show(version),
            Ok(request) => self.use_volume(request),
            Err(ending) => Err(ending),
        };
        if let Err(Ending::Denied(denial)) = ended {
            self.shared.refusals.count(&denial);
            let _ = deny(&self.stream, denial);
        }
    }

    fn first_request(&mut self) -> Result<Request, Ending> {
        self.stream.set_nonblocking(false)?;
        let deadline = Instant::now() + OPEN_WAIT;
        loop {
            if let Some(request) = self.decoder.take()? {
                return Ok(request);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Ending::Lost);
            }
            self.stream.set_read_timeout(Some(left))?;
            self.receive_first()?;
        }
    }

    fn use_volume(&mut self, request: Request) -> Result<(), Ending> {
        let id = self.recorded(request)?;
        let ended = self.follow(id);
        // If it cannot be stored now, it is with the next change.
        let _ = self.shared.change(|host_state| host_state.disconnect(id));
        ended
    }

    /// Opens a volume as an operation.
    fn recorded(&mut self, request: Request) -> Result<UserId, Ending> {
        let mut operation = self.shared.telemetry.begin("open volume", Side::Server, None);
        if let Request::Open { volume, .. } = &request {
            operation.note("aquifer.volume", || volume.escape_debug().to_string());
        }
        operation.count("process.pid", self.peer.pid.into());
        let opened = self.open(request);
        match &opened {
            Ok(id) => operation.note("aquifer.volume.id", || id.volume.to_string()),
            Err(Ending::Denied(denial)) => operation.fail(|| denial.to_string()),
            Err(Ending::Lost) => operation.fail(|| "the program has disconnected".into()),
        }
        opened
    }

    fn open(&mut self, request: Request) -> Result<UserId, Ending> {
        let Request::Open { version, volume, session, holds } = request else {
            return Err(Ending::Denied(Denial::Malformed { why: "the first message does not open a volume".into() }));
        };
        if version != VERSION {
            return Err(Ending::Denied(Denial::Version { version: VERSION }));
        }
        let Peer { uid, gid, pid } = self.peer;
        let opening = Opening { volume: &volume, process: Process::of(pid), session, uid, gid, holds: &holds };
        let (permits, programs) = (self.shared.permits(), self.shared.settings.programs_max);
        let (opened, stored) = self.shared.change(|host_state| host_state.admit_program(opening, &permits, programs));
        let id = opened.map_err(|refusal| {
            Ending::Denied(match refusal {
                Refusal::Ambiguous(ids) => {
                    Denial::Ambiguous { ids: ids.iter().take(AMBIGUOUS_MAX).map(VolumeId::to_string).collect() }
                }
                Refusal::Busy => Denial::Busy { programs },
                Refusal::NotBound => Denial::NotBound { host: self.shared.settings.host.to_string() },
                Refusal::NotPermitted => Denial::NotPermitted { uid, gid },
            })
        })?;
        if let Err(error) = stored {
            let _ = self.shared.change(|host_state| host_state.take_back(id));
            return Err(Ending::Denied(Denial::NotRecorded { why: error.to_string() }));
        }
        Ok(id)
    }

    /// Begins to send what changes: signalled at each change, and a client that does not read is given up.
    fn watch_changes(&self) -> io::Result<Arc<Wakeup>> {
        let wakeup = Arc::new(Wakeup::new().map_err(|errno| io::Error::from_raw_os_error(errno.0))?);
        self.shared.watch(&wakeup);
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(Some(VIEW_WAIT))?;
        Ok(wakeup)
    }

    /// Sends each new view, and takes reports. What a program sent before it went counts although it gets no view any
    /// more: it may have closed the volume.
    fn follow(&mut self, id: UserId) -> Result<(), Ending> {
        let wakeup = self.watch_changes()?;
        let mut sent = None;
        loop {
            if let Err(ending) = self.send_view(id, &mut sent) {
                return if self.take_reports(id)? { Ok(()) } else { Err(ending) };
            }
            if self.take_reports(id)? {
                return Ok(());
            }
            wakeup.sleep(Some(self.stream.as_raw_fd()), SLEEP);
        }
    }

    /// Sends the view if it is not the one that was sent last.
    fn send_view(&self, id: UserId, sent: &mut Option<View>) -> Result<(), Ending> {
        let surroundings = self.shared.surroundings();
        let (view, stored) = self.shared.change(|host_state| host_state.view(id, &surroundings));
        // A member that a restarted agent would not know of must not be given.
        stored?;
        // The volume was closed on another connection.
        let mut view = view.ok_or(Ending::Lost)?;
        view.members.iter_mut().for_each(|member| resolve(&mut member.address));
        let revision = std::mem::take(&mut view.revision);
        if sent.as_ref() != Some(&view) {
            let numbered = View { revision, ..view.clone() };
            (&self.stream).write_all(&encode(&Answer::View(numbered))?)?;
            *sent = Some(view);
        }
        Ok(())
    }

    /// Takes what the program has sent, and waits for nothing. Returns whether it has closed the volume.
    fn take_reports(&mut self, id: UserId) -> Result<bool, Ending> {
        loop {
            while let Some(request) = self.decoder.take::<Request>()? {
                self.count()?;
                match request {
                    Request::Progress(members) => {
                        _ = self.shared.change(|host_state| host_state.progress(id, &members))
                    }
                    Request::Close => {
                        let _ = self.shared.change(|host_state| host_state.close(id));
                        return Ok(true);
                    }
                    Request::List { .. } | Request::Open { .. } | Request::Statistics { .. } => {
                        let why = "a volume is open on this connection already".into();
                        return Err(Ending::Denied(Denial::Malformed { why }));
                    }
                }
            }
            if !readable(self.stream.as_raw_fd(), Duration::ZERO) {
                return Ok(false);
            }
            self.receive()?;
        }
    }

    /// Receives bytes of the first message, and the descriptor that comes with it. Further ones are closed.
    fn receive_first(&mut self) -> Result<(), Ending> {
        let mut bytes = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let count = match rustix::net::recvmsg(&self.stream, into, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(Ending::Lost),
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|descriptor| _ = self.given.get_or_insert(descriptor));
            }
        }
        self.decoder.push(&bytes[..count]);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Ending> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(Ending::Lost),
            Ok(count) => {
                self.decoder.push(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn count(&mut self) -> Result<(), Ending> {
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            self.second = (Instant::now(), 0);
        }
        self.second.1 += 1;
        if self.second.1 > MESSAGES_PER_SECOND_MAX {
            let why = format!("more than {MESSAGES_PER_SECOND_MAX} messages in a second");
            return Err(Ending::Denied(Denial::Malformed { why }));
        }
        Ok(())
    }
}
