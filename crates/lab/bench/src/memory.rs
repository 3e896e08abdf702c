// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--workload memory`: what is measured of memory itself, where, and how it is reported. Pure.
//!
//! Unlike the other workloads it compares places, not contenders: each NUMA node, from the CPUs of each node that has
//! some; the same by numactl(8), as a cross-check of the placement; and named contenders of ours, whose working sets
//! outgrow the budget. `memory_run.rs` makes the runs with `bench/workloads/memory_speed.cpp`, `memory_plot.rs` draws.

use std::fmt::{self, Write};

use serde::Serialize;

use crate::ratios::Spread;
use crate::size::format_size;
use crate::table::short;

/// The name after `--workload`.
pub const NAME: &str = "memory";
/// The contenders whose tiers are places.
pub const TIERS: &str = "aquifer-dram, aquifer-flash, aquifer-compressed, aquifer-node:N or aquifer-emulated:PROFILE";
/// The program.
pub const PROGRAM: &str = "memory_speed";
/// The largest working set unless `--bytes` says otherwise: larger than the last-level cache of most processors.
pub const BYTES: u64 = 256 << 20;
/// The smallest working set of the sweep: it fits the first-level cache.
const SWEEP_FROM: u64 = 16 << 10;
/// The mixes of reads and writes.
const MIXES: [(u32, u32); 6] = [(1, 0), (10, 1), (5, 1), (3, 1), (2, 1), (1, 1)];
/// The delays between the requests of the loading threads, from almost idle to saturated, in nanoseconds.
const DELAYS_NS: [u32; 8] = [20_000, 5000, 2000, 1000, 500, 200, 100, 0];

/// Where the memory is, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The memory of one node, from the CPUs of another or the same.
    Node {
        /// The node of the memory.
        memory: u32,
        /// The node of the CPUs.
        cpus: u32,
        /// The CPUs.
        cpu_list: String,
    },
    /// The same, placed by numactl(8).
    Numactl {
        /// The node of the memory.
        memory: u32,
        /// The node of the CPUs.
        cpus: u32,
    },
    /// Under Aquifer, with half of the largest working set as its budget.
    Tier {
        /// The contender.
        contender: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Node { memory, cpus, .. } if memory == cpus => write!(f, "node{memory} local"),
            Place::Node { memory, cpus, .. } => write!(f, "node{memory} from node{cpus}"),
            Place::Numactl { memory, cpus } if memory == cpus => write!(f, "node{memory} local, numactl"),
            Place::Numactl { memory, cpus } => write!(f, "node{memory} from node{cpus}, numactl"),
            Place::Tier { contender } => f.write_str(contender),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "measure")]
pub enum Measure {
    /// The latency of dependent loads, with nothing else going on.
    Latency {
        /// The working set.
        bytes: u64,
    },
    /// The bandwidth of all threads together.
    Bandwidth {
        /// The blocks that are read in turn.
        reads: u32,
        /// And written.
        writes: u32,
    },
    /// The latency while the other threads read.
    Loaded {
        /// The delay between their requests.
        delay_ns: u32,
    },
}

/// One measured point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryPoint {
    pub place: Place,
    #[serde(flatten)]
    pub measure: Measure,
    pub round: u32,
    /// Nanoseconds of a load, or GB/s.
    pub value: Option<f64>,
    /// Loaded: what the other threads moved meanwhile, in GB/s.
    pub load_gb_per_second: Option<f64>,
    /// Why there is no value.
    pub problem: Option<String>,
}

/// A node, as sysfs shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFound {
    pub number: u32,
    pub cpu_list: String,
    pub has_memory: bool,
}

/// The places of a machine: every node with memory from every node with CPUs, then the contenders.
pub fn places(nodes: &[NodeFound], has_numactl: bool, contenders: &[String]) -> Vec<Place> {
    let with_cpus = || nodes.iter().filter(|node| !node.cpu_list.is_empty());
    let pairs = || {
        let with_memory = nodes.iter().filter(|node| node.has_memory);
        with_memory.flat_map(move |memory| with_cpus().map(move |cpus| (memory.number, cpus)))
    };
    let own = pairs().map(|(memory, cpus)| Place::Node { memory, cpus: cpus.number, cpu_list: cpus.cpu_list.clone() });
    let by_numactl = pairs().filter(|_| has_numactl).map(|(memory, cpus)| Place::Numactl { memory, cpus: cpus.number });
    let tiers = contenders.iter().map(|contender| Place::Tier { contender: contender.clone() });
    own.chain(by_numactl).chain(tiers).collect()
}

