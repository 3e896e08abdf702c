// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Describes this machine: the facts that a reader of a measurement needs, and the resources already in use.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The facts that go into every report.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    /// log2 of the number of pages that swap reads at a time; the bench does not change it.
    pub page_cluster: Option<u32>,
    pub swappiness: Option<u32>,
    pub transparent_hugepages: Option<String>,
    pub directory: PathBuf,
    pub filesystem: String,
    pub device: String,
    pub cgroup: String,
}

impl Machine {
    pub fn look(directory: &Path, cgroup: &str) -> Self {
        let mounts = read("/proc/self/mounts");
        let (device, filesystem) = mount_of(&mounts, directory);
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            cpu: read("/proc/cpuinfo")
                .lines()
                .find_map(|line| line.strip_prefix("model name"))
                .map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']))
                .into(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes("MemTotal:"),
            page_cluster: read("/proc/sys/vm/page-cluster").trim().parse().ok(),
            swappiness: read("/proc/sys/vm/swappiness").trim().parse().ok(),
            transparent_hugepages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            directory: directory.into(),
            filesystem,
            device,
            cgroup: cgroup.into(),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A field of /proc/meminfo in bytes.
pub fn memory_bytes(field: &str) -> u64 {
    let meminfo = read("/proc/meminfo");
    let kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok());
    kib.unwrap_or(0u64) * 1024
}

/// The word in brackets, as in `always [madvise] never`.
pub fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_string())
}

/// The active swap areas, as the kernel names them.
pub fn swap_areas() -> Vec<PathBuf> {
    parse_swaps(&read("/proc/swaps"))
}

/// The swap areas that still accept pages. An area that is being switched off is listed until the end, but accepts
/// none.
pub fn swap_areas_open() -> Vec<PathBuf> {
    if memory_bytes("SwapFree:") == 0 { Vec::new() } else { swap_areas() }
}

/// Bytes still used in areas that are being switched off. The kernel subtracts them from the free space of all other
/// areas together, so an area must be larger by that much to hold what it is meant to hold.
pub fn swap_closing_bytes() -> u64 {
    if swap_areas_open().is_empty() { memory_bytes("SwapTotal:") } else { 0 }
}

fn parse_swaps(text: &str) -> Vec<PathBuf> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .map(|path| PathBuf::from(unescape(path.trim_end_matches("\\040(deleted)"))))
        .collect()
}

/// The paths of all mount points.
pub fn mount_points() -> Vec<PathBuf> {
    read("/proc/self/mounts")
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(|path| PathBuf::from(unescape(path)))
        .collect()
}

pub fn is_mount_point(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    mount_points().contains(&real)
}

/// /proc writes blanks and backslashes in paths as `\040` and `\134`.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Device and file system that hold a path: those of the longest mount point that contains it; if several are equal, of
/// the last one.
fn mount_of(mounts: &str, path: &Path) -> (String, String) {
    let real = path.ancestors().find_map(|above| fs::canonicalize(above).ok()).unwrap_or_else(|| path.into());
    let mut best = (0, ("unknown".to_string(), "unknown".to_string()));
    for line in mounts.lines() {
        let mut words = line.split_whitespace();
        let (Some(device), Some(point), Some(kind)) = (words.next(), words.next(), words.next()) else { continue };
        let point = unescape(point);
        if real.starts_with(&point) && point.len() >= best.0 {
            best = (point.len(), (device.to_string(), kind.to_string()));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_areas_are_read_with_their_blanks() {
        let text = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0  partition 1 0 -2\n/my\\040dir/swap file 1 0 -3\n/gone\\040(deleted) file 1 0 -3\n";
        assert_eq!(parse_swaps(text), [PathBuf::from("/dev/zram0"), "/my dir/swap".into(), "/gone".into()]);
        assert!(parse_swaps("Filename\n").is_empty());
    }

    #[test]
    fn the_chosen_word() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn the_innermost_mount_holds_the_path() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /dev tmpfs rw 0 0\n";
        assert_eq!(mount_of(mounts, Path::new("/etc")), ("/dev/a".into(), "ext4".into()));
        assert_eq!(mount_of(mounts, Path::new("/dev/no/such")), ("tmpfs".into(), "tmpfs".into()));
    }
}
