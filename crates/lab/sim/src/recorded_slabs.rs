// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives a replayed engine the slabs that the recorded engine took.
//!
//! Which slab of a tier is free is not the engine's decision: a process that forked before its pager started shares the
//! slab allocator with its child, and that child is in no recording. So the recorded slab is an input of the replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_core::slabs::Slabs;
use aquifer_core::units::SlabIndex;

/// Means no slab: the tier was full.
const FULL: u64 = u64::MAX;

/// The replay's side: sets the slab of the next event.
#[derive(Clone, Debug, Default)]
pub struct NextSlab(Arc<AtomicU64>);

impl NextSlab {
    /// Sets the slab that the engine takes next; `None` if the tier was full.
    pub fn set(&self, slab: Option<SlabIndex>) {
        self.0.store(slab.map_or(FULL, |slab| slab.0.into()), Ordering::Relaxed);
    }
}

/// The engine's side.
#[derive(Debug)]
pub struct RecordedSlabs {
    next: NextSlab,
    used: u32,
}

impl RecordedSlabs {
    /// Creates an allocator of the slabs that `next` announces.
    pub fn new(next: NextSlab) -> Self {
        Self { next, used: 0 }
    }
}

impl Slabs for RecordedSlabs {
    fn take(&mut self) -> Option<SlabIndex> {
        let slab = u32::try_from(self.next.0.load(Ordering::Relaxed)).ok()?;
        self.used += 1;
        Some(SlabIndex(slab))
    }

    /// A recording ends at the first fork after its start, so none of its slabs has a second user.
    fn release(&mut self, _: SlabIndex) -> bool {
        self.used -= 1;
        true
    }

    fn is_shared(&self, _: SlabIndex) -> bool {
        false
    }

    fn in_use(&self) -> u32 {
        self.used
    }
}
