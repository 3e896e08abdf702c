// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts the program: the statistics segment, the environment, the child.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use aquifer_config::{
    BlockSize, Budget, LEDGER_BUDGET_MAX_WORD, LEDGER_BUDGET_WORD, LEDGER_NAME, LEDGER_WORDS, VARIABLE,
};
use aquifer_core::units::{ByteSize, PAGE_BYTES};
use aquifer_stats::{Counters, Gauge, Text};
use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use aquifer_sys::shared_segment::SharedSegment;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::unistd::Pid;

use super::numa::Placed;
use super::settings::RunSettings;
use super::supervise::Signals;
use super::unsafe_edge;
use crate::exit::{ExitCode, Failure};
use crate::log::{self, LogFormat};

/// The lowest number for the inherited descriptor: out of the way of programs that expect 3 to be the first free one,
/// and below the usual limit of 1024.
const STATS_FD_MIN: i32 = 200;

/// The remedy where there are no more descriptors.
pub const REMEDY_OPEN_FILES: &str = "raise the limit on open files (ulimit -n)";
const REMEDY_RECORD: &str = "name a file in a directory that exists";

/// Creates the statistics segment and writes what is known before the pager starts; the pager overwrites it.
pub fn statistics(settings: &RunSettings) -> Result<Counters, Failure> {
    let counters = Counters::create().map_err(|error| {
        let remedy = remedy(&error).unwrap_or("free memory, or raise the limit on it (ulimit -v)");
        cannot_start(format!("the statistics segment cannot be made: {error}"), remedy)
    })?;
    let config = &settings.config;
    let block = match config.block {
        BlockSize::Auto => "auto".to_owned(),
        BlockSize::Bytes(bytes) => ByteSize(bytes).to_string(),
    };
    let tiers = if config.tiers.is_empty() { format!("flash:{}", config.state_dir) } else { config.tiers.join(" ") };
    counters.write(Text::Program, &settings.program.name.to_string_lossy());
    counters.write(Text::Policy, config.policy.word());
    counters.write(Text::Tier, &tiers);
    counters.write(Text::Block, &block);
    counters.write(Text::Delivery, config.delivery.word());
    counters.write(Text::Exchange, config.exchange.word());
    counters.set(Gauge::DramBudgetBytes, config.dram_bytes);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    counters.set(Gauge::StartTimeUnixS, now.as_secs());
    Ok(counters)
}

/// Creates the file for `--record`, or empties it, so that a wrong path is noticed before the program starts. The first
/// process that outgrows its budget writes to it.
pub fn empty_recording(path: Option<&str>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    // Anything but a regular file or a directory, a FIFO for instance, is only checked: opening it would wait for a
    // reader.
    let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
    let flags = if is_other { libc::O_PATH } else { libc::O_WRONLY | libc::O_CREAT };
    let failure =
        |error: std::io::Error| cannot_start(format!("--record {path} cannot be written: {error}"), REMEDY_RECORD);
    let opened = safe_open::open(Path::new(path), Purpose::Memory, flags, 0o600);
    let file = opened.map_err(|refused| match refused {
        OpenFailure::Io(error) => failure(error),
        OpenFailure::Objected(objected) => cannot_start(format!("--record: {objected}"), ""),
    })?;
    if is_other { Ok(()) } else { file.set_len(0).map_err(failure) }
}

