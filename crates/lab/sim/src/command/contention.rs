// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer-sim contention`: predicts the faults per second on machines with other numbers of cores.

use std::io::Write;

use aquifer_contention::{Cost, Setting, simulate};
use serde_json::json;

use super::Failure;
use super::args::Contention;

/// Prints one line for each machine, number of threads, and number of shards.
pub fn run(arguments: &Contention, out: &mut impl Write) -> Result<u8, Failure> {
    let cost = Cost {
        thread_ns: arguments.thread_us * 1e3,
        worker_ns: arguments.worker_us * 1e3,
        locks: arguments.locks,
        held_ns: arguments.held_us * 1e3,
    };
    if cost.held_ns > cost.thread_ns + cost.worker_ns || cost.thread_ns == 0.0 {
        return Err(Failure::Usage(
            "--held-us is a part of --thread-us and --worker-us: give --thread-us above 0 and a sum of at least --held-us"
                .into(),
        ));
    }
    if !arguments.json {
        writeln!(out, "cores  threads  shards  thousand faults/s  waited ns/fault  lock in use")?;
    }
    for &cores in &arguments.cores {
        for &threads in &arguments.threads {
            for &shards in &arguments.shards {
                let setting = Setting { cores, threads, shards };
                let it = simulate(cost, setting, arguments.faults, arguments.seed);
                let (rate, waited, percent) = (it.faults_per_second, it.waited_ns, it.lock_use * 100.0);
                match arguments.json {
                    true => writeln!(
                        out,
                        "{}",
                        json!({ "cores": cores, "threads": threads, "shards": shards, "faults_per_second": rate,
                                "waited_ns": waited, "lock_use": it.lock_use })
                    )?,
                    false => writeln!(
                        out,
                        "{cores:>5}  {threads:>7}  {shards:>6}  {:>17.0}  {waited:>15.0}  {percent:>9.0} %",
                        rate / 1e3
                    )?,
                }
            }
        }
    }
    Ok(0)
}
