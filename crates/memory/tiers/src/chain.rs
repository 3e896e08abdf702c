// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several tiers as one, the fastest first: blocks that are fetched often are kept on the fast tiers.
//!
//! The unit is the 2 MiB slab, which stores one region of the program's memory. `levels.rs` finds and places a slab,
//! using the table in `tier/src/places.rs` and the bitmaps of free slabs in `free_slabs.rs`; `queue.rs` is the
//! background workers' interface; `mover.rs` and `relocate.rs` move slabs from one level to another.
//! `core/src/tiering.rs` decides what moves. The reasons: `docs/decisions/0018-a-chain-moves-slabs.md`.
//!
//! After fork(2), parent and child share the table and the bitmaps, so each finds the slabs that the other has moved.

mod free_slabs;
mod level;
mod levels;
mod mover;
mod place;
mod queue;
mod relocate;
mod wakeup;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use aquifer_core::tiering::LEVELS_MAX;
use aquifer_core::units::{REGION_BYTES, SlabIndex};
use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::Errno;
use aquifer_tier::transfer::{check_buffer, check_range};
use aquifer_tier::{
    Activity, BUSY_BYTES, CompressionFigures, Forks, KeepAlive, LevelFigures, Leveled, Mover, OpenFailure, PAGE, Tier,
    TierFailure, TierFigures, TierQueue, Upkeep, Verify,
};

use self::level::Level;
use self::levels::Levels;
use self::mover::ChainMover;
use self::queue::ChainQueue;

const NAME: &str = "chain";

/// Several tiers as one.
pub struct Chain {
    levels: Arc<Levels>,
    notices: Vec<String>,
}

/// A part of a request that lies in one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    slab: SlabIndex,
    /// Its start in the slab.
    within: u64,
    /// Its start in the request.
    start: usize,
    bytes: usize,
}

/// The pieces of `len` bytes at `offset`.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (at, start) = (offset + done, done);
        let bytes = (len - done).min(REGION_BYTES - at % REGION_BYTES);
        done += bytes;
        let piece =
            Piece { slab: SlabIndex::at(at), within: at % REGION_BYTES, start: start as usize, bytes: bytes as usize };
        (bytes > 0).then_some(piece)
    })
}

impl Chain {
    /// A chain of `tiers`, the fastest first. Each must have room for at least one slab.
    pub fn new(tiers: Vec<Box<dyn Tier>>) -> Result<Chain, OpenFailure> {
        assert!((1..=LEVELS_MAX).contains(&tiers.len()), "who opens a chain has counted its levels");
        let notices = tiers.iter().flat_map(|tier| tier.notices().iter().cloned()).collect();
        let system = |Errno(errno)| OpenFailure::System {
            tier: NAME,
            what: "mapping memory for its tables",
            source: std::io::Error::from_raw_os_error(errno),
        };
        let mut levels = Vec::with_capacity(tiers.len());
        for tier in tiers {
            let slabs = (tier.capacity_bytes() / REGION_BYTES).min(u32::MAX.into()) as u32;
            if slabs == 0 {
                let (tier, wanted_bytes) = (tier.name(), tier.capacity_bytes());
                return Err(OpenFailure::TooSmall { tier, wanted_bytes, minimum_bytes: REGION_BYTES });
            }
            levels.push(Level::new(tier, slabs).map_err(system)?);
        }
        Ok(Chain { levels: Arc::new(Levels::new(levels).map_err(system)?), notices })
    }

    fn tiers(&self) -> impl Iterator<Item = &dyn Tier> {
        self.levels.all.iter().map(|level| &*level.tier)
    }

    fn upkeeps(&self) -> impl Iterator<Item = &dyn Upkeep> {
        self.tiers().filter_map(|tier| tier.upkeep())
    }
}

