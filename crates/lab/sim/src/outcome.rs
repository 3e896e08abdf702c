// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The cost of a run, counted in the same way for a recorded run and for a simulated one.

use std::ops::Sub;

use aquifer_core::engine::EngineCounts;
use serde::Serialize;

/// Counts of one run, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Faults, each counted once, regardless of how many steps it asked for.
    pub faults: u64,
    /// Faults that waited for the tier.
    pub fetches: u64,
    /// Pages that these faults fetched.
    pub fetched_pages: u64,
    /// Pages fetched ahead of demand.
    pub read_ahead_pages: u64,
    /// Blocks that were read ahead and that a fault then asked for.
    pub prefetch_hits: u64,
    /// Blocks that were read ahead and evicted before any fault asked for them.
    pub prefetch_wasted: u64,
    /// Blocks that were rescued from standby.
    pub rescued_blocks: u64,
    /// Pages that were evicted from the resident set.
    pub evicted_pages: u64,
    /// Pages written to the tier.
    pub written_back_pages: u64,
    /// Faults that found no room, because the tier was full.
    pub no_room: u64,
}

impl Outcome {
    /// Pages fetched from the tier, on demand or ahead of it.
    pub fn tier_pages(&self) -> u64 {
        self.fetched_pages + self.read_ahead_pages
    }

    /// Adds the counts that the engine keeps itself.
    pub fn with(self, counts: EngineCounts) -> Outcome {
        Outcome {
            prefetch_hits: counts.prefetch_hits,
            prefetch_wasted: counts.prefetch_wasted,
            evicted_pages: counts.evicted_pages,
            ..self
        }
    }
}

impl Sub for Outcome {
    type Output = Outcome;

    /// The counts since `before`.
    fn sub(self, before: Outcome) -> Outcome {
        Outcome {
            faults: self.faults - before.faults,
            fetches: self.fetches - before.fetches,
            fetched_pages: self.fetched_pages - before.fetched_pages,
            read_ahead_pages: self.read_ahead_pages - before.read_ahead_pages,
            prefetch_hits: self.prefetch_hits - before.prefetch_hits,
            prefetch_wasted: self.prefetch_wasted - before.prefetch_wasted,
            rescued_blocks: self.rescued_blocks - before.rescued_blocks,
            evicted_pages: self.evicted_pages - before.evicted_pages,
            written_back_pages: self.written_back_pages - before.written_back_pages,
            no_room: self.no_room - before.no_room,
        }
    }
}
