// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures time and CPU time, and prints the result as one line of JSON, as every workload of the bench does.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::args::Args;

/// Time spent, by the wall clock and by all threads of the process on CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// By the wall clock.
    pub wall: Duration,
    /// On CPUs.
    pub cpu: Duration,
}

impl Spent {
    /// Runs `what`, and adds what it takes.
    pub fn measure<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let (started, cpu) = (Instant::now(), cpu_time());
        let result = what();
        self.wall += started.elapsed();
        self.cpu += cpu_time().saturating_sub(cpu);
        result
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The numbers of one run.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// What it took.
    pub spent: Spent,
    /// Reads of items, or of rows of a graph.
    pub reads: u64,
    /// Those that were not wholly resident.
    pub far_reads: u64,
    /// Bytes that were fetched meanwhile.
    pub fetched_bytes: u64,
    /// Bytes of the items.
    pub bytes: u64,
    /// Ordinary memory of the workload, such as its index.
    pub ordinary_bytes: u64,
    /// Whether all that was read was right.
    pub is_verified: bool,
}

impl Measured {
    /// The line. CPU time includes the space's worker, and everything that the workload does with an item.
    pub fn line(&self, args: &Args, figure: Value) -> String {
        let per = |count: u64| self.spent.cpu.as_secs_f64() * 1e6 / count as f64;
        let mut line = Map::new();
        for (name, value) in [
            ("program", json!("aquifer-workloads")),
            ("workload", json!(args.workload.name())),
            ("way", json!(args.way_name())),
            ("bytes", json!(self.bytes)),
            ("ordinary_bytes", json!(self.ordinary_bytes)),
            ("reads", json!(self.reads)),
            ("far_reads", json!(self.far_reads)),
            ("fetched_bytes", json!(self.fetched_bytes)),
            ("seconds", json!(self.spent.wall.as_secs_f64())),
            ("cpu_seconds", json!(self.spent.cpu.as_secs_f64())),
            ("cpu_us_per_read", json!(per(self.reads.max(1)))),
            ("cpu_us_per_far_read", if self.far_reads == 0 { Value::Null } else { json!(per(self.far_reads)) }),
            ("peak_resident_bytes", json!(peak_resident_bytes())),
            ("figure", figure),
            ("verified", json!(self.is_verified)),
        ] {
            line.insert(name.to_owned(), value);
        }
        Value::Object(line).to_string()
    }
}

/// The peak of the resident set, by the kernel. 0 if /proc is missing.
fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()).map_or(0, |kibibytes| kibibytes << 10)
}
