// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The control socket: an administrator on this machine reclaims memory, or asks for the donor's figures.
//!
//! It is a Unix socket that its owner and root can reach: it has the right mode before it has a name, and the peer's
//! identity is checked in addition. Nobody on the network can reach it. A connection carries one request, a frame of
//! `aquifer_wire` without a greeting, and its answer.
//!
//! Threads: one thread for everything here; it serves one connection at a time, each within a bounded time.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_sys::peer_credentials::PeerCredentials;
use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::{DonorStatus, HEADER_BYTES, Header, Message, Refusal, SLAB_BYTES, STATUS_BYTES};
use rustix::process::geteuid;

use crate::listener::Shared;
use crate::local_socket;
use crate::settings::StartFailure;

/// How long the donor waits for a request: both ends are on one machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait for an answer: reclaimed memory is wiped first, and another administrator's request may be served
/// before this one. Enough for half a TiB in huge pages.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Nothing happens when this ends; it only bounds the wait for a connection.
const SLEEP: Duration = Duration::from_secs(3600);
/// The pause after a connection could not be accepted, for instance because there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of connections that wait to be served.
const WAITING_MAX: i32 = 16;

/// The control socket, at which an administrator reclaims memory or asks for the donor's status.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    listener: UnixListener,
    pub(crate) wakeup: Wakeup,
}

impl Control {
    /// Creates the socket. Replaces a socket that was left by a donor that did not end properly.
    pub(crate) fn listen(path: &Path) -> Result<Control, StartFailure> {
        let failure = |error: io::Error| StartFailure::Control(path.into(), error);
        remove_what_is_left(path).map_err(failure)?;
        let listener = local_socket::listen(path, WAITING_MAX).map_err(failure)?;
        listener.set_nonblocking(true).map_err(failure)?;
        let wakeup = Wakeup::new().map_err(|errno| failure(io::Error::from_raw_os_error(errno.0)))?;
        Ok(Control { path: path.into(), listener, wakeup })
    }

    /// The thread's loop.
    pub(crate) fn run(&self, shared: &Shared) {
        while !shared.is_over.load(Ordering::Acquire) {
            match self.listener.accept() {
                // A failure concerns one connection only; its peer sees it end.
                Ok((stream, _)) => drop(serve(shared, stream)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wakeup.sleep(Some(self.listener.as_raw_fd()), SLEEP);
                }
                Err(_) => self.wakeup.sleep(None, PAUSE),
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes a socket at which nobody listens; leaves anything else alone.
fn remove_what_is_left(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(ErrorKind::AddrInUse.into()),
        Ok(_) if local_socket::is_left(path) => fs::remove_file(path),
        Ok(_) => Err(ErrorKind::AddrInUse.into()),
    }
}

fn serve(shared: &Shared, mut stream: UnixStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let peer = PeerCredentials::of(&stream)?.uid;
    if peer != geteuid().as_raw() && peer != 0 {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes)?;
    let request = Header::decode(&bytes);
    let (answer, body) = match request.map(|header| header.message) {
        Ok(Message::Reclaim { bytes, within_ms }) => {
            let within = Duration::from_millis(within_ms);
            let left = shared.service.reclaim(bytes, within);
            shared.service.counters.say(&ordered(bytes, left, within));
            (Message::Reclaiming { bytes: left }, Vec::new())
        }
        Ok(Message::Status) => (Message::StatusReport, shared.service.status(shared.count()).encode().to_vec()),
        Ok(_) => (Message::Error { refusal: Refusal::UnknownKind }, Vec::new()),
        Err(refusal) => (Message::Error { refusal }, Vec::new()),
    };
    let number = request.map_or(0, |header| header.request);
    stream.write_all(&Header::new(number, answer, &body).encode())?;
    stream.write_all(&body)
}

/// Returns the line about an order to reclaim memory, of which borrowers still have `left` bytes.
fn ordered(bytes: u64, left: u64, within: Duration) -> String {
    let wants = if bytes == crate::EVERY_BYTE {
        "everything".to_owned()
    } else {
        ByteSize(bytes.div_ceil(SLAB_BYTES).saturating_mul(SLAB_BYTES)).to_string()
    };
    if left == 0 {
        return format!("reclaiming {wants} as ordered: borrowers have nothing to give back");
    }
    format!("reclaiming {wants} as ordered: borrowers have {within:?} to give back {}", ByteSize(left))
}

/// Why a request to a donor on this machine failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlFailure {
    /// There is no control socket, no donor listens, or it belongs to another user.
    Io(io::Error),
    /// The donor refuses, or it is not a donor.
    Refused(Refusal),
}

impl fmt::Display for ControlFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlFailure::Io(error) => write!(f, "{error}"),
            ControlFailure::Refused(refusal) => write!(f, "{refusal}"),
        }
    }
}

impl std::error::Error for ControlFailure {}

impl From<io::Error> for ControlFailure {
    fn from(error: io::Error) -> Self {
        ControlFailure::Io(error)
    }
}

/// Reclaims memory from the donor with this control socket. Returns the bytes that borrowers still have to give back.
pub fn reclaim(control: &Path, bytes: u64, within: Duration) -> Result<u64, ControlFailure> {
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    match ask(control, Message::Reclaim { bytes, within_ms }, &mut [])? {
        Message::Reclaiming { bytes } => Ok(bytes),
        _ => Err(ControlFailure::Refused(Refusal::UnknownKind)),
    }
}

/// The figures of the donor with this control socket.
pub fn control_status(control: &Path) -> Result<DonorStatus, ControlFailure> {
    let mut body = [0; STATUS_BYTES];
    match ask(control, Message::Status, &mut body)? {
        Message::StatusReport => Ok(DonorStatus::decode(&body)),
        _ => Err(ControlFailure::Refused(Refusal::UnknownKind)),
    }
}

/// Sends one request; `into` is as long as the body of its answer.
fn ask(control: &Path, message: Message, into: &mut [u8]) -> Result<Message, ControlFailure> {
    let mut stream = local_socket::connect(control, ANSWER_TIMEOUT)?;
    stream.write_all(&Header::new(0, message, &[]).encode())?;
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes)?;
    let header = Header::decode(&bytes).map_err(ControlFailure::Refused)?;
    if let Message::Error { refusal } = header.message {
        return Err(ControlFailure::Refused(refusal));
    }
    if header.body_bytes as usize != into.len() {
        return Err(ControlFailure::Refused(Refusal::Oversized));
    }
    stream.read_exact(into)?;
    header.check_body(into).map_err(ControlFailure::Refused)?;
    Ok(header.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_about_an_order_says_what_borrowers_have_to_give_back() {
        let minute = Duration::from_secs(60);
        let line = "reclaiming 2MiB as ordered: borrowers have nothing to give back";
        assert_eq!(ordered(5, 0, minute), line, "in whole slabs");
        let line = "reclaiming 16GiB as ordered: borrowers have 60s to give back 4MiB";
        assert_eq!(ordered(16 << 30, 4 << 20, minute), line);
        let line = "reclaiming everything as ordered: borrowers have nothing to give back";
        assert_eq!(ordered(crate::EVERY_BYTE, 0, minute), line);
    }
}
