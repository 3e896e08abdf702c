// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the command line, and turns it into the settings that the rest of the bench uses.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aquifer_bench_args::BenchArgs;

use crate::contender::{Contender, STANDARD, SwapKind};
use crate::failure::BenchFailure;
use crate::library;
use crate::memory;
use crate::overhead::Overhead;
use crate::user_program;
use crate::workload::{self, Sizing, WORKLOADS, Workload};

const ROUNDS: u32 = 3;
/// Even, so that each of two builds comes first equally often (`order.rs`).
const ROUNDS_AGAINST: u32 = 4;
/// A bar of one per cent needs many rounds on a machine whose results vary by a few per cent from run to run. Even, as
/// above.
const ROUNDS_BELOW_BUDGET: u32 = 16;

/// Below this range, no run ends in time; above it, the limit has no effect on this machine's traffic.
const CABLE_RATES: RangeInclusive<u64> = 1_000_000..=100_000_000_000;

/// The checked arguments.
#[derive(Debug, Clone)]
pub struct Settings {
    pub workloads: Vec<&'static Workload>,
    /// True if memory itself is measured (`memory.rs`).
    pub memory: bool,
    /// The contenders whose tiers are measured as memory: those that the user named.
    pub memory_contenders: Vec<Contender>,
    pub overheads: Vec<Overhead>,
    pub contenders: Vec<Contender>,
    pub locals: Vec<u32>,
    /// True when the user did not choose `locals`.
    pub locals_by_default: bool,
    pub rounds: u32,
    /// True when the user did not choose `rounds`.
    pub rounds_by_default: bool,
    pub sizing: Sizing,
    pub scale: u32,
    pub graph: Option<PathBuf>,
    pub threads: Option<u32>,
    pub dir: PathBuf,
    pub programs: PathBuf,
    pub aquifer: Option<PathBuf>,
    /// Another build, for comparison.
    pub against: Option<PathBuf>,
    pub aquifer_args: Vec<String>,
    pub umap_page_bytes: Option<u64>,
    /// Bytes per second, of each cable in each direction.
    pub cable_rate: u64,
    pub timeout: Duration,
    pub json: Option<PathBuf>,
    pub plots: Option<PathBuf>,
    pub check: bool,
    pub plan_only: bool,
}

