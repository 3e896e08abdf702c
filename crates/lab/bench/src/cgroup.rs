// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One cgroup per run: the limit that the kernel enforces, and the kernel's own measurement of the peak.
//!
//! Both hierarchies are supported: v1 (`memory.limit_in_bytes`) and v2 (`memory.max`). Only cgroups with the bench's
//! name are created, written to or removed. On v2 the memory controller must already be enabled for children of the
//! root, since enabling it would change a cgroup that the bench does not own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::BenchFailure;
use crate::undo::{self, Undo, UndoList};

/// A mounted hierarchy with the memory controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

impl Hierarchy {
    /// Finds the hierarchy and makes sure that a cgroup can be created in it, or says why not.
    pub fn detect(token: &str) -> Result<Self, BenchFailure> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let hierarchy =
            Self::in_mounts(&mounts, |path| fs::read_to_string(path).unwrap_or_default()).ok_or_else(|| {
                BenchFailure::trouble(
                    "no cgroup hierarchy with the memory controller is mounted",
                    "mount cgroup2 at /sys/fs/cgroup",
                )
            })?;
        if let Self::V2(root) = &hierarchy {
            let control = root.join("cgroup.subtree_control");
            if !fs::read_to_string(&control).unwrap_or_default().split_whitespace().any(|word| word == "memory") {
                return Err(BenchFailure::trouble(
                    "the memory controller is off for children of the root cgroup",
                    format!("run: echo +memory > {}", control.display()),
                ));
            }
        }
        drop(Cgroup::create(&hierarchy, token, None, false)?);
        Ok(hierarchy)
    }

    /// v1 if it has the memory controller, otherwise v2 if that has it. `read` reads a file, or returns an empty
    /// string.
    fn in_mounts(mounts: &str, read: impl Fn(&Path) -> String) -> Option<Self> {
        let mut unified = None;
        for line in mounts.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, point, kind, options, ..] = words.as_slice() else { continue };
            match *kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => {
                    return Some(Self::V1(PathBuf::from(point)));
                }
                "cgroup2"
                    if read(&Path::new(point).join("cgroup.controllers"))
                        .split_whitespace()
                        .any(|word| word == "memory") =>
                {
                    unified = Some(Self::V2(PathBuf::from(point)));
                }
                _ => {}
            }
        }
        unified
    }

    pub fn root(&self) -> &Path {
        match self {
            Self::V1(root) | Self::V2(root) => root,
        }
    }

    /// A description for the report.
    pub fn describe(&self) -> String {
        let version = if matches!(self, Self::V1(_)) { "v1" } else { "v2" };
        format!("{version} at {}", self.root().display())
    }
}

/// The kernel's measurements.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured {
    pub peak_bytes: Option<u64>,
    pub limit_hits: Option<u64>,
    pub oom_kills: u64,
}

/// A cgroup of the bench; removed when dropped, after ending the processes that still run in it.
#[derive(Debug)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    path: PathBuf,
    _undo: UndoList,
}

impl Cgroup {
    /// `swap`: whether pages may be swapped out.
    pub fn create(hierarchy: &Hierarchy, token: &str, limit: Option<u64>, swap: bool) -> Result<Self, BenchFailure> {
        let path = hierarchy.root().join(undo::name(token, "run"));
        let mut undo = UndoList::default();
        undo.push(Undo::RemoveCgroup(path.clone()));
        fs::create_dir(&path)
            .map_err(|error| BenchFailure::io(format!("cannot make the cgroup {}", path.display()), &error))?;
        let cgroup = Self { hierarchy: hierarchy.clone(), path, _undo: undo };
        let v1 = matches!(hierarchy, Hierarchy::V1(_));
        if let Some(limit) = limit {
            cgroup.write(if v1 { "memory.limit_in_bytes" } else { "memory.max" }, &limit.to_string())?;
        }
        if !swap {
            // v1 limits memory and swap together. Both files are absent when the kernel does not account for swap.
            let (file, value) = match (v1, limit) {
                (true, Some(limit)) => ("memory.memsw.limit_in_bytes", limit.to_string()),
                (true, None) => ("memory.swappiness", "0".to_string()),
                (false, _) => ("memory.swap.max", "0".to_string()),
            };
            if cgroup.path.join(file).exists() {
                cgroup.write(file, &value)?;
            }
        }
        Ok(cgroup)
    }

    /// The start of a command line that joins the cgroup and then executes the command that follows.
    pub fn words(&self) -> Vec<String> {
        let members = self.path.join("cgroup.procs").display().to_string();
        vec!["/bin/sh".into(), "-c".into(), "echo $$ > \"$0\" && exec \"$@\"".into(), members]
    }

    /// Sets another limit. The kernel makes room for it now, or refuses, and then the former one stays.
    #[must_use]
    pub fn set_limit(&self, bytes: u64) -> bool {
        let file = if matches!(self.hierarchy, Hierarchy::V1(_)) { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(self.path.join(file), bytes.to_string()).is_ok()
    }

    pub fn measured(&self) -> Measured {
        let number = |file: &str| self.read(file).trim().parse().ok();
        match self.hierarchy {
            Hierarchy::V1(_) => Measured {
                peak_bytes: number("memory.max_usage_in_bytes"),
                limit_hits: number("memory.failcnt"),
                oom_kills: field(&self.read("memory.oom_control"), "oom_kill").unwrap_or(0),
            },
            Hierarchy::V2(_) => {
                let events = self.read("memory.events");
                Measured {
                    peak_bytes: number("memory.peak"),
                    limit_hits: field(&events, "max"),
                    oom_kills: field(&events, "oom_kill").unwrap_or(0),
                }
            }
        }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    fn write(&self, file: &str, value: &str) -> Result<(), BenchFailure> {
        let path = self.path.join(file);
        fs::write(&path, value)
            .map_err(|error| BenchFailure::io(format!("cannot write {value} to {}", path.display()), &error))
    }
}

/// Reads a field from lines of the form `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";

    #[test]
    fn both_hierarchies_are_found() {
        assert_eq!(Hierarchy::in_mounts(V1, |_| "hugetlb".into()), Some(Hierarchy::V1("/sys/fs/cgroup/memory".into())));
        assert_eq!(
            Hierarchy::in_mounts(V2, |_| "cpu memory pids\n".into()),
            Some(Hierarchy::V2("/sys/fs/cgroup".into()))
        );
        assert_eq!(Hierarchy::in_mounts(V2, |_| "cpu pids\n".into()), None);
        assert_eq!(Hierarchy::in_mounts("", |_| "memory".into()), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "oom"), None);
    }
}
