// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes one run of the plan: the limit, the swap area, the command, and its results.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::args::Settings;
use crate::cache;
use crate::cgroup::{Cgroup, Hierarchy, Measured};
use crate::contender::{Contender, SwapKind};
use crate::failure::BenchFailure;
use crate::idle_disk::wait_for_idle;
use crate::interrupt::Interrupt;
use crate::library::program_path;
use crate::plan::Step;
use crate::process::{self, Finished, find_program};
use crate::record::Run;
use crate::result::{figure_of, parse_output};
use crate::size::{MIB, format_size};
use crate::swap::SwapArea;
use crate::undo::{self, CERTIFICATES_KIND, SERVER_KIND, Undo, UndoList};
use crate::user_program;
use crate::workload::{Input, Workload};

/// In a small limit the kernel occasionally kills a program all of whose pages are being swapped out, although swap has
/// room. A baseline must not lose its figure because of that.
const SWAP_ATTEMPTS_MAX: u32 = 3;

/// In a tier, the memory of a forked program takes up to this many times its size: each process writes to its own
/// slabs, and shares up to four more (docs/decisions/0012). With room for two and a half times the size, BGSAVE filled
/// the tier within a second.
const FORKED_ROOM: u64 = 5;

/// A limit that is shared with zram follows it in steps of this size, so that the kernel does not reclaim all the time.
const SHARED_STEP_BYTES: u64 = 256 << 10;

/// What every step needs.
pub struct Bench<'a> {
    pub settings: &'a Settings,
    pub token: &'a str,
    /// None if no limit can be set here.
    pub hierarchy: Option<&'a Hierarchy>,
    pub aquifer: Option<&'a Path>,
    pub graph: &'a Path,
    pub areas: &'a [SwapArea],
    pub interrupt: &'a Interrupt,
}

/// A limit that a program shares with the zram device to which it swaps: what the device takes, the program loses.
struct SharedLimit<'a> {
    area: &'a SwapArea,
    cgroup: &'a Cgroup,
    limit: u64,
    /// What the program's limit leaves to the device.
    zram: u64,
}

impl SharedLimit<'_> {
    fn follow(&mut self) {
        let zram = self.area.zram_bytes().unwrap_or(0);
        let limit = self.limit.saturating_sub(zram).max(SHARED_STEP_BYTES);
        // The kernel refuses (EBUSY) what it cannot reclaim at once; then the next look tries again.
        if zram.abs_diff(self.zram) >= SHARED_STEP_BYTES && self.cgroup.set_limit(limit) {
            self.zram = zram;
        }
    }
}

