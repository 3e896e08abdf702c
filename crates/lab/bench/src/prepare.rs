// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prepares what the first run needs: a directory for this bench alone, the graph, the footprints, the binary, the swap
//! areas; and finds the obstacles of each contender.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::args::Settings;
use crate::cache;
use crate::certificates;
use crate::cgroup::Hierarchy;
use crate::contender::{Contender, SwapKind};
use crate::failure::BenchFailure;
use crate::fio;
use crate::hosts;
use crate::interrupt::Interrupt;
use crate::library::program_path;
use crate::memory_run;
use crate::plan::{Measured, Obstacles, Plan, Step};
use crate::process::{self, find_program};
use crate::progress::Progress;
use crate::record::Skipped;
use crate::swap::{self, SwapArea};
use crate::undo::{self, SERVER_KIND, Undo, UndoList};
use crate::user_program;
use crate::workload::{Input, Workload};

/// A server is filled to measure its footprint; 16 GiB of values take several minutes.
const FILL_TIMEOUT: Duration = Duration::from_secs(1200);
/// Making a graph of scale 22 takes half a minute on two CPUs; of scale 26, about ten minutes.
const BUILD_TIMEOUT: Duration = Duration::from_secs(3600);
const FOOTPRINT_TIMEOUT: Duration = Duration::from_secs(30);

/// Checks that the report can be written to the requested place, hours before it is.
pub fn check_reports(settings: &Settings) -> Result<(), BenchFailure> {
    if let Some(path) = settings.json.as_deref().filter(|_| !settings.json_on_stdout()) {
        writable(path)?;
    }
    if let Some(directory) = &settings.plots {
        fs::create_dir_all(directory).map_err(|error| {
            BenchFailure::usage(format!("cannot make --plots {}: {error}", directory.display()), "name a directory")
        })?;
    }
    Ok(())
}

/// Creates the file if it does not exist, and keeps the contents of an existing one.
fn writable(path: &Path) -> Result<(), BenchFailure> {
    File::options().create(true).append(true).open(path).map(drop).map_err(|error| {
        let cause = format!("cannot write --json {}: {error}", path.display());
        BenchFailure::usage(cause, "name a file in a directory that exists, or `-` for standard output")
    })
}

/// Creates the directory, and checks that it can be written to before anything is measured.
pub fn make_directory(directory: &Path) -> Result<(), BenchFailure> {
    let refused = |error| {
        BenchFailure::usage(format!("cannot write into {}: {error}", directory.display()), "choose another --dir")
    };
    fs::create_dir_all(directory).map_err(refused)?;
    let probe = directory.join(undo::name(&undo::own_token(), "probe"));
    File::create(&probe).map_err(refused)?;
    Undo::RemoveFile(probe).perform()
}

