// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kernel's own tiering: what is on, what it has done, and what to write to change it.
//!
//! `state.rs` reads the settings, `counters.rs` what has happened, `damon.rs` the schemes of DAMON; [`changes`] decides
//! what to write. All are functions of a tree of files. See the kernel's `Documentation/admin-guide/sysctl/kernel.rst`
//! on `numa_balancing`, `Documentation/ABI/testing/sysfs-kernel-mm-numa` and `…-memory-tiers`, and
//! `Documentation/admin-guide/mm/damon/usage.rst`.

mod changes;
mod counters;
mod damon;
mod state;

pub use changes::{Balancing, Wanted, WeightsWanted, advice, changes};
pub use counters::{Counters, NodeCounters};
pub use damon::{Damon, DamonFailure, KDAMONDS, Kdamond, Scheme, ranges, stop_writes};
pub use state::{Level, State};
