// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How much memory this process may use: the machine's memory, or the lowest limit among its cgroup and that cgroup's
//! ancestors.
//!
//! Reads both cgroup versions, see cgroups(7): version 2 (`memory.max`, and `memory.high`, above which the kernel
//! throttles) and version 1 (`memory.limit_in_bytes`), each from the process's own cgroup up to the root that is
//! mounted here. A file that cannot be read sets no limit: a container may hide it.

use std::fs;
use std::path::{Component, Path, PathBuf};

use aquifer_core::units::ByteSize;

use crate::exit::{ExitCode, Failure};

/// A version 1 cgroup without a limit shows the largest multiple of a page in 63 bits; any value from here on means no
/// limit.
const V1_UNLIMITED_BYTES: u64 = 1 << 62;

/// A limit that a cgroup sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The maximum memory of the cgroup.
    pub bytes: ByteSize,
    /// The file that contains it.
    pub file: PathBuf,
}

/// The machine's memory, and the limit on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The machine's memory.
    pub machine: ByteSize,
    /// The lowest limit on the way to the root, if it is below the machine's memory.
    pub limit: Option<Limit>,
}

impl Allowed {
    /// Reads /proc/meminfo and the cgroups of this process.
    pub fn read() -> Result<Allowed, Failure> {
        let machine = memory_total()?;
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cgroup, mounts) = (text("/proc/self/cgroup"), text("/proc/self/mountinfo"));
        let limit = lowest(&files(&cgroup, &mounts), |path| fs::read_to_string(path).ok());
        Ok(Allowed { machine, limit: limit.filter(|limit| limit.bytes < machine) })
    }

    /// Returns the memory that may be used.
    pub fn bytes(&self) -> ByteSize {
        self.limit.as_ref().map_or(self.machine, |limit| limit.bytes)
    }
}

/// Returns the machine's memory, from /proc/meminfo; see proc_meminfo(5).
fn memory_total() -> Result<ByteSize, Failure> {
    let failure = |cause: String, remedy| Failure::new(ExitCode::CannotStart, cause, remedy);
    let text = fs::read_to_string("/proc/meminfo")
        .map_err(|error| failure(format!("/proc/meminfo cannot be read: {error}"), "mount /proc"))?;
    let kibibytes =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let kibibytes =
        kibibytes.ok_or_else(|| failure("/proc/meminfo does not say MemTotal".into(), "mount a Linux /proc"))?;
    Ok(ByteSize(kibibytes << 10))
}

/// Returns the files that may contain a limit, for each cgroup from this process's own up to the mounted root, in both
/// hierarchies.
fn files(cgroup: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroup.lines() {
        let mut words = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (words.next(), words.next(), words.next()) else { continue };
        let (kind, names): (_, &[&str]) = match controllers {
            "" => ("cgroup2", &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|name| name == "memory") => ("cgroup", &["memory.limit_in_bytes"]),
            _ => continue,
        };
        let Some((root, point)) = mounted(mounts, kind) else { continue };
        for directory in ways_up(path, &root, &point) {
            files.extend(names.iter().map(|name| directory.join(name)));
        }
    }
    files
}

/// Returns where the hierarchy is mounted, and which of its cgroups is the root of that mount: (root, mount point). See
/// proc_pid_mountinfo(5).
fn mounted(mounts: &str, kind: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let filesystem: Vec<&str> = filesystem.split(' ').collect();
        let [_, _, _, root, point, ..] = place[..] else { return None };
        let [found, _, options] = filesystem[..] else { return None };
        let has_memory = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        (found == kind && has_memory).then(|| (unescaped(root), unescaped(point)))
    })
}

/// Decodes a path of mountinfo, where blanks and backslashes are written in octal.
fn unescaped(path: &str) -> PathBuf {
    let blanks = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    blanks.replace("\\134", "\\").into()
}

/// Returns the directories of the cgroup `path` and of its ancestors. A cgroup outside the mounted part is not visible;
/// the mounted root then stands for it.
fn ways_up(path: &str, root: &Path, point: &Path) -> Vec<PathBuf> {
    let inside = Path::new(path).strip_prefix(root).ok();
    let inside = inside.filter(|path| path.components().all(|part| matches!(part, Component::Normal(_))));
    let deepest = point.join(inside.unwrap_or(Path::new("")));
    deepest.ancestors().take_while(|directory| directory.starts_with(point)).map(Path::to_owned).collect()
}

