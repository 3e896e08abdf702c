// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Returns the program's borrowed memory to its donors when the last process of the tree has ended, however it ended.
//!
//! The processes cannot return it themselves: until its end, a process may have a thread that touches an evicted page.
//! The launcher outlives them. Each process maps the statistics segment from before it borrows until it ends, and the
//! processes that map it are found in /proc, so nothing is taken from a child that is still running. If such a child
//! is left, or if the donor does not answer, the memory returns later: when nobody renews its leases, and they expire.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use aquifer_config::Config;
use aquifer_stats::{Counter, Counters};
use aquifer_tiers::TierSpec;
use nix::unistd::getuid;

/// How many times to look, and the pause between two looks: a process that was killed together with the program takes a
/// moment to end.
const LOOKS_MAX: u32 = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Sends the exit report to the donors, if the program wrote anything back and no process that may need it remains.
pub fn send(config: &Config, counters: &Counters) {
    let Some(tree) = config.tree else { return };
    let mut specs: Vec<TierSpec> = config.tiers.iter().filter_map(|tier| tier.parse().ok()).collect();
    if counters.count(Counter::WrittenBackBytes) == 0 {
        return;
    }
    let Some(inode) = counters.descriptor().and_then(inode) else { return };
    for look in 0..LOOKS_MAX {
        if look > 0 {
            thread::sleep(LOOK_AGAIN);
        }
        if !anybody_maps(inode) {
            specs.iter_mut().for_each(|spec| spec.belong_to(tree));
            return specs.iter().for_each(aquifer_tiers::report_exit);
        }
    }
}

fn inode(segment: BorrowedFd<'_>) -> Option<u64> {
    let file = fs::File::from(segment.try_clone_to_owned().ok()?);
    file.metadata().ok().map(|metadata| metadata.ino())
}

/// Returns whether another process maps the segment with this inode: true if in doubt. See proc_pid_maps(5).
fn anybody_maps(inode: u64) -> bool {
    let (Ok(processes), Some(since)) = (fs::read_dir("/proc"), started("self")) else { return true };
    let own = std::process::id();
    let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Processes older than this one cannot have inherited anything from it.
    let mut later = ids.filter(|id| *id != own && started(&id.to_string()).is_some_and(|at| at >= since));
    later.any(|id| match fs::read(format!("/proc/{id}/maps")) {
        Ok(maps) => names(&String::from_utf8_lossy(&maps), inode),
        // The process belongs to another user, and so does not belong to the tree (programs that change their user are
        // not supported); or it belongs to this user but does not allow itself to be inspected.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => is_of_this_user(id),
        Err(_) => false,
    })
}

/// Returns when a process was started, in kernel clock ticks. See proc_pid_stat(5); the process name may contain any
/// characters.
fn started(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(19)?.parse().ok()
}

fn is_of_this_user(id: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{id}/status")) else { return false };
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
    user == Some(getuid().as_raw())
}

/// Returns whether the text of a maps file lists the segment.
fn names(maps: &str, inode: u64) -> bool {
    let name = format!("/memfd:{}", aquifer_stats::SEGMENT_NAME.to_string_lossy());
    let inode = inode.to_string();
    maps.lines().any(|line| line.contains(&name) && line.split_whitespace().nth(4) == Some(&inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segment_is_known_by_its_name_and_number() {
        let maps = "7f5c0000-7f5c1000 rw-p 00000000 00:00 0\n\
                    7f5c2000-7f5c3000 rw-s 00000000 00:01 4711   /memfd:aquifer-stats (deleted)\n\
                    7f5c4000-7f5c5000 r--p 00000000 08:01 815    /usr/lib/libc.so.6\n";
        assert!(names(maps, 4711));
        assert!(!names(maps, 815) && !names(maps, 471) && !names("", 0));
    }

    #[test]
    fn this_process_maps_its_own() {
        let counters = Counters::create().unwrap();
        let inode = inode(counters.descriptor().unwrap()).unwrap();
        assert!(names(&fs::read_to_string("/proc/self/maps").unwrap(), inode));
        assert!(is_of_this_user(std::process::id()) && !is_of_this_user(u32::MAX));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (own, childs) = (started("self").unwrap(), started(&child.id().to_string()).unwrap());
        assert!(own > 0 && childs >= own);
        let _ = child.kill();
        let _ = child.wait();
    }
}
