// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Asks the simulator and the disk for what the bounds of `bound.rs` need.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::bound::{self, Answer, Case, Question, Read};
use crate::failure::BenchFailure;
use crate::fio::{self, FioPoint};
use crate::library::program_path;
use crate::measure::Bench;
use crate::process::{self, find_program};
use crate::progress::Progress;
use crate::record::{Run, Skipped};
use crate::verdict::{Verdict, bars};

/// The file name of the simulator.
const SIMULATOR: &str = "aquifer-sim";
/// A trace of a graph of scale 20 takes a minute, and each level of local memory half of one.
const SIMULATOR_TIMEOUT: Duration = Duration::from_secs(1800);

/// What the simulator has said, once for each question.
type Answers = Vec<(Question, Result<Vec<Answer>, String>)>;

/// Puts bounds beside the measured bars that can have one, and returns those that could have one and have none. Fails
/// only on a signal.
pub fn put(
    bench: &Bench,
    runs: &[Run],
    points: &[FioPoint],
    verdicts: &mut [Verdict],
    progress: &Progress,
) -> Result<Vec<Skipped>, BenchFailure> {
    let cases = bound::cases(bars(runs), verdicts);
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let Some(simulator) = simulator(&bench.settings.programs) else {
        let reason = format!(
            "{SIMULATOR} is neither beside this program nor in PATH; cargo build --release -p {SIMULATOR} makes it"
        );
        return Ok(cases.iter().map(|case| bound::without(case, &reason)).collect());
    };
    progress.start(1);
    progress.begin("bounds");
    let mut limits = Limits { bench, simulator, answers: Vec::new(), disk_us: None };
    let mut unbounded = Vec::new();
    for case in &cases {
        let text = case.bar.text();
        let Some(verdict) = verdicts.iter_mut().find(|verdict| verdict.bar == text) else { continue };
        match limits.of(case, &cases, runs, points, verdict.measured.unwrap_or(0.0)) {
            Ok(bound) => verdict.bound = Some(bound),
            Err(failure @ BenchFailure::Interrupted(_)) => return Err(failure),
            Err(failure) => unbounded.push(bound::without(case, failure.to_string())),
        }
    }
    progress.done(&format!("bounds: {} of {}", cases.len() - unbounded.len(), cases.len()));
    Ok(unbounded)
}

/// The simulator beside the other programs, beside this one, or in PATH.
fn simulator(programs: &Path) -> Option<PathBuf> {
    let built = program_path(programs, SIMULATOR);
    if built.is_file() { Some(built) } else { find_program(SIMULATOR) }
}

struct Limits<'a> {
    bench: &'a Bench<'a>,
    simulator: PathBuf,
    answers: Answers,
    disk_us: Option<Result<f64, BenchFailure>>,
}

impl Limits<'_> {
    fn of(
        &mut self,
        case: &Case,
        cases: &[Case],
        runs: &[Run],
        points: &[FioPoint],
        measured: f64,
    ) -> Result<bound::Bound, BenchFailure> {
        let because = |reason: String| BenchFailure::trouble(reason, "");
        let settings = self.bench.settings;
        let question = bound::question(case.workload, &settings.sizing, self.scale(case)).map_err(because)?;
        let read_us = match case.read {
            Read::Us(us) => us,
            Read::Disk => {
                let Bench { token, interrupt, .. } = *self.bench;
                self.disk_us
                    .get_or_insert_with(|| fio::page_read_us(points, &settings.dir, token, interrupt))
                    .clone()?
            }
        };
        let answers = self.answers(question, cases)?.map_err(because)?;
        let answer = answers.iter().find(|answer| answer.local_percent == case.bar.local_percent);
        let answer = answer.ok_or_else(|| because(format!("{SIMULATOR} did not answer; build it again")))?;
        bound::bound(case, *answer, read_us, self.threads(), runs, measured).map_err(because)
    }

    /// The answers to a question, at every level that a case with the same program needs.
    fn answers(&mut self, question: Question, cases: &[Case]) -> Result<Result<Vec<Answer>, String>, BenchFailure> {
        if let Some((_, known)) = self.answers.iter().find(|(known, _)| *known == question) {
            return Ok(known.clone());
        }
        let same = cases.iter().filter(|case| bound::program(case.workload) == Some(question.program));
        let mut levels: Vec<u32> = same.map(|case| case.bar.local_percent).collect();
        levels.sort_unstable();
        levels.dedup();
        let levels: Vec<String> = levels.iter().map(ToString::to_string).collect();
        let mut command = Command::new(&self.simulator);
        command.args(["bound", "--json", "--workload", question.program, "--local", &levels.join(",")]);
        command.args(&question.size);
        let finished = process::run(command, SIMULATOR_TIMEOUT, self.bench.interrupt)?;
        let answer = if finished.status.success() {
            bound::answers(&finished.stdout).ok_or_else(|| format!("{SIMULATOR} printed no bound; build it again"))
        } else {
            Err(format!(
                "{} failed: {}; build it again if it is older than this program",
                self.simulator.display(),
                finished.complaint()
            ))
        };
        self.answers.push((question, answer.clone()));
        Ok(answer)
    }

    /// The scale of the graph that was measured.
    fn scale(&self, case: &Case) -> Option<u64> {
        let mut header = [0; 40];
        let mut file = case.workload.is_graph().then(|| File::open(self.bench.graph).ok())??;
        file.read_exact(&mut header).ok()?;
        bound::scale_of(&header)
    }

    /// Threads of a graph kernel.
    fn threads(&self) -> u32 {
        let cpus = || std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
        self.bench.settings.threads.unwrap_or_else(cpus)
    }
}
