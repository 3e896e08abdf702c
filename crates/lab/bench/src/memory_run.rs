// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs of `--workload memory`: each place has its turn for each measure, in every other round in reverse
//! order. Nodes are those of sysfs(5).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Settings;
use crate::contender::Contender;
use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::memory::{self, Measure, MemoryPoint, NodeFound, PROGRAM, Place};
use crate::process::{self, find_program};
use crate::progress::Progress;
use crate::result::{figure_of, parse_output};
use crate::table;
use crate::undo;

/// How long a measure takes, unless `--seconds` says otherwise. A choice: a thousand times the time slice of the
/// scheduler, while all measures of a place stay under a minute.
const SECONDS: f64 = 0.5;
/// The smallest budget that `aquifer run` takes.
const DRAM_MIN: u64 = 16 << 20;

/// What the runs need.
pub struct MemoryBench<'a> {
    pub settings: &'a Settings,
    pub aquifer: Option<&'a Path>,
    pub token: &'a str,
    pub interrupt: &'a Interrupt,
}

impl MemoryBench<'_> {
    /// Makes all runs. Stops early only for a signal; what was measured is kept.
    pub fn measure(&self, progress: &Progress) -> (Vec<MemoryPoint>, Option<BenchFailure>) {
        let contenders: Vec<String> = self.settings.memory_contenders.iter().map(ToString::to_string).collect();
        let places = memory::places(&nodes(), find_program("numactl").is_some(), &contenders);
        let bytes = self.bytes();
        let all: Vec<(&Place, Measure)> = places
            .iter()
            .flat_map(|place| memory::measures(place, bytes).into_iter().map(move |it| (place, it)))
            .collect();
        progress.start(all.len() * self.settings.rounds as usize);
        let mut points = Vec::new();
        for round in 0..self.settings.rounds {
            let forwards = round.is_multiple_of(2);
            for turn in 0..all.len() {
                let (place, measure) = all[if forwards { turn } else { all.len() - 1 - turn }];
                match self.point(place, measure, round, progress) {
                    Ok(point) => points.push(point),
                    Err(failure) => return (points, Some(failure)),
                }
            }
        }
        (points, None)
    }

    fn bytes(&self) -> u64 {
        self.settings.sizing.bytes.unwrap_or(memory::BYTES)
    }

    /// Fails only when a signal arrived; any other failure is recorded in the point.
    fn point(
        &self,
        place: &Place,
        measure: Measure,
        round: u32,
        progress: &Progress,
    ) -> Result<MemoryPoint, BenchFailure> {
        let title = format!("memory {place} {} round {}", memory::label(measure), round + 1);
        progress.begin(&title);
        let empty =
            MemoryPoint { place: place.clone(), measure, round, value: None, load_gb_per_second: None, problem: None };
        let point = match self.value(place, measure) {
            Ok((value, load)) => MemoryPoint { value: Some(value), load_gb_per_second: load, ..empty },
            Err(failure @ BenchFailure::Interrupted(_)) => return Err(failure),
            Err(failure) => MemoryPoint { problem: Some(failure.to_string()), ..empty },
        };
        progress.done(&match (&point.value, &point.problem) {
            (Some(value), _) => format!("{title}: {}", table::short(*value)),
            (None, problem) => format!("{title}: FAILED: {}", problem.as_deref().unwrap_or("no reason")),
        });
        Ok(point)
    }

    fn value(&self, place: &Place, measure: Measure) -> Result<(f64, Option<f64>), BenchFailure> {
        let program = fs::canonicalize(self.settings.programs.join(PROGRAM))
            .map_err(|error| BenchFailure::io(format!("cannot find {PROGRAM}"), &error))?;
        let mut command = self.command(place, &program)?;
        command.args(memory::words(place, measure, self.bytes(), self.settings.sizing.seconds.unwrap_or(SECONDS)));
        if let Some(threads) = self.settings.threads {
            command.env("OMP_NUM_THREADS", threads.to_string());
        }
        let finished = process::run(command, self.settings.timeout, self.interrupt)?;
        if finished.timed_out {
            let cause = format!("not done after {} s", self.settings.timeout.as_secs());
            return Err(BenchFailure::trouble(cause, "raise --timeout"));
        }
        if !finished.status.success() {
            return Err(BenchFailure::trouble(finished.complaint(), ""));
        }
        let printed = parse_output(&finished.stdout)?;
        let load = printed.get("gb_per_second").and_then(serde_json::Value::as_f64);
        let is_loaded = matches!(measure, Measure::Loaded { .. });
        Ok((figure_of(&printed)?.value, load.filter(|_| is_loaded)))
    }

    fn command(&self, place: &Place, program: &Path) -> Result<Command, BenchFailure> {
        match place {
            Place::Node { .. } => Ok(Command::new(program)),
            Place::Numactl { memory, cpus } => {
                let mut command = Command::new("numactl");
                command.arg(format!("--membind={memory}")).arg(format!("--cpunodebind={cpus}")).arg(program);
                Ok(command)
            }
            Place::Tier { contender } => {
                let named: Contender = contender.parse().map_err(|cause: String| BenchFailure::usage(cause, ""))?;
                let Some(aquifer) = self.aquifer else {
                    let remedy = "build it, or say --aquifer FILE";
                    return Err(BenchFailure::trouble("there is no aquifer binary", remedy));
                };
                let place = self.settings.dir.join(undo::name(self.token, "tier"));
                let Some(tier) = named.tier(&place.display().to_string(), self.bytes() * 2) else {
                    let remedy = format!("name {}", memory::TIERS);
                    return Err(BenchFailure::usage(format!("{contender} has no tier of this machine"), remedy));
                };
                let dram = (self.bytes() / 2).max(DRAM_MIN);
                let mut command = Command::new(aquifer);
                command.args(["run", "--quiet", "--dram", &dram.to_string(), "--tier", &tier]);
                command.args(&self.settings.aquifer_args).arg("--").arg(program);
                Ok(command)
            }
        }
    }
}

