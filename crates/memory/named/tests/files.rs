// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a file looks like, and what is refused.

mod common;

use aquifer_named::format::{PAGE, SUPERBLOCKS, Superblock};
use aquifer_named::{Activity, Failure, MediumFailure, Store};
use common::{Disk, contents, page, sync};

const GOLDEN: &[u8] = include_bytes!("golden/named_v1.bin");
/// Set to write the golden file again.
const BLESS_VARIABLE: &str = "AQUIFER_BLESS";

/// A file of two generations: three pages of 300, two of which a second sync has changed.
fn sample() -> Disk {
    let disk = Disk::default();
    let mut store = Store::create(disk.clone(), 300 * PAGE as u64 - 100).unwrap();
    sync(&mut store, &[(0, 1), (1, 2), (299, 3)]).unwrap();
    sync(&mut store, &[(1, 0), (299, 4)]).unwrap();
    disk
}

/// A file's bytes without the space that was allocated in advance.
fn trimmed(disk: &Disk) -> Vec<u8> {
    let mut bytes = disk.bytes();
    let used = bytes.chunks(PAGE).rposition(|page| page.iter().any(|byte| *byte != 0)).map_or(0, |last| last + 1);
    bytes.truncate(used * PAGE);
    bytes
}

#[test]
fn the_bytes_are_those_of_the_golden_file() {
    let bytes = trimmed(&sample());
    if std::env::var_os(BLESS_VARIABLE).is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/named_v1.bin"), &bytes).unwrap();
    }
    assert!(bytes == GOLDEN, "the format has changed: raise its version, or correct the code");
}

#[test]
fn the_golden_file_can_be_read() {
    let store = Store::open(Disk::of(GOLDEN.to_vec())).unwrap();
    assert_eq!((store.mapping_bytes(), store.generation(), store.pages()), (300 * PAGE as u64 - 100, 3, 300));
    let found = contents(&store);
    assert!(found[0] == page(1) && found[299] == page(4) && found[1..299].iter().all(|found| *found == page(0)));
}

#[test]
fn a_file_goes_on_where_it_was_closed_and_does_not_grow_for_ever() {
    let disk = sample();
    for turn in 0..50 {
        let mut store = Store::open(Disk::of(disk.bytes())).unwrap();
        assert_eq!(store.generation(), turn + 3);
        assert_eq!(sync(&mut store, &[(5, turn + 100), (6, turn + 200)]).unwrap(), 2);
        assert!(contents(&store)[5] == page(turn + 100));
        disk.0.borrow_mut().bytes = store.medium().bytes();
    }
    assert!(trimmed(&disk).len() <= 24 * PAGE, "{} pages", trimmed(&disk).len() / PAGE);
}

#[test]
fn what_has_not_changed_is_not_written() {
    let disk = sample();
    let mut store = Store::open(disk.clone()).unwrap();
    let steps = disk.steps();
    assert_eq!(sync(&mut store, &[(0, 1), (1, 0), (2, 0), (299, 4)]), Ok(0));
    assert_eq!(disk.steps(), steps);
    assert_eq!(store.generation(), 3);
    // The last bytes that are put for a page count.
    assert_eq!(sync(&mut store, &[(9, 1), (8, 1), (9, 2), (8, 0), (0, 7), (0, 1)]), Ok(1));
    assert!(contents(&store)[9] == page(2) && contents(&store)[8] == page(0));
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let disk = sample();
    disk.0.borrow_mut().pages_max = Some(disk.bytes().len() as u64 / PAGE as u64);
    let mut store = Store::open(disk.clone()).unwrap();
    let old = contents(&store);
    let many: Vec<(usize, u64)> = (0..300).map(|index| (index, index as u64 + 1)).collect();
    for _ in 0..3 {
        assert!(matches!(sync(&mut store, &many), Err(Failure::Medium(failure)) if failure.errno == 28));
        assert!(contents(&store) == old && contents(&Store::open(Disk::of(disk.bytes())).unwrap()) == old);
    }
    assert_eq!(sync(&mut store, &many[..100]), Ok(99), "what fits is synced; one page was like that before");
    disk.0.borrow_mut().pages_max = None;
    assert_eq!(sync(&mut store, &many), Ok(200));
}

#[test]
fn files_that_are_not_whole_are_refused() {
    let whole = trimmed(&sample());
    let open = |bytes: &[u8]| {
        let disk = Disk::of(bytes.to_vec());
        let opened = Store::open(disk.clone()).map(|store| contents(&store));
        assert!(opened.is_ok() || disk.steps() == 0, "a file that is refused is not written to");
        opened
    };
    assert!(open(&whole).is_ok());
    assert_eq!(open(&[]).err(), Some(Failure::Foreign));
    assert_eq!(open(&vec![7; 3 * PAGE]).err(), Some(Failure::Foreign));
    for pages in SUPERBLOCKS as usize..whole.len() / PAGE {
        let refused = open(&whole[..pages * PAGE]).err();
        let expected = whole.len() as u64 / PAGE as u64;
        assert_eq!(refused, Some(Failure::Truncated { pages: pages as u64, expected }), "{pages} pages");
    }
    // Another version wrote last.
    let mut newer = whole.clone();
    newer[8] = 2;
    let crc = aquifer_core::guard::of_page(&newer[..56]);
    newer[56..64].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(open(&newer).err(), Some(Failure::Version { found: 2 }));
}

#[test]
fn a_file_whose_state_cannot_be_made_durable_is_not_opened_and_stays_as_it_is() {
    let disk = sample();
    let bytes = disk.bytes();
    for (calls, activity) in [Activity::Write, Activity::Sync].into_iter().enumerate() {
        let start = disk.0.borrow().calls;
        disk.0.borrow_mut().fails_after = Some((start + calls, 5));
        let refused = Store::open(disk.clone()).map(drop);
        assert_eq!(refused, Err(Failure::Medium(MediumFailure { activity, errno: 5 })));
        disk.0.borrow_mut().fails_after = None;
        assert!(disk.bytes() == bytes);
    }
    assert!(Store::open(disk.clone()).is_ok() && disk.bytes() == bytes);
}

#[test]
fn damage_anywhere_is_an_error_or_does_not_matter_and_never_wrong_bytes() {
    let whole = trimmed(&sample());
    let right = contents(&Store::open(Disk::of(whole.clone())).unwrap());
    // Superblock and tree of the generation before are partly still there.
    let older = Superblock::decode(0, whole[..PAGE].try_into().unwrap()).unwrap();
    assert_eq!(older.generation, 2);
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let Ok(store) = Store::open(Disk::of(bytes.clone())) else { continue };
        for (index, right) in right.iter().enumerate() {
            let place = store.lookup().place(index) as usize;
            let found = if place == 0 { &[0; PAGE] } else { &bytes[place * PAGE..(place + 1) * PAGE] };
            let is_vouched_for = aquifer_core::guard::of_page(found) == store.guard(index);
            let is_current = store.generation() == 3;
            assert!(!is_vouched_for || !is_current || found == right, "byte {at}, page {index}");
        }
    }
}
