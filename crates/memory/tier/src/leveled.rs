// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a tier of several levels offers beyond other tiers: the figures of each level, and a mover that carries slabs
//! from one level to another.
//!
//! A tier that has levels says so with [`Tier::leveled`](crate::Tier::leveled).

/// A tier of several levels, the fastest first.
pub trait Leveled: Sync {
    /// The figures of one level; the fastest is level 0. `None` after the last level.
    fn level(&self, index: usize) -> Option<LevelFigures>;

    /// The level that has the bytes at `offset` now. `None`: nothing was stored there.
    fn level_of(&self, offset: u64) -> Option<usize>;

    /// Moves the tier's contents to where they are fetched faster. For a thread of the pager that does nothing else:
    /// the thread creates the mover, and each process has its own. `None` without room for it.
    fn mover(&self) -> Option<Box<dyn Mover>>;
}

/// Moves contents between levels, in parallel with the program.
pub trait Mover: Send {
    /// Moves what is worth moving now, a bounded amount.
    fn turn(&mut self);

    /// Waits until there may be something to move. Uses no processor time while the tier is idle.
    fn rest(&mut self);

    /// What ends a [`rest`](Self::rest) early, from any thread.
    fn waker(&self) -> Waker;
}

/// Wakes a thread that serves a tier.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The figures of one level of a chain. Counters count what this process has done; `used_bytes` covers the whole
/// process family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelFigures {
    /// The kind of tier.
    pub name: &'static str,
    /// The level's capacity.
    pub capacity_bytes: u64,
    /// The bytes of the slabs that are allocated there.
    pub used_bytes: u64,
    /// Reads of the program's blocks, on demand or ahead of demand.
    pub reads: u64,
    /// The bytes of those reads.
    pub read_bytes: u64,
    /// Bytes that came from a slower level.
    pub promoted_bytes: u64,
    /// Bytes that came from a faster level.
    pub demoted_bytes: u64,
}