impl Bench<'_> {
    /// Makes one run. Fails only when a signal arrived; any other failure is recorded in the run.
    pub fn step(&self, step: &Step) -> Result<Run, BenchFailure> {
        let mut run = Run {
            workload: step.workload.name.into(),
            local_percent: step.local_percent,
            contender: step.contender.to_string(),
            round: step.round,
            turn: step.turn,
            footprint_bytes: step.footprint_bytes,
            local_bytes: step.local_bytes,
            limit_bytes: step.limit_bytes,
            figure: None,
            problem: None,
            wall_seconds: 0.0,
            cgroup_peak_bytes: None,
            limit_hits: None,
            oom_kills: 0,
            attempts: 0,
            peak_resident_bytes: None,
            program: None,
            stats: None,
        };
        let attempts_max = if matches!(step.contender, Contender::Swap(_)) { SWAP_ATTEMPTS_MAX } else { 1 };
        loop {
            let kills_before = run.oom_kills;
            run.attempts += 1;
            match self.perform(step, &mut run) {
                Ok(()) => run.problem = None,
                Err(failure @ BenchFailure::Interrupted(_)) => return Err(failure),
                Err(failure) => run.problem = Some(failure.to_string()),
            }
            if run.oom_kills == kills_before || run.attempts == attempts_max {
                return Ok(run);
            }
        }
    }

    fn perform(&self, step: &Step, run: &mut Run) -> Result<(), BenchFailure> {
        // Dropped in reverse order: the cgroup with its processes first, then the swap area, then the files.
        let mut files = UndoList::default();
        let flash = self.file(&mut files, "flash");
        let socket = self.file(&mut files, "socket");
        let stats = self.file(&mut files, "stats");
        let arrays = self.file(&mut files, "arrays");
        let keys = self.tree(&mut files, CERTIFICATES_KIND);
        let server = self.tree(&mut files, SERVER_KIND);
        let area = match &step.contender {
            Contender::Swap(kind) => {
                let area = self.areas.iter().find(|area| area.kind == *kind);
                Some(area.ok_or_else(|| BenchFailure::trouble("its swap area is not prepared", ""))?)
            }
            _ => None,
        };
        let _swap = area.map(SwapArea::on).transpose()?;
        let swaps = matches!(step.contender, Contender::Swap(_));
        let cgroup = self
            .hierarchy
            .map(|hierarchy| Cgroup::create(hierarchy, self.token, step.limit_bytes, swaps))
            .transpose()?;
        if step.workload.is_graph() {
            forget_cached(self.graph)?;
        }
        let donors = self.donors(step, &socket, &keys)?;
        let place = donors.as_ref().map_or_else(|| flash.display().to_string(), |donors| donors.place.clone());
        let mut command = self.command(step, &place, &stats, &arrays, &server, cgroup.as_ref())?;
        if let Some(threads) = self.settings.threads {
            command.env("OMP_NUM_THREADS", threads.to_string());
        }
        wait_for_idle(&self.settings.dir, self.interrupt)?;
        // A program of the user's own reports nothing, so its memory is sampled, but in no run that is compared.
        let samples = step.workload.is_own() && step.is_calibration;
        let mut sampled_bytes = 0;
        let counted = area.filter(|area| area.kind == SwapKind::ZramCounted);
        let mut shares = counted
            .zip(cgroup.as_ref())
            .zip(step.limit_bytes)
            .map(|((area, cgroup), limit)| SharedLimit { area, cgroup, limit, zram: 0 });
        let finished = process::run_watched(command, self.settings.timeout, self.interrupt, &mut |process| {
            if samples {
                sampled_bytes = sampled_bytes.max(user_program::resident(process));
            }
            shares.iter_mut().for_each(SharedLimit::follow);
        })?;
        run.peak_resident_bytes = samples.then_some(sampled_bytes);
        let measured = cgroup.as_ref().map_or_else(Measured::default, Cgroup::measured);
        run.wall_seconds = finished.wall.as_secs_f64();
        run.cgroup_peak_bytes = measured.peak_bytes;
        run.limit_hits = measured.limit_hits;
        run.oom_kills += measured.oom_kills;
        run.stats = fs::read_to_string(&stats).ok().and_then(|text| serde_json::from_str(&text).ok());
        judge_end(step, self.settings, &finished, &measured)?;
        if step.workload.is_own() {
            run.figure = Some(user_program::figure(&finished));
            return Ok(());
        }
        let printed = parse_output(&finished.stdout)?;
        run.peak_resident_bytes = printed.get("peak_resident_bytes").and_then(Value::as_u64);
        run.figure = Some(figure_of(&printed)?);
        run.program = Some(printed);
        Ok(())
    }

    fn file(&self, files: &mut UndoList, kind: &str) -> PathBuf {
        let path = self.settings.dir.join(undo::name(self.token, kind));
        files.push(Undo::RemoveFile(path.clone()));
        path
    }

    fn tree(&self, files: &mut UndoList, kind: &str) -> PathBuf {
        let path = self.settings.dir.join(undo::name(self.token, kind));
        files.push(Undo::RemoveTree(path.clone()));
        path
    }

    /// The build that runs a contender.
    pub(crate) fn aquifer(&self, contender: &Contender) -> Result<&Path, BenchFailure> {
        let binary = if contender.is_other_build() { self.settings.against.as_deref() } else { self.aquifer };
        binary.ok_or_else(|| BenchFailure::trouble("there is no aquifer binary", "name one with --aquifer FILE"))
    }

    /// The command of a step: the program in its cgroup, under its pager if it has one. If the program starts a server,
    /// the cgroup and the pager are the server's, and the program gets the words that precede the server's command.
    fn command(
        &self,
        step: &Step,
        place: &str,
        stats: &Path,
        arrays: &Path,
        server: &Path,
        cgroup: Option<&Cgroup>,
    ) -> Result<Command, BenchFailure> {
        let workload = step.workload;
        let mut name = workload.program.to_string();
        if step.contender == Contender::Umap {
            name.push_str("_umap");
        }
        let program = match workload.is_own() {
            // Some programs behave differently under another name.
            true => PathBuf::from(name),
            false => fs::canonicalize(program_path(&self.settings.programs, &name))
                .map_err(|error| BenchFailure::io(format!("cannot find {name}"), &error))?,
        };
        let mut around = cgroup.map_or_else(Vec::new, Cgroup::words);
        around.append(&mut self.pager_words(step, place, stats)?);
        let mut words = vec![program.display().to_string()];
        words.extend(workload.command_line(&self.settings.sizing, self.graph));
        if let Contender::Library(library) = &step.contender {
            words.append(&mut library.words(step.local_bytes, place, tier_bytes(step)));
        }
        if matches!(step.contender, Contender::MmapFile | Contender::Umap) {
            words.extend(["--file".into(), arrays.display().to_string()]);
        }
        if workload.is_ycsb() {
            words.extend(self.settings.threads.iter().flat_map(|cores| ["--cores".to_owned(), cores.to_string()]));
        }
        if let Contender::Cache(in_cache) = &step.contender {
            let program = program_path(&self.settings.programs, cache::PROGRAM);
            let program = fs::canonicalize(program)
                .map_err(|error| BenchFailure::io(format!("cannot find {}", cache::PROGRAM), &error))?;
            words.extend(["--cache".into(), "--dir".into(), server.display().to_string(), "--".into()]);
            words.append(&mut around);
            words.push(program.display().to_string());
            words.extend(in_cache.words(self.records_bytes(workload), step.local_percent, place));
        } else if let Some(name) = workload.server() {
            let installed = find_program(name).ok_or_else(|| {
                BenchFailure::trouble(format!("{name} is not installed any more"), "install it again")
            })?;
            words.extend(["--server".into(), installed.display().to_string()]);
            words.extend(["--dir".into(), server.display().to_string(), "--".into()]);
            words.append(&mut around);
        }
        around.append(&mut words);
        let mut command = Command::new(&around[0]);
        command.args(&around[1..]);
        if step.contender == Contender::Umap {
            let page = self.settings.umap_page_bytes.unwrap_or_else(|| workload.umap_page_bytes());
            command.env("UMAP_PAGESIZE", page.to_string());
            command.env("UMAP_BUFSIZE", (step.local_bytes / page).max(1).to_string());
        }
        Ok(command)
    }

    /// Bytes of all values of a workload with a server.
    fn records_bytes(&self, workload: &Workload) -> u64 {
        let Input::Server { bytes, .. } = workload.input else { return 0 };
        self.settings.sizing.bytes.unwrap_or(bytes)
    }

    /// The words before a program that runs under the pager, or that numactl places; none for other contenders.
    fn pager_words(&self, step: &Step, place: &str, stats: &Path) -> Result<Vec<String>, BenchFailure> {
        if let Contender::Numactl(node) = step.contender {
            return Ok(vec!["numactl".into(), format!("--membind={node}")]);
        }
        let Some(tier) = step.contender.tier(place, tier_bytes(step)) else { return Ok(Vec::new()) };
        let mut words = vec![
            self.aquifer(&step.contender)?.display().to_string(),
            "run".into(),
            "--dram".into(),
            step.local_bytes.to_string(),
        ];
        words.extend(["--tier".into(), tier, "--stats-json".into(), stats.display().to_string()]);
        words.extend(self.settings.aquifer_args.iter().cloned());
        words.push("--".into());
        Ok(words)
    }
}

