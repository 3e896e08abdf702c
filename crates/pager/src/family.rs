// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a process shares with those that it forks, and they with theirs: the account of the tier's slabs.
//!
//! It lies in memory that fork(2) does not copy. Each slab has a count of the processes that use it, and each process a
//! bitmap of the slabs that it uses, so that what a process used is given back when it has ended, however it ended.
//! A count is raised before the bit is set, and lowered after the bit was cleared: a process that is killed in between
//! leaves a slab unused for as long as the family lives, never one that two use unknowingly.
//!
//! Threads: any, also in a signal handler, but for [`Family::bury`] and what belongs to fork(2). Locks nothing.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aquifer_core::slabs::Slabs;
use aquifer_sys::memory::SharedWords;
use aquifer_sys::raw::Errno;

/// Living processes of one family. Beyond, fork(2) fails with EAGAIN.
pub const PROCESSES_MOST: usize = 1024;

/// Of a process's place: nobody has it.
const FREE: u32 = 0;
/// Of a process's place: fork(2) is under way for it, or it is being buried. Else the place holds the process's number.
const IN_BETWEEN: u32 = u32::MAX;

/// This process's place among the family's. Not shared.
static PLACE: AtomicU32 = AtomicU32::new(0);

/// See the module.
#[derive(Debug)]
pub struct Family {
    words: SharedWords,
    slabs: u32,
}

/// The family is as large as can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// A place for a child that is about to be born.
#[derive(Debug)]
pub struct Cradle {
    place: usize,
}

impl Family {
    /// A family of this process alone, with a tier of `slabs` slabs.
    pub fn new(slabs: u32) -> Result<Self, Errno> {
        let words = 1 + (slabs as usize).div_ceil(2) + PROCESSES_MOST * (2 + bitmap_words(slabs));
        let family = Self { words: SharedWords::new(words)?, slabs };
        family.pid(0).store(std::process::id(), Ordering::Relaxed);
        family.born(0).store(birth("self"), Ordering::Relaxed);
        Ok(family)
    }

    /// Slabs taken from the untouched end so far.
    fn touched(&self) -> &AtomicU32 {
        &self.words.halves()[0]
    }

    fn users(&self, slab: u32) -> &AtomicU32 {
        &self.words.halves()[2 + slab as usize]
    }

    fn place_at(&self, place: usize) -> usize {
        1 + (self.slabs as usize).div_ceil(2) + place * (2 + bitmap_words(self.slabs))
    }

    fn pid(&self, place: usize) -> &AtomicU32 {
        &self.words.halves()[self.place_at(place) * 2]
    }

    fn born(&self, place: usize) -> &AtomicU64 {
        &self.words.words()[self.place_at(place) + 1]
    }

    fn bitmap(&self, place: usize) -> &[AtomicU64] {
        &self.words.words()[self.place_at(place) + 2..][..bitmap_words(self.slabs)]
    }

    fn own(&self) -> &[AtomicU64] {
        self.bitmap(PLACE.load(Ordering::Relaxed) as usize)
    }

