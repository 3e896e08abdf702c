// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's events, for counters and messages.

use aquifer_core::engine::Engine;
use aquifer_core::map::Pages;

/// An event that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Evicted blocks.
    EvictedBlocks,
    /// Evicted blocks whose frame was freed without writing, because the tier had the bytes.
    EvictedCleanBlocks,
    /// Exchanges that the kernel refused to make in the intended way.
    ExchangeFallbacks,
    /// Bytes fetched from the tier.
    FetchedBytes,
    /// Blocks fetched from the tier.
    FetchedBlocks,
    /// Bytes read ahead.
    PrefetchedBytes,
    /// Blocks read ahead.
    PrefetchedBlocks,
    /// Times that a fault waited for another thread.
    Waits,
    /// Bytes written to the tier.
    WrittenBackBytes,
    /// Blocks written to the tier.
    WrittenBackBlocks,
    /// Pages of zeros that were not written.
    ZeroPagesElided,
}

/// The kind of a resolved fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No contents yet.
    Fresh,
    /// In DRAM, on standby.
    Rescue,
    /// Fetched, or room was made for it.
    Fetch,
    /// Another thread was working on it.
    Wait,
}

/// A resolved fault, to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The kind of its first step.
    pub kind: FaultKind,
    /// Blocks that had no contents.
    pub fresh_blocks: u64,
    /// Blocks that came back from standby.
    pub rescued_blocks: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

/// Why a block is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The tier failed to read it.
    FetchFailed,
    /// The tier returned other bytes.
    GuardMismatch,
    /// A write in place failed, and left neither the old nor the new bytes.
    WriteFailed,
}

/// Counts and reports. May be called in a signal handler. Methods that receive the engine are called with its lock
/// held.
pub trait Observer {
    /// Counts `amount` events.
    fn count(&self, what: Count, amount: u64);

    /// Counts a resolved fault.
    fn resolved(&self, fault: Resolved);

    /// The program, or a system call, touched one of these pages, which were not at their addresses and now are. They
    /// are blocks of `block_pages` pages that had contents.
    fn touched(&self, _pages: Pages, _block_pages: u32) {}

    /// A fetch has ended: the counts of a chain's levels may have changed.
    fn fetched(&self);

    /// Publishes the engine's state.
    fn publish(&self, engine: &Engine);

    /// Publishes the engine's state if enough has changed since the last time. Called on the fault path, where
    /// publishing everything each time would hold the lock too long.
    fn publish_if_due(&self, engine: &Engine);

    /// Publishes the engine's state in more detail. The worker calls it, and discards do.
    fn publish_more(&self, engine: &Engine);

    /// Publishes the state of the tier. The worker calls it, without the lock.
    fn publish_tier(&self);

    /// The tier has no room for a block.
    fn tier_full(&self);

    /// A block is lost.
    fn lost(&self, pages: Pages, why: Loss);
}
