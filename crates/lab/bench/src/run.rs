// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The sequence of a bench, top to bottom: check the request, examine the machine, remove leftovers of killed benches,
//! plan, measure in turns, judge, report. `prepare.rs` makes what the plan and the runs need.

use std::fs;
use std::io::Write;
use std::process::ExitCode;

use aquifer_bench_args::BenchArgs;

use crate::args::Settings;
use crate::cgroup::Hierarchy;
use crate::contender::Contender;
use crate::equal_memory::{self, EqualMemory};
use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::latency::latencies;
use crate::library::{far_accesses, program_path};
use crate::machine::Machine;
use crate::measure::Bench;
use crate::memory::{self, MemoryPoint};
use crate::memory_run::{self, MemoryBench};
use crate::overhead::{self, CASES, OverheadRun};
use crate::overhead_run::OverheadBench;
use crate::plan::{self, Plan, Step};
use crate::prepare::{
    check_reports, find_aquifer, footprints, graph_file, lock, make_directory, obstacles, swap_areas,
};
use crate::progress::Progress;
use crate::record::{Record, Run, Skipped, compare_all, summarise};
use crate::verdict::Verdict;
use crate::{bound_run, donors, fio, leftovers, order, other_build, peaks, plot, table, undo, verdict};

/// Runs `aquifer bench` and returns its exit code.
pub fn run(args: BenchArgs) -> ExitCode {
    match Settings::from_args(args)
        .and_then(|settings| Interrupt::install().and_then(|interrupt| bench(&settings, &interrupt)))
    {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("aquifer bench: {failure}");
            match failure {
                BenchFailure::Usage { .. } => ExitCode::from(2),
                BenchFailure::Trouble { .. } => ExitCode::from(1),
                BenchFailure::Interrupted(signal) => interrupted(signal),
            }
        }
    }
}

fn interrupted(signal: usize) -> ExitCode {
    ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
}

/// Whether the programs of all that is to be measured have been built.
fn check_programs(settings: &Settings) -> Result<(), BenchFailure> {
    let cases = CASES.iter().filter(|case| settings.overheads.contains(&case.overhead));
    let of_cases = cases.map(|case| case.program).filter(|program| !program.is_empty());
    let of_memory = settings.memory.then_some(memory::PROGRAM);
    for name in settings.workloads.iter().map(|workload| workload.program).chain(of_cases).chain(of_memory) {
        let program = program_path(&settings.programs, name);
        if !program.is_file() {
            return Err(BenchFailure::usage(
                format!("the workload {} is not built", program.display()),
                "run: make bench, or say --programs DIR",
            ));
        }
    }
    Ok(())
}

fn bench(settings: &Settings, interrupt: &Interrupt) -> Result<ExitCode, BenchFailure> {
    check_programs(settings)?;
    memory_run::check_nodes(&settings.memory_contenders, &memory_run::nodes())?;
    if let Some(warning) = order::warning(settings.rounds, settings.against.is_some()) {
        eprintln!("aquifer bench: {warning}");
    }
    if !settings.plan_only {
        check_reports(settings)?;
    }
    make_directory(&settings.dir)?;
    let _lock = lock(&settings.dir)?;
    let token = undo::own_token();
    let hierarchy = Hierarchy::detect(&token);
    for line in leftovers::clean(&settings.dir, hierarchy.as_ref().ok().map(Hierarchy::root)) {
        eprintln!("aquifer bench: {line}");
    }
    let machine = Machine::look(
        &settings.dir,
        &hierarchy.as_ref().map_or_else(|failure| format!("none ({failure})"), Hierarchy::describe),
    );
    let progress = Progress::new();
    let (graph, _graph_undo) = graph_file(settings, &token, interrupt, &progress)?;
    let measured = footprints(settings, &token, &graph, interrupt)?;
    let aquifer = find_aquifer(settings.aquifer.as_deref());
    let obstacles = obstacles(settings, &token, &hierarchy, aquifer.is_some(), &measured);
    let mut plan = plan::plan(&measured, &settings.locals, &settings.contenders, settings.rounds, &obstacles);
    if settings.plan_only {
        print(&describe(&plan, settings));
        return Ok(ExitCode::SUCCESS);
    }
    let areas = swap_areas(&mut plan, settings, &token, &progress);
    let made = areas.iter().map(|area| format!("{}: {}", Contender::Swap(area.kind), area.about)).collect();
    let donors = donors_of(settings, &plan);
    let overheads_can_run = !settings.overheads.is_empty() && aquifer.is_some();
    if plan.steps.is_empty() && plan.mixes.is_empty() && !overheads_can_run && !settings.memory {
        return Ok(nothing_can_run(&plan));
    }
    let bench = Bench {
        settings,
        token: &token,
        hierarchy: hierarchy.as_ref().ok(),
        aquifer: aquifer.as_deref(),
        graph: &graph,
        areas: &areas,
        interrupt,
    };
    let mut measured = measure_all(&bench, &mut plan, &progress);
    let judged = measured.judge(&bench, &progress);
    drop(areas);
    progress.finish();
    let interrupted_by = measured.interrupted_by();
    let around = Around { machine, swap_areas: made, donors, skipped: plan.skipped };
    let record = measured.into_record(judged, around);
    let code = report(settings, &record)?;
    Ok(interrupted_by.map_or(code, interrupted))
}