impl Settings {
    /// Checks the arguments. A flag given with `--quick` overrides what `--quick` sets.
    pub fn from_args(mut args: BenchArgs) -> Result<Self, BenchFailure> {
        let memory = args.workload.iter().any(|name| name == memory::NAME);
        args.workload.retain(|name| name != memory::NAME);
        let is_memory_alone = memory && args.workload.is_empty();
        let memory_contenders = if memory && !args.contender.is_empty() {
            let is_place =
                |contender: &Contender| contender.is_ours() && !contender.borrows() && contender.tier("", 0).is_some();
            let (places, others): (Vec<Contender>, Vec<Contender>) =
                contenders_named(&args.contender)?.into_iter().partition(is_place);
            if let Some(other) = others.first().filter(|_| is_memory_alone) {
                let cause = format!("--contender {other}: the workload memory compares nodes and tiers");
                let remedy = format!("leave it out, or name {}", memory::TIERS);
                return Err(BenchFailure::usage(cause, remedy));
            }
            places
        } else {
            Vec::new()
        };
        let is_own = !args.program.is_empty();
        let contenders = if args.contender.is_empty() && is_own {
            contenders_named(&user_program::STANDARD.map(str::to_owned))?
        } else if args.contender.is_empty() && use_library(&args.workload) {
            contenders_named(&library::STANDARD.split(',').map(str::to_owned).collect::<Vec<_>>())?
        } else if args.contender.is_empty() && args.quick {
            vec![Contender::Dram, Contender::AquiferFlash, Contender::Swap(SwapKind::Disk)]
        } else {
            contenders_named(&args.contender)?
        };
        let contenders = match &args.against {
            Some(other) => beside_another_build(contenders, other)?,
            None => contenders,
        };
        let locals = match args.local.as_slice() {
            [] if args.quick => vec![30],
            [] if is_own => vec![user_program::LOCAL_PERCENT],
            [] => vec![30, 50, 70],
            named => without_repeats(named),
        };
        if let Some(wrong) = locals.iter().find(|percent| !(1..=1000).contains(*percent)) {
            return Err(BenchFailure::usage(
                format!("--local {wrong} is out of range"),
                "use per cent of the footprint, 1 to 1000",
            ));
        }
        let rounds = args.rounds.unwrap_or(match &args.against {
            _ if args.quick => 1,
            Some(_) => ROUNDS_AGAINST,
            None => ROUNDS,
        });
        in_range("--rounds", rounds, 1, 1000)?;
        in_range("--scale", args.scale, 4, 30)?;
        in_range("--iterations", args.iterations.unwrap_or(2), 2, 1000)?;
        in_range("--trials", args.trials.unwrap_or(1), 1, 1000)?;
        in_range("--threads", args.threads.unwrap_or(1), 1, 4096)?;
        if args.bytes.is_some_and(|bytes| bytes < 1 << 20) {
            return Err(BenchFailure::usage("--bytes is under 1MiB, too small to be limited", "use 64MiB or more"));
        }
        // The workloads' arrays begin at multiples of 2 MiB in their files.
        if args.umap_page.is_some_and(|bytes| !bytes.is_power_of_two() || !(4 << 10..=2 << 20).contains(&bytes)) {
            return Err(BenchFailure::usage("--umap-page is not a power of two from 4KiB to 2MiB", "use 1MiB"));
        }
        if !CABLE_RATES.contains(&args.cable_rate) {
            return Err(BenchFailure::usage("--cable-rate is out of range", "use 1MB/s to 100GB/s"));
        }
        let timeout = if args.quick { args.timeout.min(Duration::from_secs(240)) } else { args.timeout };
        Ok(Self {
            workloads: if is_own {
                vec![user_program::workload(args.program)?]
            } else if is_memory_alone || (args.workload.is_empty() && !args.overhead.is_empty()) {
                Vec::new()
            } else {
                workloads_named(&args.workload)?
            },
            memory,
            memory_contenders,
            overheads: overheads_named(&args.overhead)?,
            contenders,
            locals,
            locals_by_default: args.local.is_empty(),
            rounds,
            rounds_by_default: args.rounds.is_none(),
            sizing: Sizing {
                bytes: args.bytes,
                iterations: args.iterations.or(args.quick.then_some(2)),
                trials: args.trials,
                seconds: args.seconds.map(|time| time.as_secs_f64()),
            },
            scale: args.scale,
            graph: args.graph,
            threads: args.threads,
            plots: args.plots.or_else(|| args.quick.then(|| args.dir.join("plots"))),
            dir: args.dir,
            programs: args.programs,
            aquifer: args.aquifer,
            against: args.against,
            aquifer_args: args.aquifer_arg,
            umap_page_bytes: args.umap_page,
            cable_rate: args.cable_rate,
            timeout,
            json: args.json,
            check: args.check,
            plan_only: args.plan,
        })
    }

    /// How many times each case of an overhead is measured.
    pub fn overhead_rounds(&self, overhead: Overhead) -> u32 {
        match overhead {
            Overhead::BelowBudget if self.rounds_by_default => ROUNDS_BELOW_BUDGET,
            _ => self.rounds,
        }
    }

    /// True when only JSON goes to stdout.
    pub fn json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }
}

/// Whether all these workloads use the library.
fn use_library(names: &[String]) -> bool {
    let uses = |name: &String| workload::find(name).is_some_and(|workload| workload.uses_library());
    !names.is_empty() && names.iter().all(uses)
}

