// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table: how often each policy would have to use the tier, per workload and local ratio.

use std::io::Write;

use aquifer_core::policy::PolicyName;
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_sim::opt;
use aquifer_sim::synthetic::{BLOCK_PAGES, BUDGET_PAGES_MIN, Machine, Visits, play};
use aquifer_sim::workload::{Trace, Workload};
use serde::Serialize;

use super::Failure;
use super::args::{BlockSize, Workloads};

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
    visits: Visits,
}

/// Prints the table.
pub fn run(arguments: &Workloads, out: &mut impl Write) -> Result<u8, Failure> {
    let or_all = |given: &[Workload]| if given.is_empty() { Workload::ALL.to_vec() } else { given.to_vec() };
    let policies = if arguments.policy.is_empty() { PolicyName::ALL.to_vec() } else { arguments.policy.clone() };
    let workloads = or_all(&arguments.workload);
    workloads.iter().try_for_each(|workload| workload.check_scale(arguments.scale)).map_err(Failure::Usage)?;
    let traces: Vec<(Workload, Trace)> = workloads
        .into_iter()
        .map(|workload| (workload, workload.trace_at(arguments.scale, arguments.blocks, arguments.seed)))
        .collect();
    // Refuses impossible budgets before anything is printed.
    for (_, trace) in &traces {
        arguments.local.iter().try_for_each(|local| machine(arguments, trace, *local).map(drop))?;
    }
    let width = if arguments.prefetch { 13 } else { 8 };
    if !arguments.json {
        write!(out, "{:14} {:>5}", "workload", "local")?;
        for policy in &policies {
            write!(out, " {:>width$}", policy.as_str())?;
        }
        writeln!(out, " {:>8}", "opt")?;
    }
    for (workload, trace) in &traces {
        for local_percent in arguments.local.iter().copied() {
            let (machine, frames) = machine(arguments, trace, local_percent)?;
            let opt_hit_ratio = opt::hit_ratio(trace, frames);
            let lines = policies.iter().map(|policy| {
                let visits = play(trace, *policy, machine);
                let (hit_ratio, ready_ratio) = (visits.hit_ratio(), visits.ready_ratio());
                let (workload, policy, seed) = (workload.as_str(), policy.as_str(), arguments.seed);
                Line { workload, policy, local_percent, seed, hit_ratio, ready_ratio, opt_hit_ratio, visits }
            });
            if arguments.json {
                for line in lines {
                    writeln!(out, "{}", serde_json::to_string(&line).map_err(std::io::Error::from)?)?;
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
    Ok(0)
}

/// The machine, and the number of the workload's blocks that fit into its memory.
fn machine(arguments: &Workloads, trace: &Trace, local_percent: u32) -> Result<(Machine, u32), Failure> {
    let frames = (u64::from(trace.blocks) * u64::from(local_percent)).div_ceil(100) as u32;
    let budget_pages = u64::from(frames) * u64::from(BLOCK_PAGES);
    if budget_pages < BUDGET_PAGES_MIN {
        let [found, min] = [budget_pages, BUDGET_PAGES_MIN].map(|pages| ByteSize(pages * PAGE_BYTES));
        return Err(Failure::Usage(format!(
            "{local_percent} % of {} blocks are {found}, and the pager takes at least {min}; \
             give more --blocks, or a larger --local",
            trace.blocks
        )));
    }
    let machine = Machine {
        budget_pages,
        order: arguments.block.order(),
        elastic: arguments.block == BlockSize::Auto,
        prefetch: arguments.prefetch,
    };
    Ok((machine, frames))
}
