// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine: is told what happened, answers with what must be done.
//!
//! Pure, and allocation-free except where a mapping is added. The driver holds one lock around it and
//! carries the answers out with the lock released; a block that is being worked on is in a busy state, and
//! everybody else waits until the worker on it reports back.
//!
//! - [`fault`](Engine::fault) and its reports are in `fault.rs`: one fault's way.
//! - [`plan`](Engine::plan) is in `background.rs`: eviction, cleaning and read-ahead ahead of demand.
//! - Adding, discarding and removing mappings is in `mappings.rs`.
//!
//! Invariants, restored by every call: a block's frame is known if and only if its state has one; the
//! frame pool's sum is the budget; a block is with the policy exactly while it is Resident.

mod background;
mod fault;
mod mappings;

pub use background::{PLAN_MOST, Plan, Task};
pub use fault::{CleanVerdict, FaultStep};
pub use mappings::DiscardStep;

use crate::block::{NONE, State};
use crate::frames::FramePool;
use crate::map::BlockMap;
use crate::policy::{Arrival, Policy};
use crate::prefetch::Prefetcher;
use crate::standby::Standby;
use crate::units::{BlockIndex, FrameIndex};
use crate::watermarks::Watermarks;

/// Read-ahead may take this part of the budget: more would push out what it has just brought.
const AHEAD_PART: u64 = 16;

/// How the engine is to behave; fixed for its life.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Pages that may be in local DRAM at once, resident and in frames together.
    pub budget_pages: u64,
    /// Regions of 2 MiB for which the tier has room.
    pub tier_slabs: u32,
    /// Whether to read ahead.
    pub prefetch: bool,
}

/// What the engine has done so far. Monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages that left the resident set.
    pub evicted_pages: u64,
    /// Blocks that left the resident set.
    pub evicted_blocks: u64,
    /// Blocks found on standby by a fault.
    pub rescued_blocks: u64,
    /// Blocks that read-ahead brought and a fault then asked for.
    pub prefetch_hits: u64,
    /// Blocks that read-ahead brought and that left without a touch that we saw.
    pub prefetch_wasted: u64,
}

/// See the module.
pub struct Engine {
    pub(crate) map: BlockMap,
    pub(crate) frames: FramePool,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) prefetcher: Prefetcher,
    /// Victims, in the order in which they left.
    pub(crate) standby: Standby,
    /// Blocks that were read ahead and wait for their touch.
    pub(crate) ready: Standby,
    pub(crate) watermarks: Watermarks,
    ahead: background::Ahead,
    pub(crate) settings: Settings,
    pub(crate) resident_pages: u64,
    /// Pages found resident at registration for which no budget was left; paid back by eviction.
    pub(crate) debt_pages: u64,
    /// Pages of standby blocks being cleaned: they will be free soon.
    pub(crate) cleaning_pages: u64,
    pub(crate) tally: Tally,
}

impl Engine {
    /// An engine with nothing mapped.
    pub fn new(settings: Settings, policy: Box<dyn Policy>) -> Self {
        Self {
            map: BlockMap::new(settings.tier_slabs),
            frames: FramePool::new(settings.budget_pages),
            policy,
            prefetcher: Prefetcher::new(settings.budget_pages / AHEAD_PART),
            standby: Standby::default(),
            ready: Standby::default(),
            watermarks: Watermarks::for_budget(settings.budget_pages),
            ahead: background::Ahead::default(),
            settings,
            resident_pages: 0,
            debt_pages: 0,
            cleaning_pages: 0,
            tally: Tally::default(),
        }
    }

    /// The block map, to look things up.
    pub fn map(&self) -> &BlockMap {
        &self.map
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Pages at the program's addresses now.
    pub fn resident_pages(&self) -> u64 {
        self.resident_pages
    }

    /// Pages out of the program's reach and still in DRAM: victims, and what was read ahead.
    pub fn standby_pages(&self) -> u64 {
        self.standby.pages() + self.ready.pages()
    }

    /// Pages that a fault could have without evicting.
    pub fn free_pages(&self) -> u64 {
        self.frames.free_pages()
    }

    /// Whether the worker should look: frames run low, or there is something to read ahead.
    pub fn wants_worker(&self) -> bool {
        self.frames.free_pages() + self.cleaning_pages < self.watermarks.free_low || !self.ahead.is_empty()
    }

    fn weight(&self, block: BlockIndex) -> u32 {
        self.map.region_of(block).order.pages()
    }

    /// Puts a block into the resident set, for the policy and for the account.
    fn enter(&mut self, block: BlockIndex, arrival: Arrival) {
        let weight = self.weight(block);
        self.policy.arrived(block, weight, arrival);
        self.resident_pages += u64::from(weight);
    }

    /// Takes a block out of the account. The policy has let go of it already.
    fn leave(&mut self, block: BlockIndex) {
        let weight = u64::from(self.weight(block));
        self.resident_pages -= weight;
        self.tally.evicted_pages += weight;
        self.tally.evicted_blocks += 1;
        let stamp = self.tally.evicted_pages as u32;
        self.map.block_mut(block).evicted_at = stamp;
    }

    /// Gives a frame with its pages back, or pays debt with them.
    fn release(&mut self, frame: FrameIndex) {
        self.frames.put_filled(frame);
    }

    /// How long ago, in evicted pages, the block left.
    fn distance(&self, block: BlockIndex) -> u64 {
        u64::from((self.tally.evicted_pages as u32).wrapping_sub(self.map.block(block).evicted_at))
    }

    /// Ends somebody's work on a block; true when others wait for it.
    fn settle(&mut self, block: BlockIndex, state: State) -> bool {
        let entry = self.map.block_mut(block);
        entry.become_state(state);
        std::mem::take(&mut entry.wanted)
    }

    /// Checks the account; for tests.
    pub fn check(&self) {
        let mut held = 0;
        let mut resident = 0;
        for mapping in self.map.mappings() {
            for block in self.map.blocks_in(mapping.start, mapping.end) {
                let entry = self.map.block(block);
                let weight = u64::from(self.weight(block));
                match entry.state {
                    State::Resident => resident += weight,
                    State::Standby | State::Cleaning | State::Fetching => held += weight,
                    State::Empty | State::Stored | State::Poisoned => assert_eq!(entry.frame, NONE, "{:?}", entry.state),
                    State::Installing | State::Leaving => {}
                }
            }
        }
        assert_eq!(resident, self.resident_pages);
        assert_eq!(resident, self.policy.resident_pages());
        assert!(held + resident + self.free_pages() <= self.settings.budget_pages + self.debt_pages);
    }
}
