// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-cxl-switchd` command.
//!
//! Exit codes: 0 help, version or example; 1 the switch could not start; 2 invalid arguments; 101 one of its threads
//! has panicked, which is a bug: a switch whose state is half changed does not continue. A signal ends it by its
//! default action; nothing is left behind but its sockets' files, which the next start replaces.

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
    match aquifer_cxl_switchd::run(&aquifer_cxl_switchd::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer-cxl-switchd: {failure}");
            ExitCode::FAILURE
        }
    }
}
