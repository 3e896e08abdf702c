// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compares policies on synthetic workloads, says how often a pager must read, replays recordings of `aquifer run
//! --record`, runs the driver on a modelled machine, and models threads that wait for its lock.
//!
//! Exit codes: 0 done, and the same decisions; 1 a replay differs, a history went wrong, or output refused; 2 bad
//! arguments; 3 a recording that cannot be read.

#![forbid(unsafe_code)]

mod command;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use command::args::{Arguments, Command};
use command::{Failure, bound, contention, histories, replay, workloads};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let out = &mut std::io::stdout().lock();
    let result = match &arguments.command {
        Some(Command::Replay(arguments)) => replay::run(arguments, out),
        Some(Command::Histories(arguments)) => histories::run(arguments, out),
        Some(Command::Bound(arguments)) => bound::run(arguments, out),
        Some(Command::Contention(arguments)) => contention::run(arguments, out),
        None => workloads::run(&arguments.workloads, out),
    };
    let result = result.and_then(|code| out.flush().map(|()| code).map_err(Failure::from));
    match result {
        Ok(code) => code.into(),
        // A reader of our output may stop reading (`| head`); that is not an error.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer-sim: {failure}");
            failure.code().into()
        }
    }
}
