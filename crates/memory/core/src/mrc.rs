// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve: how often memory would have to be fetched with more DRAM, or with less.
//!
//! Pure, and bounded: time and randomness are arguments, and the tables never grow.
//!
//! Hits on resident memory cause no fault, so reuse distances (Mattson's stack, and SHARDS, which samples it) cannot be
//! measured. Idle times can: choose a random page at a random moment, move its block to standby unless it has been
//! evicted already, and measure the time until the next touch. These times give the mean working set `W(t)`:
//! the number of pages touched within a time `t`. Its slope at `t` is the number of touches per second of pages that
//! were idle for longer than `t`. If DRAM holds `W(t)` pages, exactly these touches miss (Denning, Schwartz: Properties
//! of the working-set model, 1972; Xiang et al.: HOTL, 2013, who show that this is the curve of LRU). So a sample costs
//! at most one eviction to standby and one rescue, however often the page is touched, within the budget or beyond it.
//!
//! A sample that is still running, or that was given up, also counts: its page was idle for at least that long.
//! `idle_times.rs` therefore keeps the idle times as a life table. The slope of `W` never rises, so `curve.rs` removes
//! noise by the least concave curve above `W`, which is Grenander's estimate of a falling density. `samples.rs` holds
//! the pages that are being watched.
//!
//! Next on the path: `pager/src/sampling.rs` chooses pages, and reports touches.

mod chooser;
mod curve;
mod idle_times;
mod samples;

pub use chooser::Chooser;
pub use curve::{Curve, POINTS_MAX, Point};
pub use idle_times::{IdleTimes, RESOLUTION_NS};
pub use samples::{SAMPLES_MAX, Samples, Seen};
