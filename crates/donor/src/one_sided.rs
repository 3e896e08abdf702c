// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What borrowers reach without the donor: a window of the device's on each slab that they have, and the queue pairs
//! through which they look in.
//!
//! The lease table decides, as it does for requests; this carries it out at the device:
//!
//! - A window is opened when a borrower asks for its key, under a lease that is good, and is on that one slab.
//! - It is closed when the lease gets another token, before the borrower is told of that; and when the lease has ended,
//!   before the slab is wiped. From then on the device refuses what is late, and tells the borrower so.
//! - Each borrower has a protection domain of its own, so the key of another one's window opens nothing.
//!
//! While a window is open the kernel has the slab's pages pinned. So a part of a slab that is discarded is overwritten,
//! and not given back to the machine (`service.rs`).
//!
//! Threads: any connection's, and the keeper.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_sys::lent_memory::LentMemory;
use aquifer_sys::raw::random;
use aquifer_sys::verbs::{Device, Domain, End, Port, QueuePair, VerbsFailure, Window, choose};
use aquifer_wire::{BorrowerId, PairEnd, Refusal, SLAB_BYTES};

use crate::settings::DeviceChoice;

/// Queue pairs of one borrower at most: those of sixteen processes.
const PAIRS_MOST: usize = 128;

/// See the module.
pub(crate) struct OneSided {
    device: Arc<Device>,
    memory: Arc<LentMemory>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    guests: BTreeMap<BorrowerId, Guest>,
    windows: BTreeMap<u32, Opened>,
}

/// A borrower, from its first connection on until the last one has ended and no window of its is open.
#[derive(Default)]
struct Guest {
    connections: usize,
    windows: usize,
    // Before the domain, of which they are.
    pairs: BTreeMap<u32, QueuePair>,
    domain: Option<Arc<Domain>>,
}

/// An open window, and for whom and which token it is.
struct Opened {
    who: BorrowerId,
    token: u64,
    window: Window,
}

impl OneSided {
    /// Opens the device, and tries whether memory can be registered.
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
        Ok(OneSided { device, memory: Arc::clone(memory), books: Mutex::default() })
    }

    /// Which port borrowers reach.
    pub(crate) fn port(&self) -> &Port {
        self.device.port()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more connection of a borrower.
    pub(crate) fn enter(&self, who: BorrowerId) {
        self.books().guests.entry(who).or_default().connections += 1;
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, who: BorrowerId) {
        let mut books = self.books();
        if let Entry::Occupied(mut guest) = books.guests.entry(who) {
            guest.get_mut().connections -= 1;
            let _gone = take_idle(guest);
        }
    }

    /// Makes the other end of a borrower's queue pair, in place of the one with the same number.
    pub(crate) fn pair(&self, who: BorrowerId, lane: u32, end: PairEnd) -> Result<PairEnd, Failure> {
        let psn = random().map_err(|errno| VerbsFailure::Call { what: "getrandom", errno: errno.0 })? as u32;
        let mut books = self.books();
        let guest = books.guests.entry(who).or_default();
        if guest.pairs.len() >= PAIRS_MOST && !guest.pairs.contains_key(&lane) {
            return Err(Failure::Refused(Refusal::TooManyConnections));
        }
        // Before the new one: a device may have few.
        guest.pairs.remove(&lane);
        let domain = domain(guest, &self.device)?;
        let pair = QueuePair::new(&domain)?;
        let own = pair.end(psn);
        let PairEnd { pair: number, psn: first, lid, mtu, gid } = end;
        let peer = End { pair: number, psn: first, lid, mtu, gid };
        // What is wrong with it is something that the peer has said.
        pair.connect(own.psn, &peer, true).map_err(|_| Failure::Refused(Refusal::BadField))?;
        guest.pairs.insert(lane, pair);
        let End { pair, psn, lid, mtu, gid } = own;
        Ok(PairEnd { pair, psn, lid, mtu, gid })
    }

    /// The key of a slab for its holder. While nobody else can get another token for it, nor wipe it.
    pub(crate) fn key(&self, who: BorrowerId, slab: u32, token: u64) -> Result<u32, VerbsFailure> {
        let mut books = self.books();
        let Books { guests, windows } = &mut *books;
        match windows.entry(slab) {
            Entry::Occupied(opened) if opened.get().token == token => Ok(opened.get().window.key()),
            // What was before is closed when the token is given, and when the slab is wiped.
            Entry::Occupied(_) => Err(VerbsFailure::Call { what: "a window that was left open", errno: libc::EBUSY }),
            Entry::Vacant(place) => {
                let guest = guests.entry(who).or_default();
                let domain = domain(guest, &self.device)?;
                let at = (u64::from(slab) * SLAB_BYTES) as usize;
                let window = Window::open(&domain, &self.memory, at, SLAB_BYTES as usize)?;
                guest.windows += 1;
                Ok(place.insert(Opened { who, token, window }).window.key())
            }
        }
    }

    /// Nobody reaches the slab any more by a token older than this one.
    pub(crate) fn close_before(&self, slab: u32, token: u64) -> Result<(), VerbsFailure> {
        let mut books = self.books();
        let Entry::Occupied(opened) = books.windows.entry(slab) else { return Ok(()) };
        if opened.get().token >= token {
            return Ok(());
        }
        let Opened { who, window, .. } = opened.remove();
        // Under the lock: who finds the slab without a window finds it closed.
        let closed = window.close();
        if let Entry::Occupied(mut guest) = books.guests.entry(who) {
            guest.get_mut().windows -= 1;
            if closed.is_err() {
                // It cannot be closed, so nobody is left who could look in.
                guest.get_mut().pairs.clear();
            }
            let _gone = take_idle(guest);
        }
        closed
    }

    /// Nobody reaches the slab any more.
    pub(crate) fn close(&self, slab: u32) -> Result<(), VerbsFailure> {
        self.close_before(slab, u64::MAX)
    }

    /// The donor ends.
    pub(crate) fn end(&self) {
        let mut books = self.books();
        books.windows.clear();
        books.guests.clear();
    }
}

/// Why there is no pair.
pub(crate) enum Failure {
    /// The borrower's doing.
    Refused(Refusal),
    /// The device's.
    Verbs(VerbsFailure),
}

impl From<VerbsFailure> for Failure {
    fn from(failure: VerbsFailure) -> Failure {
        Failure::Verbs(failure)
    }
}

fn domain(guest: &mut Guest, device: &Arc<Device>) -> Result<Arc<Domain>, VerbsFailure> {
    if guest.domain.is_none() {
        guest.domain = Some(Arc::new(Domain::new(device)?));
    }
    Ok(Arc::clone(guest.domain.as_ref().expect("it was just made")))
}

fn take_idle(guest: std::collections::btree_map::OccupiedEntry<'_, BorrowerId, Guest>) -> Option<Guest> {
    let is_idle = guest.get().connections == 0 && guest.get().windows == 0;
    is_idle.then(|| guest.remove())
}
