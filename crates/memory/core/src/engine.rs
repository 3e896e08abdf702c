// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine: it receives events and returns the actions that must follow.
//!
//! Pure, and allocation-free except where mappings or the budget change, and for fork(2). The driver holds one lock
//! around it and carries the actions out with the lock released. A block that a thread is working on is in a busy
//! state, and every other thread waits until that thread reports back.
//!
//! - [`fault`](Engine::fault) is in `fault.rs`: the path of one fault. It makes room in `make_room.rs`, and each step
//!   ends with a report, in `reports.rs`. Small blocks are copied while there is credit: `credit.rs`.
//! - [`plan`](Engine::plan) is in `background.rs`: eviction, cleaning and read-ahead ahead of demand.
//! - The program's advice, by madvise(2), is in `advice.rs`. Callers that wait for what they asked for: `arrivals.rs`.
//! - Writes in place are in `write_in_place.rs`. Changes of the budget are in `budget.rs`; faults that help to pay the
//!   debt that a smaller one leaves: `payment.rs`.
//! - The choice of a victim is in `victims.rs`. That of a block size is in `block_size.rs`, with the evidence of
//!   `clusters.rs`.
//! - fork(2) is in `fork.rs`.
//! - Adding, discarding and removing mappings is in `mappings.rs`; those with contents in a file: `named.rs`.
//! - What all tables take in memory is in `tables.rs`.
//!
//! Invariants, restored by every call: a block's frame is known if and only if its state has one; the frame pool's sum
//! is the budget; a block is with the policy exactly while it is Resident, unless it is the pending victim.

mod advice;
mod arrivals;
mod background;
mod block_size;
mod budget;
mod clusters;
mod credit;
mod dropping;
mod fault;
mod fork;
mod make_room;
mod mappings;
mod named;
mod payment;
mod reports;
mod tables;
mod victims;
mod write_in_place;

pub use advice::Advice;
pub use arrivals::Arrived;
pub use background::{PLAN_MAX, Plan, Task, Transfers};
pub use budget::budget_pages_min;
pub use credit::CreditStep;
pub use dropping::{DROPS_MAX, DropBatch};
pub use fault::{Exchange, FaultStep};
pub use fork::ForkObstacle;
pub use mappings::DiscardStep;
pub use named::{Contents, Renewed};
pub use reports::CleanVerdict;
pub use tables::Tables;
pub use write_in_place::{Change, Changed};

use std::sync::Arc;

use self::clusters::Clusters;
use crate::areas::Areas;
use crate::block::{NONE, State, Waiting};
use crate::frames::FramePool;
use crate::map::changes::Changes;
use crate::map::{BlockMap, Priority};
use crate::policy::{Arrival, Policy};
use crate::prefetch::{Prefetcher, WINDOW_PAGES};
use crate::refaults::Refaults;
use crate::slabs::{OwnSlabs, Slabs};
use crate::standby::Standby;
use crate::standby_length::StandbyLength;
use crate::stripes::Stripes;
use crate::temperature::Histogram;
use crate::units::{BlockIndex, FrameIndex, Order};
use crate::watermarks::Watermarks;

/// Read-ahead may take `1 / AHEAD_PART` of the budget: more would push out blocks that it has just fetched.
const AHEAD_PART: u64 = 16;
/// What it may take from a tier of several media, if that is enough for a stream's window there: otherwise most of them
/// would be idle. `aquifer bench --overhead striping`.
pub const WIDE_AHEAD_PART: u64 = 4;

/// When all memory fits, frames take about `1 / FRAMES_PART` of its size in addition to the resident pages.
pub(crate) const FRAMES_PART: u64 = 16;

/// The engine's settings, fixed for its life except for the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Pages that may be in local DRAM at the same time, resident and in frames together, until
    /// [`set_budget`](Engine::set_budget) changes the number.
    pub budget_pages: u64,
    /// Number of 2 MiB regions for which the tier has room.
    pub tier_slabs: u32,
    /// Whether to read ahead.
    pub prefetch: bool,
    /// Whether blocks may change their size.
    pub elastic: bool,
    /// Blocks of up to this many pages are copied to the program's address rather than moved.
    pub copied_pages_max: u32,
    /// Whether the driver can install pages write-protected.
    pub seals: bool,
    /// Cost of fetching a small block from the tier, relative to rescuing one from standby.
    pub fetch_cost: u64,
    /// Maximum number of pages that a stream is read ahead of: [`WINDOW_PAGES`](crate::prefetch::WINDOW_PAGES), or more
    /// if its pages lie on several media in turn.
    pub window_pages: u32,
}

