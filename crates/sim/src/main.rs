// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prints how often each policy would have to go to the tier, per workload and local ratio.
//!
//! Exit codes: 0 done, 1 output refused, 2 bad arguments.

#![forbid(unsafe_code)]

use std::io::Write;

use aquifer_core::policy::PolicyName;
use aquifer_sim::{
    opt,
    replay::{Machine, Outcome, replay},
    workload::Workload,
};
use clap::Parser;
use serde::Serialize;

/// Pages per block: 128 KiB.
const BLOCK_PAGES: u32 = 32;

const EXAMPLES: &str = "Examples:
  aquifer-sim                                      the whole table
  aquifer-sim --workload cyclic,triad --local 30   two workloads, 30 % local
  aquifer-sim --policy s3fifo,lru --json           two policies, as JSON lines
  aquifer-sim --standby 10 --seed 7                a longer standby list, other random numbers
  aquifer-sim --prefetch --workload triad          with read-ahead

Each figure is the part of visits that took nothing from the tier. With --prefetch a second one follows:
the part that did not wait for it. 'opt' is the optimum that knows the future.";

/// Plays generated traces against Aquifer's policies and prints the part of visits that need no fetch.
#[derive(Parser)]
#[command(name = "aquifer-sim", version, after_help = EXAMPLES)]
struct Arguments {
    /// Workloads to play; all when not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Policies to compare; all when not given
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<PolicyName>,
    /// Local memory in percent of the workload's memory
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [30, 50, 70],
          value_parser = clap::value_parser!(u32).range(1..=100))]
    local: Vec<u32>,
    /// Part of local memory that holds victims on standby, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=50))]
    standby: u32,
    /// Blocks of the synthetic workloads
    #[arg(long, value_name = "COUNT", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(100..=1 << 24))]
    blocks: u32,
    /// Read ahead, too
    #[arg(long)]
    prefetch: bool,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Line {
    workload: &'static str,
    policy: &'static str,
    local_percent: u32,
    seed: u64,
    hit_ratio: f64,
    ready_ratio: f64,
    opt_hit_ratio: f64,
    #[serde(flatten)]
    outcome: Outcome,
}

fn main() {
    let mut arguments = Arguments::parse();
    if arguments.workload.is_empty() {
        arguments.workload = Workload::ALL.to_vec();
    }
    if arguments.policy.is_empty() {
        arguments.policy = PolicyName::ALL.to_vec();
    }
    let result = print_all(&arguments, &mut std::io::stdout().lock());
    // Whoever reads our output may stop reading (`| head`); that is no error of ours.
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("aquifer-sim: cannot write the table: {error}");
            std::process::exit(1);
        }
        _ => {}
    }
}

fn print_all(arguments: &Arguments, out: &mut impl Write) -> std::io::Result<()> {
    let width = if arguments.prefetch { 13 } else { 8 };
    if !arguments.json {
        write!(out, "{:14} {:>5}", "workload", "local")?;
        for policy in &arguments.policy {
            write!(out, " {:>width$}", policy.as_str())?;
        }
        writeln!(out, " {:>8}", "opt")?;
    }
    for workload in &arguments.workload {
        let trace = workload.trace(arguments.blocks, arguments.seed);
        for local_percent in arguments.local.iter().copied() {
            let frames = (u64::from(trace.blocks) * u64::from(local_percent)).div_ceil(100) as u32;
            let standby = frames * arguments.standby / 100;
            let machine = Machine { frames, standby, block_pages: BLOCK_PAGES, prefetch: arguments.prefetch };
            let opt_hit_ratio = opt::hit_ratio(&trace, frames);
            let lines = arguments.policy.iter().map(|policy| {
                let outcome = replay(&trace, *policy, machine);
                let (hit_ratio, ready_ratio) = (outcome.hit_ratio(), outcome.ready_ratio());
                let (workload, policy) = (workload.as_str(), policy.as_str());
                let seed = arguments.seed;
                Line { workload, policy, local_percent, seed, hit_ratio, ready_ratio, opt_hit_ratio, outcome }
            });
            if arguments.json {
                for line in lines {
                    writeln!(out, "{}", serde_json::to_string(&line)?)?;
                }
                continue;
            }
            write!(out, "{workload:14} {local_percent:>4}%")?;
            for Line { hit_ratio, ready_ratio, .. } in lines {
                match arguments.prefetch {
                    true => write!(out, " {hit_ratio:>6.4}/{ready_ratio:.4}")?,
                    false => write!(out, " {hit_ratio:>8.4}")?,
                }
            }
            writeln!(out, " {opt_hit_ratio:>8.4}")?;
        }
    }
    Ok(())
}
