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

/// Calls copy from and to evicted memory of another mapping. Those that work in place used to touch it while the signal
/// of its faults was blocked, and the process died.
#[test]
fn calls_copy_between_mappings() {
    if !can_run() {
        return;
    }
    for tier in ["dram:size=160MiB", "emulated:xl-flash-slc,size=160MiB"] {
        let open = |budget| {
            let builder = Space::builder().dram(budget).tier(tier).block_size("4KiB");
            builder.without_system_calls().open().unwrap()
        };
        let (one, two) = (open("16MiB"), open("32MiB"));
        let mut from = filled(&one, 40 * MIB, SALT);
        // The last two are of one space.
        for mut other in [filled(&two, 80 * MIB, 7), filled(&one, 40 * MIB, 7)] {
            let expected = |start: usize, salt| (start / 8) as u64 * salt;
            let first = |bytes: &[u8]| u64::from_ne_bytes(bytes[..8].try_into().unwrap());
            type Copies = fn(&mut Mapping, usize, &mut [u8]);
            let reads: [Copies; 3] = [
                |from, start, into| from.read(start, into).unwrap(),
                |from, start, into| assert!(from.read_in_place(start, into).is_ok()),
                |from, start, into| from.gather(into.len(), &[start / into.len()], into).unwrap(),
            ];
            for read in reads {
                let (start, to) = (evicted_page(&from), evicted_page(&other));
                read(&mut from, start, &mut other.view_mut::<u8>(to..to + PAGE).unwrap()[..]);
                assert_eq!(first(other.view::<u8>(to..to + PAGE).unwrap()), expected(start, SALT), "{tier}");
                other.write(to, &expected(to, 7).to_ne_bytes()).unwrap();
            }
            let writes: [fn(&mut Mapping, usize, &[u8]); 2] = [
                |to, start, bytes| to.write(start, bytes).unwrap(),
                |to, start, bytes| assert!(to.write_in_place(start, bytes).is_ok()),
            ];
            for write in writes {
                let (start, to) = (evicted_page(&other), evicted_page(&from));
                write(&mut from, to, other.view::<u8>(start..start + 8).unwrap());
                assert_eq!(first(from.view::<u8>(to..to + 8).unwrap()), expected(start, 7), "{tier}");
                from.write(to, &expected(to, SALT).to_ne_bytes()).unwrap();
            }
        }
    }
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
