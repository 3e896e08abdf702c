// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The story of a bench, top to bottom: check what was asked, look at the machine, clean up after the dead, plan,
//! measure in turns, judge, report.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::args::{BenchArgs, Settings};
use crate::cgroup::Hierarchy;
use crate::contender::{Contender, SwapKind};
use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::measure::Bench;
use crate::overhead::{self, CASES, OverheadRun};
use crate::overhead_run::OverheadBench;
use crate::plan::{self, Measured, Obstacles, Plan};
use crate::process::{self, find_program};
use crate::progress::Progress;
use crate::record::{Record, Run, Skipped, compare_all, summarise};
use crate::swap::{self, SwapArea};
use crate::undo::{self, Undo, UndoList};
use crate::workload::Workload;
use crate::{fio, leftovers, plot, table, verdict};

/// Making a graph of scale 22 takes half a minute on two CPUs; of scale 26, some ten.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);
const FOOTPRINT_TIMEOUT: Duration = Duration::from_secs(30);

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

fn bench(settings: &Settings, interrupt: &Interrupt) -> Result<ExitCode, BenchFailure> {
    let cases = CASES.iter().filter(|case| settings.overheads.contains(&case.overhead));
    for name in settings.workloads.iter().map(|workload| workload.program).chain(cases.map(|case| case.program)) {
        let program = settings.programs.join(name);
        if !program.is_file() {
            return Err(BenchFailure::usage(
                format!("the workload {} is not built", program.display()),
                "run: make -C bench/workloads, or say --programs DIR",
            ));
        }
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
    let measured = footprints(settings, &graph, interrupt)?;
    let aquifer = find_aquifer(settings.aquifer.as_deref());
    let obstacles = obstacles(settings, &hierarchy, aquifer.is_some(), &measured);
    let mut plan = plan::plan(&measured, &settings.locals, &settings.contenders, settings.rounds, &obstacles);
    if settings.plan_only {
        print_plan(&plan);
        for case in CASES.iter().filter(|case| settings.overheads.contains(&case.overhead)) {
            println!("{} {}, {} rounds", case.overhead, case.name, settings.overhead_rounds(case.overhead));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let areas = swap_areas(&mut plan, settings, &token, &progress);
    let made = areas.iter().map(|area| format!("{}: {}", Contender::Swap(area.kind), area.about)).collect();
    let overheads_can_run = !settings.overheads.is_empty() && aquifer.is_some();
    if plan.steps.is_empty() && plan.mixes.is_empty() && !overheads_can_run {
        let reasons: Vec<_> =
            plan.skipped.iter().map(|skipped| format!("{}: {}", skipped.contender, skipped.reason)).collect();
        eprintln!("aquifer bench: nothing can run here ({})", reasons.join("; "));
        return Ok(ExitCode::from(3));
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
    let (runs, points, mut stopped) = measure(&bench, &mut plan, &progress);
    let mut overheads = Vec::new();
    if stopped.is_none() && !settings.overheads.is_empty() {
        (overheads, stopped) = measure_overheads(&bench, &mut plan, &progress);
    }
    drop(areas);
    progress.finish();
    let summaries = summarise(&runs);
    let record = Record {
        version: 1,
        machine,
        complete: stopped.is_none(),
        swap_areas: made,
        skipped: plan.skipped,
        comparisons: compare_all(&runs, &summaries),
        summaries,
        verdicts: [verdict::judge(&runs, &points), overhead::judge(&settings.overheads, &overheads)].concat(),
        overheads,
        fio: points,
        runs,
    };
    let code = report(settings, &record)?;
    Ok(match stopped {
        Some(BenchFailure::Interrupted(signal)) => interrupted(signal),
        _ => code,
    })
}

/// Every step in its turn. Stops early only for a signal; what has been measured is kept.
fn measure(
    bench: &Bench,
    plan: &mut Plan,
    progress: &Progress,
) -> (Vec<Run>, Vec<fio::FioPoint>, Option<BenchFailure>) {
    progress.start(plan.steps.len() + plan.mixes.len());
    let mut points = Vec::new();
    if !plan.mixes.is_empty() {
        progress.begin("fio");
        let noted = |point: &fio::FioPoint| {
            progress.note(&format!(
                "fio {}:{} {} x {}",
                point.reads,
                point.writes,
                crate::size::format_size(point.block_bytes),
                point.depth
            ))
        };
        match fio::measure(&plan.mixes, &bench.settings.dir, bench.token, bench.interrupt, noted) {
            Ok(measured) => {
                points = measured;
                let best = plan.mixes.first().and_then(|mix| fio::best(&points, *mix));
                let sum = best.map_or(0.0, |point| (point.read_bytes_per_second + point.write_bytes_per_second) / 1e9);
                progress.done(&format!("fio: best sum {sum:.2} GB/s"));
            }
            Err(failure @ BenchFailure::Interrupted(_)) => return (Vec::new(), points, Some(failure)),
            Err(failure) => plan.skipped.push(Skipped {
                workload: "any".into(),
                contender: "fio".into(),
                reason: failure.to_string(),
            }),
        }
    }
    let mut runs = Vec::new();
    for step in &plan.steps {
        let title =
            format!("{} {} % {} round {}", step.workload.name, step.local_percent, step.contender, step.round + 1);
        progress.begin(&title);
        match bench.step(step) {
            Ok(run) => {
                let outcome = match (&run.figure, &run.problem) {
                    (Some(figure), _) => format!("{} {}", table::short(figure.value), figure.unit),
                    (None, problem) => format!("FAILED: {}", problem.as_deref().unwrap_or("no reason")),
                };
                progress.done(&format!("{title}: {outcome}"));
                runs.push(run);
            }
            Err(failure) => return (runs, points, Some(failure)),
        }
    }
    (runs, points, None)
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
    let asked = CASES.iter().filter(|case| settings.overheads.contains(&case.overhead));
    progress.start(asked.map(|case| settings.overhead_rounds(case.overhead) as usize).sum());
    OverheadBench { settings, token, aquifer, interrupt }.measure(progress)
}

fn report(settings: &Settings, record: &Record) -> Result<ExitCode, BenchFailure> {
    let json = serde_json::to_string_pretty(record)
        .map_err(|error| BenchFailure::trouble(format!("cannot write JSON: {error}"), ""))?;
    let mut stdout = std::io::stdout().lock();
    // A reader that went away is no failure.
    let _ = if settings.json_on_stdout() {
        writeln!(stdout, "{json}")
    } else {
        write!(stdout, "{}", table::render(record))
    };
    if let Some(path) = settings.json.as_ref().filter(|_| !settings.json_on_stdout()) {
        fs::write(path, json + "\n")
            .map_err(|error| BenchFailure::io(format!("cannot write {}", path.display()), &error))?;
    }
    if let Some(directory) = &settings.plots {
        for path in plot::draw(record, directory)? {
            eprintln!("plot: {}", path.display());
        }
    }
    let failed =
        record.runs.iter().any(|run| run.figure.is_none()) || record.overheads.iter().any(|run| run.value.is_none());
    let missed = record.verdicts.iter().any(|verdict| verdict.met == Some(false));
    Ok(ExitCode::from(match (failed, settings.check && missed) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 0,
    }))
}

fn print_plan(plan: &Plan) {
    for (reads, writes) in &plan.mixes {
        println!("fio, {reads} reads : {writes} writes");
    }
    for step in &plan.steps {
        let limit = step
            .limit_bytes
            .map_or_else(|| "no limit".to_string(), |limit| format!("limit {}", crate::size::format_size(limit)));
        println!(
            "{} {} % round {} {} ({limit})",
            step.workload.name,
            step.local_percent,
            step.round + 1,
            step.contender
        );
    }
    for skipped in &plan.skipped {
        println!("{} {}: skipped: {}", skipped.workload, skipped.contender, skipped.reason);
    }
}

/// Makes the directory, and makes sure that it can be written to before anything is measured.
fn make_directory(directory: &Path) -> Result<(), BenchFailure> {
    let refused = |error| {
        BenchFailure::usage(format!("cannot write into {}: {error}", directory.display()), "choose another --dir")
    };
    fs::create_dir_all(directory).map_err(refused)?;
    let probe = directory.join(undo::name(&undo::own_token(), "probe"));
    File::create(&probe).map_err(refused)?;
    Undo::RemoveFile(probe).perform()
}

/// Two benches at once would measure each other, and fight over swap.
fn lock(directory: &Path) -> Result<File, BenchFailure> {
    let shared = Path::new("/run/lock");
    let place = if shared.is_dir() { shared } else { directory };
    let path = place.join("aquifer-bench.lock");
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .or_else(|_| File::open(&path))
        .map_err(|error| BenchFailure::io(format!("cannot open {}", path.display()), &error))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| BenchFailure::trouble("another aquifer bench runs on this machine", "wait until it has ended"))?;
    Ok(file)
}

/// The graph that the graph workloads read: the one that was named, or one made now and removed at the end.
fn graph_file(
    settings: &Settings,
    token: &str,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Result<(PathBuf, UndoList), BenchFailure> {
    let mut undo = UndoList::default();
    if let Some(path) = &settings.graph {
        let real = fs::canonicalize(path).map_err(|error| {
            BenchFailure::usage(
                format!("cannot read the graph {}: {error}", path.display()),
                "leave --graph out to have one made",
            )
        })?;
        return Ok((real, undo));
    }
    let path = settings.dir.join(undo::name(token, "graph"));
    if settings.plan_only || !settings.workloads.iter().any(|workload| workload.is_graph()) {
        return Ok((path, undo));
    }
    progress.begin(&format!("making a Kronecker graph of scale {}", settings.scale));
    undo.push(Undo::RemoveFile(path.clone()));
    undo.push(Undo::RemoveFile(path.with_extension("graph.part")));
    let mut command = Command::new(settings.programs.join("graph"));
    command.args(["build", "--scale", &settings.scale.to_string(), "--out"]).arg(&path);
    let finished = process::run(command, BUILD_TIMEOUT, interrupt)?;
    if !finished.status.success() {
        return Err(BenchFailure::trouble(format!("making the graph failed: {}", finished.complaint()), ""));
    }
    progress.done(&format!("graph of scale {} made in {:.1} s", settings.scale, finished.wall.as_secs_f64()));
    Ok((path, undo))
}

/// Each program says how much it will need.
fn footprints(settings: &Settings, graph: &Path, interrupt: &Interrupt) -> Result<Vec<Measured>, BenchFailure> {
    let footprint = |workload: &'static Workload| {
        if workload.is_graph() && settings.plan_only && !graph.exists() {
            // 32 neighbours of 4 bytes and an offset of 8 per vertex, roughly: nothing runs on it.
            return Ok((32 * 4 + 8) << settings.scale);
        }
        let mut command = Command::new(settings.programs.join(workload.program));
        command.args(workload.command_line(&settings.sizing, graph)).arg("--footprint");
        let finished = process::run(command, FOOTPRINT_TIMEOUT, interrupt)?;
        finished.stdout.trim().parse().map_err(|_| {
            BenchFailure::usage(format!("{} refused its arguments: {}", workload.name, finished.complaint()), "")
        })
    };
    settings.workloads.iter().map(|workload| Ok(Measured { workload, footprint_bytes: footprint(workload)? })).collect()
}

/// The binary that was named, or this one, or the one beside it, or the one in PATH.
fn find_aquifer(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = named {
        return path.is_file().then(|| path.to_path_buf());
    }
    let own = std::env::current_exe().ok()?;
    if own.file_name().is_some_and(|name| name == "aquifer") {
        return Some(own);
    }
    let beside = own.with_file_name("aquifer");
    if beside.is_file() { Some(beside) } else { find_program("aquifer") }
}

fn obstacles(
    settings: &Settings,
    hierarchy: &Result<Hierarchy, BenchFailure>,
    aquifer: bool,
    measured: &[Measured],
) -> Obstacles {
    let asked = |contender: &Contender| settings.contenders.contains(contender);
    let largest = measured.iter().map(|one| one.footprint_bytes).max().unwrap_or(0);
    // Where arrays cannot be put into a file, there is no such program, and the plan says why.
    let umap_missing = measured.iter().find(|one| {
        !one.workload.static_arrays && !settings.programs.join(format!("{}_umap", one.workload.program)).is_file()
    });
    Obstacles {
        aquifer: (!aquifer).then(|| "there is no aquifer binary; build it, or say --aquifer FILE".to_string()),
        fio: asked(&Contender::Fio).then(fio::obstacle).flatten(),
        limit: hierarchy.as_ref().err().map(ToString::to_string),
        swap: swap::obstacle(),
        swap_ram: swap::obstacle_ram(largest),
        swap_zram: asked(&Contender::Swap(SwapKind::Zram)).then(swap::obstacle_zram).flatten(),
        umap: umap_missing.map(|one| {
            format!(
                "{}_umap is not built; install UMap 2.1 (github.com/LLNL/umap), and run: make -C bench/workloads UMAP=PREFIX",
                one.workload.program
            )
        }),
    }
}

/// Prepares each kind of swap that the plan needs, and tries it once. A kind that fails leaves the plan.
fn swap_areas(plan: &mut Plan, settings: &Settings, token: &str, progress: &Progress) -> Vec<SwapArea> {
    let mut areas = Vec::new();
    for kind in [SwapKind::Disk, SwapKind::Ram, SwapKind::Zram] {
        let contender = Contender::Swap(kind);
        let Some(largest) =
            plan.steps.iter().filter(|step| step.contender == contender).map(|step| step.footprint_bytes).max()
        else {
            continue;
        };
        progress.begin(&format!("preparing {contender}"));
        let prepared =
            SwapArea::prepare(kind, &settings.dir, token, largest).and_then(|area| area.on().map(drop).map(|()| area));
        match prepared {
            Ok(area) => {
                progress.done(&format!("{contender}: {}", area.about));
                areas.push(area);
            }
            Err(failure) => {
                plan.steps.retain(|step| step.contender != contender);
                plan.skipped.push(Skipped {
                    workload: "any".into(),
                    contender: contender.to_string(),
                    reason: failure.to_string(),
                });
            }
        }
    }
    areas
}
