// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which slabs of the tier are in use.
//!
//! Pure. A process that has never forked has the slabs to itself ([`OwnSlabs`]). After fork(2), parent and child read
//! the same slabs, and each takes new ones from the same tier; then the driver supplies an allocator that both share.

use std::fmt;

use crate::units::SlabIndex;

/// The allocator of slabs. One slab has room for one region; it is free when no process uses it.
pub trait Slabs: Send + fmt::Debug {
    /// Takes a free slab; `None` when the tier has none.
    fn take(&mut self) -> Option<SlabIndex>;

    /// Ends this process's use of a slab. Returns whether it is free now.
    fn release(&mut self, slab: SlabIndex) -> bool;

    /// Whether another process also uses the slab: then its bytes must not change. Once false, it stays false until
    /// this process forks.
    fn is_shared(&self, slab: SlabIndex) -> bool;

    /// Number of slabs in use by any process.
    fn in_use(&self) -> u32;
}

/// The allocator of a single process.
#[derive(Debug)]
pub struct OwnSlabs {
    /// Released slabs, the latest last: it is the first to be taken again.
    free: Vec<SlabIndex>,
    used: u32,
    max: u32,
}

impl OwnSlabs {
    /// A tier with room for `max` slabs, all free.
    pub fn new(max: u32) -> Self {
        Self { free: Vec::new(), used: 0, max }
    }
}

impl Slabs for OwnSlabs {
    fn take(&mut self) -> Option<SlabIndex> {
        self.free.pop().or_else(|| {
            (self.used < self.max).then(|| {
                self.used += 1;
                SlabIndex(self.used - 1)
            })
        })
    }

    fn release(&mut self, slab: SlabIndex) -> bool {
        self.free.push(slab);
        true
    }

    fn is_shared(&self, _: SlabIndex) -> bool {
        false
    }

    fn in_use(&self) -> u32 {
        self.used - self.free.len() as u32
    }
}
