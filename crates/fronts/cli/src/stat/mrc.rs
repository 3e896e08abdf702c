// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stat --mrc`: has a program sampled, and shows its miss-ratio curve.
//!
//! The request is a word in the ledger that the processes of a tree share (`pager/src/ledger.rs`): until when touches
//! are to be sampled. The program samples (`pager/src/sampling.rs`) and publishes the curve with its statistics; if
//! several processes of the tree do, the last one's is seen. Nothing is sent to any process.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_config::{LEDGER_EVENTS_WORD, LEDGER_SAMPLED_UNTIL_WORD};
use aquifer_core::mrc::{Curve, Point};
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_stats::{CurveFigures, Gauge, SettleTime, Text};
use aquifer_sys::raw::now_ns;
use aquifer_sys::shared_segment::{SharedSegment, wake_all};
use aquifer_terminal::{columns, width};
use serde::Serialize;

use super::curve_plot;
use crate::exit::{ExitCode, Failure, say};
use crate::instances::{self, Instance};
use crate::{duration, output};

/// How long to sample without `--for`: some thousand samples.
const SAMPLED_USUALLY: Duration = Duration::from_secs(10);
/// The loss that is asked about without `--loss`, in percent.
const LOSS_USUAL: f64 = 5.0;
/// How long a program goes on sampling after it was last asked, so that the curve is read while it is published.
const BEYOND: Duration = Duration::from_secs(2);
/// The pause between two looks at the program.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a curve takes to be published after the time that was asked for. A busy machine may take longer, and then
/// the last curve before that is shown.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(2);
/// Rows of the table.
const ROWS: u64 = 16;
/// From this number of samples on, no warning says that they are few.
const SAMPLES_ENOUGH: u64 = 500;

/// The options that belong to `--mrc`.
#[derive(Clone, Debug, clap::Args)]
pub struct SamplingArgs {
    /// How long to sample, up to 1h [default: 10s]
    #[arg(long = "for", value_name = "TIME", requires = "mrc", value_parser = sampled_time)]
    sampled_for: Option<Duration>,

    /// Find the least DRAM at which fetches cost at most this percentage of the time [default: 5]
    #[arg(long, value_name = "PERCENT", requires = "mrc", value_parser = percent)]
    loss: Option<f64>,

    /// How long a fetch delays the program [default: as measured in the program]
    #[arg(long, value_name = "MICROSECONDS", requires = "mrc", value_parser = microseconds)]
    fetch_time: Option<f64>,

    /// Also draw the curve into this file
    #[arg(long, value_name = "FILE", requires = "mrc")]
    svg: Option<PathBuf>,
}

fn sampled_time(text: &str) -> Result<Duration, String> {
    let time = duration::duration(text)?;
    let allowed = Duration::from_millis(500)..=Duration::from_secs(3600);
    if allowed.contains(&time) { Ok(time) } else { Err(format!("{text} is out of range; choose from 500ms to 1h")) }
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a percentage; write for example 5"))?;
    if number > 0.0 && number < 100.0 { Ok(number) } else { Err(format!("{text} is not between 0 and 100")) }
}

fn microseconds(text: &str) -> Result<f64, String> {
    let advice = || format!("'{text}' is not a time in microseconds, up to 60000000; write for example 80");
    let number: f64 = text.parse().map_err(|_| advice())?;
    if (0.0..=60e6).contains(&number) { Ok(number) } else { Err(advice()) }
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    pid: Option<u32>,
    program: String,
    measured_s: f64,
    samples: u64,
    content_bytes: u64,
    touched_bytes_per_s: f64,
    dram_budget_bytes: u64,
    fetch_us: Option<f64>,
    loss_percent: f64,
    /// The least DRAM for that loss, if it is known how long a fetch takes.
    least_dram_bytes: Option<u64>,
    points: Vec<Row>,
}

/// What happens with some amount of DRAM.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The amount of DRAM.
    pub dram_bytes: u64,
    /// The part of the touches that need a fetch.
    pub miss_ratio: f64,
    /// Bytes fetched each second.
    pub fetched_bytes_per_s: f64,
    /// Fetches each second.
    pub fetches_per_s: f64,
    /// The part of the time that is lost.
    pub loss_percent: Option<f64>,
}

/// The result of sampling one program.
struct Measured {
    curve: Curve,
    figures: CurveFigures,
    /// How long a fetch takes, in seconds.
    fetch_s: Option<f64>,
}