/// What is measured at a place, with working sets up to `bytes`.
pub fn measures(place: &Place, bytes: u64) -> Vec<Measure> {
    let mut measures = Vec::new();
    let mut set = SWEEP_FROM;
    while set < bytes {
        measures.push(Measure::Latency { bytes: set });
        set *= 4;
    }
    measures.push(Measure::Latency { bytes });
    measures.extend(MIXES.map(|(reads, writes)| Measure::Bandwidth { reads, writes }));
    // Under a pager, what loads the memory would be its transfers, not these threads.
    if !matches!(place, Place::Tier { .. }) {
        measures.extend(DELAYS_NS.map(|delay_ns| Measure::Loaded { delay_ns }));
    }
    measures
}

/// The arguments of the program.
pub fn words(place: &Place, measure: Measure, bytes: u64, seconds: f64) -> Vec<String> {
    let mut words: Vec<String> = match measure {
        Measure::Latency { bytes } => vec!["--measure".into(), "latency".into(), "--bytes".into(), bytes.to_string()],
        Measure::Bandwidth { reads, writes } => {
            let words = ["--measure", "bandwidth", "--reads"].map(str::to_owned);
            let [reads, writes] = [reads, writes].map(|count| count.to_string());
            words.into_iter().chain([reads, "--writes".into(), writes, "--bytes".into(), bytes.to_string()]).collect()
        }
        Measure::Loaded { delay_ns } => {
            let words = ["--measure", "loaded", "--delay"].map(str::to_owned);
            words.into_iter().chain([delay_ns.to_string(), "--bytes".into(), bytes.to_string()]).collect()
        }
    };
    words.extend(["--seconds".into(), seconds.to_string()]);
    if let Place::Node { memory, cpu_list, .. } = place {
        words.extend(["--node".into(), memory.to_string(), "--cpus".into(), cpu_list.clone()]);
    }
    words
}

/// A summary over the rounds.
pub fn summary(points: &[MemoryPoint], place: &Place, measure: Measure) -> Option<Spread> {
    let of_it = points.iter().filter(|point| point.place == *place && point.measure == measure);
    Spread::of(&of_it.filter_map(|point| point.value).collect::<Vec<_>>())
}

/// The places and measures of the points, each once, in the order in which they were made.
pub fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

