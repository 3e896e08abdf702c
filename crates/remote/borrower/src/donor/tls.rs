// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A link's bytes sealed with TLS 1.3, which `aquifer_tls` implements.
//!
//! A handshake allocates as much as it needs, and frees it; it runs on a deep stack, because the thread may be in a
//! signal handler. Afterwards there are two buffers of a fixed size, made with the link: the outbox for records that
//! wait to be sent, and the inbox for what has arrived.
//!
//! A forked child has the parent's keys and sequence numbers, and whatever it sealed with them would expose what the
//! parent seals: two texts under one nonce. So only the process that owns these sockets seals, or sends sealed bytes,
//! however a child was created.
//!
//! Threads: the one that has the link. The lock is never waited for: a thread that finds it taken is in a forked child,
//! and a thread of the parent had the lock.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use aquifer_sys::deep_stack;
use aquifer_sys::memory::OwnWord;
use aquifer_tls::{
    Borrower, Broken, Distrust, Opening, Pipe, Protection, RECORD_BYTES_MAX, RECORD_EXTRA_BYTES, RECORD_HEAD_BYTES,
    ShakeFailure, TEXT_BYTES_MAX,
};
use aquifer_wire::{HEADER_BYTES, Header, Message, is_frame};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::channel::{Channel, Miss};
use super::deadline::Deadline;
use super::transport::Loss;
use crate::access_failure::LinkFailure;

/// How many records are sent or received by one system call. A choice: 64 KiB is what sockets accept at a time.
const RECORDS_AT_ONCE: usize = 4;

/// A channel sealed with TLS 1.3.
pub(crate) struct TlsChannel {
    borrower: Arc<Borrower>,
    session: Mutex<Session>,
}

impl fmt::Debug for TlsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints no keys.
        f.debug_struct("TlsChannel").finish_non_exhaustive()
    }
}

struct Session {
    /// 1 in the process that owns these sockets.
    own: Arc<OwnWord>,
    /// Set while there is a connection.
    protection: Option<Protection>,
    outbox: Box<[u8]>,
    /// The unsent part of the outbox, and how many bytes of the frame it contains.
    waiting: Range<usize>,
    waiting_bytes: usize,
    inbox: Box<[u8]>,
    /// The part of the inbox that was opened and not yet taken.
    text: Range<usize>,
    /// The part of it that is still sealed.
    sealed: Range<usize>,
    last_word: Option<Distrust>,
}

impl TlsChannel {
    /// `own` is 1 in the process that owns these sockets, and 0 in every child of it until the child has sockets of its
    /// own.
    pub(crate) fn new(borrower: Arc<Borrower>, own: Arc<OwnWord>) -> TlsChannel {
        TlsChannel { borrower, session: Mutex::new(Session::new(own)) }
    }

    fn session(&self) -> Result<MutexGuard<'_, Session>, Errno> {
        match self.session.try_lock() {
            Ok(session) => Ok(session),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno::DEADLK),
        }
    }
}

impl Channel for TlsChannel {
    fn open(&self, socket: BorrowedFd<'_>, timeout: Duration) -> Result<(), Miss> {
        let mut session = self.session().map_err(lost)?;
        session.forget();
        let mut pipe = Handshake { socket, deadline: Deadline::after(timeout) };
        let shaken = deep_stack::call(|| self.borrower.shake_hands(&mut pipe));
        match shaken.map_err(|errno| Loss::Connection(errno.into()))? {
            Ok(protection) => {
                session.protection = Some(protection);
                Ok(())
            }
            Err(ShakeFailure::Pipe(loss)) => Err(loss.into()),
            Err(ShakeFailure::Distrust(distrust)) => Err(Miss::Distrust(distrust)),
            Err(ShakeFailure::Foreign(begun)) => Err(pipe.refusal(begun)),
        }
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let mut session = self.session()?;
        if sent == 0 && session.waiting.is_empty() && session.is_revoked(&self.borrower) {
            return Err(Errno::from_raw_os_error(Distrust::DonorRevoked.errno()));
        }
        session.send(socket, header, payload, sent, flags)
    }

    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        let session = &mut *self.session()?;
        if session.text.is_empty() && !session.open()? {
            let room = session.room();
            // Do not wait until all of it is full: one record may be all that arrives.
            match rustix::net::recv(socket, &mut session.inbox[room], flags - RecvFlags::WAITALL)? {
                (_, 0) => return Ok(0),
                (_, bytes) => session.sealed.end += bytes,
            }
            session.open()?;
        }
        // Each call waits only once. The caller checks its deadline, however slowly a record arrives.
        if session.text.is_empty() { Err(Errno::INTR) } else { Ok(session.take_text(into)) }
    }

    fn last_word(&self) -> Option<Distrust> {
        self.session().ok().and_then(|session| session.last_word)
    }

    fn is_worn(&self) -> bool {
        let is_worn = |protection: &Protection| protection.sealing.is_worn() || protection.opening.is_worn();
        self.session().is_ok_and(|mut session| {
            session.protection.as_ref().is_some_and(is_worn) || session.is_revoked(&self.borrower)
        })
    }

    fn close(&self) {
        if let Ok(mut session) = self.session() {
            session.forget();
        }
    }

    fn reset_in_child(&self) -> bool {
        // If the lock can be taken, what it protects is consistent.
        self.session().map(|mut session| session.forget()).is_ok()
    }
}

