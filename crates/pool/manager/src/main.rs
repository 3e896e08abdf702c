// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-fabricd` program: the fabric manager.
//!
//! Exit codes: 0 it printed its help, version or configuration, checked a configuration, or was ended by a signal; 1 it
//! could not start, its store failed, or another manager took over; 2 invalid arguments; 101 one of its threads has
//! panicked, which is a bug. SIGTERM and SIGINT end it after its current round, with 0; a leader then gives up its
//! leadership at once. Any other signal ends it by its default action, at any time: what was stored is acted on after
//! the next start.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use aquifer_manager::{Config, reference, run};
use clap::Parser;

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

/// The fabric manager: stores the desired state of a pool, carries it out, and serves it as Redfish
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  aquifer-fabricd --print-config > fabricd.toml
  aquifer-fabricd --config fabricd.toml --check
  aquifer-fabricd --config fabricd.toml"
)]
struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    check: bool,
    /// Print a configuration with every setting, and exit
    #[arg(long)]
    print_config: bool,
}

fn main() -> ExitCode {
    let reported = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        reported(panic);
        std::process::exit(PANICKED);
    }));
    let args = Args::parse();
    if args.print_config {
        print!("{}", reference());
        return ExitCode::SUCCESS;
    }
    let complain = |line: &dyn std::fmt::Display| {
        eprintln!("aquifer-fabricd: {line}");
        ExitCode::FAILURE
    };
    match args.config.as_deref().map(Config::read) {
        None => complain(&"no configuration was named; see --help"),
        Some(Err(not)) => complain(&not),
        Some(Ok(_)) if args.check => ExitCode::SUCCESS,
        Some(Ok(config)) => match run(&config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => complain(&failure),
        },
    }
}
