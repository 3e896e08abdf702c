// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-cxl-switchd` command.
//!
//! Exit codes: 0 help, version or example; 1 the switch could not start, and may later; 2 invalid arguments, a bad
//! configuration, or a socket that cannot be opened there, so that a unit does not start it again; 101 one of its
//! threads has panicked, which is a bug: a switch whose state is half changed does not continue.
//! A signal ends it by its default action. Only its sockets' files are left behind, which the next start replaces.

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
    match aquifer_cxl_switchd::run(&aquifer_cxl_switchd::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ended) => {
            eprintln!("aquifer-cxl-switchd: {}", ended.failure);
            if ended.is_final { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}
