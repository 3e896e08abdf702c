// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Everything that can be wrong with a named mapping is a distinct error, and never wrong bytes.

#![allow(unsafe_code, reason = "a process forks")]

mod common;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};

use aquifer::{Error, NamedError, Space, Status};
use common::{MIB, PAGE, Scratch, bytes_with, can_run, evict_all, wait_until};

/// How often a test tries to meet a moment of a sync.
const TRIES_MAX: u32 = 20;

/// Stores a mapping of 2 MiB, each page of which begins with its number and one, and closes it.
fn stored(scratch: &Scratch, name: &str) {
    let space = scratch.space("dram:size=16MiB", "16KiB");
    let mut mapping = space.map_named(name, 2 * MIB).unwrap();
    let words = mapping.view_mut::<u64>(..).unwrap();
    words.iter_mut().step_by(PAGE / 8).zip(1..).for_each(|(word, number)| *word = number);
    mapping.snapshot().unwrap();
}

#[test]
fn names_sizes_and_directories_that_cannot_be_are_refused() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-bad");
    let space = scratch.space("dram:size=16MiB", "auto");
    for bad in ["", "..", ".a", "a/b", "a b", "/a", &"a".repeat(129)] {
        assert_eq!(space.map_named(bad, PAGE).err(), Some(NamedError::BadName), "{bad:?}");
        assert_eq!(space.open_named(bad).err(), Some(NamedError::BadName), "{bad:?}");
    }
    for bytes in [0, (1 << 40) + 1] {
        let refused = NamedError::Memory(Error::MappingSize { bytes });
        assert_eq!(space.map_named("a", bytes).err(), Some(refused));
    }
    assert_eq!(space.open_named("a").err(), Some(NamedError::NotFound));
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "nothing was made");

    let plain = Space::builder().dram("16MiB").tier("dram:size=16MiB").open().unwrap();
    assert_eq!(plain.map_named("a", PAGE).err(), Some(NamedError::NoDirectory));
    let mut mapping = plain.map(PAGE).unwrap();
    assert_eq!((mapping.sync(..), mapping.name()), (Err(NamedError::NotNamed), None));

    let nowhere = Space::builder().dram("16MiB").tier("dram:size=16MiB").named_in(scratch.0.join("none"));
    let refused = nowhere.open().unwrap().map_named("a", PAGE).err();
    assert!(matches!(refused, Some(NamedError::System { errno: libc::ENOENT, .. })), "{refused:?}");
}

#[test]
fn a_mapping_is_open_once_and_has_one_size() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-twice");
    stored(&scratch, "a");
    let (space, other) = (scratch.space("dram:size=16MiB", "auto"), scratch.space("dram:size=16MiB", "auto"));
    let mapping = space.map_named("a", 2 * MIB).unwrap();
    for space in [&space, &other] {
        assert_eq!(space.open_named("a").err(), Some(NamedError::AlreadyOpen));
        assert_eq!(space.map_named("a", 2 * MIB).err(), Some(NamedError::AlreadyOpen));
    }
    mapping.unmap().unwrap();
    let refused = NamedError::OtherSize { bytes: 2 * MIB, asked_bytes: MIB };
    assert_eq!(other.map_named("a", MIB).err(), Some(refused));
    assert_eq!(other.open_named("a").unwrap().len(), 2 * MIB);

    let many: Vec<_> =
        (0..).map(|number| space.map_named(&format!("m{number}"), 1)).take_while(Result::is_ok).collect();
    assert_eq!(many.len(), 64);
    assert_eq!(space.map_named("one-more", 1).err(), Some(NamedError::TooMany));
    drop(many);
    assert!(space.map_named("one-more", 1).is_ok());
}