/// Refuses a tier on a node that does not exist, before anything is measured.
pub fn check_nodes(contenders: &[Contender], nodes: &[NodeFound]) -> Result<(), BenchFailure> {
    let is_there = |node: &u32| nodes.iter().any(|found| found.number == *node && found.has_memory);
    match contenders.iter().find(|contender| contender.node().is_some_and(|node| !is_there(&node))) {
        Some(contender) => {
            let cause = format!("--contender {contender}: there is no such NUMA node with memory");
            Err(BenchFailure::usage(cause, "`aquifer tiering status` lists them"))
        }
        None => Ok(()),
    }
}

/// The online nodes. A machine that shows none is one node with all CPUs.
pub fn nodes() -> Vec<NodeFound> {
    let directory = Path::new("/sys/devices/system/node");
    let names = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers: Vec<u32> = names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let node = |number: u32| {
        let of_node = directory.join(format!("node{number}"));
        let meminfo = text(of_node.join("meminfo"));
        let total =
            meminfo.lines().find(|line| line.contains("MemTotal:")).and_then(|line| line.split_whitespace().nth(3));
        let has_memory = total.is_some_and(|kib| kib != "0");
        NodeFound { number, cpu_list: text(of_node.join("cpulist")), has_memory }
    };
    numbers.into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was measured with everything else, and failed at each measure.
    #[test]
    fn a_tier_on_a_node_that_does_not_exist_is_refused_at_once() {
        let node = |number, has_memory| NodeFound { number, cpu_list: String::new(), has_memory };
        let found = [node(0, true), node(1, true), node(2, false)];
        let check = |name: &str| check_nodes(&["aquifer-dram", name].map(|it| it.parse().unwrap()), &found);
        check("aquifer-node:1").unwrap();
        for name in ["aquifer-node:2", "aquifer-node:7"] {
            let refused = check(name).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("tiering status"), "{refused}");
        }
    }

    #[test]
    fn this_machine_has_a_node_with_cpus_and_memory() {
        let found = nodes();
        if found.is_empty() {
            return aquifer_test_support::skip("this kernel shows no NUMA nodes");
        }
        assert!(found.iter().any(|node| node.has_memory && !node.cpu_list.is_empty()), "{found:?}");
    }
}
