// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several memory spaces in one process: each keeps to its own budget, and fails alone.
//!
//! The bug that these tests guard against: a pager that exists once per process, and whose failure ends the process.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs; and a process forks")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_core::engine::Advice;
use aquifer_core::units::Order;
use aquifer_pager::memory_space::{DRAM_BYTES_MIN, MemorySpace, OpenFailure, SpaceFailure, SpaceSettings};
use aquifer_stats::{Counter, Gauge};
use common::{MIB, PAGE, can_run, check, fill, settings, space, word};

/// Reads of the slow tier: two seconds, in which a quick space goes over its memory a hundred times.
const SLOW_READS: u64 = 20;

#[test]
fn two_spaces_keep_to_their_budgets_and_one_is_closed_while_the_other_works() {
    if !can_run() {
        return;
    }
    let (first, second) = (space("dram:size=64MiB"), space("dram:size=64MiB"));
    let one = first.map(40 * MIB).unwrap();
    fill(&one, 1);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let two = second.map(40 * MIB).unwrap();
            for salt in 0..6 {
                fill(&two, salt);
                check(&two, salt);
            }
        });
        check(&one, 1);
        for space in [&first, &second] {
            let statistics = space.statistics();
            assert!(statistics.gauge(Gauge::ResidentBytes) <= DRAM_BYTES_MIN, "{}", statistics.to_json());
        }
        assert!(first.statistics().counter(Counter::EvictedBlocks) > 0);
        worker.join().unwrap();
    });
    drop(one);
    first.close().unwrap();
    let two = second.map(40 * MIB).unwrap();
    fill(&two, 9);
    check(&two, 9);
    drop(two);
    second.close().unwrap();
}

/// Each thread fills holes of the same large block. One that found the block in another's hands at every look gave up:
/// "nothing more can be written back".
#[test]
fn threads_that_fill_the_holes_of_one_block_all_find_room() {
    const THREADS: usize = 64;
    const ROUNDS: u8 = 20;
    if !can_run() {
        return;
    }
    let space = MemorySpace::open(SpaceSettings { order: Some(Order::MAX), ..settings("dram:size=64MiB") }).unwrap();
    let mapping = space.map(8 * MIB).unwrap();
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let mapping = &mapping;
                scope.spawn(move || {
                    for at in (thread * PAGE..mapping.len()).step_by(THREADS * PAGE) {
                        mapping.write(at, &[thread as u8 + round; 8]).unwrap();
                    }
                });
            }
        });
        let mut found = [0; 8];
        for at in (0..mapping.len()).step_by(PAGE) {
            mapping.read(at, &mut found).unwrap();
            assert_eq!(found, [(at / PAGE % THREADS) as u8 + round; 8], "at {at:#x}");
        }
        mapping.discard().unwrap();
    }
    drop(mapping);
    space.close().unwrap();
}

/// The tier loses what it holds: reads say so, the other space goes on, and so does the process.
#[test]
fn a_space_fails_alone_and_says_so() {
    if !can_run() {
        return;
    }
    let (bad, good) = (space("failing:after=40,on=read:dram:size=64MiB"), space("dram:size=64MiB"));
    let (lost, fine) = (bad.map(40 * MIB).unwrap(), good.map(40 * MIB).unwrap());
    let block = vec![7; 64 << 10];
    for at in (0..lost.len()).step_by(block.len()) {
        lost.write(at, &block).unwrap();
        fine.write(at, &block).unwrap();
    }
    let mut found = vec![0; block.len()];
    let mut failures = 0;
    for at in (0..lost.len()).step_by(block.len()) {
        match lost.read(at, &mut found) {
            Ok(()) => assert!(found == block, "at {at:#x}"),
            Err(SpaceFailure::Lost) => failures += 1,
            Err(other) => panic!("{other}"),
        }
        fine.read(at, &mut found).unwrap();
        assert!(found == block, "at {at:#x}");
    }
    assert!(failures > 0, "the tier fails, and nothing was lost");
    // The lost memory can be discarded, and then reads as zeros.
    lost.discard().unwrap();
    lost.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    drop(lost);
    bad.close().unwrap();
}

