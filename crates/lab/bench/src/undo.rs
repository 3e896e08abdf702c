// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bench's changes to a machine, and how each is undone.
//!
//! An owner pushes the undo *before* it makes the change, and each undo is harmless if the change was never made. The
//! list runs backwards when it is dropped: at the end, on an error, on a panic, after a signal. After a SIGKILL,
//! `leftovers.rs` finds the changes by name at the next start and passes them to the same code.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::BenchFailure;
use crate::hosts;
use crate::machine;
use crate::process::call;

/// A name that only this process uses: its id and its start time, a pair that never recurs. Short, because a swap label
/// has 16 bytes: `aqb` + at most 13.
pub fn token_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may contain spaces and brackets, so fields are counted after its last bracket. The start time is
    // field 22.
    let start: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(format!("{}-{}", base36(u64::from(pid)), base36(start)))
}

/// The token of this process.
pub fn own_token() -> String {
    token_of(std::process::id()).unwrap_or_else(|| format!("{}-0", base36(u64::from(std::process::id()))))
}

/// True while the process that made the token lives.
pub fn is_alive(token: &str) -> bool {
    let pid = token
        .split('-')
        .next()
        .and_then(|digits| u64::from_str_radix(digits, 36).ok())
        .and_then(|pid| u32::try_from(pid).ok());
    pid.and_then(token_of).as_deref() == Some(token)
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

/// The prefix of the name of every file, directory or cgroup of the bench.
pub const NAME_PREFIX: &str = "aquifer-bench-";

/// The kind of directory in which a server keeps files under names of its own.
pub const SERVER_KIND: &str = "server";

/// The kind of directory that holds certificates and their keys.
pub const CERTIFICATES_KIND: &str = "certificates";

/// `aquifer-bench-TOKEN.KIND`
pub fn name(token: &str, kind: &str) -> String {
    format!("{NAME_PREFIX}{token}.{kind}")
}

/// Finds the token in a path or a name, if it is one of the bench's.
pub fn token_in(text: &str) -> Option<&str> {
    let after = text.split_once(NAME_PREFIX)?.1;
    let token = after.split(['.', '/', ' ']).next()?;
    let mut parts = token.split('-');
    let is_part = |part: Option<&str>| {
        part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
    };
    (is_part(parts.next()) && is_part(parts.next()) && parts.next().is_none()).then_some(token)
}

/// One change to undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    DetachLoop(PathBuf),
    RemoveCgroup(PathBuf),
    RemoveDirectory(PathBuf),
    RemoveFile(PathBuf),
    /// A network namespace by its name's path, with its cable and its processes.
    RemoveHost(PathBuf),
    /// A directory with everything that a server has left in it.
    RemoveTree(PathBuf),
    /// Empties a zram device; `remove` is true if the bench had added it.
    ResetZram {
        index: u32,
        remove: bool,
    },
    SwapOff(PathBuf),
    Unmount(PathBuf),
}

impl Undo {
    /// Undoes the change. Doing it twice, or without need, is not an error.
    pub fn perform(&self) -> Result<(), BenchFailure> {
        match self {
            Self::DetachLoop(device) => call("losetup", &["-d", &device.to_string_lossy()]).map(drop),
            Self::RemoveCgroup(path) => remove_cgroup(path),
            Self::RemoveDirectory(path) => unless_gone(path, fs::remove_dir(path)),
            Self::RemoveFile(path) => unless_gone(path, fs::remove_file(path)),
            Self::RemoveHost(path) => hosts::remove(path),
            Self::RemoveTree(path) => unless_gone(path, fs::remove_dir_all(path)),
            Self::ResetZram { index, remove } => {
                write_sys(&format!("/sys/block/zram{index}/reset"), "1")?;
                if *remove { write_sys("/sys/class/zram-control/hot_remove", &index.to_string()) } else { Ok(()) }
            }
            Self::SwapOff(path) if machine::swap_areas().contains(path) => {
                call("swapoff", &[&path.to_string_lossy()]).map(drop)
            }
            Self::SwapOff(_) => Ok(()),
            Self::Unmount(path) if machine::is_mount_point(path) => {
                call("umount", &[&path.to_string_lossy()]).map(drop)
            }
            Self::Unmount(_) => Ok(()),
        }
    }
}

fn unless_gone(path: &Path, result: io::Result<()>) -> Result<(), BenchFailure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(BenchFailure::io(format!("cannot remove {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Writes to a file of /sys, with an error that names it.
pub fn write_sys(path: &str, text: &str) -> Result<(), BenchFailure> {
    fs::write(path, text).map_err(|error| BenchFailure::io(format!("cannot write {text} to {path}"), &error))
}

/// Ends the processes in the cgroup and removes it. The kernel needs a moment to release ended processes.
fn remove_cgroup(path: &Path) -> Result<(), BenchFailure> {
    for attempt in 0..100 {
        match fs::remove_dir(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if attempt == 99 => {
                return Err(BenchFailure::io(format!("cannot remove {}", path.display()), &error));
            }
            Err(_) => {}
        }
        let processes = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in processes.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Undoes everything in reverse order when dropped.
#[derive(Debug, Default)]
pub struct UndoList(Vec<Undo>);

impl UndoList {
    pub fn push(&mut self, undo: Undo) {
        self.0.push(undo);
    }
}

impl Drop for UndoList {
    fn drop(&mut self) {
        while let Some(undo) = self.0.pop() {
            if let Err(failure) = undo.perform() {
                eprintln!("aquifer bench: could not clean up ({undo:?}): {failure}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_as_long_as_its_process() {
        let token = own_token();
        assert!(is_alive(&token));
        assert!(token.len() <= 13, "{token} does not fit a swap label");
        assert!(!is_alive("1-zzzzzz"), "process 1 did not start then");
        assert!(!is_alive("rubbish"));
        assert!(!is_alive(""));
    }

    #[test]
    fn only_our_names_are_ours() {
        assert_eq!(token_in("/d/aquifer-bench-1a-2b.swap"), Some("1a-2b"));
        assert_eq!(token_in("/d/aquifer-bench-1a-2b.tmpfs/swap"), Some("1a-2b"));
        for foreign in [
            "/swapfile",
            "/d/aquifer-bench",
            "/d/aquifer-bench-",
            "/d/aquifer-bench-x.swap",
            "/d/aquifer-bench-A-B.swap",
            "aquifer-bench-1-2-3",
        ] {
            assert_eq!(token_in(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_list_runs_backwards_and_twice_is_no_error() {
        let directory = std::env::temp_dir().join(name(&own_token(), "undo-test"));
        fs::create_dir_all(&directory).unwrap();
        let mut list = UndoList::default();
        list.push(Undo::RemoveDirectory(directory.clone()));
        list.push(Undo::RemoveFile(directory.join("file")));
        fs::write(directory.join("file"), "x").unwrap();
        drop(list);
        assert!(!directory.exists());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("temp-1.rdb"), "x").unwrap();
        assert_eq!(Undo::RemoveTree(directory.clone()).perform(), Ok(()));
        assert_eq!(Undo::RemoveTree(directory.clone()).perform(), Ok(()));
        assert!(!directory.exists());
        assert_eq!(Undo::RemoveDirectory(directory.clone()).perform(), Ok(()));
        assert_eq!(Undo::SwapOff(directory).perform(), Ok(()));
    }
}
