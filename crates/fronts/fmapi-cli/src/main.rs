// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-fmapi` program, which `aquifer fmapi` starts.
//!
//! Exit codes: 0 done, and a check found no unknown departure; 1 it could not be done; 2 bad arguments; 3 a check found
//! departures. Signals have their default actions; a broken pipe is success.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use aquifer_fmapi_args::FmapiArgs;
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "aquifer fmapi", bin_name = "aquifer fmapi", version, max_term_width = 100)]
struct Program {
    #[command(flatten)]
    fmapi: FmapiArgs,
}

fn main() -> ExitCode {
    match aquifer_fmapi_cli::run(&Program::parse().fmapi) {
        Ok(outcome) => match io::stdout().write_all(outcome.output.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                eprintln!("aquifer fmapi: the result cannot be written: {error}; free space, or name another place");
                ExitCode::FAILURE
            }
            _ => ExitCode::from(outcome.code),
        },
        Err(failure) => {
            // If that cannot be written either, the failure is what matters.
            let _ = io::stdout().write_all(failure.output.as_bytes());
            eprintln!("aquifer fmapi: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
