// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The workloads that use the library: their ways, their tiers, where their program is, and their bars. Pure, except
//! that it looks for the program's file.
//!
//! A program that uses the library has its own space, so no pager is put around it: the contender is an argument of the
//! program. Its budget is the local memory that every other contender gets, and its index and other ordinary memory are
//! subtracted from that. The other contenders run the same program with everything in ordinary memory.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;

use crate::fio::{self, FioPoint};
use crate::ratios::{Better, Ratio, Spread, compare};
use crate::record::{Run, Summary, figures};
use crate::verdict::{Bar, Verdict, from_ratio};

/// The file name of the program.
pub const PROGRAM: &str = "aquifer-workloads";
/// The file name of the script that uses the Python package.
pub const GATHER_PYTHON: &str = "gather_python";
/// The contenders that run when none is named and every workload uses the library.
pub const STANDARD: &str = "dram,blocking,own-faults,hints,contexts,in-place";
/// How the names of the contenders are written after the standard ones.
pub const NAMES: &str = "blocking, own-faults, hints, contexts or in-place, each alone or with :TIER (flash, dram, \
                         compressed, emulated:PROFILE)";
/// Accesses a second, and cores, of the published system that took 5 % of its cores for them.
const PUBLISHED_ACCESSES: f64 = 10e6;
const PUBLISHED_CORES: f64 = 128.0;

/// How a program reads its far memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// By loads.
    Blocking,
    /// By contexts.
    Contexts,
    /// By loads, with hints before them.
    Hints,
    /// Without making pages resident.
    InPlace,
    /// By loads; each thread resolves its own faults.
    OwnFaults,
}

/// Each way with its name here, and with the arguments of the program that stand for it.
const WAYS: [(Way, &str, &[&str]); 5] = [
    (Way::Blocking, "blocking", &["blocking"]),
    (Way::Contexts, "contexts", &["contexts"]),
    (Way::Hints, "hints", &["hints"]),
    (Way::InPlace, "in-place", &["in-place"]),
    (Way::OwnFaults, "own-faults", &["blocking", "--without-system-calls"]),
];

/// The tier of the program's space.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    Compressed,
    Dram,
    Emulated(String),
    Flash,
}

impl Tier {
    /// The tier as `aquifer run --tier` takes it. `place` is the file of a flash tier.
    pub fn spec(&self, place: &str, bytes: u64) -> String {
        match self {
            Self::Compressed => format!("compressed:size={bytes}"),
            Self::Dram => format!("dram:size={bytes}"),
            Self::Emulated(profile) => format!("emulated:{profile},size={bytes}"),
            Self::Flash => format!("flash:{place},size={bytes}"),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compressed => f.write_str("compressed"),
            Self::Dram => f.write_str("dram"),
            Self::Emulated(profile) => write!(f, "emulated:{profile}"),
            Self::Flash => f.write_str("flash"),
        }
    }
}

impl FromStr for Tier {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once(':') {
            None if text == "compressed" => Ok(Self::Compressed),
            None if text == "dram" => Ok(Self::Dram),
            None if text == "flash" => Ok(Self::Flash),
            Some(("emulated", profile)) if !profile.is_empty() => Ok(Self::Emulated(profile.to_owned())),
            _ => Err(()),
        }
    }
}

/// One way over one tier, as a contender.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InLibrary {
    way: Way,
    tier: Tier,
}

impl InLibrary {
    /// How it reads.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether all its memory is within the limit, or on a disk.
    pub fn is_limited(&self) -> bool {
        matches!(self.tier, Tier::Compressed | Tier::Flash)
    }

    /// The arguments of the program. `place` is the file of a flash tier.
    pub fn words(&self, local_bytes: u64, place: &str, tier_bytes: u64) -> Vec<String> {
        let (local, tier) = (local_bytes.to_string(), self.tier.spec(place, tier_bytes));
        let (_, way) = names_of(self.way);
        [&["--way"], way, &["--dram", &local, "--tier", &tier]].concat().into_iter().map(str::to_owned).collect()
    }
}

/// A way's name here, and the arguments of the program after `--way`.
fn names_of(way: Way) -> (&'static str, &'static [&'static str]) {
    WAYS.iter().find(|(one, ..)| *one == way).map_or(("", &[]), |(_, name, words)| (name, words))
}

impl fmt::Display for InLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (way, _) = names_of(self.way);
        match &self.tier {
            Tier::Flash => f.pad(way),
            tier => f.pad(&format!("{way}:{tier}")),
        }
    }
}

impl FromStr for InLibrary {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, tier) = text.split_once(':').unwrap_or((text, "flash"));
        let (way, ..) = WAYS.iter().find(|(_, known, _)| *known == name).ok_or(())?;
        Ok(Self { way: *way, tier: tier.parse()? })
    }
}

