// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The shipped driver on a modelled kernel and a modelled tier: every read returns the last write, or is an error.
//!
//! The trouble that this guards against is the worst that a pager can do: return zeros or stale bytes without an error.
//! Such bugs come from orders of events that no one thinks of. So the threads of a program and the worker are
//! coroutines here, which run the code of `aquifer_driver` and can be interrupted before every call of the kernel, the
//! tier and the clock, and before every lock. A seed decides who runs, what the program does, and what fails; one seed
//! repeats one history to its last step.
//!
//! - `history.rs`: one history, from its seed to the last check. `program.rs`: what a thread of the program does.
//! - `schedule.rs`: the coroutines, and whose turn it is. No thread may wait for something that never comes.
//! - `world.rs`: the state that all share. `space.rs`: the driver's traits on it.
//! - `memory.rs`: one number for each page, moved only as a kernel would move it. `related_processes.rs`: forked
//!   processes.
//! - `debts.rs`: tests of the payment of debts, and of nothing else.
//! - `trouble.rs`: what goes wrong, at random or from the n-th opportunity on, and what takes long.

#[cfg(test)]
mod debts;
pub mod history;
mod memory;
mod program;
mod related_processes;
mod schedule;
mod space;
mod trouble;
mod world;

pub use trouble::{KINDS, Kind};