/// Room in the tier for every block and for the pager's own needs.
pub(crate) fn tier_bytes(step: &Step) -> u64 {
    let data_bytes = step.footprint_bytes * if step.workload.processes > 1 { FORKED_ROOM } else { 1 };
    (data_bytes + data_bytes / 4 + 64 * MIB).next_multiple_of(2 * MIB)
}

/// Drops the page cache of a file, so that every contender reads it from the disk.
fn forget_cached(path: &Path) -> Result<(), BenchFailure> {
    let file = File::open(path).map_err(|error| BenchFailure::io(format!("cannot open {}", path.display()), &error))?;
    let dropped = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    dropped.map_err(|errno| BenchFailure::io(format!("cannot drop the cache of {}", path.display()), &errno.into()))
}

fn judge_end(step: &Step, settings: &Settings, finished: &Finished, measured: &Measured) -> Result<(), BenchFailure> {
    if finished.timed_out {
        return Err(BenchFailure::trouble(
            format!("not done after {} s", settings.timeout.as_secs()),
            "raise --timeout, or make the workload smaller",
        ));
    }
    if let (Some(limit), true) = (step.limit_bytes, measured.oom_kills > 0) {
        // The kernel counts pages of files there, too, and cannot take those away that are just being read.
        let what = match step.contender.is_ours() {
            true => "the budget was exceeded, or files that were being read took the rest of the limit",
            false => "what must stay resident does not fit",
        };
        return Err(BenchFailure::trouble(
            format!("killed by the kernel at the limit of {}: {what}", format_size(limit)),
            "",
        ));
    }
    if !finished.status.success() {
        return Err(BenchFailure::trouble(finished.complaint(), ""));
    }
    Ok(())
}
