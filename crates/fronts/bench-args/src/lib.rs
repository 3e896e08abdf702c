// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of the bench, and the units in it, without the bench.
//!
//! `aquifer bench` checks its words, completes them and documents them, and then starts the program `aquifer-bench`
//! with them; both programs parse them by this one table. A crate of its own, so that neither program is built with
//! what the other one is made of.
//!
//! ```
//! assert_eq!(aquifer_bench_args::size::parse_size("1.5GiB"), Ok(1_610_612_736));
//! ```

#![forbid(unsafe_code)]

mod args;
pub mod size;

pub use args::BenchArgs;