impl Measured {
    fn of(figures: &CurveFigures, fetch_us: Option<f64>) -> Option<Self> {
        let pages = |bytes: f64| bytes / PAGE_BYTES as f64;
        let points = figures.points.iter().map(|point| Point {
            pages: point.bytes / PAGE_BYTES,
            pages_per_s: pages(point.bytes_per_s),
            fetches_per_s: point.fetches_per_s,
        });
        let (touched, contents) = (pages(figures.touched_bytes_per_s), figures.content_bytes / PAGE_BYTES);
        let curve = Curve::from_parts(points.collect(), touched, contents, figures.samples)?;
        let measured = (figures.fetch_s > 0.0 && figures.fetch_s.is_finite()).then_some(figures.fetch_s);
        let fetch_s = fetch_us.map(|us| us / 1e6).or(measured);
        Some(Self { curve, figures: figures.clone(), fetch_s })
    }

    fn row(&self, dram_bytes: u64) -> Row {
        let pages = dram_bytes / PAGE_BYTES;
        let point = self.curve.at(pages);
        let loss = |fetch_s| 100.0 * self.curve.loss(pages, fetch_s, self.figures.waited);
        Row {
            dram_bytes,
            miss_ratio: self.curve.miss_ratio(pages),
            fetched_bytes_per_s: point.pages_per_s * PAGE_BYTES as f64,
            fetches_per_s: point.fetches_per_s,
            loss_percent: self.fetch_s.map(loss),
        }
    }

    fn least_bytes(&self, loss_percent: f64) -> Option<u64> {
        let fetch_s = self.fetch_s?;
        let pages = self.curve.least_pages(loss_percent / 100.0, fetch_s, self.figures.waited);
        Some(pages.saturating_mul(PAGE_BYTES))
    }

    /// Returns rows for sizes from nothing to all contents, in equal steps.
    fn rows(&self, count: u64) -> Vec<Row> {
        let bytes = |step: u64| u128::from(self.figures.content_bytes) * u128::from(step) / u128::from(count);
        (0..=count).map(|step| self.row(bytes(step) as u64 / PAGE_BYTES * PAGE_BYTES)).collect()
    }

    /// Returns the points of the curve themselves.
    fn points(&self) -> Vec<Row> {
        let sizes = std::iter::once(0).chain(self.curve.points().iter().map(|point| point.pages * PAGE_BYTES));
        sizes.map(|bytes| self.row(bytes)).collect()
    }
}

/// Samples, and prints.
pub fn mrc(pid: Option<u32>, json: bool, args: &SamplingArgs) -> Result<process::ExitCode, Failure> {
    let instance = chosen(pid)?;
    let Some(ledger) = instance.ledger()? else {
        let cause = format!("process {} has no ledger (--budget process, or --record)", instance.holder());
        let remedy = "start the program with --budget tree and without --record: it can then be asked to sample";
        return Err(Failure::new(ExitCode::Failure, cause, remedy));
    };
    let time = args.sampled_for.unwrap_or(SAMPLED_USUALLY);
    let figures = sample(&instance, &ledger, time)?;
    let loss = args.loss.unwrap_or(LOSS_USUAL);
    let Some(measured) = Measured::of(&figures, args.fetch_time) else {
        let cause = format!("process {} published numbers that are not a curve", instance.holder());
        return Err(Failure::new(ExitCode::Failure, cause, "use the release of 'aquifer' that started the program"));
    };
    let snapshot = instance.snapshot(&SettleTime::default())?;
    let report = Report {
        pid: snapshot.pid(),
        program: snapshot.text(Text::Program).to_owned(),
        measured_s: figures.measured_ns as f64 / 1e9,
        samples: figures.samples,
        content_bytes: figures.content_bytes,
        touched_bytes_per_s: figures.touched_bytes_per_s,
        dram_budget_bytes: snapshot.gauge(Gauge::DramBudgetBytes),
        fetch_us: measured.fetch_s.map(|seconds| seconds * 1e6),
        loss_percent: loss,
        least_dram_bytes: measured.least_bytes(loss),
        points: measured.points(),
    };
    if let Some(path) = &args.svg {
        let svg = curve_plot::svg(&report.points, report.content_bytes, report.dram_budget_bytes);
        std::fs::write(path, svg).map_err(|error| {
            let cause = format!("--svg {} cannot be written: {error}", path.display());
            Failure::new(ExitCode::Failure, cause, "name a file in a directory that exists")
        })?;
    }
    if json {
        output::print(&(serde_json::to_string(&report).expect("numbers are always JSON") + "\n"))?;
    } else {
        output::print(&page(&report, &measured))?;
    }
    if report.samples < SAMPLES_ENOUGH {
        say(&format!("{} samples are few: the curve is rough; sample for longer with --for", report.samples));
    }
    Ok(ExitCode::Success.into())
}

