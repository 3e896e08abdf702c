// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads and writes of a tier whose slabs a donor lends: which lease to use, and what to do when no answer arrives.
//!
//! A slab is leased when its range is first written to, and given back when all of it is discarded. A read may be
//! repeated any number of times. A write may not: a write without an answer may take effect later, over what was
//! written since. So the write is fenced: this process first gets a new token, after which the donor refuses everything
//! that was sent with the old one. For the same reason a forked child gets its own token before it writes to a
//! slab that it has from its parent.
//!
//! Threads: any, including signal handlers. Allocates nothing, and locks nothing.
//!
//! Next on the path: `ranges.rs`, the lease to use; `tcp.rs`, `rdma.rs` or `shared_memory.rs`, which moves the bytes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::transfer::{check_buffer, check_units};
use aquifer_tier::{Activity, KeepAlive, Leaving, TierFailure, TierQueue};
use aquifer_wire::{EVERY_LEASE, Message, RangeIndex, Refusal, SLAB_BYTES, UNIT_BYTES};

use super::NAME;
use super::contact::Contact;
use super::grant_lock::GrantLock;
use super::incarnation::Forgetter;
use super::links::Begun;
use super::ranges::{Lease, Ranges};
use super::timeouts::Timeouts;
use super::transport::{Loss, Transport};
use crate::access_failure::{AccessFailure, LinkFailure};

/// How many times a request is tried when a related process changes the lease in the meantime, or when this process
/// finds out only now that it has no lease.
const LEASES_TRIED_MAX: u32 = 4;
/// How many times a grant is retried while an access with the old token is in progress, which copies at most 2 MiB.
const BUSY_MAX: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// How many times leases are renewed before they would end.
pub(crate) const RENEWALS: u32 = 3;
/// The renewal interval while the donor reclaims memory: it sends its notices only before answers, a limited number at
/// a time.
const RENEWAL_WHILE_LEAVING: Duration = Duration::from_secs(1);
/// If a revoked slab is still leased after this time, the donor manages without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A tier in the slabs that one donor lends.
pub(crate) struct Remote {
    transport: Box<dyn Transport>,
    ranges: Arc<Ranges>,
    /// Whether the donor answers requests.
    contact: Contact,
    /// Whether transfers succeed, where they bypass the donor: its process may hang while its memory can be reached.
    past: Contact,
    grants: GrantLock,
    /// How long leases last if the donor has not said so.
    lease: Duration,
    timeouts: Timeouts,
    unlent: Unlent,
    /// True in the process that opened the tier, which gives everything back at the end.
    is_opener: AtomicBool,
}

/// What a read finds in a range that has no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlent {
    /// Nobody has written there, so it may read as anything.
    Anything,
    /// The caller knows that it was written to, so its bytes are gone.
    Gone,
}

/// A part of a request that lies in one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: RangeIndex,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
}

/// The pieces of `len` bytes at `offset`.
pub(crate) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let rest = offset + len - at;
        let bytes = rest.min(SLAB_BYTES - at % SLAB_BYTES);
        let piece = Piece { range: RangeIndex::at(at), offset: at, bytes: bytes as usize };
        at += bytes;
        (rest > 0).then_some(piece)
    })
}

