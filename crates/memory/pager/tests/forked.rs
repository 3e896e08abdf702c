// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A forked child keeps nothing of its parent's spaces open: neither what they store, nor a file or device that the
//! parent opens again, nor anything by which it could reach the parent's threads.
//!
//! The defects: the child kept the files of tiers. It could read what the parent stored later; the room of a closed
//! tier came back only when the child ended; and until then a file or device was in use. And to give up a userfaultfd,
//! the child opened one of its own, which ended it where the limit of open files was reached.
//!
//! These tests are alone in their process, because they look at all of its descriptors.

#![allow(unsafe_code, reason = "a process forks")]

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{MIB, can_run, check, fill, space};

/// How long a child may take, in seconds: SIGALRM ends one that waits for ever.
const CHILD_SECONDS: u32 = 60;
/// Open files at most, where there are to be none left.
const FILES_MAX: u64 = 400;

/// One test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file in the directory for temporary files, which is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("aquifer-forked-{name}-{}", std::process::id()));
        File::create(&path).unwrap();
        std::process::Command::new("chmod").arg("600").arg(&path).status().unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What each open descriptor refers to.
fn open() -> BTreeMap<i32, PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().parse().expect("descriptors are numbers");
        Some((number, std::fs::read_link(entry.path()).ok()?))
    });
    found.collect()
}

/// Whether a name is that of a file in memory, or of a file without a name.
fn is_nameless(target: &Path) -> bool {
    let target = target.to_string_lossy();
    target.contains("memfd:aquifer-dram") || target.contains("(deleted)")
}

/// How many mappings of files without a name this process has that other processes share.
fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|it| it.ends_with('s')));
    // Memory that is shared without a file, as tables are, is `/dev/zero`.
    shared.filter(|line| is_nameless(Path::new(line)) && !line.contains("/dev/zero") && !line.contains("stats")).count()
}

/// Runs `act` in a forked child, which returns zero if it is content.
#[track_caller]
fn in_child(act: impl FnOnce() -> i32) {
    let child = fork(act);
    assert_eq!(join(child), 0, "the number of what went wrong, times 256; or the signal that ended the child");
}

fn fork(act: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child looks at its own descriptors and ends by _exit(2); glibc lets a child allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: SIGALRM ends the child.
        unsafe { libc::alarm(CHILD_SECONDS) };
        let status = act();
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(status) };
    }
    child
}

fn join(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_child_has_no_descriptor_and_no_mapping_of_what_a_tier_stores() {
    let _alone = alone();
    if !can_run() {
        return;
    }
    let file = Scratch::new("kept");
    let flash = format!("flash:{},size=64MiB", file.0.display());
    let nameless = format!("flash:{},size=64MiB", std::env::temp_dir().display());
    let chain = format!("dram:size=16MiB>{flash}");
    for tier in ["dram:size=64MiB", "compressed:size=64MiB", "emulated:cmm-h,size=64MiB", &flash, &nameless, &chain] {
        let before = open();
        let parent = space(tier);
        let mapping = parent.map(24 * MIB).unwrap();
        fill(&mapping, 4);
        let opened: BTreeMap<i32, PathBuf> =
            open().into_iter().filter(|(number, _)| !before.contains_key(number)).collect();
        let stores = |target: &Path| target == file.0 || is_nameless(target);
        assert!(opened.values().any(|target| stores(target)), "{tier}: {opened:?}");
        let maps = tier.starts_with("dram") || tier.starts_with("emulated");
        assert_eq!(shared_mappings() > 0, maps, "{tier}");
        in_child(|| {
            let left = open();
            let mut kept = opened.iter().filter(|(number, target)| left.get(number) == Some(target));
            let others = ["userfaultfd", "io_uring", "eventfd"].map(|name| format!("anon_inode:[{name}]"));
            let wakes = |target: &Path| others.iter().any(|other| target == Path::new(other));
            if kept.clone().any(|(_, target)| stores(target)) {
                1
            } else if shared_mappings() > 0 {
                2
            } else {
                3 * i32::from(kept.any(|(_, target)| wakes(target)))
            }
        });
        check(&mapping, 4);
        drop(mapping);
        parent.close().unwrap();
    }
}

#[test]
fn a_closed_tier_can_be_opened_again_while_a_child_lives() {
    let _alone = alone();
    if !can_run() {
        return;
    }
    let file = Scratch::new("again");
    let tier = format!("flash:{},size=64MiB", file.0.display());
    let parent = space(&tier);
    let (mut begun, begins) = std::io::pipe().unwrap();
    let child = fork(|| {
        (&begins).write_all(&[1]).unwrap();
        std::thread::sleep(Duration::from_secs(u64::from(CHILD_SECONDS)));
        0
    });
    // Until it runs, it has its parent's descriptors.
    begun.read_exact(&mut [0]).unwrap();
    parent.close().unwrap();
    space(&tier).close().unwrap();
    // SAFETY: the child is this test's.
    unsafe { libc::kill(child, libc::SIGKILL) };
    join(child);
}

#[test]
fn a_child_needs_no_descriptor_to_give_its_parents_up() {
    let _alone = alone();
    if !can_run() {
        return;
    }
    let parent = space("dram:size=64MiB");
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one limit.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    let low = libc::rlimit { rlim_cur: FILES_MAX.min(limit.rlim_cur), ..limit };
    // SAFETY: setrlimit(2) reads one limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const low) }, 0);
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let child = fork(|| 0);
    drop(files);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    assert_eq!(join(child), 0, "the child was ended");
    parent.close().unwrap();
}
