// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A named mapping on a full disk, by the limit on the size of a file: alone in its process, whose limit it changes.

#![allow(unsafe_code, reason = "a process limits itself")]

mod common;

use aquifer::NamedError;
use common::{MIB, PAGE, Scratch, can_run};

/// Limits the files that this process writes.
fn limit_files(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls write and read one structure, or take a number; a write beyond the limit is an error then, and
    // no signal.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit), 0);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

#[test]
fn a_full_disk_is_an_error_and_the_mapping_goes_on_when_there_is_room() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-full");
    let space = scratch.space("dram:size=16MiB", "64KiB");
    let mut mapping = space.map_named("a", 4 * MIB).unwrap();
    mapping.write(0, &[1; MIB]).unwrap();
    mapping.snapshot().unwrap();
    limit_files(3 * MIB as u64);
    mapping.view_mut::<u8>(..).unwrap().fill(2);
    assert_eq!(mapping.snapshot(), Err(NamedError::FullDisk));
    assert_eq!(mapping.snapshot(), Err(NamedError::FullDisk));
    mapping.sync(..PAGE).unwrap();
    assert!(mapping.view::<u8>(..).unwrap().iter().all(|byte| *byte == 2), "the memory is as it was");
    drop(mapping);
    let mut mapping = space.open_named("a").unwrap();
    let bytes = mapping.view::<u8>(..).unwrap();
    assert!(bytes[..PAGE].iter().all(|byte| *byte == 2) && bytes[PAGE..MIB].iter().all(|byte| *byte == 1));
    assert!(bytes[MIB..].iter().all(|byte| *byte == 0));
    limit_files(u64::MAX);
    mapping.view_mut::<u8>(..).unwrap().fill(3);
    mapping.snapshot().unwrap();
    drop(mapping);
    assert!(space.open_named("a").unwrap().view::<u8>(..).unwrap().iter().all(|byte| *byte == 3));
}
