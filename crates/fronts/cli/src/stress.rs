// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stress`: starts the stress suite, a separate program (`companion.rs`).

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use clap::ValueEnum;

use crate::companion::{self, STRESS};
use crate::exit::Failure;
use crate::run::preload;

/// The torture program that the suite runs. It lies beside the suite where `make stress` built it; otherwise the suite
/// compiles it.
const TORTURE: &str = "aquifer-torture";

/// Verify memory for hours: random programs and real ones, over every kind of tier
///
/// Runs rounds of a program that knows what every byte must be, with threads, forks, mappings and transfers, in far
/// less DRAM than it takes. A seed decides each round's delivery, tier (memory, flash, a chain, donors with and without
/// TLS, mirrors, parity, a device of 30 us; some encrypted, some that fail), and what it does; some rounds are killed.
/// One of the rows runs in parallel with each round: stress-ng, memory testers, LTP, fio, iPerf3, a guest, databases
/// and others. A row whose program is not installed is skipped, with the reason.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer stress --minutes 30 --delivery signal
  aquifer stress --rows ltp,memtester,fio --rounds 3
  aquifer stress --seed 4711 --rounds 1

Exit status: 0 every byte was right, 1 something was wrong, 2 bad arguments, 125 the suite cannot be
started.

LTP is expected at $LTPROOT, or /opt/ltp; xfstests at $XFSTESTS_DIR and blktests at $BLKTESTS_DIR,
built and configured. Only tests that pass without Aquifer count.")]
pub struct StressArgs {
    /// How long to run; the last round is completed
    #[arg(long, value_name = "N", default_value_t = 30)]
    minutes: u64,
    /// The first round's seed [default: the time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many rounds at most
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// How long one round runs, before everything is verified
    #[arg(long, value_name = "N", default_value_t = 8)]
    seconds: u64,
    /// How faults are delivered: one way in all rounds, or all of them in turn
    #[arg(long, value_name = "HOW", default_value = "any")]
    delivery: Delivery,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES")]
    rows: Option<String>,
    /// List the rows and end
    #[arg(long)]
    list: bool,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Run a library that leaves out a fetch now and then, and fail unless that is found; needs the source tree
    #[arg(long)]
    planted: bool,
    /// Directory for flash tiers and the programs' files
    #[arg(long, value_name = "DIR", default_value_os_t = env::temp_dir())]
    directory: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Delivery {
    Any,
    Auto,
    Listener,
    Signal,
}

/// Replaces this process with the suite.
pub fn stress(args: &StressArgs) -> Result<process::ExitCode, Failure> {
    let suite = STRESS.find()?;
    let executable = companion::executable()?;
    let library = preload::find(env::var_os(preload::VARIABLE), &executable)?;
    let torture = suite.with_file_name(TORTURE);
    let mut command = process::Command::new(&suite);
    let binaries = executable.parent().unwrap_or(Path::new("."));
    command
        .env("AQUIFER_E2E_BIN", binaries)
        .env(preload::VARIABLE, &library)
        .env("AQUIFER_E2E_SCRATCH", &args.directory);
    if torture.is_file() {
        command.env("AQUIFER_E2E_TORTURE", torture);
    }
    let numbers = [
        ("--minutes", Some(args.minutes)),
        ("--seconds", Some(args.seconds)),
        ("--seed", args.seed),
        ("--rounds", args.rounds),
    ];
    for (flag, number) in numbers {
        if let Some(number) = number {
            command.arg(flag).arg(number.to_string());
        }
    }
    let delivery = args.delivery.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    command.args(["--delivery", &delivery]);
    if let Some(rows) = &args.rows {
        command.args(["--rows", rows]);
    }
    for (flag, is_asked) in [("--list", args.list), ("--json", args.json), ("--planted", args.planted)] {
        command.args(is_asked.then_some(flag));
    }
    let error = command.exec();
    Err(STRESS.failure(format!("at {} cannot be started: {error}", suite.display())))
}
