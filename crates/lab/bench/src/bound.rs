// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a bar can be at most, by arithmetic: the time in DRAM, and a read of the medium for each miss of an optimum
//! that knows the future. Pure; `bound_run.rs` asks the simulator for the misses and the disk for its time.
//!
//! It bounds pagers that read one page at a time on demand. A pager that reads ahead can exceed it where a program
//! reads in order.

use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::Value;

use crate::contender::Contender;
use crate::ratios::{Better, Spread};
use crate::record::{Run, Skipped, figures};
use crate::verdict::{Bar, Verdict, better_of};
use crate::workload::{Input, Sizing, Workload};

/// What the simulator accepts: scales of graphs, and numbers of values.
const SCALES: RangeInclusive<u64> = 8..=20;
const VALUES: RangeInclusive<u64> = 1000..=1 << 24;

/// The nominal time of a page's read by emulated devices, in microseconds: `read_ns` of their profiles in
/// `crates/memory/tiers/profiles`, from KIOXIA's slide "Low Latency FLASH Introduction" of August 2025.
const PROFILES_US: [(&str, f64); 2] = [("xl-flash-slc", 5.0), ("xl-flash-mlc", 10.0)];

/// CPU time of a far access by contexts, in microseconds: the bar for it, and the most of what was published. Contexts
/// wait for many reads at the same time, so that only this time is lost for each.
const FAR_ACCESS_US: f64 = 0.8;

/// The part of the program's memory by which the simulated one may differ.
const FOOTPRINT_SHARE: f64 = 0.03;

/// What a pager can reach at most, and what of it was reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// How many times as fast as the other contender.
    pub ratio: f64,
    /// The measured ratio divided by this one.
    pub reached: f64,
    /// Misses of the optimum for each search, source, round or request.
    pub misses_per_unit: f64,
    /// Searches, sources, rounds or requests in what the figure is about.
    pub units: f64,
    /// Time that each miss takes at least, in microseconds.
    pub read_us: f64,
    /// Threads that share the misses.
    pub threads: u32,
}

/// What a miss waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Read {
    /// A read of this disk.
    Disk,
    /// This many microseconds.
    Us(f64),
}

/// What the simulator is asked: the misses of a program of this size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The simulator's name for it.
    pub program: &'static str,
    /// The arguments that say its size.
    pub size: Vec<String>,
}

/// The misses at one level of local memory, as the simulator has answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    pub local_percent: u32,
    pub misses_per_unit: f64,
    /// The simulated program's memory.
    pub bytes: u64,
}

/// A bar that can have a bound.
pub struct Case {
    pub bar: Bar,
    pub read: Read,
    pub workload: &'static Workload,
}

/// The measured bars of ours over DRAM or swap for which the medium's time is known.
pub fn cases(bars: Vec<Bar>, verdicts: &[Verdict]) -> Vec<Case> {
    let is_measured = |bar: &Bar| {
        let text = bar.text();
        verdicts.iter().any(|verdict| verdict.bar == text && verdict.measured.is_some())
    };
    let of_bar = |bar: Bar| {
        let workload = crate::workload::find(bar.workload)?;
        program(workload)?;
        let is_over = bar.theirs == "dram" || bar.theirs.starts_with("swap-");
        let read = read_of(bar.ours, workload).filter(|_| is_over && is_measured(&bar))?;
        Some(Case { bar, read, workload })
    };
    bars.into_iter().filter_map(of_bar).collect()
}

/// What a miss of this contender waits for; None if that is not known.
fn read_of(contender: &str, workload: &Workload) -> Option<Read> {
    match contender.parse().ok()? {
        Contender::AquiferFlash => Some(Read::Disk),
        Contender::AquiferEmulated(profile) => {
            PROFILES_US.iter().find(|(name, _)| *name == profile).map(|(_, us)| Read::Us(*us))
        }
        Contender::Library(_) if workload.name == "kv" => Some(Read::Us(FAR_ACCESS_US)),
        _ => None,
    }
}

/// The simulator's name for a workload; None if it has no simulation.
pub fn program(workload: &Workload) -> Option<&'static str> {
    match workload.name {
        "bc" => Some("bc"),
        "bfs" => Some("bfs"),
        "pr" => Some("pagerank"),
        "redis" | "kv" => Some("server"),
        name if name.starts_with("ycsb-") => Some("ycsb"),
        _ => None,
    }
}