fn in_range(flag: &str, value: u32, low: u32, high: u32) -> Result<(), BenchFailure> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(BenchFailure::usage(format!("{flag} {value} is out of range"), format!("use {low} to {high}")))
}

fn without_repeats<T: PartialEq + Clone>(items: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(item.clone());
        }
    }
    kept
}

fn workloads_named(names: &[String]) -> Result<Vec<&'static Workload>, BenchFailure> {
    if names.iter().any(|name| name == "all") {
        return Ok(WORKLOADS.iter().collect());
    }
    let standard = ["stream".to_string()];
    let names = if names.is_empty() { &standard[..] } else { names };
    let mut found = Vec::new();
    for name in names {
        found.push(workload::find(name).ok_or_else(|| {
            let known: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
            BenchFailure::usage(format!("'{name}' is not a workload"), format!("choose from all, {}", known.join(", ")))
        })?);
    }
    Ok(without_repeats(&found))
}

fn overheads_named(names: &[String]) -> Result<Vec<Overhead>, BenchFailure> {
    if names.iter().any(|name| name == "all") {
        return Ok(Overhead::ALL.to_vec());
    }
    let parsed: Result<Vec<Overhead>, String> = names.iter().map(|name| name.parse()).collect();
    Ok(without_repeats(&parsed.map_err(|cause| BenchFailure::usage(cause, ""))?))
}

fn contenders_named(names: &[String]) -> Result<Vec<Contender>, BenchFailure> {
    let standard: Vec<String> = STANDARD.split(',').map(ToString::to_string).collect();
    let names = if names.is_empty() { &standard } else { names };
    let parsed: Result<Vec<Contender>, String> = names.iter().map(|name| name.parse()).collect();
    Ok(without_repeats(&parsed.map_err(|cause| BenchFailure::usage(cause, ""))?))
}