impl Session {
    fn new(own: Arc<OwnWord>) -> Session {
        Session {
            own,
            protection: None,
            outbox: vec![0; RECORDS_AT_ONCE * (TEXT_BYTES_MAX + RECORD_EXTRA_BYTES)].into(),
            waiting: 0..0,
            waiting_bytes: 0,
            inbox: vec![0; RECORDS_AT_ONCE * RECORD_BYTES_MAX].into(),
            text: 0..0,
            sealed: 0..0,
            last_word: None,
        }
    }

    /// Whether the donor's certificate was revoked after the handshake. Then nothing more is sent to it; the next
    /// handshake says why.
    fn is_revoked(&mut self, borrower: &Borrower) -> bool {
        self.protection.as_mut().is_some_and(|protection| borrower.has_revoked(protection))
    }

    fn check_owner(&self) -> Result<(), Errno> {
        if self.own.word().load(Ordering::Relaxed) == 1 { Ok(()) } else { Err(Errno::OWNERDEAD) }
    }

    fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        if self.waiting.is_empty() {
            self.check_owner()?;
            self.seal(header, payload, sent)?;
        }
        // Checked again: a handler of the program's may have forked while this thread sealed.
        self.check_owner()?;
        let rest = &self.outbox[self.waiting.clone()];
        self.waiting.start += rustix::net::send(socket, rest, flags | SendFlags::NOSIGNAL)?;
        // Each call waits only once. The caller checks its deadline, however slowly the peer accepts bytes.
        if self.waiting.is_empty() { Ok(self.waiting_bytes) } else { Err(Errno::INTR) }
    }

    fn forget(&mut self) {
        self.protection = None;
        (self.waiting, self.waiting_bytes) = (0..0, 0);
        (self.text, self.sealed) = (0..0, 0..0);
        self.last_word = None;
    }

    /// Fills the outbox with records of a frame, starting at `sent`.
    fn seal(&mut self, header: &[u8; HEADER_BYTES], payload: &[u8], sent: usize) -> Result<(), Errno> {
        let protection = self.protection.as_mut().ok_or(Errno::NOTCONN)?;
        let (mut filled, mut at, whole) = (0, sent, HEADER_BYTES + payload.len());
        for _ in 0..RECORDS_AT_ONCE {
            if at == whole {
                break;
            }
            let first = &header[at.min(HEADER_BYTES)..];
            let second = &payload[at.saturating_sub(HEADER_BYTES)..];
            let second = &second[..second.len().min(TEXT_BYTES_MAX - first.len())];
            filled += protection.sealing.seal(first, second, &mut self.outbox[filled..]).map_err(errno_of)?;
            at += first.len() + second.len();
        }
        (self.waiting, self.waiting_bytes) = (0..filled, at - sent);
        Ok(())
    }

    fn take_text(&mut self, into: &mut [u8]) -> usize {
        let bytes = self.text.len().min(into.len());
        into[..bytes].copy_from_slice(&self.inbox[self.text.start..self.text.start + bytes]);
        self.text.start += bytes;
        bytes
    }

    /// Opens the next record, if it is complete.
    fn open(&mut self) -> Result<bool, Errno> {
        let sealed = &mut self.inbox[self.sealed.clone()];
        let Some(whole) = Opening::length(sealed).map_err(errno_of)?.filter(|whole| *whole <= sealed.len()) else {
            return Ok(false);
        };
        let protection = self.protection.as_mut().ok_or(Errno::NOTCONN)?;
        match protection.opening.open(&mut sealed[..whole]) {
            Ok(text) => {
                self.text = self.sealed.start + text.start..self.sealed.start + text.end;
                self.sealed.start += whole;
                Ok(true)
            }
            Err(broken) => {
                if let Broken::Ended(distrust) = broken {
                    self.last_word = Some(distrust);
                }
                Err(errno_of(broken))
            }
        }
    }

    /// The part of the inbox that can receive more. Everything that was opened must have been taken.
    fn room(&mut self) -> Range<usize> {
        if self.inbox.len() - self.sealed.start < RECORD_BYTES_MAX || self.sealed.is_empty() {
            self.inbox.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        self.sealed.end..self.inbox.len()
    }
}