impl Settings {
    /// Maximum number of pages that all streams together may be ahead, with this budget.
    fn ahead_pages_max(&self, budget_pages: u64) -> u64 {
        let wide = if self.window_pages > WINDOW_PAGES { budget_pages / WIDE_AHEAD_PART } else { 0 };
        (budget_pages / AHEAD_PART).max(wide.min(self.window_pages.into()))
    }
}

#[cfg(test)]
impl Settings {
    /// What the tests of this crate begin with: no read-ahead, blocks of one size, each moved rather than copied.
    pub(crate) const PLAIN: Settings = Settings {
        budget_pages: 1024,
        tier_slabs: 8,
        prefetch: false,
        elastic: false,
        copied_pages_max: 0,
        seals: false,
        fetch_cost: 5,
        window_pages: WINDOW_PAGES,
    };
}

/// What the engine has done so far. Monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EngineCounts {
    /// Pages that left the resident set.
    pub evicted_pages: u64,
    /// Blocks that left the resident set.
    pub evicted_blocks: u64,
    /// Evicted blocks whose frame was freed without comparing bytes, because the tier was known to hold them.
    pub dropped_clean_blocks: u64,
    /// Blocks that a fault found on standby.
    pub rescued_blocks: u64,
    /// Blocks that read-ahead fetched and a fault then asked for. Prepared zeros are not counted.
    pub prefetch_hits: u64,
    /// Blocks that read-ahead fetched and that were evicted before any touch that the engine saw.
    pub prefetch_wasted: u64,
}

/// The engine of one space: receives events, and returns what the driver must do next.
pub struct Engine {
    pub(crate) map: BlockMap,
    pub(crate) frames: FramePool,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) prefetcher: Prefetcher,
    pub(crate) standby: Standby,
    pub(crate) watermarks: Watermarks,
    pub(crate) standby_length: StandbyLength,
    ahead: background::Ahead,
    departures: advice::Departures,
    /// How scattered the latest demand fetches were.
    scatter: Areas<block_size::Scatter>,
    /// Whether those fetches lie in clusters.
    clusters: Clusters,
    /// The block size for memory that a stream passes through.
    large: Order,
    pub(crate) settings: Settings,
    pub(crate) resident_pages: u64,
    /// Pages in use in excess of the budget: found resident at registration, or spent before the budget shrank.
    /// Eviction pays them back.
    pub(crate) debt_pages: u64,
    /// Whether faults take nothing while there is much debt.
    bounds_debt: bool,
    /// Pages of standby blocks that are being cleaned: they will soon be free.
    pub(crate) cleaning_pages: u64,
    /// Pages that the evictions in progress will make free or put on standby.
    pub(crate) leaving_pages: u64,
    pub(crate) counts: EngineCounts,
    /// Refault distances of fetched blocks.
    refaults: Refaults,
    /// Consecutive failed write-backs.
    pub(crate) failed_in_a_row: u32,
    /// Blocks that lost their last seal to a store, and have left unchanged.
    seal_candidates: u32,
    /// Whether the worker should retry blocks whose write-back failed.
    pub(crate) tries_again: bool,
    /// Whether a small block has been installed since credit was last made for small blocks.
    pub(crate) copies_lately: bool,
    /// Small blocks that were moved for lack of credit. Each plan that supplies credit or finds enough forgets half.
    pub(crate) moves_lately: u32,
    /// How many victims are taken without regard to their priority.
    unspared: u32,
    /// The next victim, if it has been chosen already. It is resident, and the policy does not hold it.
    pending_victim: Option<BlockIndex>,
    /// Whether every arrival of a read-ahead is to be reported, since callers wait for some.
    arrivals_are_awaited: bool,
    /// Which pages it has, if other engines have the rest: its shard.
    pub(crate) stripes: Stripes,
    pub(crate) shard: usize,
}

impl Engine {
    /// Creates an engine with nothing mapped, which has the tier to itself.
    pub fn new(settings: Settings, policy: Box<dyn Policy>) -> Self {
        Self::with_slabs(settings, policy, Box::new(OwnSlabs::new(settings.tier_slabs)))
    }