    /// Takes a slab that nobody uses, if it is `slab`.
    pub(crate) fn claim(&self, slab: u32) -> bool {
        let claimed = self.users(slab).compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            set(self.own(), slab);
        }
        claimed
    }

    /// Ends one use of a slab. True when it was the last.
    fn drop_use(&self, bitmap: &[AtomicU64], slab: u32) -> bool {
        clear(bitmap, slab);
        self.users(slab).fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Gives back what [`Family::claim`] took.
    pub(crate) fn give_back(&self, slab: u32) {
        self.drop_use(self.own(), slab);
    }

    /// A place for a child. `None` when the family is as large as can be.
    pub fn prepare(&self) -> Option<Cradle> {
        self.bury();
        let free = |place: &usize| {
            self.pid(*place).compare_exchange(FREE, IN_BETWEEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        (0..PROCESSES_MOST).find(free).map(|place| {
            self.born(place).store(0, Ordering::Relaxed);
            Cradle { place }
        })
    }

    /// The child will use `slab`, which this process uses.
    pub fn will_use(&self, child: &Cradle, slab: u32) {
        self.users(slab).fetch_add(1, Ordering::AcqRel);
        set(self.bitmap(child.place), slab);
    }

    /// In the parent, after fork(2).
    pub fn was_born(&self, child: &Cradle, pid: u32) {
        self.pid(child.place).store(pid, Ordering::Release);
    }

    /// In the parent, when fork(2) has failed.
    pub fn was_not_born(&self, child: &Cradle) {
        self.empty(child.place);
    }

    /// In the child, after fork(2).
    pub fn become_child(&self, child: &Cradle) {
        PLACE.store(child.place as u32, Ordering::Relaxed);
        self.pid(child.place).store(std::process::id(), Ordering::Release);
        self.born(child.place).store(birth("self"), Ordering::Release);
    }

    /// Before this process uses slabs: sees to it that it has a place of its own. It has none when it was forked before
    /// it had any.
    pub(crate) fn join(&self) -> Result<(), TooMany> {
        let place = PLACE.load(Ordering::Relaxed) as usize;
        if self.pid(place).load(Ordering::Acquire) != std::process::id() {
            self.become_child(&self.prepare().ok_or(TooMany)?);
        }
        Ok(())
    }

    /// Gives back what processes used that have ended.
    pub fn bury(&self) {
        for place in 0..PROCESSES_MOST {
            let pid = self.pid(place).load(Ordering::Acquire);
            let mine = place == PLACE.load(Ordering::Relaxed) as usize;
            if pid == FREE || pid == IN_BETWEEN || mine || lives(pid, self.born(place).load(Ordering::Acquire)) {
                continue;
            }
            if self.pid(place).compare_exchange(pid, IN_BETWEEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.empty(place);
            }
        }
    }

    fn empty(&self, place: usize) {
        let bitmap = self.bitmap(place);
        for (index, word) in bitmap.iter().enumerate() {
            let bits = word.load(Ordering::Acquire);
            for bit in (0..64).filter(|bit| bits & 1 << bit != 0) {
                self.drop_use(bitmap, (index * 64 + bit) as u32);
            }
        }
        self.pid(place).store(FREE, Ordering::Release);
    }
}

fn bitmap_words(slabs: u32) -> usize {
    (slabs as usize).div_ceil(64)
}

fn set(bitmap: &[AtomicU64], slab: u32) {
    bitmap[slab as usize / 64].fetch_or(1 << (slab % 64), Ordering::AcqRel);
}

fn clear(bitmap: &[AtomicU64], slab: u32) {
    bitmap[slab as usize / 64].fetch_and(!(1 << (slab % 64)), Ordering::AcqRel);
}

/// State and start time of a process, as /proc/PID/stat has them (proc_pid_stat(5), fields 3 and 22).
fn state_and_birth(process: &str) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

fn birth(process: &str) -> u64 {
    state_and_birth(process).map_or(0, |(_, birth)| birth)
}

/// Whether a process still has its memory. Where /proc cannot be read at all, all live.
fn lives(pid: u32, born: u64) -> bool {
    match state_and_birth(&pid.to_string()) {
        Some((state, birth)) => !matches!(state, 'Z' | 'X') && (born == 0 || born == birth),
        None => state_and_birth("self").is_none(),
    }
}

/// This process's way to the family's slabs.
pub struct FamilySlabs {
    family: &'static Family,
    /// Given back by this process, the latest last. Others may have taken them since.
    free: Vec<u32>,
    /// Slabs that this process uses.
    used: u32,
}

impl FamilySlabs {
    /// The account of `family`.
    pub fn new(family: &'static Family) -> Self {
        Self { family, free: Vec::with_capacity(family.slabs as usize), used: 0 }
    }
}

impl FamilySlabs {
    fn find(&mut self) -> Option<u32> {
        let family = self.family;
        while let Some(slab) = self.free.pop() {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        let next = |touched: u32| (touched < family.slabs).then_some(touched + 1);
        while let Ok(slab) = family.touched().fetch_update(Ordering::AcqRel, Ordering::Relaxed, next) {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        (0..family.slabs).find(|slab| family.claim(*slab))
    }
}

impl fmt::Debug for FamilySlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} slabs in use", self.in_use(), self.family.slabs)
    }
}

impl Slabs for FamilySlabs {
    fn take(&mut self) -> Option<u32> {
        let slab = self.find();
        self.used += u32::from(slab.is_some());
        slab
    }

    fn release(&mut self, slab: u32) -> bool {
        self.used -= 1;
        let free = self.family.drop_use(self.family.own(), slab);
        if free && self.free.len() < self.free.capacity() {
            self.free.push(slab);
        }
        free
    }

    fn is_shared(&self, slab: u32) -> bool {
        self.family.users(slab).load(Ordering::Acquire) > 1
    }

    fn in_use(&self) -> u32 {
        self.used
    }
}
