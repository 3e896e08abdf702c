// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Waits until the disk is idle, so that no run pays for the remaining work of the run before it.
//!
//! Removing a file of a gigabyte takes effect later: on a file system mounted with `discard` its blocks are discarded
//! with the next commit of the journal, seconds later, and data written to it may still be in flight. The next
//! contender would share the disk with that work.
//!
//! Source: `Documentation/block/stat.rst` of Linux.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;

/// A disk is idle when it transfers less than this between two checks.
const REST_SECTORS: u64 = (1 << 20) / 512;
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(250);
/// Number of consecutive checks that must find it idle.
const LOOKS: u32 = 4;
/// Bounds the wait, because other processes may use the disk all the time.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Waits for the disk of `dir`; not at all if the kernel has no statistics for it.
pub fn wait_for_idle(dir: &Path, interrupt: &Interrupt) -> Result<(), BenchFailure> {
    let Some(stat_file) = fs::metadata(dir).ok().map(|metadata| stat_file(metadata.dev())) else { return Ok(()) };
    rustix::fs::sync();
    let started = Instant::now();
    let mut rest = Rest::default();
    while started.elapsed() < WAIT_MAX {
        let Some(now) = moved(&stat_file) else { return Ok(()) };
        if rest.saw(now) {
            break;
        }
        interrupt.check()?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// The result of the checks so far.
#[derive(Default)]
struct Rest {
    last: Option<u64>,
    quiet: u32,
}

impl Rest {
    /// Records the number of sectors transferred by now. Returns whether the disk is idle.
    fn saw(&mut self, now: u64) -> bool {
        let still = self.last.is_some_and(|last| now.saturating_sub(last) < REST_SECTORS);
        self.quiet = if still { self.quiet + 1 } else { 0 };
        self.last = Some(now);
        self.quiet >= LOOKS
    }
}

fn stat_file(device: u64) -> String {
    format!("/sys/dev/block/{}:{}/stat", rustix::fs::major(device), rustix::fs::minor(device))
}

fn moved(stat_file: &str) -> Option<u64> {
    sectors_of(&fs::read_to_string(stat_file).ok()?)
}

/// Sectors read, written and discarded so far.
fn sectors_of(text: &str) -> Option<u64> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let (read, written) = (fields.get(2)?, fields.get(6)?);
    // Discards are counted since Linux 4.18.
    Some(read + written + fields.get(13).unwrap_or(&0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_statistics_are_parsed() {
        assert_eq!(sectors_of("1 2 3 4 5 6 70 8 0 10 11"), Some(73));
        assert_eq!(sectors_of("  1 2 3 4 5 6 70 8 0 10 11 5 0 900 1 2 3\n"), Some(973));
        assert_eq!(sectors_of("1 2 3"), None);
        assert_eq!(sectors_of(""), None);
    }

    #[test]
    fn a_disk_is_idle_after_several_quiet_checks_in_a_row() {
        let mut rest = Rest::default();
        let moved = [0, 10, 20, 30, 30 + REST_SECTORS, 30 + REST_SECTORS, 31 + REST_SECTORS, 32 + REST_SECTORS];
        assert!(moved.into_iter().all(|now| !rest.saw(now)), "sectors were transferred in between");
        assert!(rest.saw(33 + REST_SECTORS));
    }

    #[test]
    fn a_path_without_disk_statistics_is_not_waited_for() {
        wait_for_idle(Path::new("/proc"), &Interrupt::default()).expect("nothing to wait for");
        wait_for_idle(Path::new("/nowhere"), &Interrupt::default()).expect("nothing to wait for");
    }
}
