// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds running instances: processes that have a statistics segment open. See proc_pid_fd(5).
//!
//! There is no registry, socket or file that could become stale: the processes that hold a segment are the list. The
//! launcher and the program hold the same segment, so segments are told apart by their inode.

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use aquifer_config::{LEDGER_NAME, LEDGER_WORDS};
use aquifer_exporter::processes::{namespaced, pid_here};
use aquifer_stats::{SEGMENT_NAME, SettleTime, Snapshot};
use aquifer_sys::shared_segment::SharedSegment;
use nix::libc;

use crate::exit::{ExitCode, Failure};

/// One program that runs under `aquifer run`, as others see it.
#[derive(Debug)]
pub struct Instance {
    /// Processes that have the segment open.
    holders: Vec<u32>,
    inode: (u64, u64),
    segment: File,
}

/// Returns the link target that the kernel shows for a segment: every memfd appears as a deleted path.
fn shown(name: &CStr) -> String {
    format!("/memfd:{} (deleted)", name.to_string_lossy())
}

impl Instance {
    /// Returns the current values. All snapshots of one look at the instances share one `timeout`.
    pub fn snapshot(&self, timeout: &SettleTime) -> Result<Snapshot, Failure> {
        let mut snapshot = aquifer_stats::read_in(self.segment.as_fd(), timeout)
            .map_err(|error| Failure::new(ExitCode::Failure, format!("process {}: {error}", self.holders[0]), ""))?;
        snapshot.set_pid(snapshot.pid().and_then(|written| pid_here(written, &self.holders, namespaced)));
        Ok(snapshot)
    }

    /// Returns the first of the processes that have the segment open.
    pub fn holder(&self) -> u32 {
        self.holders[0]
    }
}

impl Instance {
    /// Returns the shared budget ledger of this instance, opened for changes, or `None` if each process has its own
    /// budget.
    pub fn ledger(&self) -> Result<Option<SharedSegment>, Failure> {
        // Searches all holders of the segment: the launcher holds the budget ledger for as long as the program lives.
        let same = all()?.into_iter().find(|instance| instance.inode == self.inode);
        let holders = same.map_or_else(|| self.holders.clone(), |instance| instance.holders);
        let link = shown(LEDGER_NAME);
        let held = holders.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok()).flatten().flatten();
        let found = held
            .map(|entry| entry.path())
            .find(|path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == link.as_str()));
        let Some(path) = found else { return Ok(None) };
        let open = || {
            let file = open_memory(&path, true)?.ok_or(io::ErrorKind::InvalidInput)?;
            SharedSegment::attach_of_other(file.as_raw_fd(), LEDGER_WORDS)
        };
        open().map(Some).map_err(|error: io::Error| {
            let cause = format!("the ledger of the budget ({}) cannot be opened: {error}", path.display());
            Failure::new(ExitCode::Failure, cause, "run as the program's user, or as root")
        })
    }
}

/// Returns all instances that this user may inspect, oldest process first.
pub fn all() -> Result<Vec<Instance>, Failure> {
    let processes = fs::read_dir("/proc")
        .map_err(|error| Failure::new(ExitCode::Failure, format!("/proc cannot be read: {error}"), "mount /proc"))?;
    let mut pids: Vec<u32> = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut instances = Vec::new();
    for pid in pids {
        // Skips processes of other users and processes that have just ended.
        let _ = collect(pid, &mut instances);
    }
    Ok(instances)
}

/// Returns the instance whose program or launcher is `pid`.
pub fn of_process(pid: u32) -> Result<Instance, Failure> {
    let mut found = Vec::new();
    if let Err(error) = collect(pid, &mut found) {
        let (cause, remedy) = match error.kind() {
            io::ErrorKind::NotFound => {
                (format!("there is no process {pid}"), "see 'aquifer stat' for the programs that run")
            }
            io::ErrorKind::PermissionDenied => {
                (format!("process {pid} belongs to another user"), "run as that user, or as root")
            }
            _ => (format!("process {pid} cannot be looked into: {error}"), "run as its user, or as root"),
        };
        return Err(Failure::new(ExitCode::Failure, cause, remedy));
    }
    // A program may close descriptors that it does not know, but its launcher keeps the segment open. Finds that
    // segment by the pid that the pager wrote into it.
    if found.is_empty() {
        found = all()?;
        let timeout = SettleTime::default();
        found.retain(|instance| instance.snapshot(&timeout).is_ok_and(|numbers| numbers.pid() == Some(pid)));
    }
    found.pop().ok_or_else(|| {
        let cause = format!("process {pid} does not run under aquifer");
        Failure::new(ExitCode::Failure, cause, "start it with 'aquifer run', or see 'aquifer stat' for those that do")
    })
}

/// Returns all instances, or only that of `pid`.
pub fn asked_for(pid: Option<u32>) -> Result<Vec<Instance>, Failure> {
    match pid {
        Some(pid) => of_process(pid).map(|instance| vec![instance]),
        None => all(),
    }
}

/// Opens a file that another process has open; `None` if it is not a regular file. The link's target alone does not
/// show this: it may be a FIFO, for example, which would block the open for ever. So the type is checked first.
fn open_memory(path: &Path, is_written: bool) -> io::Result<Option<File>> {
    let looked_at = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !looked_at.metadata()?.is_file() {
        return Ok(None);
    }
    let itself = format!("/proc/self/fd/{}", looked_at.as_raw_fd());
    OpenOptions::new().read(true).write(is_written).open(itself).map(Some)
}

/// Adds the segments that `pid` holds.
fn collect(pid: u32, instances: &mut Vec<Instance>) -> io::Result<()> {
    let link = shown(SEGMENT_NAME);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if target.as_os_str() != link.as_str() {
            continue;
        }
        let Some(segment) = open_memory(&path, false)? else { continue };
        let metadata = segment.metadata()?;
        let inode = (metadata.dev(), metadata.ino());
        match instances.iter_mut().find(|instance| instance.inode == inode) {
            Some(known) if known.holders.contains(&pid) => {}
            Some(known) => known.holders.push(pid),
            None => instances.push(Instance { holders: vec![pid], inode, segment }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_stats::{Counter, Counters};

    #[test]
    fn this_process_is_found_while_it_holds_a_segment() {
        let counters = Counters::create().unwrap();
        counters.add(Counter::Faults, 11);
        // Other tests of this process may hold segments at the same time.
        let timeout = SettleTime::default();
        let mine = |instance: &Instance| {
            instance.snapshot(&timeout).is_ok_and(|numbers| numbers.counter(Counter::Faults) == 11)
        };
        let found = all().unwrap();
        let instance = found.iter().find(|instance| mine(instance)).expect("the segment is listed");
        assert_eq!(instance.holders, [std::process::id()]);
        assert!(of_process(std::process::id()).is_ok());
        drop(counters);
    }

    #[test]
    fn other_processes_are_named_as_what_they_are() {
        let nobody = of_process(u32::MAX - 1).unwrap_err();
        assert!(nobody.cause.starts_with("there is no process"), "{nobody}");
    }
}