#[test]
fn files_that_are_not_whole_or_not_ours_are_refused() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-files");
    stored(&scratch, "whole");
    let whole = fs::read(scratch.file("whole")).unwrap();
    let space = scratch.space("dram:size=16MiB", "auto");
    let mut number = 0;
    let mut open = |bytes: &[u8], mode: u32| {
        number += 1;
        let name = format!("file-{number}");
        fs::write(scratch.file(&name), bytes).unwrap();
        fs::set_permissions(scratch.file(&name), Permissions::from_mode(mode)).unwrap();
        space.open_named(&name).map(|mapping| mapping.len()).inspect_err(|refused| {
            let message = refused.to_string();
            assert!(message.len() > 20 && !message.contains('\n'), "{message}");
        })
    };
    assert_eq!(open(&whole, 0o600), Ok(2 * MIB));
    assert_eq!(open(b"a file of somebody's", 0o600), Err(NamedError::NotOurs));
    assert_eq!(open(&[], 0o600), Err(NamedError::NotOurs));
    assert_eq!(open(&whole[..100 * PAGE], 0o600), Err(NamedError::Truncated));
    for mode in [0o644, 0o660, 0o606] {
        assert!(matches!(open(&whole, mode), Err(NamedError::Refused(why)) if why.contains("chmod")), "{mode:o}");
    }
    let mut newer = whole.clone();
    for place in 0..2 {
        newer[place * PAGE + 8] = 9;
        let crc = aquifer_core::guard::of_page(&newer[place * PAGE..place * PAGE + 56]);
        newer[place * PAGE + 56..place * PAGE + 64].copy_from_slice(&crc.to_le_bytes());
    }
    assert_eq!(open(&newer, 0o600), Err(NamedError::Version { found: 9 }));
    let mut damaged = whole.clone();
    (0..2).for_each(|place| damaged[place * PAGE + 20] ^= 1);
    assert!(matches!(open(&damaged, 0o600), Err(NamedError::Damaged { .. })));
    fs::create_dir(scratch.file("directory")).unwrap();
    assert!(space.open_named("directory").is_err());

    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    let refused = space.open_named("whole").err();
    assert!(matches!(&refused, Some(NamedError::Refused(why)) if why.contains("chmod")), "{refused:?}");
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o700)).unwrap();
    assert!(space.open_named("whole").is_ok());
}

/// Returns the offset of the page that begins with this number.
fn find(file: &[u8], number: u64) -> usize {
    let is_it = |page: &[u8]| page[..8] == number.to_le_bytes() && page[8..].iter().all(|byte| *byte == 0);
    file.chunks(PAGE).position(is_it).expect("it is in the file") * PAGE
}

#[test]
fn a_damaged_page_is_lost_and_no_other_and_can_be_written_again() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-damaged");
    stored(&scratch, "a");
    let at = find(&fs::read(scratch.file("a")).unwrap(), 101);
    let file = fs::OpenOptions::new().write(true).open(scratch.file("a")).unwrap();
    file.write_all_at(&[1], at as u64 + 1000).unwrap();
    drop(file);

    let space = scratch.space("dram:size=16MiB", "16KiB");
    let mut mapping = space.open_named("a").unwrap();
    let first_word = |mapping: &aquifer::Mapping, page: usize| {
        let mut word = [0; 8];
        mapping.read(page * PAGE, &mut word).map(|()| u64::from_le_bytes(word))
    };
    for page in 0..2 * MIB / PAGE {
        // Page 100 begins with 101; its block has four pages.
        let wanted = if page / 4 == 25 { Err(Error::Lost) } else { Ok(page as u64 + 1) };
        assert_eq!(first_word(&mapping, page), wanted, "page {page}");
    }
    assert_eq!(bytes_with(&mapping, |status| status == Status::Lost), 4 * PAGE);
    assert!(space.statistics().errors > 0);
    // The damage is not a change, so that everything else can be synced.
    mapping.write(0, &7u64.to_le_bytes()).unwrap();
    mapping.snapshot().unwrap();
    drop(mapping);
    let mut mapping = space.open_named("a").unwrap();
    assert_eq!((first_word(&mapping, 0), first_word(&mapping, 100)), (Ok(7), Err(Error::Lost)));
    mapping.discard(100 * PAGE..104 * PAGE).unwrap();
    mapping.write(100 * PAGE, &8u64.to_le_bytes()).unwrap();
    mapping.snapshot().unwrap();
    drop(mapping);
    let mapping = space.open_named("a").unwrap();
    assert_eq!((first_word(&mapping, 100), first_word(&mapping, 103)), (Ok(8), Ok(0)));
}