/// Returns the program that was asked about, or the only one.
fn chosen(pid: Option<u32>) -> Result<Instance, Failure> {
    let mut found = instances::asked_for(pid)?;
    match found.len() {
        0 | 1 => {}
        count => {
            let cause = format!("{count} programs run under aquifer");
            return Err(Failure::new(ExitCode::Usage, cause, "name one of them, by the PID that 'aquifer stat' shows"));
        }
    }
    found.pop().ok_or_else(|| {
        let cause = "no program is running under aquifer here".to_owned();
        Failure::new(ExitCode::Failure, cause, "start one with 'aquifer run'")
    })
}

/// Asks the program to sample for `time`, and returns the curve that it then has.
fn sample(instance: &Instance, ledger: &SharedSegment, time: Duration) -> Result<CurveFigures, Failure> {
    let curve = || Ok(instance.snapshot(&SettleTime::default())?.curve().cloned());
    let before = curve()?;
    ask(ledger, time + BEYOND);
    let (started, mut now) = (Instant::now(), None);
    while started.elapsed() < time + PUBLISHED_WITHIN {
        thread::sleep(LOOK_AGAIN.min(time));
        now = curve()?.filter(|now| Some(now) != before.as_ref());
        let is_whole = |now: &CurveFigures| now.measured_ns >= time.as_nanos() as u64;
        if started.elapsed() >= time && now.as_ref().is_some_and(is_whole) {
            break;
        }
    }
    now.ok_or_else(|| {
        let cause = format!("process {} has not sampled anything within {time:.1?}", instance.holder());
        let remedy = "it touches no managed memory, or has always fitted its budget and allocates nothing; try again";
        Failure::new(ExitCode::Failure, cause, remedy)
    })
}

/// Stores until when to sample, and wakes the processes that are to sample.
fn ask(ledger: &SharedSegment, limit: Duration) {
    let until_ns = now_ns() + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX / 2);
    // Another command may have asked for longer.
    ledger.words()[LEDGER_SAMPLED_UNTIL_WORD].fetch_max(until_ns, Ordering::AcqRel);
    let events = &ledger.halves()[LEDGER_EVENTS_WORD * 2];
    events.fetch_add(1, Ordering::SeqCst);
    wake_all(events);
}

/// Returns the page for a person: a table, a plot on a terminal, and the answer.
fn page(report: &Report, measured: &Measured) -> String {
    let size = |bytes: f64| ByteSize(bytes as u64).to_string();
    let mut text = format!(
        "{} (pid {}): {} pages sampled in {:.1} s; {} with contents, {}/s touched\n\n",
        report.program,
        super::shown(report.pid),
        report.samples,
        report.measured_s,
        ByteSize(report.content_bytes),
        size(report.touched_bytes_per_s),
    );
    let mut rows = vec![["      DRAM", "MISSES", "FETCHED/s", "FETCHES/s", "LOSS"].map(str::to_owned).to_vec()];
    rows.extend(measured.rows(ROWS).iter().map(|row| {
        let loss = row.loss_percent.map_or("-".to_owned(), |loss| format!("{loss:.1} %"));
        vec![
            format!("{:>10}", ByteSize(row.dram_bytes).to_string()),
            format!("{:.1} %", 100.0 * row.miss_ratio),
            size(row.fetched_bytes_per_s),
            format!("{:.0}", row.fetches_per_s),
            loss,
        ]
    }));
    text.push_str(&columns(&rows, width()));
    if std::io::stdout().is_terminal() {
        text.push('\n');
        text.push_str(&curve_plot::text(&measured.rows(curve_plot::COLUMNS as u64), report.dram_budget_bytes));
    }
    text.push('\n');
    text.push_str(&answer(report, measured));
    text
}

