// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The costs of the pager itself: the programs that show them, the reading of their numbers, and the bars. Pure.
//!
//! Nine costs, each against a bar: a fault beyond the time of its medium, the additional cost under listener delivery,
//! the CPU time of a fault where accesses are scattered, a miss-ratio curve, a run below the budget, a resident hot
//! set in a program that has outgrown its budget, a program at rest, a read from a donor beyond the network's own
//! time, and the bandwidth of several donors' cables that a sequential reader leaves unused. `overhead_run.rs` makes
//! the runs, `overhead_donor.rs` those with a donor, `overhead_striping.rs` those with several,
//! `overhead_scattered.rs` those with scattered accesses.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::Value;

use crate::library;
use crate::ratios::Spread;
use crate::size::{MIB, format_size};
use crate::verdict::Verdict;

/// One of the costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overhead {
    /// The cost of a run that never needs the pager.
    BelowBudget,
    /// The relative throughput while touches are sampled for a miss-ratio curve.
    Curve,
    /// The cost of a read from a donor beyond a round trip of the same sizes or, with RDMA, beyond the device's own
    /// read; and the part of the throughput that TLS costs.
    Donor,
    /// The cost of a fault beyond the tier's own time for a read of the block.
    Fault,
    /// The cost for memory that is used all the time and stays resident, in a program that has outgrown its budget.
    HotSet,
    /// The cost of a program at rest, with memory in the tier.
    Idle,
    /// The cost of a fault beyond the tier's time, on one CPU: through a listener, divided by the same by signal.
    Listener,
    /// The CPU time of a fault on a page chosen at random, by one thread and by two at the same time.
    Scattered,
    /// The throughput of a sequential reader over the sum of its donors' cables.
    Striping,
    /// The throughput of scattered faults by one thread and by more.
    Threads,
}

impl Overhead {
    /// Each of them, in the order in which they run.
    pub const ALL: [Overhead; 10] = [
        Overhead::Fault,
        Overhead::Listener,
        Overhead::Scattered,
        Overhead::Threads,
        Overhead::Curve,
        Overhead::Donor,
        Overhead::Striping,
        Overhead::BelowBudget,
        Overhead::HotSet,
        Overhead::Idle,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::BelowBudget => "below-budget",
            Self::Curve => "curve",
            Self::Donor => "donor",
            Self::Fault => "fault",
            Self::HotSet => "hot-set",
            Self::Idle => "idle",
            Self::Listener => "listener",
            Self::Scattered => "scattered",
            Self::Striping => "striping",
            Self::Threads => "threads",
        }
    }
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Overhead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|overhead| overhead.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is not an overhead; choose from all, {names}")
        })
    }
}

/// A case of one overhead: the program that shows it.
#[derive(Debug, PartialEq)]
pub struct Case {
    pub overhead: Overhead,
    pub name: &'static str,
    /// File name of the program; empty if there is none.
    pub program: &'static str,
    pub arguments: &'static [&'static str],
    /// The value of `aquifer run --dram`, in bytes.
    pub budget_bytes: u64,
    /// The value of `--tier dram:size=`, in bytes: room for everything.
    pub tier_bytes: u64,
    /// The value of `--block`, in bytes; 0 to omit it, so that the size is learnt.
    pub block_bytes: u64,
    /// Fault, scattered and donor: the maximum in microseconds; for TLS, the minimum of its throughput over that of
    /// plain text. Listener: the maximum of its cost over that by signal. Below the budget and hot set: the minimum of
    /// native time over Aquifer's. Curve: the minimum of throughput with sampling over that without. Idle: the maximum
    /// in ticks. Striping: the minimum of the throughput over the sum of the cables. [`NO_BAR`]: only reported.
    pub bar: f64,
}

/// The bar of a case that is only reported.
pub const NO_BAR: f64 = f64::INFINITY;
/// The donor case whose value is a ratio and not a time.
pub const TLS_THROUGHPUT: &str = "tls-2MiB";

impl Case {
    /// Whether it needs an RDMA device.
    pub fn is_rdma(&self) -> bool {
        self.name.starts_with("rdma-")
    }

    /// Whether a larger value is better.
    pub(crate) fn is_minimum(&self) -> bool {
        use Overhead::{BelowBudget, Curve, HotSet, Striping, Threads};
        matches!(self.overhead, BelowBudget | Curve | HotSet | Striping | Threads) || self.name == TLS_THROUGHPUT
    }
}