impl Remote {
    /// A tier of these ranges. Leases last `lease` from the last sign of life, unless the donor says otherwise.
    /// `is_opener`: this process gives everything back at the end.
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        ranges: Ranges,
        lease: Duration,
        timeouts: Timeouts,
        unlent: Unlent,
        is_opener: bool,
    ) -> Remote {
        let ranges = Arc::new(ranges);
        transport.recalls().note_in(Arc::clone(&ranges));
        transport.prepare(ranges.count());
        Remote {
            transport,
            ranges,
            contact: Contact::new(timeouts.loss),
            past: Contact::new(timeouts.loss),
            grants: GrantLock::default(),
            lease,
            timeouts,
            unlent,
            is_opener: AtomicBool::new(is_opener),
        }
    }

    pub(crate) fn open_queue(self: &Arc<Self>, depth: u32) -> Result<Box<dyn TierQueue>, Errno> {
        self.transport.open_queue(self, depth)
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.ranges.count() as u64 * SLAB_BYTES
    }

    /// Refuses an invalid request. An array checks its requests itself, and may ask for parts of pages.
    pub(crate) fn check(&self, activity: Activity, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        match self.unlent {
            Unlent::Anything => check_buffer(NAME, activity, offset, buffer, self.capacity_bytes()),
            Unlent::Gone => check_units(UNIT_BYTES, NAME, activity, offset, buffer.len() as u64, self.capacity_bytes()),
        }
    }

    /// Whether this donor is a member of an array: others have the bytes, too, or the array reports that they are gone.
    pub(crate) fn is_member(&self) -> bool {
        self.unlent == Unlent::Gone
    }

    /// Whether a transfer waits for a medium.
    pub(crate) fn waits(&self) -> bool {
        self.transport.waits()
    }

    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Whether the donor can be asked now, and what to do when it does not answer.
    pub(crate) fn contact(&self) -> &Contact {
        &self.contact
    }

    /// Fills `into` from `offset`.
    pub(crate) fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        let mut rest = into;
        for piece in pieces(offset, rest.len() as u64) {
            let (part, behind) = rest.split_at_mut(piece.bytes);
            self.read_piece(piece, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn read_piece(&self, piece: Piece, into: &mut [u8]) -> Result<(), AccessFailure> {
        let mut refusal = Refusal::NoLease;
        for _ in 0..LEASES_TRIED_MAX {
            let Some(lease) = self.ranges.lease(piece.range) else {
                if self.unlent == Unlent::Gone {
                    return Err(AccessFailure::Gone);
                }
                into.fill(0);
                return Ok(());
            };
            let read = if self.transport.waits() {
                let contact = if self.transport.goes_past() { &self.past } else { &self.contact };
                persist(contact, self.unlent, || self.transport.read(piece, lease, into))
            } else {
                self.transport.read(piece, lease, into)
            };
            refusal = match read {
                Ok(()) => return Ok(()),
                Err(Loss::Connection(failure)) => return Err(failure.into()),
                // Either another thread has a newer token for it, or nobody has one and the bytes are gone.
                Err(Loss::Refused(refusal)) if is_about_lease(refusal) => refusal,
                Err(loss) => return Err(loss.into()),
            };
            if self.ranges.lease(piece.range).map(|now| now.token()) != Some(lease.token()) {
                continue;
            }
            // A grant without an answer has reached the donor late, or a related process's answer is on its way: the
            // slab is still ours, under a token that nobody here knows.
            if refusal != Refusal::StaleToken || !self.ask_token(piece.range, lease)? {
                break;
            }
        }
        Err(Loss::Refused(refusal).into())
    }

    /// Asks for a token to replace an old one. Returns false if the range has another slab now: then its bytes are
    /// gone.
    fn ask_token(&self, range: RangeIndex, old: Lease) -> Result<bool, AccessFailure> {
        self.ranges.doubt(range, old);
        let lease = self.lease_to_write(range).map_err(AccessFailure::from)?;
        self.ranges.correct(range, old, lease);
        Ok(lease.slab() == old.slab())
    }

    /// Asks for bytes in one slab without waiting for them. `None` if that cannot be done immediately.
    pub(crate) fn begin_read(&self, piece: Piece) -> Option<Begun<'_>> {
        let lease = self.ranges.lease(piece.range)?;
        self.transport.begin_read(piece, lease)
    }

    /// Sends bytes in one slab without waiting until they are stored. `None` if that cannot be done immediately.
    pub(crate) fn begin_write(&self, piece: Piece, bytes: &[u8]) -> Option<(Begun<'_>, Lease)> {
        let lease = self.ranges.lease(piece.range).filter(|lease| lease.may_write())?;
        self.transport.begin_write(piece, lease, bytes).map(|begun| (begun, lease))
    }

    /// Ends what [`begin_read`](Self::begin_read) or [`begin_write`](Self::begin_write) began. After a failure, the
    /// caller repeats the request with `read_bytes` or `write_bytes`, which handle failures in detail.
    pub(crate) fn finish(&self, begun: Begun<'_>, into: &mut [u8], expected: Message) -> Result<(), Loss> {
        let answer = begun.finish(into);
        if matches!(answer, Ok(_) | Err(Loss::Refused(_))) {
            self.contact.answered();
        }
        if answer? == expected { Ok(()) } else { Err(Loss::Connection(LinkFailure::Protocol)) }
    }

    /// Stores `bytes` at `offset`.
    pub(crate) fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure> {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (part, behind) = rest.split_at(piece.bytes);
            self.write_piece(piece, part)?;
            rest = behind;
        }
        Ok(())
    }

    fn write_piece(&self, piece: Piece, bytes: &[u8]) -> Result<(), AccessFailure> {
        let mut refusal = Refusal::NoLease;
        for _ in 0..LEASES_TRIED_MAX {
            let written = if self.transport.goes_past() {
                self.write_past(piece, bytes)
            } else if self.transport.waits() {
                self.persist(|| self.write_with(piece, self.writable(piece.range)?, bytes))
            } else {
                self.lease_to_write(piece.range).and_then(|lease| self.write_with(piece, lease, bytes))
            };
            match written {
                Ok(()) => return Ok(()),
                // The rest of the slab is gone, too: a new slab would have only these bytes.
                Err(Loss::Refused(Refusal::NoLease | Refusal::NotYours)) if self.unlent == Unlent::Gone => {
                    self.ranges.forget_range(piece.range);
                    return Err(AccessFailure::Gone);
                }
                Err(Loss::Refused(about)) if is_about_lease(about) => refusal = about,
                Err(loss) => return Err(loss.into()),
            }
        }
        Err(Loss::Refused(refusal).into())
    }

    /// A write that bypasses the donor, except for the lease. Each attempt gets its lease separately.
    fn write_past(&self, piece: Piece, bytes: &[u8]) -> Result<(), Loss> {
        let mut tries = self.past.begin().map_err(Loss::Connection)?;
        loop {
            let lease = self.lease_to_write(piece.range)?;
            match self.write_with(piece, lease, bytes) {
                Err(loss) if loss.may_pass() => {
                    if !tries.again(loss) {
                        return Err(loss);
                    }
                }
                Err(loss @ Loss::Connection(_)) => return Err(loss),
                answered => {
                    self.past.answered();
                    return answered;
                }
            }
        }
    }

    fn write_with(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss> {
        let written = self.transport.write(piece, lease, bytes);
        if written.is_err() {
            self.ranges.doubt(piece.range, lease);
        }
        written
    }

    /// As [`writable`](Self::writable), but asks the donor only if necessary, and then until it answers or counts as
    /// lost.
    fn lease_to_write(&self, range: RangeIndex) -> Result<Lease, Loss> {
        match self.ranges.lease(range) {
            Some(lease) if lease.may_write() => Ok(lease),
            _ => self.persist(|| self.writable(range)),
        }
    }

    /// A lease with which this process may write to a range.
    pub(crate) fn writable(&self, range: RangeIndex) -> Result<Lease, Loss> {
        if let Some(lease) = self.ranges.lease(range)
            && lease.may_write()
        {
            return Ok(lease);
        }
        if self.unlent == Unlent::Gone && self.ranges.lease(range).is_none() {
            return Err(Loss::Refused(Refusal::NoLease));
        }
        self.grant(range, true)
    }

    /// Gets a new lease for a range, or a new token for the lease that it has. From then on, room is set aside.
    pub(crate) fn take(&self, range: RangeIndex) -> Result<(), AccessFailure> {
        self.persist(|| self.grant(range, false)).map(|_| ()).map_err(AccessFailure::from)
    }

    /// Asks for a grant, unless another thread got a sufficient one in the meantime.
    fn grant(&self, range: RangeIndex, any_will_do: bool) -> Result<Lease, Loss> {
        // A grant invalidates what other threads have begun with the previous token. So grants are made one at a time,
        // and a thread that has waited checks again.
        let was_lost = self.contact.is_lost();
        let _granting = self.grants.lock(self.timeouts.other_request()).map_err(Loss::Connection)?;
        if !was_lost && self.contact.is_lost() {
            // The thread before this one has waited long enough for all.
            return Err(Loss::Connection(LinkFailure::NoGreeting));
        }
        if let Some(lease) = self.ranges.lease(range)
            && lease.may_write()
            && any_will_do
        {
            return Ok(lease);
        }
        let mut turns = 0;
        let granted = loop {
            match self.transport.ask(Message::Grant { range }) {
                Err(Loss::Refused(Refusal::Busy)) if turns < BUSY_MAX => {
                    turns += 1;
                    signals::sleep(BUSY_PAUSE);
                }
                granted => break granted?,
            }
        };
        let Message::Granted { lease, token, bytes: SLAB_BYTES, .. } = granted else {
            return Err(Loss::Connection(LinkFailure::Protocol));
        };
        let lease = Lease::granted(lease, token).ok_or(Loss::Connection(LinkFailure::Protocol))?;
        self.ranges.learn(range, lease);
        Ok(lease)
    }

    /// Gives the space back: a whole slab to the donor, a part of one to its machine.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), AccessFailure> {
        pieces(offset, len).try_for_each(|piece| self.discard_piece(piece))
    }

    fn discard_piece(&self, piece: Piece) -> Result<(), AccessFailure> {
        let Some(known) = self.ranges.lease(piece.range) else { return Ok(()) };
        if piece.bytes as u64 == SLAB_BYTES {
            return self.give_back(piece.range, known);
        }
        let (lease, token) = (known.slab().lease(), known.token());
        let message = Message::Discard { lease, token, offset: piece.offset, bytes: piece.bytes as u64 };
        self.end_with(piece.range, known, message)
    }

    /// Gives a slab back, unless its range has a newer token than that of `known` by then.
    pub(crate) fn give_back(&self, range: RangeIndex, known: Lease) -> Result<(), AccessFailure> {
        self.end_with(range, known, Message::Release { lease: known.slab().lease(), token: known.token() })?;
        self.ranges.forget(range, known);
        Ok(())
    }

    fn end_with(&self, range: RangeIndex, known: Lease, message: Message) -> Result<(), AccessFailure> {
        let done = self.persist(|| {
            let done = self.transport.ask(message);
            if done.is_err() {
                // The request may still arrive, and must not affect what is written next.
                self.ranges.doubt(range, known);
            }
            done
        });
        match done {
            Ok(_) => Ok(()),
            // The previous attempt has done it, or a related process has a newer lease for the same range.
            Err(Loss::Refused(refusal)) if is_about_lease(refusal) => Ok(()),
            Err(loss) => Err(loss.into()),
        }
    }

    /// Renews the leases. Returns the time until the next call.
    pub(crate) fn upkeep(&self) -> Duration {
        if self.ranges.any() {
            // If this fails, a thread that needs the bytes finds out by its own request.
            let _ = self.look();
        }
        self.renewal()
    }

    /// Reads the files of the credentials again if they have changed. Returns the time until the next call; `None` if
    /// there are no such files.
    pub(crate) fn refresh(&self) -> Option<Duration> {
        self.transport.refresh()
    }

    /// Why changed files of the credentials cannot be used, once.
    pub(crate) fn take_notice(&self) -> Option<String> {
        self.transport.take_notice()
    }

    /// Sends a renewal of the leases, if there are any, without waiting for the answer.
    pub(crate) fn begin_keep_alive(&self) -> Option<Box<dyn KeepAlive + '_>> {
        if !self.ranges.any() || self.contact.is_lost() {
            return None;
        }
        let begun = self.transport.begin_ask(Message::Renew)?;
        Some(Box::new(Renewal { contact: &self.contact, begun }))
    }

    /// The longest time until the next renewal of the leases.
    pub(crate) fn renewal(&self) -> Duration {
        // A donor that was restarted, or that did not answer at first, may have other leases than was assumed.
        let pause = self.transport.lease().unwrap_or(self.lease) / RENEWALS;
        match self.ranges.leaving(RangeIndex(0)) {
            Some((_, until_ns)) if until_ns.saturating_add(LEAVE_TIMEOUT.as_nanos() as u64) < now_ns() => {
                self.ranges.none_leaves();
                pause
            }
            Some(_) => pause.min(RENEWAL_WHILE_LEAVING),
            None => pause,
        }
    }

    /// The first slab at or after `from` that the donor reclaims.
    pub(crate) fn leaving(&self, from: u64) -> Option<Leaving> {
        let (range, until_ns) = self.ranges.leaving(RangeIndex(from.div_ceil(SLAB_BYTES)))?;
        Some(Leaving { offset: range.offset(), len: SLAB_BYTES, until_ns })
    }

    /// Whether the donor answers. This also renews the leases.
    pub(crate) fn look(&self) -> Result<(), AccessFailure> {
        self.persist(|| self.transport.ask(Message::Renew)).map(|_| ()).map_err(AccessFailure::from)
    }

    /// After a restart of the donor: discards all leases, so that the next run of the donor that answers starts without
    /// any. One process of a family does this for all of them. In that process, this calls `forget`, whose argument
    /// checks what `forget` has just read: true if it is of the run that is over. Returns false if a related process is
    /// doing this now.
    pub(crate) fn start_over(&self, forget: &dyn Fn(&dyn Fn() -> bool)) -> bool {
        let claim = match self.transport.incarnation().claim() {
            Forgetter::This(claim) => Some(claim),
            Forgetter::Other => return false,
            Forgetter::Nobody => None,
        };
        // Before anybody connects to the next run, as far as this process decides that.
        self.transport.start_over();
        self.ranges.forget_own();
        let is_done = claim.is_none_or(|claim| {
            let is_valid = || claim.is_valid();
            forget(&is_valid);
            self.ranges.forget_all(&is_valid);
            claim.finish()
        });
        self.contact.forget();
        self.past.forget();
        is_done
    }

    /// The run of the donor that has granted the leases; 0 if none has.
    pub(crate) fn run(&self) -> u64 {
        self.transport.incarnation().run()
    }

    /// Called in a forked child.
    pub(crate) fn after_fork_in_child(&self) -> Result<(), Errno> {
        if self.transport.replace_in_child()? {
            self.ranges.doubt_all();
            self.contact.forget();
            self.past.forget();
            self.grants.forget();
            self.is_opener.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn persist<T>(&self, attempt: impl FnMut() -> Result<T, Loss>) -> Result<T, Loss> {
        persist(&self.contact, self.unlent, attempt)
    }
}

/// Tries until there is an answer, or the donor counts as lost. If others may be asked instead, stops as soon as the
/// donor does not answer a greeting.
fn persist<T>(contact: &Contact, unlent: Unlent, mut attempt: impl FnMut() -> Result<T, Loss>) -> Result<T, Loss> {
    let mut tries = contact.begin().map_err(Loss::Connection)?;
    loop {
        match attempt() {
            Err(loss) if loss.may_pass() => {
                let is_gone = unlent == Unlent::Gone && loss == Loss::Connection(LinkFailure::NoGreeting);
                if is_gone || !tries.again(loss) {
                    return Err(loss);
                }
            }
            Err(loss @ Loss::Connection(_)) => return Err(loss),
            answered => {
                contact.answered();
                return answered;
            }
        }
    }
}

/// A renewal of the leases that is not answered yet.
struct Renewal<'a> {
    contact: &'a Contact,
    begun: Begun<'a>,
}