/// Three tables: a row for each measure, a column for each place.
pub fn tables(points: &[MemoryPoint]) -> String {
    let places = distinct(points.iter().map(|point| point.place.clone()));
    let measures = distinct(points.iter().map(|point| point.measure));
    let mut text = String::new();
    type Belongs = fn(&Measure) -> bool;
    let kinds: [(&str, Belongs); 3] = [
        ("Latency of a dependent load, ns, by working set", |it| matches!(it, Measure::Latency { .. })),
        ("Bandwidth, GB/s, by reads : writes", |it| matches!(it, Measure::Bandwidth { .. })),
        ("Latency under load, ns (and GB/s of the load), by delay", |it| matches!(it, Measure::Loaded { .. })),
    ];
    for (title, belongs) in kinds {
        let rows: Vec<Measure> = measures.iter().copied().filter(belongs).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{title}\n  {:<10}", "");
        places.iter().for_each(|place| {
            let _ = write!(text, "  {:>18}", place.to_string());
        });
        text.push('\n');
        for measure in rows {
            let _ = write!(text, "  {:<10}", label(measure));
            for place in &places {
                let cell =
                    summary(points, place, measure).map_or_else(|| "-".into(), |it| cell(points, place, measure, it));
                let width = place.to_string().len().max(18);
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
    }
    for point in points.iter().filter(|point| point.problem.is_some()) {
        let problem = point.problem.as_deref().unwrap_or_default();
        let _ = writeln!(text, "\nFAILED memory {} {}: {problem}", point.place, label(point.measure));
    }
    text
}

fn cell(points: &[MemoryPoint], place: &Place, measure: Measure, spread: Spread) -> String {
    let of_it = points.iter().filter(|point| point.place == *place && point.measure == measure);
    let loads: Vec<f64> = of_it.filter_map(|point| point.load_gb_per_second).collect();
    let load = Spread::of(&loads).map_or_else(String::new, |load| format!(" ({})", short(load.median)));
    format!("{}{load}", short(spread.median))
}

/// The row's name.
pub fn label(measure: Measure) -> String {
    match measure {
        Measure::Latency { bytes } => format_size(bytes),
        Measure::Bandwidth { reads, writes } => format!("{reads}:{writes}"),
        Measure::Loaded { delay_ns } => format!("{delay_ns} ns"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn node(number: u32, cpu_list: &str, has_memory: bool) -> NodeFound {
        NodeFound { number, cpu_list: cpu_list.into(), has_memory }
    }

    pub(crate) fn point(place: &Place, measure: Measure, round: u32, value: f64) -> MemoryPoint {
        MemoryPoint {
            place: place.clone(),
            measure,
            round,
            value: Some(value),
            load_gb_per_second: matches!(measure, Measure::Loaded { .. }).then_some(3.0),
            problem: None,
        }
    }

    #[test]
    fn every_node_with_memory_is_measured_from_every_node_with_cpus() {
        let nodes = [node(0, "0-3", true), node(1, "4-7", false), node(2, "", true)];
        let names: Vec<String> = places(&nodes, false, &[]).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["node0 local", "node0 from node1", "node2 from node0", "node2 from node1"]);
        let with_more = places(&nodes[..1], true, &["aquifer-dram".into()]);
        let names: Vec<String> = with_more.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["node0 local", "node0 local, numactl", "aquifer-dram"]);
    }

    #[test]
    fn a_sweep_ends_at_the_largest_working_set() {
        let place = &places(&[node(0, "0", true)], false, &[])[0];
        let sets = |bytes| -> Vec<u64> {
            let of_latency = measures(place, bytes).into_iter().filter_map(|measure| match measure {
                Measure::Latency { bytes } => Some(bytes),
                _ => None,
            });
            of_latency.collect()
        };
        assert_eq!(sets(1 << 20), [16 << 10, 64 << 10, 256 << 10, 1 << 20]);
        assert_eq!(sets(5 << 20).last(), Some(&(5 << 20)));
        let tier = Place::Tier { contender: "aquifer-dram".into() };
        assert!(measures(&tier, 1 << 20).iter().all(|measure| !matches!(measure, Measure::Loaded { .. })));
    }

    #[test]
    fn the_program_gets_the_place_and_the_measure() {
        let place = Place::Node { memory: 2, cpus: 0, cpu_list: "0-3".into() };
        let words = |measure| words(&place, measure, 4096, 0.5).join(" ");
        assert_eq!(
            words(Measure::Bandwidth { reads: 3, writes: 1 }),
            "--measure bandwidth --reads 3 --writes 1 --bytes 4096 --seconds 0.5 --node 2 --cpus 0-3"
        );
        assert!(words(Measure::Loaded { delay_ns: 200 }).starts_with("--measure loaded --delay 200 --bytes 4096"));
        assert!(words(Measure::Latency { bytes: 65_536 }).starts_with("--measure latency --bytes 65536"));
    }

    #[test]
    fn tables_have_a_column_for_each_place_and_medians() {
        let near = Place::Node { memory: 0, cpus: 0, cpu_list: "0".into() };
        let far = Place::Node { memory: 1, cpus: 0, cpu_list: "0".into() };
        let (latency, loaded) = (Measure::Latency { bytes: 1 << 20 }, Measure::Loaded { delay_ns: 0 });
        let mut points: Vec<MemoryPoint> =
            [90.0, 100.0, 200.0].iter().zip(0..).map(|(value, round)| point(&near, latency, round, *value)).collect();
        points.push(point(&far, latency, 0, 250.0));
        points.push(point(&near, loaded, 0, 400.0));
        points.push(MemoryPoint { value: None, problem: Some("exit code 1".into()), ..point(&far, loaded, 0, 1.0) });
        let text = tables(&points);
        let row = |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
        assert_eq!(row("1MiB").split_whitespace().collect::<Vec<_>>(), ["1MiB", "100", "250"]);
        assert_eq!(row("0 ns").split_whitespace().collect::<Vec<_>>(), ["0", "ns", "400", "(3.00)", "-"]);
        assert!(text.contains("FAILED memory node1 from node0 0 ns: exit code 1"), "{text}");
    }
}