const fn of_donor(name: &'static str, block_bytes: u64, bar: f64) -> Case {
    let (overhead, program, arguments) = (Overhead::Donor, "", &[]);
    Case { overhead, name, program, arguments, budget_bytes: 0, tier_bytes: 256 * MIB, block_bytes, bar }
}

const fn of_scattered(name: &'static str, arguments: &'static [&'static str], bar: f64) -> Case {
    let (overhead, program, budget_bytes) = (Overhead::Scattered, "random_access", 77 * MIB);
    Case { overhead, name, program, arguments, budget_bytes, tier_bytes: 512 * MIB, block_bytes: 0, bar }
}

const fn of_threads(name: &'static str) -> Case {
    let (overhead, program, budget_bytes) = (Overhead::Threads, "random_access", 77 * MIB);
    let arguments = &["--updates", "0", "--bytes", "256MiB", "--disjoint"];
    Case { overhead, name, program, arguments, budget_bytes, tier_bytes: 512 * MIB, block_bytes: 0, bar: NO_BAR }
}

/// A pointer chase whose cycle takes a third of the budget, beside cold memory of three times the budget.
const fn of_hot_set(name: &'static str, arguments: &'static [&'static str]) -> Case {
    let (overhead, program, budget_bytes) = (Overhead::HotSet, "pointer_chase", 192 * MIB);
    Case { overhead, name, program, arguments, budget_bytes, tier_bytes: 1024 * MIB, block_bytes: 0, bar: 0.99 }
}

/// The reader's budget is a third of its array, so two thirds of each pass come from the donors. It is large enough
/// that read-ahead, which takes a part of it, can have slabs of all donors in flight.
const fn of_striping(name: &'static str) -> Case {
    let (overhead, program) = (Overhead::Striping, "sequential_read");
    let (arguments, budget_bytes, tier_bytes) = (&["--bytes", "1536MiB"], 512 * MIB, 2048 * MIB);
    Case { overhead, name, program, arguments, budget_bytes, tier_bytes, block_bytes: 0, bar: 0.8 }
}

/// Each fault case has eight times as much memory as budget, so that seven touches in eight miss. A program below its
/// budget runs for more than a second, so that starting two more processes does not affect the result.
pub const CASES: [Case; 30] = [
    Case {
        overhead: Overhead::Fault,
        name: "4KiB",
        program: "touch",
        arguments: &["--bytes", "128MiB", "--block", "4KiB", "--warm", "1", "--rounds", "2"],
        budget_bytes: 16 * MIB,
        tier_bytes: 256 * MIB,
        block_bytes: 4 << 10,
        bar: 6.0,
    },
    Case {
        overhead: Overhead::Fault,
        name: "128KiB",
        program: "touch",
        arguments: &["--bytes", "512MiB", "--block", "128KiB", "--warm", "1", "--rounds", "4"],
        budget_bytes: 64 * MIB,
        tier_bytes: 1024 * MIB,
        block_bytes: 128 << 10,
        bar: 13.0,
    },
    Case {
        overhead: Overhead::Listener,
        name: "4KiB",
        program: "touch",
        arguments: &["--bytes", "128MiB", "--block", "4KiB", "--warm", "1", "--rounds", "2"],
        budget_bytes: 16 * MIB,
        tier_bytes: 256 * MIB,
        block_bytes: 4 << 10,
        bar: 1.5,
    },
    Case {
        overhead: Overhead::Listener,
        name: "128KiB",
        program: "touch",
        arguments: &["--bytes", "512MiB", "--block", "128KiB", "--warm", "1", "--rounds", "4"],
        budget_bytes: 64 * MIB,
        tier_bytes: 1024 * MIB,
        block_bytes: 128 << 10,
        bar: 1.5,
    },
    of_scattered("1-thread", &["--updates", "0", "--bytes", "256MiB", "--threads", "1"], NO_BAR),
    of_scattered("2-disjoint", &["--updates", "0", "--bytes", "256MiB", "--threads", "2", "--disjoint"], 6.0),
    of_scattered("2-shared", &["--updates", "0", "--bytes", "256MiB", "--threads", "2"], 6.0),
    of_scattered("2-updates", &["--updates", "50", "--bytes", "256MiB", "--threads", "2"], NO_BAR),
    of_threads("1-thread"),
    of_threads("2-threads"),
    of_threads("4-threads"),
    of_threads("8-threads"),
    of_threads("4-threads-4-shards"),
    of_threads("8-threads-4-shards"),
    Case {
        overhead: Overhead::Curve,
        name: "kv",
        program: library::PROGRAM,
        arguments: &["kv", "--curve", "--way", "blocking", "--bytes", "256MiB", "--warmup", "5", "--seconds", "16"],
        budget_bytes: 200 * MIB,
        tier_bytes: 512 * MIB,
        block_bytes: 0,
        bar: 0.99,
    },
    of_donor("tcp-4KiB", 4 << 10, 5.0),
    of_donor("tls-4KiB", 4 << 10, NO_BAR),
    of_donor("shm-4KiB", 4 << 10, NO_BAR),
    of_donor(TLS_THROUGHPUT, 2 << 20, 0.5),
    of_donor("rdma-4KiB", 4 << 10, NO_BAR),
    of_donor("rdma-128KiB", 128 << 10, NO_BAR),
    of_striping("1-donor"),
    of_striping("2-donors"),
    of_striping("4-donors"),
    of_striping("7-donors"),
    Case {
        overhead: Overhead::BelowBudget,
        name: "stream",
        program: "stream",
        arguments: &["--bytes", "384MiB", "--iterations", "30"],
        budget_bytes: 1024 * MIB,
        tier_bytes: 64 * MIB,
        block_bytes: 0,
        bar: 0.99,
    },
    Case {
        overhead: Overhead::BelowBudget,
        name: "chase",
        program: "pointer_chase",
        arguments: &["--bytes", "256MiB", "--hops", "6000000"],
        budget_bytes: 1024 * MIB,
        tier_bytes: 64 * MIB,
        block_bytes: 0,
        bar: 0.99,
    },
    of_hot_set("small-pages", &["--bytes", "64MiB", "--cold", "576MiB", "--hops", "6000000"]),
    of_hot_set("huge-pages", &["--bytes", "64MiB", "--cold", "576MiB", "--hops", "12000000", "--huge"]),
    Case {
        overhead: Overhead::Idle,
        name: "rest",
        program: "touch",
        arguments: &["--bytes", "256MiB", "--warm", "1", "--rounds", "0", "--settle", "1", "--rest", "5"],
        budget_bytes: 64 * MIB,
        tier_bytes: 512 * MIB,
        block_bytes: 0,
        bar: 0.0,
    },
];

/// One case, measured once.
#[derive(Debug, Clone, Serialize)]
pub struct OverheadRun {
    pub overhead: Overhead,
    pub case: &'static str,
    pub round: u32,
    /// Its place in the round, from 0; 1 only with `--against`.
    pub turn: u32,
    /// True when the build of `--against` ran it.
    pub is_other_build: bool,
    /// The value that the bar applies to; None when the run failed.
    pub value: Option<f64>,
    /// Further information, in one line.
    pub note: String,
    pub problem: Option<String>,
    /// Everything that the program printed under the pager.
    pub program: Option<Value>,
    /// The statistics from `aquifer run --stats-json`.
    pub stats: Option<Value>,
}

impl OverheadRun {
    /// A run with only its value known.
    pub fn new(overhead: Overhead, case: &'static str, round: u32, value: Option<f64>) -> Self {
        let (turn, is_other_build, note) = (0, false, String::new());
        Self { overhead, case, round, turn, is_other_build, value, note, problem: None, program: None, stats: None }
    }
}

/// A number from a program's result, or from the statistics.
pub(crate) fn number(from: &Value, name: &str) -> Result<f64, String> {
    from.get(name).and_then(Value::as_f64).ok_or_else(|| format!("it did not report its {name}"))
}

/// The cost of a fault beyond the tier's read, in microseconds, and a note about it.
///
/// For a fault that found its block on standby, no read is subtracted.
pub fn fault_cost(printed: &Value, stats: &Value, read_us: f64) -> Result<(f64, String), String> {
    let (touches, missed) = (number(printed, "touches")?, number(printed, "missed")?);
    let (mean, median) = (number(printed, "missed_mean_us")?, number(printed, "missed_p50_us")?);
    let faults = number(stats, "faults")? - number(stats, "faults_fresh")?;
    let fetched = number(stats, "fetched_blocks")?;
    if missed < touches / 2.0 || faults < missed * 0.9 {
        return Err(format!("{missed} of {touches} touches missed, at {faults} faults: it did not outgrow its budget"));
    }
    let media = read_us * (fetched / faults).min(1.0);
    let note = format!("a fault {mean:.1} us, median {median:.1}; the tier's read {media:.1}");
    Ok((mean - media, note))
}

/// The cost of a fault through a listener, beyond the tier's read, divided by the cost by signal; both from
/// [`fault_cost`].
pub fn listener_cost(signal: &(f64, String), listener: &(f64, String)) -> Result<(f64, String), String> {
    if signal.0 <= 0.0 {
        return Err("a fault by signal took no longer than the tier's read: the machine was not quiet".into());
    }
    let note = format!(
        "{:.1} us by a listener, {:.1} by signal, beyond the tier's read; by signal {}",
        listener.0, signal.0, signal.1
    );
    Ok((listener.0 / signal.0, note))
}

/// Run time without Aquifer divided by run time with it.
pub fn below_budget(native_seconds: f64, ours_seconds: f64, stats: &Value) -> Result<(f64, String), String> {
    if number(stats, "active")? != 0.0 {
        return Err("the pager became active: it was not below its budget".into());
    }
    Ok((native_seconds / ours_seconds, format!("{native_seconds:.3} s without us, {ours_seconds:.3} s with us")))
}

/// The time of the walk through the hot set without Aquifer divided by that with it.
pub fn hot_set(native: &Value, ours: &Value, stats: &Value) -> Result<(f64, String), String> {
    if number(stats, "evicted_blocks")? == 0.0 {
        return Err("nothing was evicted: it did not outgrow its budget".into());
    }
    let (native_ns, ours_ns) = (number(native, "ns_per_hop")?, number(ours, "ns_per_hop")?);
    let faults = number(stats, "fetched_blocks")?;
    Ok((native_ns / ours_ns, format!("{native_ns:.1} ns a hop without us, {ours_ns:.1} with us; {faults:.0} fetches")))
}

/// The ratio of the throughput with sampled touches to that without, which the program measures in turn.
pub fn curve(printed: &Value) -> Result<(f64, String), String> {
    let figure = printed.get("figure").ok_or("it did not report its figure")?;
    let (ratio, samples) = (number(figure, "value")?, number(figure, "samples")?);
    if samples == 0.0 {
        return Err("no touch was sampled".into());
    }
    let (reads, far) = (number(printed, "reads")?, number(printed, "far_reads")?);
    Ok((ratio, format!("{samples:.0} touches sampled in {reads:.0} reads, of which {far:.0} far")))
}

/// The rate at which a sequential reader fetched in all of its passes but the first, over that of all its donors'
/// cables. `first` are the statistics of a run with one pass. In the first pass, the donors also get what the set-up
/// wrote.
pub fn striping(printed: &Value, stats: &Value, first: &Value, cables_rate: f64) -> Result<(f64, String), String> {
    let fetched = number(stats, "fetched_bytes")? - number(first, "fetched_bytes")?;
    let passes = printed.get("pass_seconds").and_then(Value::as_array).ok_or("it did not report its passes")?;
    let seconds: Vec<f64> = passes.iter().skip(1).filter_map(Value::as_f64).collect();
    if fetched < number(printed, "footprint_bytes")? * seconds.len() as f64 / 2.0 {
        return Err(format!("{fetched} bytes were fetched in {} passes: it did not outgrow its budget", seconds.len()));
    }
    let rate = fetched / seconds.iter().sum::<f64>();
    let (used, wasted) = (number(stats, "prefetch_hits")?, number(stats, "prefetch_wasted")?);
    let rates = format!("{:.0} MB/s fetched, of {:.0} MB/s", rate / 1e6, cables_rate / 1e6);
    Ok((rate / cables_rate, format!("{rates}; of the blocks read ahead, {used:.0} were used, {wasted:.0} were not")))
}

/// Clock ticks that the process used while at rest.
pub fn idle(printed: &Value, stats: &Value) -> Result<(f64, String), String> {
    if number(stats, "evicted_blocks")? == 0.0 {
        return Err("nothing was evicted: it did not outgrow its budget".into());
    }
    let (ticks, us) = (number(printed, "rest_ticks")?, number(printed, "rest_cpu_us")?);
    Ok((ticks, format!("{us:.0} us of CPU time in {} s", number(printed, "rest_seconds")?)))
}

/// Judges the requested cases.
pub fn judge(asked: &[Overhead], runs: &[OverheadRun]) -> Vec<Verdict> {
    CASES.iter().filter(|case| asked.contains(&case.overhead)).map(|case| judge_case(case, runs)).collect()
}

fn judge_case(case: &Case, runs: &[OverheadRun]) -> Verdict {
    let own = |run: &&OverheadRun| run.overhead == case.overhead && run.case == case.name && !run.is_other_build;
    let values: Vec<f64> = runs.iter().filter(own).filter_map(|run| run.value).collect();
    let spread = Spread::of(&values);
    let (bar, unit) = match case.overhead {
        Overhead::BelowBudget => (format!("{} below its budget: run time of dram over ours", case.name), "x"),
        Overhead::HotSet => (format!("a resident hot set in {}: time of dram over ours", case.name), "x"),
        Overhead::Curve => ("throughput with touches sampled for a miss-ratio curve over that without".into(), "x"),
        Overhead::Donor if case.name == TLS_THROUGHPUT => {
            ("a donor's throughput over TLS, divided by that in plain text".into(), "x")
        }
        Overhead::Donor if case.is_rdma() => {
            (format!("a read from a donor beyond the device's own time for it, {}", case.name), " us")
        }
        Overhead::Donor => (format!("a read from a donor beyond the round trip alone, {}, one CPU", case.name), " us"),
        Overhead::Fault => {
            let budget = format_size(case.budget_bytes);
            (format!("a fault beyond the tier's read, {} blocks, {budget} of DRAM", case.name), " us")
        }
        Overhead::Listener => {
            (format!("the same by a listener, divided by that by signal, {} blocks, one CPU", case.name), "x")
        }
        Overhead::Scattered => (format!("CPU time of a scattered fault with its program, {}, dram", case.name), " us"),
        Overhead::Striping => {
            (format!("a sequential reader's throughput over the sum of the cables, {}", case.name), "x")
        }
        Overhead::Threads => (format!("scattered faults per second, {}, dram", case.name), " thousand"),
        Overhead::Idle => ("CPU time of a program at rest for 5 s, the worst".into(), " ticks"),
    };
    let (at_least, is_judged) = (case.is_minimum(), case.bar.is_finite());
    // For ticks, the worst run counts, because no run may exceed the bar.
    let measured = spread.map(|spread| if case.overhead == Overhead::Idle { spread.max } else { spread.median });
    Verdict {
        bar,
        at_least: (is_judged && at_least).then_some(case.bar),
        at_most: (is_judged && !at_least).then_some(case.bar),
        unit,
        aim: None,
        measured,
        min: spread.map(|spread| spread.min),
        max: spread.map(|spread| spread.max),
        met: measured
            .filter(|_| is_judged)
            .map(|measured| if at_least { measured >= case.bar } else { measured <= case.bar }),
        bound: None,
        note: match runs.iter().rfind(own) {
            None => "not run".into(),
            Some(run) => run.problem.clone().unwrap_or_else(|| run.note.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(overhead: Overhead, case: &'static str, value: f64) -> OverheadRun {
        OverheadRun::new(overhead, case, 0, Some(value))
    }

    fn met(overhead: Overhead, case: &'static str, values: &[f64]) -> Option<bool> {
        let runs: Vec<_> = values.iter().map(|value| run(overhead, case, *value)).collect();
        let verdicts = judge(&[overhead], &runs);
        let index = CASES.iter().filter(|one| one.overhead == overhead).position(|one| one.name == case).unwrap();
        verdicts[index].met
    }

    #[test]
    fn names_go_there_and_back() {
        for overhead in Overhead::ALL {
            assert_eq!(overhead.to_string().parse(), Ok(overhead));
        }
        assert!("all".parse::<Overhead>().unwrap_err().contains("choose from all, fault"));
    }

    #[test]
    fn bars_count_the_right_way_round() {
        assert_eq!(met(Overhead::Fault, "4KiB", &[5.0, 6.0, 9.0]), Some(true));
        assert_eq!(met(Overhead::Fault, "128KiB", &[13.1]), Some(false));
        assert_eq!(met(Overhead::BelowBudget, "stream", &[0.98, 0.99, 1.0]), Some(true));
        assert_eq!(met(Overhead::BelowBudget, "stream", &[0.98]), Some(false));
        assert_eq!(met(Overhead::HotSet, "huge-pages", &[0.98, 0.99, 1.0]), Some(true));
        assert_eq!(met(Overhead::HotSet, "small-pages", &[0.98]), Some(false));
        assert_eq!(met(Overhead::Curve, "kv", &[0.985, 0.991, 1.01]), Some(true));
        assert_eq!(met(Overhead::Curve, "kv", &[0.985]), Some(false));
        assert_eq!(met(Overhead::Idle, "rest", &[0.0, 0.0]), Some(true));
        assert_eq!(met(Overhead::Idle, "rest", &[0.0, 0.0, 1.0]), Some(false));
        assert_eq!(met(Overhead::Idle, "rest", &[]), None);
        assert_eq!(met(Overhead::Donor, "tcp-4KiB", &[4.9, 5.1, 4.8]), Some(true));
        assert_eq!(met(Overhead::Donor, "tcp-4KiB", &[5.1]), Some(false));
        assert_eq!(met(Overhead::Donor, TLS_THROUGHPUT, &[0.49]), Some(false));
        assert_eq!(met(Overhead::Donor, "shm-4KiB", &[0.49]), None, "it is only reported");
        assert_eq!(met(Overhead::Striping, "7-donors", &[0.79, 0.8, 0.9]), Some(true));
        assert_eq!(met(Overhead::Striping, "7-donors", &[0.79]), Some(false));
    }

    #[test]
    fn a_hot_set_is_compared_by_the_hop_and_only_if_something_was_evicted() {
        let hop = |ns: f64| json!({"ns_per_hop": ns});
        let (value, note) =
            hot_set(&hop(99.0), &hop(100.0), &json!({"evicted_blocks": 7, "fetched_blocks": 2})).unwrap();
        assert!(value == 0.99 && note.contains("2 fetches"), "{value} {note}");
        let nothing = hot_set(&hop(99.0), &hop(100.0), &json!({"evicted_blocks": 0, "fetched_blocks": 0}));
        assert!(nothing.unwrap_err().contains("did not outgrow"));
    }

    #[test]
    fn the_read_is_subtracted_from_faults_that_had_one() {
        let printed = json!({"touches": 100, "missed": 90, "missed_mean_us": 20.0, "missed_p50_us": 19.0});
        let stats = json!({"faults": 200, "faults_fresh": 100, "fetched_blocks": 50});
        assert_eq!(fault_cost(&printed, &stats, 10.0).unwrap().0, 15.0);
    }

    #[test]
    fn a_listener_is_compared_beyond_the_read() {
        let cost = |us: f64| (us, String::new());
        assert_eq!(listener_cost(&cost(8.0), &cost(12.0)).unwrap().0, 1.5);
        assert!(listener_cost(&cost(0.0), &cost(12.0)).is_err());
        assert_eq!(met(Overhead::Listener, "128KiB", &[1.6, 1.4, 1.5]), Some(true));
        assert_eq!(met(Overhead::Listener, "4KiB", &[1.6, 1.4, 1.6]), Some(false));
    }

    #[test]
    fn a_run_that_shows_nothing_has_no_value() {
        let hits = json!({"touches": 100, "missed": 2, "missed_mean_us": 2.0, "missed_p50_us": 2.0});
        let faults = json!({"faults": 200, "faults_fresh": 100, "fetched_blocks": 50});
        assert!(fault_cost(&hits, &faults, 1.0).unwrap_err().contains("outgrow"));
        let missed = json!({"touches": 100, "missed": 90, "missed_mean_us": 2.0, "missed_p50_us": 2.0});
        let none = json!({"faults": 100, "faults_fresh": 100, "fetched_blocks": 0});
        assert!(fault_cost(&missed, &none, 1.0).is_err(), "slow touches that were no faults");
        assert!(below_budget(1.0, 1.0, &json!({"active": 1})).is_err());
        let passes = json!({"footprint_bytes": 200, "pass_seconds": [9.0, 1.0, 1.0]});
        let fetched = |bytes| json!({"fetched_bytes": bytes, "prefetch_hits": 3, "prefetch_wasted": 0});
        assert!(striping(&passes, &fetched(299), &fetched(100), 100.0).unwrap_err().contains("outgrow"));
        assert_eq!(striping(&passes, &fetched(400), &fetched(100), 200.0).unwrap().0, 0.75);
        let printed = |samples| json!({"figure": {"value": 0.995, "samples": samples}, "reads": 9, "far_reads": 1});
        assert!(curve(&printed(0)).unwrap_err().contains("sampled"));
        assert_eq!(curve(&printed(40)).unwrap().0, 0.995);
        assert!(
            idle(&json!({"rest_ticks": 0, "rest_cpu_us": 0, "rest_seconds": 5}), &json!({"evicted_blocks": 0}))
                .is_err()
        );
        assert!(idle(&json!({}), &json!({"evicted_blocks": 1})).unwrap_err().contains("rest_ticks"));
    }
}