    /// As [`new`](Self::new), with the caller's own allocator of the tier's slabs.
    pub fn with_slabs(settings: Settings, policy: Box<dyn Policy>, slabs: Box<dyn Slabs>) -> Self {
        let mut standby = Standby::default();
        standby.grow(settings.budget_pages);
        Self {
            map: BlockMap::new(slabs, settings.tier_slabs, if settings.elastic { Order::MIN } else { Order::UNIT }),
            frames: FramePool::new(settings.budget_pages),
            policy,
            prefetcher: Prefetcher::new(
                settings.ahead_pages_max(settings.budget_pages),
                settings.window_pages,
                settings.fetch_cost <= 1,
            ),
            standby,
            watermarks: Watermarks::for_budget(settings.budget_pages),
            standby_length: StandbyLength::new(settings.budget_pages, settings.fetch_cost),
            ahead: background::Ahead::default(),
            departures: advice::Departures::default(),
            scatter: Areas::new(block_size::Scatter::default()),
            clusters: Clusters::new(settings.fetch_cost <= 1, settings.budget_pages),
            large: block_size::large(settings.budget_pages),
            settings,
            resident_pages: 0,
            debt_pages: 0,
            bounds_debt: false,
            cleaning_pages: 0,
            leaving_pages: 0,
            counts: EngineCounts::default(),
            refaults: Refaults::default(),
            failed_in_a_row: 0,
            seal_candidates: 0,
            tries_again: false,
            copies_lately: false,
            moves_lately: 0,
            unspared: 0,
            pending_victim: None,
            arrivals_are_awaited: false,
            stripes: Stripes::new(1, settings.budget_pages),
            shard: 0,
        }
    }

    /// Makes it one shard of a space that is divided into `stripes`. To be called before anything is mapped.
    pub fn become_shard(&mut self, stripes: Stripes, shard: usize) {
        (self.stripes, self.shard) = (stripes, shard);
    }

    /// Counts changes of resident blocks in `changes`, which the other shards of the space use too. To be called before
    /// anything is mapped.
    pub fn count_changes_in(&mut self, changes: Arc<Changes>) {
        self.map.count_changes_in(changes);
    }

    /// The block map, for lookups.
    pub fn map(&self) -> &BlockMap {
        &self.map
    }

    /// Counts of what the engine has done so far.
    pub fn counts(&self) -> EngineCounts {
        self.counts
    }

    /// An estimate of how many more pages of budget would halve the fetches. Never more than is missing to keep all
    /// contents in DRAM. `None` until there is evidence.
    pub fn pages_to_halve_fetches(&self) -> Option<u64> {
        let pages = self.refaults.pages_to_halve()?;
        let Histogram { resident, away } = self.map.temperatures().histogram();
        let contents: u64 = resident.iter().chain(away).sum();
        // Frames in circulation need room, too.
        let enough = (contents + contents / FRAMES_PART).saturating_sub(self.budget_pages());
        Some(pages.min(enough))
    }

    /// Records that the fetch of a block begins.
    fn count_refault(&mut self, block: BlockIndex) {
        let (pages, distance) = (u64::from(self.weight(block)), self.distance(block));
        let standby = self.standby.pages(Waiting::Evicted);
        self.refaults.fetched(pages, distance, standby, self.budget_pages());
    }

    /// Pages resident at the program's addresses now.
    pub fn resident_pages(&self) -> u64 {
        self.resident_pages
    }

    /// Pages out of the program's reach and still in DRAM: victims, read-ahead, and blocks whose write-back failed.
    pub fn standby_pages(&self) -> u64 {
        self.standby.pages_all()
    }

    /// Pages on standby whose write-back failed.
    pub fn unwritable_pages(&self) -> u64 {
        self.standby.pages(Waiting::Unwritable)
    }

    /// Pages that faults could use without evicting.
    pub fn free_pages(&self) -> u64 {
        self.frames.free_pages()
    }

    /// Pages over the budget that have not been paid back yet: they were resident at registration, or the budget
    /// shrank.
    pub fn debt_pages(&self) -> u64 {
        self.debt_pages
    }

    /// Whether the worker has work: frames run low, there is debt, credit is short, or read-ahead or departures are
    /// queued.
    pub fn wants_worker(&self) -> bool {
        self.frames.free_pages() + self.cleaning_pages < self.watermarks.free_low
            || self.debt_pages > 0
            || self.wants_credit()
            || !self.ahead.is_empty()
            || self.has_departures()
    }

    fn weight(&self, block: BlockIndex) -> u32 {
        self.map.order(block).pages()
    }

    /// Adds a block to the resident set, in the policy and in the counts.
    fn enter(&mut self, block: BlockIndex, arrival: Arrival) {
        let weight = self.weight(block);
        let is_low = self.map.region_of(block).announced.priority == Priority::Low;
        self.policy.arrived(block, weight, if is_low { Arrival::Fresh } else { arrival });
        self.map.heat(block, arrival, self.resident_pages);
        self.resident_pages += u64::from(weight);
    }

