// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The workloads as a program, which `aquifer bench` starts.
//!
//! Exit codes: 0 the result is printed and verified; 1 it is wrong, or there is none; 2 bad arguments.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use aquifer_workloads::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("aquifer-workloads: {failure}");
            ExitCode::FAILURE
        }
    }
}
