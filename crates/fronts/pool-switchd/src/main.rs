// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-pool-switchd` command.
//!
//! Exit codes: 0 help, version, check or configuration; 1 it could not start, or lost a thread; 2 invalid arguments;
//! 101 one of its threads has panicked, which is a bug. A signal ends it by its default action; nothing is left behind
//! but its sockets' files, which the next start replaces.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

fn main() -> ExitCode {
    let reported = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        reported(panic);
        std::process::exit(PANICKED);
    }));
    match aquifer_pool_switchd::run(&aquifer_pool_switchd::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer-pool-switchd: {failure}");
            ExitCode::FAILURE
        }
    }
}