    /// Removes a block from the counts. The policy has already given it up.
    fn leave(&mut self, block: BlockIndex) {
        let weight = u64::from(self.weight(block));
        self.resident_pages -= weight;
        self.counts.evicted_pages += weight;
        self.counts.evicted_blocks += 1;
        self.refaults.evicted(weight);
        let stamp = self.counts.evicted_pages as u32;
        self.map.block_mut(block).evicted_at = stamp;
        self.map.cool(block, self.budget_pages());
        if self.standby_length.evicted(weight) {
            self.policy.grow(self.map.blocks_len(), self.keep_pages());
        }
    }

    /// `weight` pages went back to the kernel: pays debt with them; the rest may be spent again.
    fn repay(&mut self, weight: u64) {
        let paid = weight.min(self.debt_pages);
        self.debt_pages -= paid;
        self.frames.credit(weight - paid);
    }

    /// Gives a frame with its pages back to the pool.
    fn release(&mut self, frame: FrameIndex) {
        self.frames.put_backed(frame);
    }

    /// How long ago the block was evicted, in evicted pages.
    fn distance(&self, block: BlockIndex) -> u64 {
        u64::from((self.counts.evicted_pages as u32).wrapping_sub(self.map.block(block).evicted_at))
    }

    /// Ends a thread's work on a block. Returns true when other threads wait for it.
    fn finish(&mut self, block: BlockIndex, state: State) -> bool {
        if state == State::Empty {
            self.map.forget_temperature(block);
            self.map.leave_inherited(block);
        }
        let mut entry = self.map.block_mut(block);
        entry.become_state(state);
        std::mem::take(&mut entry.wanted)
    }

    /// Checks the counts and the lists; for tests.
    pub fn check(&self) {
        let mut histogram = Histogram::default();
        let (mut framed, mut resident, mut leaving, mut room) = (0, 0, 0, 0);
        let (mut waiting, mut cleaning) = (0, 0);
        for mapping in self.map.mappings() {
            for block in self.map.blocks_in(mapping.start, mapping.end) {
                let entry = self.map.block(block);
                let weight = u64::from(self.weight(block));
                // Accounted for at both ends, on the way in and on the way out.
                framed += if entry.copied { weight } else { 0 };
                match entry.state {
                    State::Resident => resident += weight,
                    State::Leaving => {
                        leaving += weight;
                        room += self.leaving_room(block);
                    }
                    State::Standby | State::Cleaning | State::Fetching => framed += weight,
                    // A hole being filled has no frame: the block's pages are where they were.
                    State::Installing => framed += weight,
                    State::Empty | State::Stored | State::Changing | State::Poisoned => {}
                }
                match entry.state {
                    State::Standby | State::Cleaning | State::Fetching => assert_ne!(entry.frame, NONE),
                    State::Leaving => assert!(entry.frame != NONE || entry.sealed),
                    State::Installing => {}
                    _ => assert_eq!(entry.frame, NONE, "{:?}", entry.state),
                }
                let moving = matches!(entry.state, State::Fetching | State::Installing | State::Leaving);
                assert!(moving || !entry.copied, "reserved twice for ever: {:?}", entry.state);
                waiting += if entry.state == State::Standby { weight } else { 0 };
                cleaning += if entry.state == State::Cleaning { weight } else { 0 };
                self.map.temperatures().recount(entry.reading, entry.state, weight, &mut histogram);
                let is_stored = matches!(entry.state, State::Stored | State::Changing);
                assert!(!is_stored || self.map.slot(block).is_some(), "stored, and nowhere");
                assert!(entry.state.is_busy() || !entry.wanted, "wanted for ever: {:?}", entry.state);
            }
        }
        assert_eq!(histogram, *self.map.temperatures().histogram());
        assert_eq!(resident + leaving, self.resident_pages);
        let pending = self.pending_victim.map_or(0, |victim| {
            assert_eq!(self.map.block(victim).state, State::Resident, "a pending victim");
            u64::from(self.weight(victim))
        });
        assert_eq!(resident, self.policy.resident_pages() + pending);
        assert_eq!(waiting, self.standby_pages());
        assert_eq!(cleaning, self.cleaning_pages);
        assert_eq!(room, self.leaving_pages);
        let spent = framed + resident + leaving + self.free_pages();
        assert!(spent <= self.budget_pages() + self.debt_pages, "{spent} pages are counted in frames and mappings");
    }
}
