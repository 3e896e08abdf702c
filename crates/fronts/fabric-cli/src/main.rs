// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-fabric` program, which `aquifer fabric` starts.
//!
//! Exit codes: 0 done, and `diff` found no difference; 1 it could not be done; 2 bad arguments; 3 `diff` found
//! differences, or `audit --verify` damage; 125 the daemon of `serve` cannot be started. Signals have their default
//! actions; a broken pipe is success.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use aquifer_fabric_args::FabricArgs;
use aquifer_terminal::Output;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "aquifer fabric", bin_name = "aquifer fabric", version, max_term_width = 100)]
struct Program {
    #[command(flatten)]
    fabric: FabricArgs,
}

fn main() -> ExitCode {
    match aquifer_fabric_cli::run(&Program::parse().fabric, &mut io::stdout(), Output::of_stdout()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) if failure.is_broken_pipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer fabric: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