/// What to ask for a workload, or why it cannot be simulated. `scale` is that of the graph.
pub fn question(workload: &Workload, sizing: &Sizing, scale: Option<u64>) -> Result<Question, String> {
    let program = program(workload).ok_or("it has no simulation")?;
    let words = |words: [(&str, u64); 2]| {
        words.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]).collect::<Vec<_>>()
    };
    if workload.is_graph() {
        let scale = scale.ok_or("the header of the graph cannot be read")?;
        if !SCALES.contains(&scale) {
            let (min, max) = (SCALES.start(), SCALES.end());
            return Err(format!("no graph of scale {scale} can be simulated; measure with --scale {min} to {max}"));
        }
        return Ok(Question { program, size: vec!["--scale".to_owned(), scale.to_string()] });
    }
    let (Input::Arrays { bytes } | Input::Server { bytes, .. }) = workload.input else {
        return Err("it has no values".to_owned());
    };
    // Redis keeps a header of 4 bytes beside a value, and jemalloc has sizes of 1024 and 1280 bytes. The library's
    // store has values without gaps.
    let (value_bytes, slot) = match workload.name {
        "redis" => (1024, 1280),
        "kv" => (1024, 1024),
        _ => (1000, 1024),
    };
    let values = sizing.bytes.unwrap_or(bytes) / value_bytes;
    if !VALUES.contains(&values) {
        return Err(format!("{values} values cannot be simulated; measure with --bytes 1MiB to 15GiB"));
    }
    Ok(Question { program, size: words([("--values", values), ("--slot", slot)]) })
}

/// The scale in the header of a graph file (`bench/workloads/csr.hpp`).
pub fn scale_of(header: &[u8]) -> Option<u64> {
    let scale = header.get(32..40)?.try_into().ok().map(u64::from_le_bytes)?;
    header.starts_with(b"CSRGRAPH").then_some(scale)
}

/// The simulator's answers, one line each.
pub fn answers(text: &str) -> Option<Vec<Answer>> {
    let answer = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(Answer {
            local_percent: u32::try_from(line.get("local_percent")?.as_u64()?).ok()?,
            misses_per_unit: line.get("misses_per_unit")?.as_f64()?,
            bytes: line.get("pages")?.as_u64()? * 4096,
        })
    };
    text.lines().map(answer).collect()
}

/// The bound of a case, or why it has none.
pub fn bound(
    case: &Case,
    answer: Answer,
    read_us: f64,
    threads: u32,
    runs: &[Run],
    measured: f64,
) -> Result<Bound, String> {
    let Bar { workload, local_percent, theirs, .. } = case.bar;
    let here = |run: &&Run| run.workload == workload && run.local_percent == local_percent && run.figure.is_some();
    let is_graph = case.workload.is_graph();
    if let Some(run) = runs.iter().find(here).filter(|_| is_graph) {
        let (real, simulated) = (run.footprint_bytes as f64, answer.bytes as f64);
        if (real - simulated).abs() > FOOTPRINT_SHARE * real {
            return Err(format!(
                "the program has {:.1} MiB and the simulated one {:.1}; measure a graph of 16 edges a vertex",
                real / 1048576.0,
                simulated / 1048576.0
            ));
        }
    }
    let median = |contender: &str| {
        let values: Vec<f64> = figures(runs, workload, local_percent, contender).iter().map(|(_, it)| *it).collect();
        let us = |median: f64| match better_of(runs, workload) {
            Better::Higher => 1e6 / median,
            Better::Lower => median * 1e6,
        };
        Spread::of(&values).map(|spread| us(spread.median))
    };
    let dram_us = median("dram").ok_or("dram was not measured; add it to --contender")?;
    let theirs_us = median(theirs).ok_or_else(|| format!("{theirs} has no figure"))?;
    // A trial of PageRank has as many rounds as it needed; all others are about one unit.
    let rounds = |run: &Run| run.program.as_ref()?.get("rounds")?.as_f64();
    let units = runs.iter().filter(here).find_map(rounds).filter(|_| workload == "pr").unwrap_or(1.0);
    // A server or a program of the library has one thread.
    let threads = if is_graph { threads } else { 1 };
    let least_us = dram_us + answer.misses_per_unit * units * read_us / f64::from(threads);
    let ratio = theirs_us / least_us;
    let misses_per_unit = answer.misses_per_unit;
    Ok(Bound { ratio, reached: measured / ratio, misses_per_unit, units, read_us, threads })
}

