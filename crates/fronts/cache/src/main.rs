// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-cache` program, which `aquifer cache` starts.
//!
//! Exit codes: 0 ended by SIGTERM or SIGINT; 1 it cannot be started or cannot go on; 2 bad arguments.
//!
//! The address that is served is the one line on standard output.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use aquifer_cache::{Server, Settings};
use aquifer_cache_args::CacheArgs;
use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Debug, Parser)]
#[command(name = "aquifer cache", bin_name = "aquifer cache", version, max_term_width = 100)]
struct Program {
    #[command(flatten)]
    cache: CacheArgs,
}

/// The exit status for invalid arguments.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let settings = match Settings::from_args(&Program::parse().cache) {
        Ok(settings) => settings,
        Err(failure) => {
            eprintln!("aquifer cache: {failure}");
            return ExitCode::from(USAGE);
        }
    };
    match serve(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("aquifer cache: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::open(settings)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, server.ender()?)?;
    }
    if !settings.listen.ip().is_loopback() {
        eprintln!(
            "aquifer cache: anyone who reaches {} can read and change the cache; restrict access with a firewall",
            server.address()
        );
    }
    // Standard output may be closed.
    let _ = writeln!(std::io::stdout(), "listening on {}", server.address());
    Ok(server.run()?)
}