/// Lists each Aquifer contender, followed by the same contender run by the other build.
fn beside_another_build(contenders: Vec<Contender>, other: &Path) -> Result<Vec<Contender>, BenchFailure> {
    if !other.is_file() {
        let cause = format!("--against {} is not a file", other.display());
        return Err(BenchFailure::usage(
            cause,
            "use the aquifer binary of the other build, beside its preload library",
        ));
    }
    let pair = |contender: Contender| match contender.is_ours() {
        true => vec![contender.clone(), Contender::OtherBuild(Box::new(contender))],
        false => vec![contender],
    };
    Ok(contenders.into_iter().flat_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn settings(words: &[&str]) -> Result<Settings, BenchFailure> {
        Settings::from_args(Probe::try_parse_from([&["bench"], words].concat()).unwrap().bench)
    }

    #[test]
    fn defaults() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.workloads.len(), 1);
        assert_eq!(settings.locals, [30, 50, 70]);
        assert_eq!(settings.rounds, 3);
        assert_eq!(settings.contenders.len(), 12);
    }

    #[test]
    fn memory_is_measured_alone_or_beside_workloads() {
        let alone = settings(&["--workload", "memory"]).unwrap();
        assert!(alone.memory && alone.workloads.is_empty() && alone.memory_contenders.is_empty());
        let beside = settings(&["--workload", "stream,memory", "--contender", "dram,aquifer-dram,swap-disk"]).unwrap();
        assert_eq!((beside.memory, beside.workloads.len()), (true, 1));
        assert_eq!(beside.memory_contenders, [Contender::AquiferDram]);
        assert!(!settings(&["--workload", "all"]).unwrap().memory);
        for name in ["numactl:1", "swap-disk", "dram"] {
            let refused = settings(&["--workload", "memory", "--contender", &format!("aquifer-dram,{name}")]);
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("leave it out"), "{refused}");
        }
    }

    #[test]
    fn workloads_of_the_library_have_its_contenders_by_default() {
        let settings = settings(&["--workload", "kv,bfs-hints"]).unwrap();
        let names: Vec<_> = settings.contenders.iter().map(ToString::to_string).collect();
        assert_eq!(names.join(","), library::STANDARD);
        assert!(settings.locals_by_default);
    }

    #[test]
    fn another_build_takes_turns_with_ours_alone() {
        let names = ["--against", "/proc/self/exe", "--contender", "dram,aquifer-flash,swap-disk"];
        let settings = settings(&names).unwrap();
        let names: Vec<_> = settings.contenders.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["dram", "aquifer-flash", "aquifer-flash@against", "swap-disk"]);
        let all = Overhead::ALL.map(|overhead| settings.overhead_rounds(overhead));
        assert!(all.iter().all(|rounds| rounds.is_multiple_of(2)), "no build comes first more often: {all:?}");
    }

    #[test]
    fn quick_sets_what_was_not_named() {
        let quick = settings(&["--quick"]).unwrap();
        assert_eq!((quick.rounds, quick.locals.as_slice(), quick.contenders.len()), (1, &[30][..], 3));
        assert_eq!(quick.sizing.iterations, Some(2));
        let overruled = settings(&["--quick", "--local", "50", "--rounds", "2", "--contender", "dram"]).unwrap();
        assert_eq!((overruled.rounds, overruled.locals.as_slice(), overruled.contenders.len()), (2, &[50][..], 1));
    }

    #[test]
    fn bad_input_gets_cause_and_remedy() {
        for words in [
            &["--workload", "quake"][..],
            &["--contender", "swap"],
            &["--overhead", "none"],
            &["--local", "0"],
            &["--rounds", "0"],
            &["--iterations", "1"],
            &["--scale", "60"],
            &["--bytes", "4096"],
            &["--umap-page", "6KiB"],
            &["--umap-page", "4MiB"],
            &["--against", "/nowhere/aquifer"],
            &["--cable-rate", "999KB/s"],
            &["--cable-rate", "101GB/s"],
        ] {
            let failure = settings(words).unwrap_err();
            assert!(matches!(failure, BenchFailure::Usage { .. }), "{words:?}");
            assert!(failure.to_string().contains("choose") || failure.to_string().contains("use"), "{failure}");
        }
    }

    #[test]
    fn overheads_run_alone_unless_a_workload_is_named() {
        let alone = settings(&["--overhead", "idle,fault,idle"]).unwrap();
        assert_eq!((alone.workloads.len(), alone.overheads.as_slice()), (0, &[Overhead::Idle, Overhead::Fault][..]));
        assert_eq!((alone.overhead_rounds(Overhead::BelowBudget), alone.overhead_rounds(Overhead::Idle)), (16, 3));
        let both = settings(&["--overhead", "all", "--workload", "bfs", "--rounds", "2"]).unwrap();
        assert_eq!((both.workloads.len(), both.overheads.len()), (1, 10));
        assert_eq!(both.overhead_rounds(Overhead::BelowBudget), 2);
    }

    #[test]
    fn a_program_of_ones_own_is_the_only_workload() {
        let own = settings(&["--", "sh", "-c", "exit 0"]).unwrap();
        assert_eq!((own.workloads.len(), own.workloads[0].name, own.locals.as_slice()), (1, "sh", &[50][..]));
        let names: Vec<_> = own.contenders.iter().map(ToString::to_string).collect();
        assert_eq!(names, user_program::STANDARD);
        assert!(settings(&["--", "no-such-program-at-all"]).is_err());
        assert!(Probe::try_parse_from(["bench", "--workload", "bfs", "--", "sh"]).is_err());
    }

    #[test]
    fn all_and_repeats() {
        assert_eq!(settings(&["--workload", "all"]).unwrap().workloads.len(), WORKLOADS.len());
        assert_eq!(settings(&["--workload", "bfs,bfs", "--local", "30,30"]).unwrap().workloads.len(), 1);
    }
}