/// A load of lost memory is SIGBUS, even on one of Rust's threads, whose stack for signals is small. The handler used
/// to overflow that stack where the kernel reports a poisoned page like any other failed access.
#[test]
fn a_load_of_lost_memory_is_a_sigbus() {
    const CHILD: &str = "AQUIFER_TEST_LOADS_LOST_MEMORY";
    if !can_run() {
        return;
    }
    if std::env::var_os(CHILD).is_none() {
        let itself = std::env::current_exe().expect("a test is a program");
        let mut command = std::process::Command::new(itself);
        let output = command.args(["--exact", "a_load_of_lost_memory_is_a_sigbus"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
        return;
    }
    let space = space("failing:after=40,on=read:dram:size=64MiB");
    let mapping = space.map(40 * MIB).unwrap();
    fill(&mapping, 1);
    check(&mapping, 1);
}

/// A full tier refuses blocks for which it has no room, and loses nothing: all blocks that were written can be read
/// once other memory has been unmapped.
#[test]
fn a_full_tier_is_an_error_and_nothing_is_lost() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=16MiB");
    let (spare, mapping) = (space.map(8 * MIB).unwrap(), space.map(96 * MIB).unwrap());
    fill(&spare, 1);
    let block = vec![3; 256 << 10];
    let fits = |at: &usize| match mapping.write(*at, &block) {
        Ok(()) => true,
        Err(failure) => {
            assert_eq!(failure, SpaceFailure::NoRoom);
            false
        }
    };
    let written = (0..mapping.len()).step_by(block.len()).take_while(fits).count();
    assert!((48..160).contains(&written), "{written} blocks found room in 32 MiB, of which 8 were taken");
    assert_eq!(space.failure(), None);
    spare.unmap().unwrap();
    let mut found = vec![0; block.len()];
    for at in (0..written).map(|index| index * block.len()) {
        mapping.read(at, &mut found).unwrap();
        assert!(found == block, "at {at:#x}");
    }
}

/// A tier that takes 100 ms for each read holds up its own space, and no other: they share no lock.
#[test]
fn a_space_never_waits_for_another() {
    if !can_run() {
        return;
    }
    let (slow, quick) =
        (space("failing:every=1,on=read,times=0,delay=100ms:dram:size=64MiB"), space("dram:size=64MiB"));
    let (stands, goes) = (slow.map(24 * MIB).unwrap(), quick.map(24 * MIB).unwrap());
    fill(&goes, 1);
    fill(&stands, 2);
    let is_over = AtomicBool::new(false);
    let passes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut page = [0; PAGE];
            // A page of each block, over and over, until some of them had to be fetched.
            for index in (0..192).cycle() {
                stands.read(index * MIB / 8, &mut page).unwrap();
                if slow.statistics().counter(Counter::FetchedBlocks) >= SLOW_READS {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        std::iter::repeat_with(|| check(&goes, 1)).take_while(|()| !is_over.load(Ordering::Relaxed)).count()
    });
    // A pass has some 80 fetches. With a lock in common, each could wait 100 ms.
    assert!(passes >= 4, "24 MiB were read {passes} times during {SLOW_READS} slow reads");
}

/// A thread that reads or writes pins memory for some microseconds. The defect: another thread's advice about that
/// memory, or its discard, was then refused as if the memory had been pinned for long.
#[test]
fn the_pins_of_other_threads_calls_refuse_neither_advice_nor_a_discard() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB");
    let mapping = space.map(2 * MIB).unwrap();
    fill(&mapping, 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = vec![0; MIB];
                while !is_over.load(Ordering::Relaxed) {
                    mapping.read(0, &mut found).unwrap();
                }
            });
        }
        let mut outcomes = Vec::new();
        for _ in 0..500 {
            outcomes.extend([Advice::Cold, Advice::PageOut].map(|advice| mapping.advise(0, MIB, advice)));
            outcomes.push(mapping.discard_part(0, MIB));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    });
    let pin = mapping.pin_for_long(PAGE, 8).unwrap();
    for refused in [mapping.advise(0, MIB, Advice::PageOut), mapping.discard_part(0, MIB)] {
        assert_eq!(refused, Err(SpaceFailure::Pinned));
    }
    drop(pin);
    mapping.advise(0, MIB, Advice::PageOut).unwrap();
}