fn lowest(files: &[PathBuf], read: impl Fn(&Path) -> Option<String>) -> Option<Limit> {
    let limit = |file: &PathBuf| {
        let bytes = read(file)?.trim().parse::<u64>().ok().filter(|bytes| *bytes < V1_UNLIMITED_BYTES)?;
        Some(Limit { bytes: ByteSize(bytes), file: file.clone() })
    };
    files.iter().filter_map(limit).min_by_key(|limit| limit.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2_MOUNTS: &str = "35 31 0:32 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    fn limit(cgroup: &str, mounts: &str, present: &[(&str, &str)]) -> Option<(u64, String)> {
        let read = |path: &Path| {
            let (_, text) = present.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        };
        let limit = lowest(&files(cgroup, mounts), read)?;
        Some((limit.bytes.0, limit.file.display().to_string()))
    }

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let cgroup = "0::/user.slice/a/b\n";
        for (present, found) in [
            (&[("/sys/fs/cgroup/user.slice/a/b/memory.max", "max\n")][..], None),
            (
                &[("/sys/fs/cgroup/user.slice/a/b/memory.max", "4096\n")],
                Some("/sys/fs/cgroup/user.slice/a/b/memory.max"),
            ),
            (
                &[
                    ("/sys/fs/cgroup/user.slice/a/b/memory.max", "8192\n"),
                    ("/sys/fs/cgroup/user.slice/memory.max", "4096\n"),
                ],
                Some("/sys/fs/cgroup/user.slice/memory.max"),
            ),
            (&[("/sys/fs/cgroup/user.slice/a/memory.high", "4096\n")], Some("/sys/fs/cgroup/user.slice/a/memory.high")),
            (&[("/sys/fs/cgroup/other/memory.max", "4096\n")], None),
        ] {
            assert_eq!(limit(cgroup, V2_MOUNTS, present), found.map(|file| (4096, file.to_owned())), "{present:?}");
        }
    }

    #[test]
    fn version_1_has_a_number_for_no_limit() {
        let cgroup = "4:cpu,memory:/a\n3:cpuset:/c\n0::/\n";
        let own = "/sys/fs/cgroup/memory/a/memory.limit_in_bytes";
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit(cgroup, V1_MOUNTS, &[(own, "9223372036854771712\n")]), None);
        assert_eq!(limit(cgroup, V1_MOUNTS, &[(own, "8192\n"), (root, "4096\n")]), Some((4096, root.to_owned())));
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy() {
        // The root of the mount is the container's cgroup: without a cgroup namespace, the path is still that of the
        // host.
        let mounts = V2_MOUNTS.replace("0:32 / ", "0:32 /docker/1 ");
        let file = "/sys/fs/cgroup/memory.max";
        assert_eq!(limit("0::/docker/1\n", &mounts, &[(file, "4096\n")]), Some((4096, file.to_owned())));
        let inner = "/sys/fs/cgroup/in/memory.max";
        assert_eq!(limit("0::/docker/1/in\n", &mounts, &[(inner, "4096\n")]), Some((4096, inner.to_owned())));
        // The cgroup is outside the mounted part, or above the root of the namespace: only the mounted root can be
        // read.
        assert_eq!(limit("0::/../2\n", V2_MOUNTS, &[(file, "4096\n")]), Some((4096, file.to_owned())));
        assert_eq!(limit("0::/elsewhere\n", &mounts, &[(file, "4096\n")]), Some((4096, file.to_owned())));
    }

    #[test]
    fn broken_texts_limit_nothing() {
        for (cgroup, mounts) in [("", ""), ("x", V2_MOUNTS), ("0::/a", "35 31\n"), ("0::/a", "a - cgroup2\n")] {
            assert_eq!(limit(cgroup, mounts, &[("/sys/fs/cgroup/a/memory.max", "1")]), None, "{cgroup} {mounts}");
        }
    }
}