impl KeepAlive for Renewal<'_> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.begun.socket()
    }

    fn finish(self: Box<Self>) {
        if self.begun.finish(&mut []).is_ok() {
            self.contact.answered();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Only a courtesy, because leases that are not given back expire. A forked child gives nothing back, because
        // its related processes may still use the leases.
        if self.is_opener.load(Ordering::Relaxed) && self.ranges.any() {
            let _ = self.transport.ask(Message::Release { lease: EVERY_LEASE, token: 0 });
        }
    }
}

/// Whether the refusal means that this process's lease is not the one that the donor has.
fn is_about_lease(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::NoLease | Refusal::NotYours | Refusal::StaleToken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_cut_where_slabs_end() {
        let cut = |offset, len| pieces(offset, len).map(|p| (p.range.0, p.offset, p.bytes as u64)).collect::<Vec<_>>();
        assert_eq!(cut(0, 4096), [(0, 0, 4096)]);
        assert_eq!(cut(SLAB_BYTES, SLAB_BYTES), [(1, SLAB_BYTES, SLAB_BYTES)]);
        let start = SLAB_BYTES - 4096;
        assert_eq!(cut(start, 8192), [(0, start, 4096), (1, SLAB_BYTES, 4096)]);
        assert_eq!(cut(start, 2 * SLAB_BYTES).len(), 3);
        assert!(cut(0, 0).is_empty());
    }
}
