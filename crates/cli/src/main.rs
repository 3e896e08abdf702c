// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer` command: runs a program on less DRAM than it needs, and shows how it fares.
//!
//! Exit codes are in `exit.rs`, with a sentence each; `aquifer run` passes through its program's.
//!
//! Signals: `aquifer run` hands them to its program (`run/supervise.rs`); every other command has the
//! default action of each. SIGPIPE is ignored, as Rust programs do, and a broken pipe is success.

#![deny(unsafe_code)]

mod args;
mod doctor;
#[cfg(test)]
mod documented;
mod donor;
mod duration;
mod exit;
mod instances;
mod log;
mod metrics;
mod output;
mod packaging;
mod run;
mod scrape;
mod set;
mod stack_limit;
mod stat;
mod stress;
mod table;
mod top;
mod vm;

fn main() -> std::process::ExitCode {
    stack_limit::widen();
    exit::conclude(args::parse().and_then(args::Command::carry_out))
}
