// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which slabs of the tier are in use.
//!
//! Pure. A process that has never forked has them to itself ([`OwnSlabs`]). After fork(2), parent and child read the
//! same slabs, and each takes new ones from the same tier; then the driver brings an account that both share.

use std::fmt;

/// The account of slabs. One slab has room for one region; it is free when nobody uses it.
pub trait Slabs: Send + fmt::Debug {
    /// Takes a free slab; `None` when the tier has none.
    fn take(&mut self) -> Option<u32>;

    /// Ends this process's use of a slab. Returns whether it is free now.
    fn release(&mut self, slab: u32) -> bool;

    /// Whether another process uses the slab, too: then its bytes must stay as they are. Once false, it stays so until
    /// this process forks.
    fn is_shared(&self, slab: u32) -> bool;

    /// Slabs that somebody uses.
    fn in_use(&self) -> u32;
}

/// The account of one process alone.
#[derive(Debug)]
pub struct OwnSlabs {
    /// Given back, the latest last: it is the first to be taken again.
    free: Vec<u32>,
    used: u32,
    most: u32,
}

impl OwnSlabs {
    /// A tier with room for `most` slabs, all free.
    pub fn new(most: u32) -> Self {
        Self { free: Vec::new(), used: 0, most }
    }
}

impl Slabs for OwnSlabs {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.used < self.most).then(|| {
                self.used += 1;
                self.used - 1
            })
        })
    }

    fn release(&mut self, slab: u32) -> bool {
        self.free.push(slab);
        true
    }

    fn is_shared(&self, _: u32) -> bool {
        false
    }

    fn in_use(&self) -> u32 {
        self.used - self.free.len() as u32
    }
}
