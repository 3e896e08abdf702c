// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A space that serves no system calls: each thread resolves its own faults, with whatever privileges.

mod common;

use std::io::Write;
use std::os::unix::net::UnixStream;

use aquifer::{Mapping, Space};
use common::{MIB, PAGE, can_run, filled, is_stored};

const SALT: u64 = 3;

fn opened() -> Space {
    Space::builder().dram("16MiB").tier("dram:size=64MiB").block_size("4KiB").without_system_calls().open().unwrap()
}

/// A page that is in the tier alone.
fn evicted_page(mapping: &Mapping) -> usize {
    let runs = mapping.status(..).unwrap();
    runs.iter().find(|run| is_stored(run.status)).expect("40 MiB do not fit into 16 MiB").range.start
}

#[test]
fn threads_fetch_what_they_touch() {
    if !can_run() {
        return;
    }
    let space = opened();
    assert!(!space.serves_system_calls());
    let mapping = filled(&space, 40 * MIB, SALT);
    let before = space.statistics().fetched_bytes;
    std::thread::scope(|scope| {
        for start in 0..4 {
            let mapping = &mapping;
            scope.spawn(move || {
                let words = mapping.view::<u64>(..).unwrap();
                assert!((start * 64..words.len()).step_by(256).all(|index| words[index] == index as u64 * SALT));
            });
        }
    });
    assert!(space.statistics().fetched_bytes > before);
}

#[test]
fn a_system_call_gets_evicted_memory_once_it_is_pinned() {
    if !can_run() {
        return;
    }
    let space = opened();
    let mapping = filled(&space, 40 * MIB, SALT);
    let start = evicted_page(&mapping);
    let (mut here, _there) = UnixStream::pair().unwrap();
    let page = mapping.view::<u8>(start..start + PAGE).unwrap();
    let refused = here.write(page).expect_err("nobody resolves the kernel's own faults");
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT), "{refused}");
    let _pin = mapping.pin(start..start + PAGE).unwrap();
    assert_eq!(here.write(page).unwrap(), PAGE);
}

/// The library's own calls need no listener: they copy.
#[test]
fn reads_and_writes_go_on() {
    if !can_run() {
        return;
    }
    let space = opened();
    let mut mapping = filled(&space, 40 * MIB, SALT);
    let start = evicted_page(&mapping);
    let mut bytes = [0; PAGE];
    mapping.read(start, &mut bytes).unwrap();
    assert_eq!(bytes[8..16], ((start / 8 + 1) as u64 * SALT).to_ne_bytes());
    let start = evicted_page(&mapping);
    mapping.write(start, &[7; PAGE]).unwrap();
    assert!(mapping.view::<u8>(start..start + PAGE).unwrap().iter().all(|byte| *byte == 7));
}