/// The reason for which a case has no bound.
pub fn without(case: &Case, reason: impl Into<String>) -> Skipped {
    Skipped {
        workload: format!("{} at {} %", case.bar.workload, case.bar.local_percent),
        contender: format!("{} over {}", case.bar.ours, case.bar.theirs),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::run;
    use crate::verdict::{bars, judge};
    use serde_json::json;

    fn found(runs: &[Run]) -> Vec<Case> {
        cases(bars(runs), &judge(runs, &[]))
    }

    fn only(runs: &[Run]) -> Case {
        let mut cases = found(runs);
        assert_eq!(cases.len(), 1, "{:?}", cases.iter().map(|case| case.bar.text()).collect::<Vec<_>>());
        cases.remove(0)
    }

    fn answer(misses_per_unit: f64) -> Answer {
        Answer { local_percent: 50, misses_per_unit, bytes: 1 << 30 }
    }

    #[test]
    fn a_server_loses_the_reads_of_its_only_thread() {
        let runs = [
            run("redis", 50, "aquifer-flash", 0, 60e3, Better::Higher),
            run("redis", 50, "dram", 0, 200e3, Better::Higher),
        ];
        let case = only(&runs);
        assert_eq!(case.read, Read::Disk);
        // A request takes 5 us in DRAM, and a tenth of a read of 50 us.
        let found = bound(&case, answer(0.1), 50.0, 2, &runs, 0.3).unwrap();
        assert_eq!((found.ratio, found.reached, found.threads), (0.5, 0.6, 1));
    }

    #[test]
    fn threads_of_a_kernel_share_its_reads_and_swap_is_the_reference_where_the_bar_says_so() {
        let runs = [
            run("bc", 50, "aquifer-flash", 0, 4.0, Better::Lower),
            run("bc", 50, "dram", 0, 1.0, Better::Lower),
            run("bc", 50, "swap-disk", 0, 6.0, Better::Lower),
        ];
        // 40,000 reads of 50 us by two threads are a second: two seconds at least, and swap takes six.
        let found = bound(&only(&runs), answer(40e3), 50.0, 2, &runs, 1.5).unwrap();
        assert_eq!((found.ratio, found.reached), (3.0, 0.5));
        let without_dram = [runs[0].clone(), runs[2].clone()];
        let refused = bound(&only(&without_dram), answer(1.0), 50.0, 2, &without_dram, 1.0).unwrap_err();
        assert_eq!(refused, "dram was not measured; add it to --contender");
    }

    #[test]
    fn a_trial_of_pagerank_has_as_many_rounds_as_it_says() {
        let with_rounds = |contender: &str, seconds| Run {
            program: Some(json!({"rounds": 10})),
            ..run("pr", 70, contender, 0, seconds, Better::Lower)
        };
        let runs = [with_rounds("aquifer-flash", 4.0), with_rounds("dram", 1.0), with_rounds("swap-disk", 6.0)];
        let found = bound(&only(&runs), answer(4e3), 50.0, 2, &runs, 1.5).unwrap();
        assert_eq!((found.units, found.ratio), (10.0, 3.0));
    }

    #[test]
    fn contexts_lose_the_cpu_time_of_far_accesses() {
        let runs = [
            run("kv", 25, "contexts:emulated:xl-flash-slc", 0, 1e6, Better::Higher),
            run("kv", 25, "dram", 0, 5e6, Better::Higher),
        ];
        let case = only(&runs);
        let Read::Us(read_us) = case.read else { panic!("{:?}", case.read) };
        let found = bound(&case, answer(0.25), read_us, 2, &runs, 0.2).unwrap();
        // 0.2 us in DRAM, and a quarter of 0.8 us.
        assert!((found.ratio - 0.5).abs() < 1e-9 && (found.reached - 0.4).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn bars_over_others_of_ours_and_over_unknown_media_have_no_bound() {
        for (workload, local, ours, theirs) in [
            ("bc", 50, "aquifer-dram", "swap-ram"),
            ("bc", 50, "aquifer-donor", "swap-ram"),
            ("bc", 50, "aquifer-compressed", "swap-zram-counted"),
            ("cg", 50, "aquifer-flash", "swap-disk"),
            ("stream", 30, "aquifer-flash", "swap-disk"),
            ("ycsb-a", 75, "cache:emulated:xl-flash-slc", "cache"),
            ("lookup", 10, "contexts", "swap-disk"),
        ] {
            let runs = [ours, theirs].map(|contender| run(workload, local, contender, 0, 1.0, Better::Lower));
            assert!(judge(&runs, &[]).iter().any(|verdict| verdict.measured.is_some()), "{ours} has a bar");
            assert!(found(&runs).is_empty(), "{workload} {ours}");
        }
        let unmeasured = [run("bc", 50, "dram", 0, 1.0, Better::Lower)];
        assert!(found(&unmeasured).is_empty());
        let emulated = ["aquifer-emulated:xl-flash-slc", "dram"];
        let runs = emulated.map(|contender| run("ycsb-c", 75, contender, 0, 1.0, Better::Higher));
        assert_eq!(only(&runs).read, Read::Us(5.0));
    }

    #[test]
    fn questions_say_the_size_or_why_there_is_none() {
        let asked = |name: &str, sizing: &Sizing, scale| {
            let question = question(crate::workload::find(name).unwrap(), sizing, scale)?;
            Ok::<_, String>(format!("{} {}", question.program, question.size.join(" ")))
        };
        let sizing = Sizing::default();
        assert_eq!(asked("pr", &sizing, Some(20)).unwrap(), "pagerank --scale 20");
        let refused = asked("bfs", &sizing, Some(22)).unwrap_err();
        assert_eq!(refused, "no graph of scale 22 can be simulated; measure with --scale 8 to 20");
        assert!(asked("bfs", &sizing, Some(7)).is_err());
        assert!(asked("bfs", &sizing, None).unwrap_err().contains("header"));
        assert_eq!(asked("redis", &sizing, None).unwrap(), "server --values 524288 --slot 1280");
        assert_eq!(asked("ycsb-a", &sizing, None).unwrap(), "ycsb --values 536870 --slot 1024");
        let sizing = Sizing { bytes: Some(64 << 20), ..sizing };
        assert_eq!(asked("kv", &sizing, None).unwrap(), "server --values 65536 --slot 1024");
        let sizing = Sizing { bytes: Some(17 << 30), ..sizing };
        let refused = asked("redis", &sizing, None).unwrap_err();
        assert_eq!(refused, "17825792 values cannot be simulated; measure with --bytes 1MiB to 15GiB");
    }

    #[test]
    fn a_graph_of_another_shape_has_no_bound() {
        let runs = ["aquifer-flash", "dram", "swap-disk"].map(|name| run("bc", 50, name, 0, 1.0, Better::Lower));
        let other = Answer { bytes: 1 << 29, ..answer(1.0) };
        let refused = bound(&only(&runs), other, 50.0, 2, &runs, 1.0).unwrap_err();
        assert!(refused.contains("1024.0 MiB and the simulated one 512.0; measure a graph"), "{refused}");
    }

    #[test]
    fn the_scale_is_in_the_header() {
        let mut header = b"CSRGRAPH".to_vec();
        header.extend([1u64, 1 << 18, 8 << 18, 18, 1].iter().flat_map(|word| word.to_le_bytes()));
        assert_eq!(scale_of(&header), Some(18));
        assert_eq!(scale_of(&header[..39]), None);
        header[0] = b'X';
        assert_eq!(scale_of(&header), None);
    }

    #[test]
    fn answers_are_read_by_their_names() {
        let line = r#"{"local_percent":30,"misses_per_unit":1.5,"pages":2,"unit":"round"}"#;
        let expected = Answer { local_percent: 30, misses_per_unit: 1.5, bytes: 8192 };
        assert_eq!(answers(&format!("{line}\n{line}\n")), Some(vec![expected; 2]));
        assert_eq!(answers("{}"), None);
    }
}