/// Where a workload's program is: with the others, or beside the bench, where the project's own programs are built and
/// installed.
pub fn program_path(programs: &Path, name: &str) -> PathBuf {
    let built = programs.join(name);
    let beside = std::env::current_exe().ok().map(|bench| bench.with_file_name(name));
    match beside.filter(|beside| !built.is_file() && beside.is_file()) {
        Some(beside) => beside,
        None => built,
    }
}

/// CPU time that one contender took for its accesses of far memory: medians of the rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FarAccess {
    pub workload: String,
    pub local_percent: u32,
    pub contender: String,
    /// The CPU time of all threads for each read of memory that was not resident, with everything that the workload
    /// does.
    pub cpu_us: f64,
    /// The same for each read, resident or not.
    pub cpu_us_per_read: f64,
    /// What ten million such accesses a second would take of 128 cores, in per cent. A published system took 5.
    pub cores_percent: f64,
}

/// The CPU time of every summary whose runs have reported it.
pub fn far_accesses(runs: &[Run], summaries: &[Summary]) -> Vec<FarAccess> {
    summaries.iter().filter_map(|summary| far_access(runs, summary)).collect()
}

fn far_access(runs: &[Run], summary: &Summary) -> Option<FarAccess> {
    let same = |run: &&Run| {
        let place = (&run.workload, run.local_percent, &run.contender);
        place == (&summary.workload, summary.local_percent, &summary.contender) && run.figure.is_some()
    };
    let median = |name: &str| {
        let reported = |run: &Run| run.program.as_ref()?.get(name).and_then(Value::as_f64);
        Spread::of(&runs.iter().filter(same).filter_map(reported).collect::<Vec<f64>>()).map(|spread| spread.median)
    };
    let cpu_us = median("cpu_us_per_far_read")?;
    Some(FarAccess {
        workload: summary.workload.clone(),
        local_percent: summary.local_percent,
        contender: summary.contender.clone(),
        cpu_us,
        cpu_us_per_read: median("cpu_us_per_read")?,
        cores_percent: PUBLISHED_ACCESSES * cpu_us / 1e6 / PUBLISHED_CORES * 100.0,
    })
}

const fn bar(workload: &'static str, percent: u32, ours: &'static str, theirs: &'static str, at_least: f64) -> Bar {
    Bar { workload, local_percent: percent, ours, theirs, at_least, aim: None }
}

/// The bars of these workloads. Those of `kv` are what its device's document promises of DRAM's throughput.
pub const BARS: [Bar; 14] = [
    Bar { aim: Some(0.95), ..bar("kv", 25, "contexts:emulated:xl-flash-slc", "dram", 0.9) },
    bar("kv", 25, "contexts:emulated:xl-flash-mlc", "dram", 0.8),
    bar("lookup", 10, "contexts", "blocking", 5.0),
    bar("lookup", 10, "contexts", "mmap-file", 1.0),
    bar("lookup", 10, "contexts", "swap-disk", 1.0),
    bar("bfs-hints", 30, "hints", "blocking", 2.0),
    bar("bfs-hints", 30, "contexts", "blocking", 2.0),
    // Over loads of one item after the other.
    bar("gather", 30, "in-place", "blocking", 3.0),
    bar("gather-python", 30, "in-place", "blocking", 3.0),
    bar("gather-python", 30, "in-place", "mmap-file", 2.0),
    bar("ycsb-a", 75, "aquifer-emulated:xl-flash-slc", "dram", 0.95),
    bar("ycsb-a", 75, "cache:emulated:xl-flash-slc", "cache", 0.95),
    bar("ycsb-c", 75, "aquifer-emulated:xl-flash-slc", "dram", 0.95),
    bar("ycsb-c", 75, "cache:emulated:xl-flash-slc", "cache", 0.95),
];

/// Hits of the hot set beside a scan with hints, over those without a scan.
const HOT_HITS_MIN: f64 = 0.98;

/// What hints about a scan are worth: the figure of `hints` is a ratio by itself.
pub fn judge_hints(runs: &[Run]) -> Verdict {
    let (figures, without) = (figures(runs, "hints", 25, "hints"), figures(runs, "hints", 25, "blocking"));
    let values = |series: &[(u32, f64)]| series.iter().map(|(_, value)| *value).collect::<Vec<f64>>();
    let ratio = Spread::of(&values(&figures)).map(|all| Ratio { ratio: all.median, min: all.min, max: all.max });
    let text = "hints at 25 %: hits of a hot set beside a scan with hints, over those without a scan";
    let mut verdict = from_ratio(text.into(), HOT_HITS_MIN, None, ratio, "hints has no figure".into());
    if let Some(without) = Spread::of(&values(&without)) {
        verdict.note = format!("without hints {:.3}", without.median);
    }
    verdict
}

