// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Members of an array in this process's memory, which do what a test says: they vanish, come back with or without what
//! they had, are full, or return wrong bytes. Used only by tests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::conformance::CAPACITY_BYTES_MIN;
use aquifer_tier::plain_queue::{Blocking, PlainQueue};
use aquifer_tier::{Activity, Newcomer, TierFailure, TierQueue};
use aquifer_wire::{PAGE_BYTES, RangeIndex, SLAB_BYTES};

use super::membership::{Admission, Connect, Reached};
use super::{Array, MEMBERS_MAX, Room, Shape, Store, tier_failure};
use crate::access_failure::{AccessFailure, LinkFailure};

/// Slabs of such an array.
pub(super) const SLABS: usize = (CAPACITY_BYTES_MIN / SLAB_BYTES) as usize;

/// This process forgets what a member had before its restart; a related process does so now, or has done so.
pub(super) const THIS: u64 = 0;
pub(super) const OTHER: u64 = 1;
pub(super) const NOBODY: u64 = 2;

/// A member's memory, and what has to happen to it.
pub struct Memory {
    /// By range: the bytes, and the number of the call of `take` that last set this room aside.
    pub(super) slabs: Mutex<HashMap<RangeIndex, (u64, Vec<u8>)>>,
    pub(super) taken: AtomicU64,
    pub(super) room: AtomicUsize,
    pub(super) is_away: AtomicBool,
    /// The member was restarted, and the array has not noticed.
    pub(super) is_new: AtomicBool,
    pub(super) lies: AtomicBool,
    /// The member reclaims what it has lent.
    pub(super) is_leaving: AtomicBool,
    /// Which process of the family forgets what it had before a restart, and its run.
    pub(super) forgetter: AtomicU64,
    pub(super) run: AtomicU64,
    /// How long its contents stay without a look, in milliseconds.
    pub(super) look_every_ms: AtomicU64,
    /// Operations until one fails; negative: none fails.
    pub(super) fails_in: AtomicI64,
    /// What happens once, after the next write to this member.
    pub(super) once_written: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// What other threads do meanwhile when room is taken at this member, as at the beginning of a copy.
    pub(super) meanwhile: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Memory {
    pub(super) fn new() -> Arc<Memory> {
        Arc::new(Memory {
            slabs: Mutex::default(),
            taken: AtomicU64::new(0),
            room: AtomicUsize::new(usize::MAX),
            is_away: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            lies: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            forgetter: AtomicU64::new(THIS),
            run: AtomicU64::new(1),
            look_every_ms: AtomicU64::new(20_000),
            fails_in: AtomicI64::new(-1),
            once_written: Mutex::default(),
            meanwhile: Mutex::default(),
        })
    }

    fn answer(&self) -> Result<(), AccessFailure> {
        if self.is_away.load(Ordering::SeqCst) || self.fails_in.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(AccessFailure::Link(LinkFailure::Ended));
        }
        if self.is_new.load(Ordering::SeqCst) { Err(AccessFailure::Link(LinkFailure::Restarted)) } else { Ok(()) }
    }

    fn with<R>(&self, offset: u64, of: impl FnOnce(&mut Vec<u8>, usize) -> R) -> Result<R, AccessFailure> {
        self.answer()?;
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, slab) = slabs.get_mut(&RangeIndex::at(offset)).ok_or(AccessFailure::Gone)?;
        Ok(of(slab, (offset % SLAB_BYTES) as usize))
    }

    /// Restarts the member: it loses what it had, and is present again.
    pub fn restart(&self) {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.is_new.store(true, Ordering::SeqCst);
        self.is_away.store(false, Ordering::SeqCst);
    }

    /// Flips a bit of each page, and of each shard of a page, that it has.
    pub fn damage(&self) {
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let units = slabs.values_mut().flat_map(|(_, slab)| slab.chunks_exact_mut(512));
        units.for_each(|unit| unit[77] ^= 4);
    }

    /// From now on, reads of it return wrong bytes.
    pub fn lie(&self, lies: bool) {
        self.lies.store(lies, Ordering::SeqCst);
    }

    fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        self.with(offset, |slab, at| into.copy_from_slice(&slab[at..][..into.len()]))?;
        if self.lies.load(Ordering::SeqCst) {
            into[0] ^= 1;
        }
        Ok(())
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure> {
        if bytes.len() > 64 * PAGE_BYTES as usize {
            // Copying a slab takes a while, so that somebody writes in the meantime.
            std::thread::sleep(Duration::from_micros(50));
        }
        self.with(offset, |slab, at| slab[at..][..bytes.len()].copy_from_slice(bytes))?;
        let act = self.once_written.lock().unwrap_or_else(PoisonError::into_inner).take();
        act.into_iter().for_each(|act| act());
        Ok(())
    }
}

impl Store for Arc<Memory> {
    fn name(&self) -> &str {
        "memory"
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        self.get(offset, into)
    }

