// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures one program under several ways of having too little DRAM, and says which is faster by how much.
//!
//! The contenders (DRAM only, Aquifer over several tiers, kernel swap on three devices, `mmap` of a file, UMap) take
//! turns, A B C A B C, in the same memory limit, so that a machine that changes its mood changes it for all of them.
//! What is reported are ratios of medians with their spread, and the bars that the project has set itself.
//!
//! The story of a run is `run.rs`; `prepare.rs` is what it finds ready. The decisions are pure and tested beside it:
//! `args.rs` (what was asked for), `plan.rs` (what will run and what cannot), `ratios.rs`, `verdict.rs`. The effects
//! each have a file that takes back what it did: `cgroup.rs`, `swap.rs`, `process.rs`; `undo.rs` and `leftovers.rs` do
//! it for all.
//!
//! ```
//! assert_eq!(aquifer_bench::parse_size("1.5GiB"), Ok(1_610_612_736));
//! ```

mod args;
mod certificates;
mod cgroup;
mod contender;
mod donors;
mod failure;
mod fio;
mod hosts;
mod interrupt;
mod latency;
mod leftovers;
mod lender;
mod machine;
mod measure;
mod other_build;
mod overhead;
mod overhead_donor;
mod overhead_rdma;
mod overhead_run;
mod own;
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
mod settle;
mod size;
mod swap;
mod table;
mod undo;
mod verdict;
mod workload;

pub use args::BenchArgs;
pub use ratios::Better;
pub use record::Figure;
pub use result::read_result;
pub use run::run;
pub use size::parse_size;
