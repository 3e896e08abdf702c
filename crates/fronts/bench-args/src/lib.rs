// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of the bench, and the units in it, without the bench.
//!
//! `aquifer bench` checks its arguments and then starts the program `aquifer-bench` with them. Both programs parse them
//! with this table, which is also the source of help, completions and the manual. It is a separate crate, so that
//! neither program depends on the code of the other.
//!
//! ```
//! assert_eq!(aquifer_bench_args::size::parse_size("1.5GiB"), Ok(1_610_612_736));
//! ```

#![forbid(unsafe_code)]

mod args;
pub mod size;

pub use args::BenchArgs;