    fn take(&self, range: RangeIndex) -> Result<(), AccessFailure> {
        self.answer()?;
        self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|act| act());
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        if slabs.len() >= self.room.load(Ordering::SeqCst) && !slabs.contains_key(&range) {
            return Err(AccessFailure::Full);
        }
        let taken = self.taken.fetch_add(1, Ordering::SeqCst);
        slabs.entry(range).or_insert_with(|| (0, vec![0xaa; SLAB_BYTES as usize])).0 = taken;
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure> {
        self.put(offset, bytes)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), AccessFailure> {
        assert!(offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES) && len > 0, "whole pages");
        let gone = self.with(offset, |slab, at| slab[at..][..len as usize].fill(0xdd));
        gone.or_else(|failure| if failure == AccessFailure::Gone { Ok(()) } else { Err(failure) })
    }

    fn leaving(&self, from: RangeIndex) -> Option<RangeIndex> {
        let slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        let leaves = self.is_leaving.load(Ordering::SeqCst);
        slabs.keys().copied().filter(|range| leaves && *range >= from).min()
    }

    fn room(&self, range: RangeIndex) -> Option<Room> {
        let slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        slabs.get(&range).map(|(taken, _)| Room(*taken))
    }

    fn give_back(&self, range: RangeIndex, room: Room) -> Result<(), AccessFailure> {
        self.answer()?;
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        if slabs.get(&range).is_some_and(|(taken, _)| *taken == room.0) {
            slabs.remove(&range);
        }
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(PlainQueue::new(Arc::clone(self), depth)))
    }

    fn after_fork_in_child(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn look(&self) -> Result<(), AccessFailure> {
        self.answer()
    }

    fn look_every(&self) -> Duration {
        Duration::from_millis(self.look_every_ms.load(Ordering::SeqCst))
    }

    fn start_over(&self, forget: &dyn Fn(&dyn Fn() -> bool)) -> bool {
        match self.forgetter.load(Ordering::SeqCst) {
            OTHER => return false,
            NOBODY => {}
            _ => forget(&|| true),
        }
        self.is_new.store(false, Ordering::SeqCst);
        self.run.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn run(&self) -> u64 {
        self.run.load(Ordering::SeqCst)
    }
}

impl Blocking for Memory {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.get(offset, buffer.bytes_mut()).map_err(|failure| tier_failure(Activity::Read, offset, failure))
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.put(offset, buffer.bytes()).map_err(|failure| tier_failure(Activity::Write, offset, failure))
    }
}

/// An array that keeps this many copies of each slab.
pub fn array_of(members: &[Arc<Memory>], copies: usize) -> Array {
    shaped(members, Shape { needed: 1, total: copies })
}

/// An array with `data` data shards and `parity` parity shards, and room for this many slabs.
pub fn large_parity_of(members: &[Arc<Memory>], data: usize, parity: usize, slabs: u32) -> Array {
    with_slabs(members, Shape { needed: data, total: data + parity }, slabs)
}

/// An array with `data` data shards and `parity` parity shards.
pub fn parity_of(members: &[Arc<Memory>], data: usize, parity: usize) -> Array {
    shaped(members, Shape { needed: data, total: data + parity })
}

/// An array of this shape.
pub(super) fn shaped(members: &[Arc<Memory>], shape: Shape) -> Array {
    with_slabs(members, shape, SLABS as u32)
}

fn with_slabs(members: &[Arc<Memory>], shape: Shape, slabs: u32) -> Array {
    let stores = members.iter().map(|member| (Box::new(Arc::clone(member)) as Box<dyn Store>, 1)).collect();
    Array::new(stores, shape, slabs, Vec::new()).unwrap()
}

/// Members in memory that may join.
struct Pool(Vec<Arc<Memory>>);

impl Connect for Pool {
    fn reach(&self, newcomer: &Newcomer, _: u32) -> Result<Reached<'_>, String> {
        let index = newcomer.address.strip_prefix("memory:").and_then(|index| index.parse::<usize>().ok());
        let memory = index.and_then(|index| self.0.get(index)).ok_or("there is no such member; name another one")?;
        if memory.is_away.load(Ordering::SeqCst) {
            return Err("the member does not answer; start it".into());
        }
        let store = Box::new(Arc::clone(memory));
        Ok(Reached { is_there: true, accept: Box::new(move |_| Ok(store)) })
    }
}

/// An array without members, with room for `slabs` slabs, each in `total` parts of which `data` are needed. These
/// members may join it, as `memory:INDEX`.
pub fn vacant(members: &[Arc<Memory>], data: usize, total: usize, slabs: u32) -> Array {
    let shape = Shape { needed: data, total };
    let words = || Words::shared(MEMBERS_MAX * shape.ranges(slabs)).unwrap();
    Array::vacant(Admission::new(Box::new(Pool(members.to_vec())), words(), Some(words())), shape, slabs).unwrap()
}

/// `count` new members, which have nothing yet.
pub fn members(count: usize) -> Vec<Arc<Memory>> {
    (0..count).map(|_| Memory::new()).collect()
}
