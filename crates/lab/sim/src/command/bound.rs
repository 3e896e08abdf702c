// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer-sim bound`: how often a pager that reads on demand must read, and the least time that follows.

use std::io::Write;

use aquifer_sim::bounded::{Bounded, Data, least_us};
use serde_json::json;

use super::Failure;
use super::args::Bound;

/// Prints a line for each program and percentage of local memory.
pub fn run(arguments: &Bound, out: &mut impl Write) -> Result<u8, Failure> {
    let programs = if arguments.workload.is_empty() { Bounded::ALL.to_vec() } else { arguments.workload.clone() };
    if arguments.dram_us.is_some() && programs.len() > 1 {
        return Err(Failure::Usage("--dram-us is the time of one program; name one --workload".into()));
    }
    let times = arguments.read_us.zip(arguments.dram_us);
    if !arguments.json {
        write!(out, "{:10} {:>5}  {:8} {:>10} {:>14}", "workload", "local", "unit", "pages", "misses/unit")?;
        writeln!(out, "{}", if times.is_some() { "        least us" } else { "" })?;
    }
    let data = Data { scale: arguments.scale, values: arguments.values, slot_bytes: arguments.slot };
    for program in programs {
        let work = program.work(data, arguments.seed).map_err(Failure::Usage)?;
        let (unit, pages) = (program.unit(), work.trace.blocks);
        for (local, misses) in arguments.local.iter().zip(work.misses(&arguments.local)) {
            let least = times.map(|(read_us, dram_us)| least_us(dram_us, misses, read_us, arguments.threads));
            if arguments.json {
                let line = json!({
                    "workload": program.as_str(), "local_percent": local, "seed": arguments.seed, "unit": unit,
                    "units": work.units, "pages": pages, "misses_per_unit": misses, "least_us": least,
                });
                writeln!(out, "{line}")?;
                continue;
            }
            write!(out, "{program:10} {local:>4}%  {unit:8} {pages:>10} {misses:>14.5}")?;
            match least {
                Some(least) => writeln!(out, " {least:>15.3}")?,
                None => writeln!(out)?,
            }
        }
    }
    Ok(0)
}