fn answer(report: &Report, measured: &Measured) -> String {
    let (Some(least), Some(fetch_us)) = (report.least_dram_bytes, report.fetch_us) else {
        return "nothing was fetched yet, so the tier's time is not known: give it with --fetch-time, as 'aquifer doctor \
                --tier' measures it\n"
            .to_owned();
    };
    let now = measured.row(report.dram_budget_bytes).loss_percent.unwrap_or(0.0);
    format!(
        "least DRAM for a loss of {} %: {} (a fetch takes {fetch_us:.0} us; the budget of {} loses {now:.1} %)\n",
        report.loss_percent,
        ByteSize(least),
        ByteSize(report.dram_budget_bytes),
    )
}

#[cfg(test)]
mod tests {
    use aquifer_config::{LEDGER_NAME, LEDGER_WORDS};
    use aquifer_stats::CurvePoint;

    use super::*;

    fn figures() -> CurveFigures {
        let point = |mebibytes: u64, per_s: f64| CurvePoint {
            bytes: mebibytes << 20,
            bytes_per_s: per_s * f64::from(1 << 20),
            fetches_per_s: per_s * 8.0,
        };
        CurveFigures {
            measured_ns: 10_000_000_000,
            samples: 3000,
            content_bytes: 1 << 30,
            touched_bytes_per_s: f64::from(1 << 30),
            waited: 0.0,
            fetch_s: 100e-6,
            points: vec![point(100, 1024.0), point(400, 64.0), point(800, 16.0)],
        }
    }

    #[test]
    fn a_request_is_an_event_and_never_shortens_another() {
        let ledger = SharedSegment::create(LEDGER_NAME, LEDGER_WORDS).expect("a memfd");
        ask(&ledger, Duration::from_secs(100));
        let first = ledger.words()[LEDGER_SAMPLED_UNTIL_WORD].load(Ordering::Relaxed);
        ask(&ledger, Duration::from_secs(1));
        assert_eq!(ledger.words()[LEDGER_SAMPLED_UNTIL_WORD].load(Ordering::Relaxed), first);
        assert_eq!(ledger.halves()[LEDGER_EVENTS_WORD * 2].load(Ordering::SeqCst), 2);
        assert!(first > now_ns());
    }

    #[test]
    fn the_answer_follows_from_the_time_of_a_fetch() {
        let measured = Measured::of(&figures(), None).expect("a curve");
        // 512 fetches of 100 us each second lose 4.9 % of the time: what is between 100 and 400 MiB.
        assert_eq!(measured.least_bytes(5.0).map(|bytes| bytes >> 20), Some(106));
        assert_eq!(measured.least_bytes(4.0).map(|bytes| bytes >> 20), Some(425));
        let slower = Measured::of(&figures(), Some(1000.0)).expect("a curve");
        assert_eq!(slower.least_bytes(5.0).map(|bytes| bytes >> 20), Some(850));
        let unknown = Measured::of(&CurveFigures { fetch_s: 0.0, ..figures() }, None).expect("a curve");
        assert_eq!((unknown.least_bytes(5.0), unknown.row(0).loss_percent), (None, None));
    }

    #[test]
    fn rows_reach_from_nothing_to_everything_and_never_rise() {
        let measured = Measured::of(&figures(), None).expect("a curve");
        let rows = measured.rows(ROWS);
        assert_eq!((rows[0].dram_bytes, rows[0].miss_ratio), (0, 1.0));
        assert_eq!((rows[16].dram_bytes, rows[16].miss_ratio), (1 << 30, 0.0));
        assert!(rows.is_sorted_by(|one, next| one.miss_ratio >= next.miss_ratio));
        assert_eq!(measured.points().len(), 4);
    }

    #[test]
    fn numbers_of_another_process_that_are_no_curve_are_refused() {
        let mut forged = figures();
        forged.points[1].bytes_per_s = f64::NAN;
        assert!(Measured::of(&forged, None).is_none());
        assert!(Measured::of(&CurveFigures { touched_bytes_per_s: -1.0, ..figures() }, None).is_none());
    }

    #[test]
    fn options_have_ranges() {
        assert_eq!(sampled_time("2s"), Ok(Duration::from_secs(2)));
        assert!(sampled_time("2h").is_err() && sampled_time("1ms").is_err() && sampled_time("2").is_err());
        assert!(percent("0").is_err() && percent("100").is_err() && percent("x").is_err() && percent("nan").is_err());
        assert_eq!((percent("2.5"), microseconds("80")), (Ok(2.5), Ok(80.0)));
        assert!(microseconds("-1").is_err() && microseconds("1e99").is_err() && microseconds("us").is_err());
    }
}