/// Lookups by contexts against what the disk can do with as many reads of a page at a time.
pub fn judge_lookups(runs: &[Run], points: &[FioPoint]) -> Verdict {
    let ours = figures(runs, "lookup", 10, "contexts");
    let best = fio::best(points, fio::RANDOM_READS);
    let ceiling =
        best.map(|point| ours.iter().map(|(round, _)| (*round, point.reads_per_second())).collect::<Vec<_>>());
    let missing = if ours.is_empty() { "contexts has no figure" } else { "fio was not asked" };
    let ratio = ceiling.and_then(|ceiling| compare(&ours, &ceiling, Better::Higher));
    let text = "lookup at 10 %: contexts over fio's random reads of 4 KiB at the same depth";
    let mut verdict = from_ratio(text.into(), 0.85, None, ratio, missing.into());
    if let Some(point) = best {
        verdict.note = format!("{:.0} reads a second at depth {}", point.reads_per_second(), point.depth);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;
    use crate::record::summarise;
    use crate::record::tests::run;
    use crate::workload::WORKLOADS;

    #[test]
    fn names_go_there_and_back() {
        let names = WAYS.map(|(_, name, _)| name).into_iter().chain(["contexts:dram", "hints:compressed"]);
        for name in names.chain(["own-faults:emulated:xl-flash-slc", "contexts:emulated:./mine.toml"]) {
            assert_eq!(name.parse::<Contender>().unwrap().to_string(), name);
        }
        for wrong in ["contexts:", "contexts:tape", "contexts:emulated:", "contexts:dram:", "context", "own-faults:"] {
            assert!(wrong.parse::<InLibrary>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_contender_is_arguments_of_the_program() {
        let contender: InLibrary = "contexts:emulated:xl-flash-slc".parse().unwrap();
        let words = contender.words(1 << 20, "/d/f", 5);
        assert_eq!(words.join(" "), "--way contexts --dram 1048576 --tier emulated:xl-flash-slc,size=5");
        assert!(!contender.is_limited());
        let flash: InLibrary = "in-place".parse().unwrap();
        assert_eq!(flash.words(9, "/d/f", 5).join(" "), "--way in-place --dram 9 --tier flash:/d/f,size=5");
        assert!(flash.is_limited());
        let own: InLibrary = "own-faults:dram".parse().unwrap();
        let words = own.words(9, "/d/f", 5).join(" ");
        assert_eq!(words, "--way blocking --without-system-calls --dram 9 --tier dram:size=5");
    }

    /// The program of `hints` compares hints alone, and Python's script has no such argument.
    #[test]
    fn threads_resolve_their_own_faults_in_four_workloads_and_in_no_bar() {
        for workload in &WORKLOADS {
            let is_in = workload.ways().contains(&Way::OwnFaults);
            let expected = ["kv", "lookup", "bfs-hints", "gather"].contains(&workload.name);
            assert_eq!(is_in, expected, "{}", workload.name);
        }
        assert!(BARS.iter().all(|bar| !bar.ours.contains("own-faults") && !bar.theirs.contains("own-faults")));
    }

    #[test]
    fn lookups_are_judged_by_the_best_random_reads() {
        let point = |depth, rate: f64| FioPoint {
            reads: 1,
            writes: 0,
            block_bytes: 4096,
            depth,
            engine: "e".into(),
            read_bytes_per_second: rate * 4096.0,
            write_bytes_per_second: 0.0,
        };
        let runs = [run("lookup", 10, "contexts", 0, 90e3, Better::Higher)];
        let verdict = judge_lookups(&runs, &[point(1, 10e3), point(64, 100e3)]);
        assert_eq!((verdict.measured, verdict.met), (Some(0.9), Some(true)));
        assert!(verdict.note.contains("depth 64"), "{}", verdict.note);
        assert_eq!(judge_lookups(&runs, &[]).met, None);
    }

    #[test]
    fn hints_are_judged_by_their_own_figure() {
        let runs = [
            run("hints", 25, "hints", 0, 0.97, Better::Higher),
            run("hints", 25, "hints", 1, 0.99, Better::Higher),
            run("hints", 25, "blocking", 0, 0.5, Better::Higher),
        ];
        let verdict = judge_hints(&runs);
        assert_eq!((verdict.measured, verdict.met), (Some(0.98), Some(true)));
        assert_eq!((verdict.min, verdict.max, verdict.note.as_str()), (Some(0.97), Some(0.99), "without hints 0.500"));
        assert_eq!(judge_hints(&[]).met, None);
    }

    #[test]
    fn cpu_time_is_the_median_of_what_was_reported() {
        let reported = |contender: &str, round, cpu: Option<f64>| Run {
            program: Some(serde_json::json!({"cpu_us_per_far_read": cpu, "cpu_us_per_read": 0.1})),
            ..run("kv", 25, contender, round, 1.0, Better::Higher)
        };
        let runs = [
            reported("contexts", 0, Some(0.6)),
            reported("contexts", 1, Some(0.64)),
            reported("dram", 0, None),
            run("stream", 30, "dram", 0, 1.0, Better::Higher),
        ];
        let found = far_accesses(&runs, &summarise(&runs));
        assert_eq!(found.len(), 1);
        assert!((found[0].cpu_us - 0.62).abs() < 1e-9 && (found[0].cores_percent - 4.84375).abs() < 1e-9, "{found:?}");
    }
}
