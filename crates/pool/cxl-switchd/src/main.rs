// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-cxl-switchd` command.
//!
//! Exit codes: 0 help, version or example; 1 the switch could not start; 2 the arguments make no sense; 101 a
//! thread of it has panicked, which says a bug: a switch that is half changed does not go on. It ends by a
//! signal, each with its default action, and leaves nothing behind but its sockets' files, which the next one replaces.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// What a Rust program ends with that has panicked.
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
