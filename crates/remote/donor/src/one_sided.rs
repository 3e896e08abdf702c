// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What borrowers reach without the donor: a memory window of the RDMA device on each slab that they have, and the
//! queue pairs through which they access it.
//!
//! The lease table decides, as it does for requests; this module carries the decision out at the device:
//!
//! - A window covers one slab. It is opened when a borrower asks for the slab's key under a valid lease.
//! - It is closed when the lease gets another token, before the borrower learns the new token; and when the lease has
//!   ended, before the slab is wiped. From then on the device refuses late accesses, and reports this to the borrower.
//! - Each borrower has its own protection domain, so the key of another borrower's window opens nothing.
//!
//! While a window is open the kernel has the slab's pages pinned. So a discarded part of a slab is overwritten, and not
//! given back to the machine (`service.rs`).
//!
//! Threads: any connection's, and the keeper.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_sys::lent_memory::LentMemory;
use aquifer_sys::raw::random;
use aquifer_sys::verbs::{Device, Domain, End, Port, QueuePair, VerbsFailure, Window, choose};
use aquifer_wire::{BorrowerId, LentSlab, PairEnd, Refusal, SLAB_BYTES};

use crate::sessions::{Known, Sessions, TooMany};
use crate::settings::DeviceChoice;

/// How many windows are opened to get a new key, each while the previous ones stay open.
const OPENED_MAX: usize = 20;

/// The RDMA device of a donor, with the memory windows and queue pairs of its borrowers.
pub(crate) struct OneSided {
    device: Arc<Device>,
    memory: Arc<LentMemory>,
    sessions: Mutex<RdmaSessions>,
}

type RdmaSessions = Sessions<Domain, QueuePair, Window>;

impl OneSided {
    /// Opens the device, and tests whether memory can be registered.
    pub(crate) fn new(
        choice: &DeviceChoice,
        local: Option<IpAddr>,
        memory: &Arc<LentMemory>,
    ) -> Result<OneSided, VerbsFailure> {
        let wanted = match choice {
            DeviceChoice::Any => None,
            DeviceChoice::Named(name) => Some(name.as_str()),
        };
        let device = Arc::new(Device::open(&choose(wanted, local)?)?);
        let domain = Arc::new(Domain::new(&device)?);
        drop(Window::open(&domain, memory, 0, SLAB_BYTES as usize)?);
        Ok(OneSided { device, memory: Arc::clone(memory), sessions: Mutex::default() })
    }

    /// The port that borrowers reach.
    pub(crate) fn port(&self) -> &Port {
        self.device.port()
    }

    fn sessions(&self) -> MutexGuard<'_, RdmaSessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more connection of a borrower.
    pub(crate) fn enter(&self, who: BorrowerId) {
        self.sessions().enter(who);
    }

    /// A connection of a borrower has ended.
    pub(crate) fn leave(&self, who: BorrowerId) {
        let (pairs, gone) = self.sessions().leave(who);
        // Queue pairs are dropped before the domain to which they belong, and both without the lock.
        drop(pairs);
        drop(gone);
    }

    /// Creates the other end of a borrower's queue pair, replacing the one with the same number.
    ///
    /// Connects the pair without the lock: over Ethernet the kernel asks the network who has the address that the
    /// borrower has given, and waits a second for the answer (`ib_resolve_eth_dmac`). No other borrower should wait for
    /// that.
    pub(crate) fn pair(&self, who: BorrowerId, number: u32, end: PairEnd) -> Result<PairEnd, Failure> {
        let psn = random().map_err(|errno| VerbsFailure::Call { what: "getrandom", errno: errno.0 })? as u32;
        let mut sessions = self.sessions();
        let before = sessions.make_room(who, number)?;
        let domain = sessions.domain(who, || Domain::new(&self.device))?;
        drop(sessions);
        // Before the new one is created, because a device may have few.
        drop(before);
        let pair = QueuePair::new(&domain)?;
        let own = pair.end(psn);
        let PairEnd { pair: peer_pair, psn: peer_psn, lid, mtu, gid } = end;
        let peer = End { pair: peer_pair, psn: peer_psn, lid, mtu, gid };
        // An error here is in something that the peer has sent.
        pair.connect(own.psn, &peer, true).map_err(|_| Failure::Refused(Refusal::BadField))?;
        let kept = self.sessions().keep(who, number, &domain, pair);
        // A pair that is not kept is destroyed here, without the lock.
        drop(kept.map_err(|_| TooMany)?);
        let End { pair, psn, lid, mtu, gid } = own;
        Ok(PairEnd { pair, psn, lid, mtu, gid })
    }

