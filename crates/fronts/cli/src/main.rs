// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer` command: runs a program on less DRAM than it needs, and shows how the program performs.
//!
//! `exit.rs` lists the exit codes, with a sentence each; `aquifer run` passes through its program's exit status.
//!
//! Signals: `aquifer run` forwards them to its program (`run/supervise.rs`). In every other command they have their
//! default actions. Exceptions are `aquifer donor` (`donor/lend.rs`) and `aquifer top` (`top/terminal.rs`), which shut
//! down cleanly. SIGPIPE is ignored, as in every Rust program, and a broken pipe is success.

#![deny(unsafe_code)]

mod agent;
mod args;
mod bench;
mod cache;
mod companion;
mod cxl;
mod doctor;
#[cfg(test)]
mod documented_commands;
mod donor;
mod duration;
mod exit;
mod exporter;
mod fabric;
mod fmapi;
mod instances;
mod log;
mod metrics;
mod output;
mod packaging;
mod run;
mod set;
mod stack_limit;
mod stat;
mod stress;
mod tiering;
mod top;
mod vm;

fn main() -> std::process::ExitCode {
    stack_limit::widen();
    exit::conclude(args::parse().and_then(args::Command::carry_out))
}
