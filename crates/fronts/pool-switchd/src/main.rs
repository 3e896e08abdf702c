// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-pool-switchd` command.
//!
//! Exit codes: 0 help, version, check or configuration; 1 it could not start, or lost a thread; 2 bad arguments or a
//! bad configuration, one that the manager refuses, or a socket that cannot be opened there, so that the unit does not
//! start it again; 101 one of its threads has panicked, which is a bug. A signal ends it by its default action;
//! nothing is left behind but its sockets' files, which the next start replaces.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// The exit code where nobody should start the program again.
const USAGE: u8 = 2;
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
        Err(ended) => {
            eprintln!("aquifer-pool-switchd: {}", ended.failure);
            if ended.is_final { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}