/// The defect: a read that the kernel refused six times within microseconds, for lack of memory, lost its block.
#[test]
fn a_tier_that_is_short_of_memory_for_a_while_loses_nothing() {
    if !can_run() {
        return;
    }
    for errno in ["ENOMEM", "EAGAIN"] {
        let tier = format!("failing:on=read,after=0,times=60,errno={errno}:dram:size=64MiB");
        // Without read-ahead, whose failures lose nothing.
        let space = MemorySpace::open(SpaceSettings { prefetch: false, ..settings(&tier) }).unwrap();
        let mapping = space.map(40 * MIB).unwrap();
        fill(&mapping, 7);
        let mut found = [0; 8];
        for at in (0..mapping.len()).step_by(PAGE) {
            assert_eq!(mapping.read(at, &mut found), Ok(()), "{errno} at {at:#x}");
            assert_eq!(u64::from_le_bytes(found), word(at, 7));
        }
        assert_eq!(space.statistics().counter(Counter::PoisonedBlocks), 0);
    }
}

/// A forked child reaches the memory of its parent's spaces neither by address nor by a descriptor. It may have a
/// userfaultfd of its own, and something else may lie where the memory was (the tiers that it opens for itself).
#[test]
fn a_forked_child_has_nothing_of_its_parents_spaces() {
    if !can_run() {
        return;
    }
    let parent = space("dram:size=64MiB");
    let mapping = parent.map(24 * MIB).unwrap();
    fill(&mapping, 4);
    let start = mapping.as_ptr() as usize;
    // SAFETY: the child reads its own memory and descriptors, and ends by _exit(2); glibc lets a child allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let addresses = || (start..start + 24 * MIB).step_by(PAGE);
        let reads = addresses().any(|at| read_own(at) == Some(word(at, 4)));
        let mut descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let writes = descriptors.any(|entry| {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let number = entry.file_name().to_string_lossy().parse().expect("descriptors are numbers");
            target.to_string_lossy().contains("userfaultfd") && addresses().any(|at| install(number, at))
        });
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(i32::from(reads) + 2 * i32::from(writes)) };
    }
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "1: the child reads its parent's memory, 2: it writes there");
    check(&mapping, 4);
}

/// Installs a page of ones at `address` through a userfaultfd. Returns whether that succeeded. See
/// ioctl_userfaultfd(2), UFFDIO_COPY.
fn install(uffd: i32, address: usize) -> bool {
    const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
    let page = [1u8; PAGE];
    let mut copy = [address as u64, page.as_ptr() as u64, PAGE as u64, 0, 0];
    // SAFETY: the call reads `page`, and reads and writes `copy`, which has the call's five words.
    unsafe { libc::ioctl(uffd, UFFDIO_COPY, copy.as_mut_ptr()) == 0 }
}

/// The word at `address` of this process, if something can be read there.
fn read_own(address: usize) -> Option<u64> {
    let mut word = 0u64;
    let to = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let from = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: 8 };
    // SAFETY: process_vm_readv(2) writes the word, and answers EFAULT where nothing can be read.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (read == 8).then_some(word)
}

#[test]
fn impossible_requests_are_refused() {
    if !can_run() {
        return;
    }
    let small = SpaceSettings { dram_bytes: MIB as u64, ..settings("dram:size=16MiB") };
    assert!(matches!(MemorySpace::open(small), Err(OpenFailure::SmallBudget)));
    for dram_bytes in [1 << 40, 1 << 50, u64::MAX] {
        let large = SpaceSettings { dram_bytes, ..settings("dram:size=16MiB") };
        assert!(matches!(MemorySpace::open(large), Err(OpenFailure::LargeBudget)));
    }
    let space = space("dram:size=16MiB");
    assert_eq!(space.map(0).map(|_| ()), Err(SpaceFailure::OutOfRange));
    assert_eq!(space.map(usize::MAX).map(|_| ()), Err(SpaceFailure::OutOfRange));
    assert_eq!(space.map((1 << 40) + 1).map(|_| ()), Err(SpaceFailure::OutOfRange));
    let mapping = space.map(5000).unwrap();
    let mut bytes = [1; 8];
    assert_eq!(mapping.read(4993, &mut bytes), Err(SpaceFailure::OutOfRange));
    assert_eq!(mapping.write(usize::MAX, &bytes), Err(SpaceFailure::OutOfRange));
    mapping.read(4992, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}