/// Locks out other benches: two at the same time would measure each other, and compete for swap.
pub fn lock(directory: &Path) -> Result<File, BenchFailure> {
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

/// The graph that the graph workloads read: the named file, or one made now and removed at the end.
pub fn graph_file(
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

/// Each program reports how much memory it will need. One that starts a server reports the server's resident memory
/// when full.
pub fn footprints(
    settings: &Settings,
    token: &str,
    graph: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Measured>, BenchFailure> {
    // The same server with the same values is filled once.
    let mut filled: Option<((Input, bool), u64)> = None;
    let mut footprint = |workload: &'static Workload| {
        if workload.is_own() {
            return user_program::footprint(workload, settings, interrupt);
        }
        let server = workload.server().map(|program| (program, find_program(program)));
        if let (Input::Server { bytes, .. }, true) = (workload.input, settings.plan_only) {
            // With values of 1 KiB, keys and tables need a third or more of the values' memory. Nothing runs with this
            // value.
            return Ok(settings.sizing.bytes.unwrap_or(bytes) / 2 * 3);
        }
        let values = (workload.input, workload.is_ycsb());
        if let Some((_, bytes)) = filled.filter(|(known, _)| *known == values) {
            return Ok(bytes);
        }
        if matches!(server, Some((_, None))) || (workload.is_python() && python_obstacle().is_some()) {
            return Ok(0); // Nothing runs with this value: the plan skips what is not installed.
        }
        if workload.is_graph() && settings.plan_only && !graph.exists() {
            // Roughly 32 neighbours of 4 bytes and an offset of 8 per vertex. Nothing runs with this value.
            return Ok((32 * 4 + 8) << settings.scale);
        }
        let mut command = Command::new(program_path(&settings.programs, workload.program));
        command.args(workload.command_line(&settings.sizing, graph)).arg("--footprint");
        let mut undo = UndoList::default();
        if let Some((_, Some(program))) = &server {
            let directory = settings.dir.join(undo::name(token, SERVER_KIND));
            undo.push(Undo::RemoveTree(directory.clone()));
            command.arg("--server").arg(program).arg("--dir").arg(directory);
        }
        let timeout = if server.is_some() { FILL_TIMEOUT } else { FOOTPRINT_TIMEOUT };
        let finished = process::run(command, timeout, interrupt)?;
        let bytes = finished.stdout.trim().parse().map_err(|_| {
            BenchFailure::usage(format!("{} refused its arguments: {}", workload.name, finished.complaint()), "")
        })?;
        if server.is_some() {
            filled = Some((values, bytes));
        }
        Ok(bytes)
    };
    let known = |workload: &&'static Workload| {
        let own_local = workload.own_local().filter(|_| settings.locals_by_default);
        Ok(Measured { workload, footprint_bytes: footprint(workload)?, own_local })
    };
    settings.workloads.iter().map(known).collect()
}

/// The named binary, or the one next to this one, or the one in PATH. `aquifer bench` names itself.
pub fn find_aquifer(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = named {
        return path.is_file().then(|| path.to_path_buf());
    }
    let beside = std::env::current_exe().ok()?.with_file_name("aquifer");
    if beside.is_file() { Some(beside) } else { find_program("aquifer") }
}

pub fn obstacles(
    settings: &Settings,
    token: &str,
    hierarchy: &Result<Hierarchy, BenchFailure>,
    aquifer: bool,
    measured: &[Measured],
) -> Obstacles {
    let asked = |contender: &Contender| settings.contenders.contains(contender);
    let asked_hosts = settings.contenders.iter().any(|contender| matches!(contender, Contender::AquiferDonors(_)));
    let largest = measured.iter().map(|one| one.footprint_bytes * one.workload.processes).max().unwrap_or(0);
    let servers = measured.iter().filter_map(|one| one.workload.server());
    // If arrays cannot be put into a file, there is no such program, and the plan says why.
    let umap_missing = measured.iter().find(|one| {
        let maps_files = one.workload.no_file.is_none() && !one.workload.uses_library();
        maps_files && !settings.programs.join(format!("{}_umap", one.workload.program)).is_file()
    });
    let asked_cache = settings.contenders.iter().any(|contender| matches!(contender, Contender::Cache(_)));
    let asked_python = measured.iter().any(|one| one.workload.is_python());
    let asked_numactl = settings.contenders.iter().any(|contender| matches!(contender, Contender::Numactl(_)));
    let nodes = memory_run::nodes();
    let asked_zram = [SwapKind::Zram, SwapKind::ZramCounted].into_iter().any(|kind| asked(&Contender::Swap(kind)));
    let is_missing = |node: &u32| !nodes.iter().any(|found| found.number == *node && found.has_memory);
    Obstacles {
        aquifer: (!aquifer).then(|| "there is no aquifer binary; build it, or say --aquifer FILE".to_string()),
        cache: asked_cache.then(|| cache::obstacle(&settings.programs)).flatten(),
        fio: asked(&Contender::Fio).then(fio::obstacle).flatten(),
        hosts: asked_hosts.then(|| hosts::obstacle(token, settings.cable_rate)).flatten(),
        limit: hierarchy.as_ref().err().map(ToString::to_string),
        missing_servers: servers.filter(|server| find_program(server).is_none()).collect(),
        missing_nodes: settings.contenders.iter().filter_map(Contender::node).filter(is_missing).collect(),
        numactl: (asked_numactl && find_program("numactl").is_none())
            .then(|| "numactl is not installed; install it".to_string()),
        python: asked_python.then(python_obstacle).flatten(),
        swap: swap::obstacle(),
        swap_ram: swap::obstacle_ram(largest),
        swap_zram: asked_zram.then(swap::obstacle_zram).flatten(),
        tls: asked(&Contender::AquiferDonorTls).then(certificates::obstacle).flatten(),
        umap: umap_missing.map(|one| {
            format!(
                "{}_umap is not built; install UMap 2.1 (github.com/LLNL/umap), and run: make -C bench/workloads UMAP=PREFIX",
                one.workload.program
            )
        }),
    }
}

/// Why a script that uses the Python package cannot run; None if it can.
fn python_obstacle() -> Option<String> {
    let asked = Command::new("python3").args(["-c", "import aquifer, numpy"]).output();
    let is_there = asked.is_ok_and(|output| output.status.success());
    (!is_there).then(|| {
        "python3 has no NumPy, or not the package aquifer; install NumPy, and the wheel that `make python` makes"
            .to_owned()
    })
}

/// Prepares each kind of swap that the plan needs, and tries it once. A kind that fails is removed from the plan.
pub fn swap_areas(plan: &mut Plan, settings: &Settings, token: &str, progress: &Progress) -> Vec<SwapArea> {
    let mut areas = Vec::new();
    for kind in [SwapKind::Disk, SwapKind::Ram, SwapKind::Zram, SwapKind::ZramCounted] {
        let contender = Contender::Swap(kind);
        let needs =
            |step: &Step| (step.contender == contender).then_some(step.footprint_bytes * step.workload.processes);
        let Some(largest) = plan.steps.iter().filter_map(needs).max() else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_is_refused_before_anything_runs() {
        let refused = writable(Path::new("/nowhere/result.json")).unwrap_err().to_string();
        assert!(refused.contains("cannot write --json /nowhere/result.json: "), "{refused}");
        assert!(refused.contains("name a file in a directory that exists"), "{refused}");
    }

    #[test]
    fn a_report_of_an_earlier_bench_is_kept_until_there_is_a_new_one() {
        let path = std::env::temp_dir().join(format!("aquifer-bench-json-{}", std::process::id()));
        fs::write(&path, "earlier").unwrap();
        writable(&path).unwrap();
        let kept = fs::read_to_string(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(kept.unwrap(), "earlier");
    }
}