    /// The key of a slab for its holder. The caller ensures that nobody can get another token for it or wipe it
    /// meanwhile.
    pub(crate) fn key(&self, who: BorrowerId, slab: LentSlab, token: u64) -> Result<u32, VerbsFailure> {
        let mut sessions = self.sessions();
        match sessions.known(slab, token) {
            Known::Key(key) => Ok(key),
            // Earlier windows are closed when the token is given, and when the slab is wiped.
            Known::Other => Err(VerbsFailure::Call { what: "a window that was left open", errno: libc::EBUSY }),
            Known::Nothing => {
                let domain = sessions.domain(who, || Domain::new(&self.device))?;
                let at = slab.offset() as usize;
                let open = || Window::open(&domain, &self.memory, at, SLAB_BYTES as usize);
                let window = open_unlike(open, |window| sessions.is_new(who, window.key()))?;
                let key = window.key();
                sessions.open(who, slab, token, key, window);
                Ok(key)
            }
        }
    }

    /// Ends access to the slab by tokens older than this one.
    pub(crate) fn close_before(&self, slab: LentSlab, token: u64) -> Result<(), VerbsFailure> {
        let mut sessions = self.sessions();
        let Some(opened) = sessions.take_before(slab, token) else { return Ok(()) };
        // Under the lock: a thread that finds the slab without a window finds the window closed.
        let closed = opened.window.close();
        if closed.is_err() {
            drop(sessions.cast_out(opened.who));
        } else {
            drop(sessions.closed(opened.who));
        }
        closed
    }

    /// Ends all access to the slab.
    pub(crate) fn close(&self, slab: LentSlab) -> Result<(), VerbsFailure> {
        self.close_before(slab, u64::MAX)
    }

    /// Called when the donor ends.
    pub(crate) fn end(&self) {
        *self.sessions() = RdmaSessions::default();
    }
}

/// Why there is no pair.
pub(crate) enum Failure {
    /// Caused by the borrower.
    Refused(Refusal),
    /// Caused by the device.
    Verbs(VerbsFailure),
}

impl From<VerbsFailure> for Failure {
    fn from(failure: VerbsFailure) -> Failure {
        Failure::Verbs(failure)
    }
}

impl From<TooMany> for Failure {
    fn from(_: TooMany) -> Failure {
        Failure::Refused(Refusal::TooManyConnections)
    }
}

/// Opens a window whose key `is_new`. Windows with other keys stay open until one is found, so that their keys do not
/// recur.
fn open_unlike<W>(open: impl Fn() -> Result<W, VerbsFailure>, is_new: impl Fn(&W) -> bool) -> Result<W, VerbsFailure> {
    let mut set_aside = Vec::new();
    for _ in 0..OPENED_MAX {
        let window = open()?;
        if is_new(&window) {
            return Ok(window);
        }
        set_aside.push(window);
    }
    Err(VerbsFailure::Call { what: "a key that was not given out lately", errno: libc::EEXIST })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_window_gets_a_key_that_none_had_lately() {
        // A driver that gives out the lowest key that is free.
        let open = Cell::new(0);
        let next = || {
            open.set(open.get() + 1);
            Ok(open.get())
        };
        assert_eq!(open_unlike(next, |key| *key > 3).unwrap(), 4);
        assert!(open_unlike(next, |_| false).is_err());
        assert_eq!(open.get(), 4 + OPENED_MAX);
    }
}
