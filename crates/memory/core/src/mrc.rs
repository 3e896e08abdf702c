// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve: how often memory would have to be fetched with more DRAM, or with less.
//!
//! Pure, and bounded: time and randomness are arguments, and the tables never grow.
//!
//! Hits on resident memory are not visible, so reuse distances (Mattson's stack, and SHARDS, which samples it) cannot
//! be observed. What can be observed is this: choose a page at random, at a random moment; move its block to standby,
//! unless it has left already; and see how long it stays *idle*, which is until the next touch. The part of the pages
//! that are touched within a time `t` is the mean working set `W(t)`, and its slope is how many pages per second are
//! touched that were idle for longer than `t`: those that miss if DRAM holds `W(t)` pages (Denning, Schwartz:
//! Properties of the working-set model, 1972; Xiang et al.: HOTL, 2013, who show that it is the curve of LRU). So one
//! sample costs at most one eviction to standby and one rescue, whatever the program does with the page, below the
//! budget as above it.
//!
//! A sample whose time is not over yet, or that had to be given up, still shows that the page was idle for that long:
//! the table of idle times is a life table (`idle_times.rs`). The slope of `W` never rises, so noise is taken out by
//! the least concave curve above it, which is Grenander's estimate of a falling density (`curve.rs`). `samples.rs`
//! knows the pages that are being watched.
//!
//! Next on the path: `pager/src/sampling.rs` chooses, and reports touches.

mod chooser;
mod curve;
mod idle_times;
mod samples;

pub use chooser::Chooser;
pub use curve::{Curve, POINTS_MAX, Point};
pub use idle_times::{IdleTimes, RESOLUTION_NS};
pub use samples::{SAMPLES_MAX, Samples, Seen};