/// Starts the program, which inherits the launcher's standard streams, working directory, process group and terminal.
///
/// Also returns the budget ledger, which the processes of a tree share.
pub fn start(
    settings: &RunSettings,
    counters: &Counters,
    signals: &Signals,
) -> Result<(Pid, Option<SharedSegment>), Failure> {
    let segment = counters.descriptor().expect("the segment was made here, so its descriptor is too");
    let stats_fd = inheritable(segment, "the statistics segment")?;
    let mut config = settings.config.clone();
    config.stats_fd = Some(stats_fd);
    // Held until the program has started and inherited it; then `unmanaged.rs` reads it while the program runs.
    let ledger = (settings.budget == Budget::Tree).then(|| ledger(settings)).transpose()?;
    config.ledger_fd = ledger
        .as_ref()
        .and_then(SharedSegment::descriptor)
        .map(|segment| inheritable(segment, "the ledger of the budget"))
        .transpose()?;
    let program = &settings.program;
    let mut command = Command::new(&program.path);
    command.arg0(&program.name).args(&program.args);
    command.env(VARIABLE, config.to_json()).env("LD_PRELOAD", &settings.ld_preload);
    if log::chosen() == LogFormat::Json {
        command.env(log::VARIABLE, "json");
    }
    unsafe_edge::tie_to_parent(&mut command, signals.mask_before());
    let enter = |placement| Placed::enter(placement, settings.strict, settings.quiet);
    let placed = settings.placement.as_ref().map(enter).transpose()?;
    let child = command.spawn();
    drop(placed);
    let child = child.map_err(|error| {
        let cause = format!("'{}' cannot be started: {error}", program.path.display());
        match (remedy(&error), error.kind()) {
            (Some(remedy), _) => cannot_start(cause, remedy),
            (None, ErrorKind::NotFound) => {
                Failure::new(ExitCode::NotFound, cause, "it was there a moment ago; try again")
            }
            (None, ErrorKind::ArgumentListTooLong) => {
                Failure::new(ExitCode::CannotRun, cause, "give it fewer arguments, or a smaller environment")
            }
            (None, _) => Failure::new(ExitCode::CannotRun, cause, "see execve(2) for the cause"),
        }
    })?;
    let pid = i32::try_from(child.id()).expect("the kernel's process ids fit in 22 bits");
    Ok((Pid::from_raw(pid), ledger))
}

/// Creates the budget ledger for the processes of the tree.
fn ledger(settings: &RunSettings) -> Result<SharedSegment, Failure> {
    let segment = SharedSegment::create(LEDGER_NAME, LEDGER_WORDS).map_err(|error| {
        let remedy = remedy(&error).unwrap_or("free memory, or raise the limit on it (ulimit -v)");
        cannot_start(format!("the ledger of the budget cannot be made: {error}"), remedy)
    })?;
    let (budget, max) = (settings.config.dram_bytes, settings.dram_bytes_max);
    for (word, bytes) in [(LEDGER_BUDGET_WORD, budget), (LEDGER_BUDGET_MAX_WORD, max)] {
        segment.words()[word].store(bytes / PAGE_BYTES, Ordering::Relaxed);
    }
    Ok(segment)
}

/// Returns which limit of this process to raise, if a limit caused the error.
fn remedy(error: &std::io::Error) -> Option<&'static str> {
    Some(match Errno::from_raw(error.raw_os_error()?) {
        Errno::EAGAIN => "raise the limit on processes (ulimit -u)",
        Errno::EFBIG => "raise the limit on file size (ulimit -f)",
        Errno::EMFILE | Errno::ENFILE => REMEDY_OPEN_FILES,
        _ => return None,
    })
}

/// Duplicates a descriptor so that it survives exec. The duplicate stays open in this process, which runs no other
/// program.
fn inheritable(segment: BorrowedFd<'_>, name: &str) -> Result<i32, Failure> {
    let high = fcntl(segment, FcntlArg::F_DUPFD(STATS_FD_MIN));
    // A low limit on open files allows no such number; any number will do then.
    high.or_else(|_| fcntl(segment, FcntlArg::F_DUPFD(segment.as_raw_fd())))
        .map_err(|errno| cannot_start(format!("{name} cannot be shared: {}", errno.desc()), REMEDY_OPEN_FILES))
}

fn cannot_start(cause: String, remedy: &str) -> Failure {
    Failure::new(ExitCode::CannotStart, cause, remedy)
}