/// The socket during a handshake.
struct Handshake<'a> {
    socket: BorrowedFd<'a>,
    deadline: Deadline,
}

impl Pipe for Handshake<'_> {
    type Failure = Loss;

    fn send(&mut self, bytes: &[u8]) -> Result<(), Loss> {
        let mut sent = 0;
        while sent < bytes.len() {
            match rustix::net::send(self.socket, &bytes[sent..], SendFlags::NOSIGNAL) {
                Ok(bytes) => sent += bytes,
                Err(errno) => self.deadline.judge(errno)?,
            }
            self.deadline.check()?;
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<(), Loss> {
        let mut filled = 0;
        while filled < into.len() {
            match rustix::net::recv(self.socket, &mut into[filled..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(Loss::Connection(LinkFailure::Ended)),
                Ok((_, bytes)) => filled += bytes,
                Err(errno) => self.deadline.judge(errno)?,
            }
            self.deadline.check()?;
        }
        Ok(())
    }
}

impl Handshake<'_> {
    /// The refusal of a peer that does not speak TLS: perhaps a donor that lends in plain text, perhaps somebody on the
    /// path. It is used in a message, and for nothing else.
    fn refusal(&mut self, begun: [u8; RECORD_HEAD_BYTES]) -> Miss {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..RECORD_HEAD_BYTES].copy_from_slice(&begun);
        if !is_frame(&begun) || self.receive(&mut bytes[RECORD_HEAD_BYTES..]).is_err() {
            return Miss::Distrust(Distrust::NoHandshake);
        }
        match Header::decode(&bytes).map(|header| header.message) {
            Ok(Message::Error { refusal }) => Miss::Unproven(refusal),
            _ => Miss::Distrust(Distrust::NoHandshake),
        }
    }
}

fn lost(errno: Errno) -> Loss {
    Loss::Connection(LinkFailure::of_errno(errno.raw_os_error()))
}

fn errno_of(broken: Broken) -> Errno {
    match broken {
        Broken::Damaged => Errno::BADMSG,
        Broken::Ended(distrust) => Errno::from_raw_os_error(distrust.errno()),
        Broken::Foreign => Errno::PROTO,
        // The link reconnects, with new keys.
        Broken::Spent => Errno::CONNRESET,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nothing_is_sealed_or_sent_in_a_child_that_was_made_without_us_knowing() {
        let own = Arc::new(OwnWord::new().unwrap());
        let mut session = Session::new(Arc::clone(&own));
        let (ours, donors) = UnixStream::pair().unwrap();
        donors.set_nonblocking(true).unwrap();
        let send = |session: &mut Session| session.send(ours.as_fd(), &[0; HEADER_BYTES], &[], 0, SendFlags::DONTWAIT);
        let arrived = |bytes: &mut [u8]| std::io::Read::read(&mut &donors, bytes).ok();
        // The word is 0, as after fork(2). Only the check before sealing can notice it, because there are no keys to
        // seal with.
        assert_eq!(send(&mut session), Err(Errno::OWNERDEAD));
        own.word().store(1, Ordering::Relaxed);
        assert_eq!(send(&mut session), Err(Errno::NOTCONN));
        // Sealed by the parent, with half of it sent.
        (session.waiting, session.waiting_bytes) = (3..7, HEADER_BYTES);
        own.word().store(0, Ordering::Relaxed);
        assert_eq!(send(&mut session), Err(Errno::OWNERDEAD));
        assert_eq!(arrived(&mut [0; 8]), None, "nothing of the parent's goes out");
        own.word().store(1, Ordering::Relaxed);
        assert_eq!(send(&mut session), Ok(HEADER_BYTES));
        assert_eq!(arrived(&mut [0; 8]), Some(4));
    }
}