/// The donors that the plan borrows from, as the record describes them.
fn donors_of(settings: &Settings, plan: &Plan) -> Vec<String> {
    let borrow = |contender: &Contender| {
        let about = donors::about(contender, settings.cable_rate)?;
        plan.steps.iter().any(|step| step.contender == *contender).then(|| format!("{contender}: {about}"))
    };
    settings.contenders.iter().filter_map(borrow).collect()
}

/// Says why nothing of the plan can run, and returns the exit code for that.
fn nothing_can_run(plan: &Plan) -> ExitCode {
    let reasons: Vec<_> =
        plan.skipped.iter().map(|skipped| format!("{}: {}", skipped.contender, skipped.reason)).collect();
    eprintln!("aquifer bench: nothing can run here ({})", reasons.join("; "));
    ExitCode::from(3)
}

/// All that has been measured, and what stopped it early.
struct Measured {
    runs: Vec<Run>,
    equal_memory: Vec<EqualMemory>,
    points: Vec<fio::FioPoint>,
    overheads: Vec<OverheadRun>,
    memory: Vec<MemoryPoint>,
    stopped: Option<BenchFailure>,
}

/// The part of a record that is known before anything has been measured.
struct Around {
    machine: Machine,
    swap_areas: Vec<String>,
    donors: Vec<String>,
    skipped: Vec<Skipped>,
}

/// The bars, and those that have no bound and could have one.
struct Judged {
    verdicts: Vec<Verdict>,
    unbounded: Vec<Skipped>,
}

impl Measured {
    /// Judges, and looks for the bounds of the bars unless something stopped the bench.
    fn judge(&mut self, bench: &Bench, progress: &Progress) -> Judged {
        let mut verdicts = [
            verdict::judge(&self.runs, &self.points),
            peaks::judge(&self.runs, &self.equal_memory),
            overhead::judge(&bench.settings.overheads, &self.overheads),
            other_build::judge(&self.runs, &self.overheads),
        ]
        .concat();
        let mut unbounded = Vec::new();
        if self.stopped.is_none() {
            match bound_run::put(bench, &self.runs, &self.points, &mut verdicts, progress) {
                Ok(found) => unbounded = found,
                Err(failure) => self.stopped = Some(failure),
            }
        }
        Judged { verdicts, unbounded }
    }

    /// The signal that stopped it, if one did.
    fn interrupted_by(&self) -> Option<usize> {
        match self.stopped {
            Some(BenchFailure::Interrupted(signal)) => Some(signal),
            _ => None,
        }
    }

    /// Compares.
    fn into_record(self, judged: Judged, around: Around) -> Record {
        let Self { runs, equal_memory, points, overheads, memory, stopped } = self;
        let Around { machine, swap_areas, donors, skipped } = around;
        let summaries = summarise(&runs);
        Record {
            version: 1,
            machine,
            complete: stopped.is_none(),
            swap_areas,
            donors,
            skipped,
            equal_memory,
            comparisons: compare_all(&runs, &summaries),
            latencies: latencies(&runs, &summaries),
            far_accesses: far_accesses(&runs, &summaries),
            summaries,
            verdicts: judged.verdicts,
            unbounded: judged.unbounded,
            overheads,
            fio: points,
            memory,
            runs,
        }
    }
}

/// Measures the workloads, the overheads and the memory, in this order, until something stops it.
fn measure_all(bench: &Bench, plan: &mut Plan, progress: &Progress) -> Measured {
    let Bench { settings, aquifer, token, interrupt, .. } = *bench;
    let (points, mut stopped) = measure_device(bench, plan, progress);
    let (mut runs, mut equal_memory) = (Vec::new(), Vec::new());
    if stopped.is_none() {
        (runs, equal_memory, stopped) = measure(bench, plan, progress);
    }
    let mut overheads = Vec::new();
    if stopped.is_none() && !settings.overheads.is_empty() {
        (overheads, stopped) = measure_overheads(bench, plan, progress);
    }
    let mut memory = Vec::new();
    if stopped.is_none() && settings.memory {
        (memory, stopped) = MemoryBench { settings, aquifer, token, interrupt }.measure(progress);
    }
    Measured { runs, equal_memory, points, overheads, memory, stopped }
}

/// Measures with `fio` what the device can do. A failure other than a signal is noted as a reason.
fn measure_device(bench: &Bench, plan: &mut Plan, progress: &Progress) -> (Vec<fio::FioPoint>, Option<BenchFailure>) {
    progress.start(plan.steps.len() + plan.mixes.len());
    if plan.mixes.is_empty() {
        return (Vec::new(), None);
    }
    progress.begin("fio");
    let noted = |point: &fio::FioPoint| {
        let size = crate::size::format_size(point.block_bytes);
        progress.note(&format!("fio {}:{} {size} x {}", point.reads, point.writes, point.depth))
    };
    match fio::measure(&plan.mixes, &bench.settings.dir, bench.token, bench.interrupt, noted) {
        Ok(points) => {
            let best = plan.mixes.first().and_then(|mix| fio::best(&points, *mix));
            let sum = best.map_or(0.0, |point| (point.read_bytes_per_second + point.write_bytes_per_second) / 1e9);
            progress.done(&format!("fio: best sum {sum:.2} GB/s"));
            (points, None)
        }
        Err(failure @ BenchFailure::Interrupted(_)) => (Vec::new(), Some(failure)),
        Err(failure) => {
            plan.skipped.push(Skipped { workload: "any".into(), contender: "fio".into(), reason: failure.to_string() });
            (Vec::new(), None)
        }
    }
}

