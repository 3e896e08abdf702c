// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures one program under several ways of running with too little DRAM, and reports which is faster, by what
//! factor.
//!
//! The contenders (DRAM only, Aquifer over several tiers, kernel swap on three devices, `mmap` of a file, UMap) take
//! turns, A B C, C B A, under the same memory limit: a change in the machine's speed affects all of them, and of any
//! two contenders, each comes first equally often. The report contains ratios of medians with their spread, and the
//! bars that the project has set itself.
//!
//! `run.rs` is the sequence of a run; `prepare.rs` makes what it needs. The decisions are pure, with tests in the same
//! file: `args.rs` (the request, whose table of flags is the crate `bench-args`), `plan.rs` (what will run and what
//! cannot), `order.rs`, `ratios.rs`, `verdict.rs`, `bound.rs`. Each kind of effect has a file that
//! also undoes it: `cgroup.rs`, `swap.rs`, `process.rs`; `undo.rs` and `leftovers.rs` do it for all.
//!
//! ```
//! assert_eq!(aquifer_bench::parse_size("1.5GiB"), Ok(1_610_612_736));
//! ```

mod args;
mod bound;
mod bound_run;
mod cache;
mod certificates;
mod cgroup;
mod contender;
mod donor_process;
mod donors;
mod equal_memory;
mod failure;
mod fio;
mod flame;
mod hosts;
mod idle_disk;
mod interrupt;
mod latency;
mod leftovers;
mod library;
mod machine;
mod measure;
mod memory;
mod memory_plot;
mod memory_run;
mod order;
mod other_build;
mod overhead;
mod overhead_donor;
mod overhead_rdma;
mod overhead_run;
mod overhead_scattered;
mod overhead_striping;
mod overhead_threads;
mod peaks;
mod ping_pong;
mod plan;
mod plot;
mod prepare;
mod process;
mod progress;
mod ratios;
mod record;
mod result;
mod run;
mod scattered_bars;
mod swap;
mod table;
mod undo;
mod user_program;
mod verdict;
mod workload;

use aquifer_bench_args::size;

pub use aquifer_bench_args::BenchArgs;
pub use ratios::Better;
pub use record::Figure;
pub use result::read_result;
pub use run::run;
pub use size::parse_size;