/// A sync that includes a change which a tier has lost fails as a whole.
#[test]
fn a_sync_of_lost_changes_fails_and_changes_nothing() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-lost");
    stored(&scratch, "a");
    let space = scratch.space("failing:corrupt=1:dram:size=16MiB", "16KiB");
    let mut mapping = space.open_named("a").unwrap();
    mapping.write(0, &[9; PAGE]).unwrap();
    mapping.write(5 * PAGE, &[9; 3]).unwrap();
    evict_all(&mapping);
    mapping.write(MIB, &[9; 3]).unwrap();
    assert_eq!(mapping.snapshot(), Err(NamedError::Memory(Error::Lost)));
    assert_eq!(mapping.snapshot(), Err(NamedError::Memory(Error::Lost)), "it stays lost");
    mapping.sync(MIB..MIB + PAGE).unwrap();
    drop(mapping);
    let mapping = space.open_named("a").unwrap();
    let words = mapping.view::<u64>(..).unwrap();
    assert_eq!((words[0], words[5 * 512]), (1, 6), "as they were synced before");
    assert_eq!(words[MIB / 8].to_le_bytes()[..3], [9; 3]);
}

/// A sync never says that bytes are durable which nobody could find again.
#[test]
fn a_file_that_is_removed_replaced_or_cut_off_while_it_is_open_cannot_be_synced() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-replaced");
    let space = scratch.space("dram:size=16MiB", "16KiB");
    type Change = fn(&Scratch);
    let changes: [(Change, NamedError); 4] = [
        (|scratch| fs::remove_file(scratch.file("a")).unwrap(), NamedError::Replaced),
        (|scratch| fs::rename(scratch.file("other"), scratch.file("a")).unwrap(), NamedError::Replaced),
        (|scratch| cut_off(scratch, 100 * PAGE), NamedError::Truncated),
        (|scratch| cut_off(scratch, 0), NamedError::Truncated),
    ];
    for (change, error) in changes {
        for name in ["a", "other"] {
            let _ = fs::remove_file(scratch.file(name));
            stored(&scratch, name);
        }
        let mut mapping = space.open_named("a").unwrap();
        let mut byte = [0];
        mapping.read(0, &mut byte).unwrap();
        change(&scratch);
        assert_eq!(mapping.snapshot(), Err(error.clone()), "nothing has changed");
        mapping.write(0, &[9; PAGE]).unwrap();
        assert_eq!(mapping.sync(..PAGE), Err(error));
        mapping.read(0, &mut byte).unwrap();
        assert_eq!(byte, [9], "it can still be copied to another mapping");
    }
    // A file that is moved is the same file.
    stored(&scratch, "b");
    let mut mapping = space.open_named("b").unwrap();
    fs::rename(scratch.file("b"), scratch.file("c")).unwrap();
    mapping.write(0, &[9; PAGE]).unwrap();
    mapping.snapshot().unwrap();
    drop(mapping);
    let mut byte = [0];
    space.open_named("c").unwrap().read(0, &mut byte).unwrap();
    assert_eq!(byte, [9]);
    // A link to nothing is not another process that has the mapping open.
    std::os::unix::fs::symlink(scratch.0.join("nothing"), scratch.file("link")).unwrap();
    let refused = space.map_named("link", MIB).err();
    assert!(matches!(&refused, Some(NamedError::Refused(why)) if why.contains("remove the link")), "{refused:?}");
}

