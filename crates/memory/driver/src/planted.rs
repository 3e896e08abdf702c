// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Deliberate bugs, to check the histories: if a bug is not found, the histories prove nothing.
//!
//! Only with the feature `planted`, which no shipped build has. `crates/lab/sim/tests/planted.rs` plants one after the
//! other. Without the feature, [`is`] is false and costs nothing.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Threads that wait for a block are not woken.
    LostWakeup,
    /// A changed block counts as known to be clean.
    LateDirty,
    /// A freed slab of the tier is freed again later, when another process may have it.
    DoubleFree,
    /// Fetched bytes are not checked.
    SkippedGuard,
    /// A pinned block is evicted.
    IgnoredPin,
    /// A job of several requests ends with the first of them.
    EarlyCompletion,
    /// The write-protection of a block is not lifted when the program writes to it.
    ForgottenProtection,
    /// Work begins while another thread forks.
    IgnoredPause,
    /// A failed read-ahead counts as arrived.
    FailedArrival,
    /// A block that the kernel does not release counts as evicted.
    IgnoredRefusal,
    /// A read-ahead is reported when it is submitted: two threads have one frame.
    TwoWorkers,
    /// A failed write counts as done.
    FailedWrite,
    /// After a fork, only the changed pages of a block are written to its new slot.
    PartialMove,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 13] = [
        Bug::LostWakeup,
        Bug::LateDirty,
        Bug::DoubleFree,
        Bug::SkippedGuard,
        Bug::IgnoredPin,
        Bug::EarlyCompletion,
        Bug::ForgottenProtection,
        Bug::IgnoredPause,
        Bug::FailedArrival,
        Bug::IgnoredRefusal,
        Bug::TwoWorkers,
        Bug::FailedWrite,
        Bug::PartialMove,
    ];
}

#[cfg(feature = "planted")]
mod planted {
    use std::cell::Cell;

    use aquifer_core::units::SlabIndex;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static FREED: Cell<Option<SlabIndex>> = const { Cell::new(None) };
    }

    /// From now on this bug is in the driver, on this thread; or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
        FREED.set(None);
    }

    /// Whether the bug is planted.
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// The slab that was freed before this one.
    pub fn freed_before(slab: SlabIndex) -> Option<SlabIndex> {
        FREED.replace(Some(slab))
    }
}

#[cfg(feature = "planted")]
pub use planted::{freed_before, is, plant};

/// Whether the bug is planted: not in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}