/// Makes every step in its turn. Stops early only for a signal; completed measurements are kept.
fn measure(bench: &Bench, plan: &Plan, progress: &Progress) -> (Vec<Run>, Vec<EqualMemory>, Option<BenchFailure>) {
    let (mut runs, mut equal_memory) = (Vec::new(), Vec::new());
    for planned in &plan.steps {
        let step = &Step { limit_bytes: equal_memory::limit_of(&equal_memory, planned), ..planned.clone() };
        let title = format!("{} {} % {} {}", step.workload.name, step.local_percent, step.contender, step.turn_name());
        progress.begin(&title);
        match bench.step(step) {
            Ok(run) => {
                let outcome = match (&run.figure, &run.problem) {
                    (Some(figure), _) => format!("{} {}", table::short(figure.value), figure.unit),
                    (None, problem) => format!("FAILED: {}", problem.as_deref().unwrap_or("no reason")),
                };
                progress.done(&format!("{title}: {outcome}"));
                match step.is_calibration {
                    true => equal_memory::add(&mut equal_memory, step, &run),
                    false => runs.push(run),
                }
            }
            Err(failure) => return (runs, equal_memory, Some(failure)),
        }
    }
    (runs, equal_memory, None)
}

fn measure_overheads(bench: &Bench, plan: &mut Plan, progress: &Progress) -> (Vec<OverheadRun>, Option<BenchFailure>) {
    let Bench { settings, token, interrupt, .. } = *bench;
    let Some(aquifer) = bench.aquifer else {
        plan.skipped.push(Skipped {
            workload: "overhead".into(),
            contender: "aquifer".into(),
            reason: "there is no aquifer binary; build it, or say --aquifer FILE".into(),
        });
        return (Vec::new(), None);
    };
    let bench = OverheadBench { settings, token, aquifer, is_other_build: false, interrupt };
    let (cases, skipped) = match bench.cases() {
        Ok(cases) => cases,
        Err(failure) => return (Vec::new(), Some(failure)),
    };
    plan.skipped.extend(skipped);
    progress.start(cases.iter().map(|case| bench.turns(case).len()).sum());
    bench.measure(&cases, progress)
}

fn report(settings: &Settings, record: &Record) -> Result<ExitCode, BenchFailure> {
    let json = serde_json::to_string_pretty(record)
        .map_err(|error| BenchFailure::trouble(format!("cannot write JSON: {error}"), ""))?;
    print(&if settings.json_on_stdout() { format!("{json}\n") } else { table::render(record) });
    if let Some(path) = settings.json.as_ref().filter(|_| !settings.json_on_stdout()) {
        fs::write(path, json + "\n")
            .map_err(|error| BenchFailure::io(format!("cannot write {}", path.display()), &error))?;
    }
    if let Some(directory) = &settings.plots {
        for path in plot::draw(record, directory)? {
            eprintln!("plot: {}", path.display());
        }
    }
    let failed = record.runs.iter().any(|run| run.figure.is_none())
        || record.overheads.iter().any(|run| run.value.is_none())
        || record.memory.iter().any(|point| point.value.is_none());
    let missed = record.verdicts.iter().any(|verdict| verdict.met == Some(false));
    Ok(ExitCode::from(match (failed, settings.check && missed) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 0,
    }))
}

fn describe(plan: &Plan, settings: &Settings) -> String {
    let mixes = plan.mixes.iter().map(|(reads, writes)| format!("fio, {reads} reads : {writes} writes\n"));
    let steps = plan.steps.iter().map(|step| {
        let Step { workload, local_percent, contender, limit_bytes, .. } = step;
        let limit = limit_bytes
            .map_or_else(|| "no limit".to_string(), |limit| format!("limit {}", crate::size::format_size(limit)));
        format!("{} {local_percent} % {} {contender} ({limit})\n", workload.name, step.turn_name())
    });
    let skipped = plan.skipped.iter().map(|it| format!("{} {}: skipped: {}\n", it.workload, it.contender, it.reason));
    let asked = CASES.iter().filter(|case| settings.overheads.contains(&case.overhead));
    let overheads = asked
        .map(|case| format!("{} {}, {} rounds\n", case.overhead, case.name, settings.overhead_rounds(case.overhead)));
    let memory = settings.memory.then(|| format!("memory, {} rounds\n", settings.rounds));
    mixes.chain(steps).chain(skipped).chain(overheads).chain(memory).collect()
}

/// Prints to standard output. A reader that has gone away is not a failure.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