impl Tier for Chain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn remedy(&self) -> &'static str {
        self.levels.failed_last().tier.remedy()
    }

    fn capacity_bytes(&self) -> u64 {
        self.levels.capacity_bytes()
    }

    fn waits_for_medium(&self) -> bool {
        self.tiers().any(|tier| tier.waits_for_medium())
    }

    fn overlaps(&self) -> bool {
        self.tiers().any(|tier| tier.overlaps())
    }

    /// The least value among the levels that wait for a medium, because requests cost most there. If no level does, the
    /// least value of all levels.
    fn request_bytes_max(&self) -> usize {
        let waits = self.waits_for_medium();
        let levels = self.tiers().filter(|tier| tier.waits_for_medium() == waits);
        levels.map(|tier| tier.request_bytes_max()).min().unwrap_or(PAGE)
    }

    fn busy_bytes(&self) -> u64 {
        self.tiers().map(|tier| tier.busy_bytes()).max().unwrap_or(BUSY_BYTES)
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes())?;
        self.levels.read(offset, buffer)
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes())?;
        self.levels.read_other(offset, buffer, way)
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.levels.report_corruption(offset, len, way);
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Write, offset, buffer, self.capacity_bytes())?;
        self.levels.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        check_range(NAME, Activity::Discard, offset, len, self.capacity_bytes())?;
        self.levels.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.tiers().try_for_each(|tier| tier.flush())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(ChainQueue::new(Arc::clone(&self.levels), depth)?))
    }

    fn take_figures(&self) -> TierFigures {
        self.tiers().fold(TierFigures::default(), |sum, tier| sum.and(tier.take_figures()))
    }

    fn limit_local_bytes(&self, bytes: u64) {
        self.tiers().for_each(|tier| tier.limit_local_bytes(bytes));
    }

    fn compression(&self) -> Option<CompressionFigures> {
        self.tiers().filter_map(|tier| tier.compression()).reduce(CompressionFigures::and)
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        self.upkeeps().next().map(|_| self as &dyn Upkeep)
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }

    fn leveled(&self) -> Option<&dyn Leveled> {
        Some(self)
    }
}

impl Upkeep for Chain {
    fn turn(&self, verify: Option<&Verify<'_>>) -> Duration {
        let levels = self.levels.all.iter().enumerate();
        let upkeeps = levels.filter_map(|(level, it)| Some((level, it.tier.upkeep()?)));
        let next = upkeeps.map(|(level, upkeep)| match verify {
            None => upkeep.turn(None),
            Some(verify) => {
                let latest = Cell::new(SlabIndex(0));
                upkeep.turn(Some(&|offset, page| self.levels.verify(level, offset, page, &latest, verify)))
            }
        });
        let next = next.min();
        if self.levels.is_any_leaving() {
            self.levels.wakeup.wake();
        }
        next.expect("upkeep is offered only where a level has it")
    }

    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.upkeeps().for_each(|upkeep| upkeep.report_changes(say));
    }

    /// `turn` waits for one level after the other, so a slow level would delay the renewals of the next.
    fn keep_alive_every(&self) -> Option<Duration> {
        self.upkeeps().filter_map(|upkeep| upkeep.keep_alive_every()).min()
    }

    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        self.upkeeps().flat_map(|upkeep| upkeep.begin_keep_alive()).collect()
    }
}

impl Forks for Chain {
    fn before_fork(&self) -> Result<(), Errno> {
        self.tiers().try_for_each(|tier| tier.before_fork())
    }

    fn after_fork_in_parent(&self, inherits: bool) {
        self.tiers().for_each(|tier| tier.after_fork_in_parent(inherits));
    }

    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno> {
        self.tiers().try_for_each(|tier| tier.after_fork_in_child(inherits))
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.tiers().try_for_each(|tier| tier.give_up_in_child())
    }

    fn is_shared_by_family(&self) -> bool {
        self.tiers().any(|tier| tier.is_shared_by_family())
    }
}

impl Leveled for Chain {
    fn level(&self, index: usize) -> Option<LevelFigures> {
        self.levels.all.get(index).map(Level::figures)
    }

    fn level_of(&self, offset: u64) -> Option<usize> {
        self.levels.level_of(offset)
    }

    fn mover(&self) -> Option<Box<dyn Mover>> {
        // Without memory for the mover's buffer, slabs stay where they are.
        Some(Box::new(ChainMover::new(Arc::clone(&self.levels)).ok()?))
    }
}

#[cfg(test)]
mod tests;