/// A file that is removed during a sync has the new pages all the same, and blocks are fetched from it. Once, the space
/// kept the guards of the old pages: a page that got its old bytes back was taken for clean, and was lost when it was
/// evicted.
#[test]
fn a_mapping_whose_file_is_removed_during_a_sync_keeps_its_bytes() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-removed");
    let space = scratch.space("dram:size=64MiB", "16KiB");
    // The file may be removed too late.
    let found = (0..TRIES_MAX).find_map(|_| {
        let mut mapping = space.map_named("a", 12 * MIB).unwrap();
        mapping.view_mut::<u8>(..).unwrap().fill(1);
        mapping.snapshot().unwrap();
        // Opened again, its blocks are those of the file.
        drop(mapping);
        let mut mapping = space.open_named("a").unwrap();
        mapping.view_mut::<u8>(..).unwrap().fill(2);
        let file = &scratch.file("a");
        let len = || fs::metadata(file).unwrap().len();
        let old_len = len();
        let synced = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_until("the sync makes the file longer", || len() > old_len);
                fs::remove_file(file).unwrap();
            });
            mapping.snapshot()
        });
        (synced == Err(NamedError::Replaced)).then_some(mapping)
    });
    let mut mapping = found.expect("a file that is removed while megabytes are written to it");
    mapping.view_mut::<u8>(..6 * MIB).unwrap().fill(1);
    evict_all(&mapping);
    let mut byte = [0];
    for page in 0..12 * MIB / PAGE {
        let wanted = if page < 6 * MIB / PAGE { 1 } else { 2 };
        assert_eq!(mapping.read(page * PAGE, &mut byte).map(|()| byte[0]), Ok(wanted), "page {page}");
    }
    assert_eq!(mapping.snapshot(), Err(NamedError::Replaced));
}

fn cut_off(scratch: &Scratch, bytes: usize) {
    fs::File::options().write(true).open(scratch.file("a")).unwrap().set_len(bytes as u64).unwrap();
}

/// A forked child has none of it, and does not keep the mapping from being opened again.
#[test]
fn a_forked_child_has_no_named_mapping_and_no_lock() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-forked");
    stored(&scratch, "a");
    let space = scratch.space("dram:size=16MiB", "16KiB");
    let mut mapping = space.open_named("a").unwrap();
    let (mut from_child, mut to_parent) = std::io::pipe().unwrap();
    let (mut from_parent, to_child) = std::io::pipe().unwrap();
    // SAFETY: the child calls nothing but this library and pipes, and ends by _exit(2); glibc lets a child allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        drop((from_child, to_child));
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let forked = NamedError::Memory(Error::Forked);
            let is_refused = mapping.snapshot() == Err(forked.clone())
                && space.open_named("a").err() == Some(forked.clone())
                && space.map_named("b", PAGE).err() == Some(forked);
            drop((mapping, space));
            is_refused
        }));
        let _ = to_parent.write_all(&[u8::from(refused.unwrap_or(false))]);
        let _ = from_parent.read(&mut [0]);
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(0) };
    }
    drop((from_parent, to_parent));
    let mut said = [9];
    from_child.read_exact(&mut said).unwrap();
    assert_eq!(said, [1], "the child's calls were refused");
    mapping.write(0, &[3; 8]).unwrap();
    mapping.snapshot().unwrap();
    mapping.unmap().unwrap();
    // While the child is still there.
    let mapping = space.open_named("a").unwrap();
    assert_eq!(mapping.view::<u8>(..8).unwrap(), [3; 8]);
    drop(to_child);
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
}

/// A named mapping goes on after its space has fetched, evicted and fetched again under pins and views.
#[test]
fn pins_and_hints_work_as_for_any_mapping() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-hints");
    stored(&scratch, "a");
    let space = scratch.space("dram:size=16MiB", "16KiB");
    let mapping = space.open_named("a").unwrap();
    let hints = mapping.hints();
    hints.prefetch(..64 * PAGE, aquifer::Intent::Read).unwrap();
    wait_until("prefetched from the file", || {
        mapping
            .status(..64 * PAGE)
            .unwrap()
            .iter()
            .all(|run| !matches!(run.status, Status::Stored { .. } | Status::Fetching))
    });
    let pin = mapping.pin(8 * PAGE..9 * PAGE).unwrap();
    assert_eq!(mapping.view::<u64>(8 * PAGE..8 * PAGE + 8).unwrap(), [9]);
    assert_eq!(mapping.read_in_place(300 * PAGE, &mut [0; 8]), Ok(1));
    drop(pin);
}
