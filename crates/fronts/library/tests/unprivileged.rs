// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process without privileges receives no faults of the kernel's, so its threads resolve their own faults in a signal
//! handler. Rust's threads have 8 KiB for that: the handler used to overflow them, and the process died.

#![allow(unsafe_code, reason = "a process gives up its privileges")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::Command;

use aquifer::Space;
use common::{MIB, Scratch, can_run, filled, space};

/// Set in the process without privileges.
const CHILD: &str = "AQUIFER_TEST_WITHOUT_PRIVILEGES";

/// Runs a test of this file again in a process without privileges. Returns how it ended; `None` in that process.
fn without_privileges(test: &str) -> Option<std::process::Output> {
    if std::env::var_os(CHILD).is_none() {
        let itself = std::env::current_exe().expect("a test is a program");
        return Some(Command::new(itself).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap());
    }
    // SAFETY: the calls take numbers; glibc changes the user of all threads.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!((libc::setresgid(65534, 65534, 65534), libc::setresuid(65534, 65534, 65534)), (0, 0));
        }
    }
    None
}

#[test]
fn threads_resolve_their_own_faults() {
    if !can_run() {
        return;
    }
    if let Some(output) = without_privileges("threads_resolve_their_own_faults") {
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let space = space("dram:size=64MiB", "auto");
    assert!(!space.serves_system_calls());
    let mapping = filled(&space, 40 * MIB, 3);
    std::thread::scope(|scope| {
        for start in 0..4 {
            let mapping = &mapping;
            scope.spawn(move || {
                let words = mapping.view::<u64>(..).unwrap();
                assert!((start * 64..words.len()).step_by(256).all(|index| words[index] == index as u64 * 3));
            });
        }
    });
}

#[test]
fn a_load_of_lost_memory_is_a_sigbus() {
    if !can_run() {
        return;
    }
    if let Some(output) = without_privileges("a_load_of_lost_memory_is_a_sigbus") {
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        return;
    }
    let space = space("failing:after=40,on=read:dram:size=64MiB", "auto");
    let mapping = filled(&space, 40 * MIB, 3);
    let sum: u64 = mapping.view::<u64>(..).unwrap().iter().step_by(512).sum();
    panic!("lost memory was read: {sum}");
}

/// The file is read in the signal handler, on threads with small stacks.
#[test]
fn a_named_mapping_is_fetched_from_its_file_by_the_threads_that_touch_it() {
    if !can_run() {
        return;
    }
    let scratch = std::env::var_os(CHILD).is_none().then(|| Scratch::new("named-unprivileged"));
    if let Some(scratch) = &scratch {
        std::fs::set_permissions(&scratch.0, std::fs::Permissions::from_mode(0o1777)).unwrap();
    }
    if let Some(output) = without_privileges("a_named_mapping_is_fetched_from_its_file_by_the_threads_that_touch_it") {
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let directory = std::env::temp_dir().join(format!("aquifer-named-unprivileged-{}", parent_id()));
    let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").named_in(directory).open().unwrap();
    assert!(!space.serves_system_calls());
    let mut mapping = space.map_named("words", 24 * MIB).unwrap();
    let words = mapping.view_mut::<u64>(..).unwrap();
    words.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64 * 3);
    mapping.snapshot().unwrap();
    mapping.unmap().unwrap();
    let mut mapping = space.open_named("words").unwrap();
    std::thread::scope(|scope| {
        for start in 0..4 {
            let mapping = &mapping;
            scope.spawn(move || {
                let words = mapping.view::<u64>(..).unwrap();
                assert!((start * 64..words.len()).step_by(256).all(|index| words[index] == index as u64 * 3));
            });
        }
    });
    mapping.view_mut::<u64>(..).unwrap()[77] = 1;
    mapping.snapshot().unwrap();
    mapping.unmap().unwrap();
    assert_eq!(space.open_named("words").unwrap().view::<u64>(77 * 8..79 * 8).unwrap(), [1, 78 * 3]);
}
