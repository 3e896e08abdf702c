// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prints how often each policy would have to go to the tier, per workload and local ratio.
//!
//! Exit codes: 0 done, 2 bad arguments.

#![forbid(unsafe_code)]

use aquifer_core::policy::PolicyName;
use aquifer_sim::{
    opt,
    replay::{Machine, Outcome, replay},
    workload::Workload,
};
use clap::Parser;
use serde::Serialize;

const EXAMPLES: &str = "Examples:
  aquifer-sim                                      the whole table
  aquifer-sim --workload cyclic,triad --local 30   two workloads, 30 % local
  aquifer-sim --policy s3fifo,lru --json           two policies, as JSON lines
  aquifer-sim --standby 10 --seed 7                a longer standby list, other random numbers";

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
    if !arguments.json {
        print!("{:14} {:>5}", "workload", "local");
        arguments.policy.iter().for_each(|policy| print!(" {:>8}", policy.as_str()));
        println!(" {:>8}", "opt");
    }
    for workload in &arguments.workload {
        let trace = workload.trace(arguments.blocks, arguments.seed);
        for local in &arguments.local {
            let frames = (u64::from(trace.blocks) * u64::from(*local)).div_ceil(100) as u32;
            let machine = Machine { frames, standby: frames * arguments.standby / 100, block_pages: 32 };
            let opt_hit_ratio = opt::hit_ratio(&trace, frames);
            if !arguments.json {
                print!("{workload:14} {local:>4}%");
            }
            for policy in &arguments.policy {
                let outcome = replay(&trace, *policy, machine);
                if arguments.json {
                    let line = Line {
                        workload: workload.as_str(),
                        policy: policy.as_str(),
                        local_percent: *local,
                        seed: arguments.seed,
                        hit_ratio: outcome.hit_ratio(),
                        opt_hit_ratio,
                        outcome,
                    };
                    println!("{}", serde_json::to_string(&line).expect("a line holds numbers and names only"));
                } else {
                    print!(" {:>8.4}", outcome.hit_ratio());
                }
            }
            if !arguments.json {
                println!(" {opt_hit_ratio:>8.4}");
            }
        }
    }
}
