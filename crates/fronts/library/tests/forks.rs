// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A forked child that drops what it has of its parent's spaces touches nothing: neither the parent's transfers, nor
//! what the child has mapped where the parent's memory was.
//!
//! The defects: a child that gave up a gather with reads in flight read the memory of its parent's ring, which it does
//! not have, and got SIGSEGV. A child that dropped a space unmapped addresses that were its own by then, kept the
//! descriptors of its parent's rings, and changed one of the rings.

#![allow(unsafe_code, reason = "a process forks, and a child maps memory where its parent has some")]

mod common;

use std::cell::Cell;
use std::ops::Range;
use std::task::Poll;

use aquifer::{CloseError, Error, Mapping, Piece, Space, contexts};
use aquifer_test_support::skip_part;
use common::{MIB, PAGE, can_run, evict_all, filled};

/// How long a child may take, in seconds: one that waits for ever is ended by SIGALRM.
const CHILD_SECONDS: u32 = 60;

/// A space over flash, whose reads overlap on an io_uring if the machine has it.
fn space_on_flash() -> Space {
    common::space(&format!("flash:{},size=64MiB", std::env::temp_dir().display()), "4KiB")
}

/// Forks. The child must end by [`end`]; a panic ends it, too, although it has no thread that would report it.
fn fork() -> libc::pid_t {
    // SAFETY: the child calls this library and the standard library only, and ends by _exit(2); glibc lets a child
    // allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: SIGALRM ends the child.
        unsafe { libc::alarm(CHILD_SECONDS) };
        std::panic::set_hook(Box::new(|_| end(99)));
    }
    child
}

/// Ends a child without running what the parent has registered.
fn end(status: i32) -> ! {
    // SAFETY: _exit(2) has no other effect.
    unsafe { libc::_exit(status) }
}

/// Waits for a child, and checks that it was content.
#[track_caller]
fn join(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of what went wrong, or 99 for a panic");
}

fn rings() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("there is /proc").flatten();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("[io_uring]")).count()
}

/// The addresses that are mapped in this process.
fn mapped() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
    let ends = maps.lines().filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let number = |digits| usize::from_str_radix(digits, 16).expect("an address");
    ends.map(|(start, end)| number(start)..number(end)).collect()
}

/// Maps a page wherever the parent had a mapping that begins there and this child has nothing.
fn fill_holes(parents: &[Range<usize>]) -> Vec<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let map = |parents: &Range<usize>| {
        let at = parents.start as *mut libc::c_void;
        // SAFETY: a new mapping that replaces none.
        let page = unsafe { libc::mmap(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>() };
        (page as usize == parents.start).then(|| {
            // SAFETY: it was just mapped.
            unsafe { page.write_volatile(7) };
            page
        })
    };
    parents.iter().filter_map(map).collect()
}

/// Whether all of these pages are still what the child has mapped, without touching those that are not.
fn are_kept(pages: &[*mut u8]) -> bool {
    let now = mapped();
    pages.iter().all(|page| {
        let is_mapped = now.iter().any(|range| range.contains(&(*page as usize)));
        // SAFETY: it is mapped, and this process has mapped it.
        is_mapped && unsafe { page.read_volatile() } == 7
    })
}

fn pieces(found: &mut [u8]) -> Vec<Piece<'_>> {
    let parts = found.chunks_mut(16).enumerate();
    parts.map(|(number, into)| Piece { offset: number * 8000, into }).collect()
}

fn is_right(found: &[u8]) -> bool {
    let byte = |at: usize| (at as u64 / 8 * 3).to_ne_bytes()[at % 8];
    found.chunks(16).enumerate().all(|(number, item)| {
        let start = number * 8000;
        item.iter().zip(start..).all(|(found, at)| *found == byte(at))
    })
}

fn evicted(space: &Space) -> Mapping {
    let mapping = filled(space, 8 * MIB, 3);
    evict_all(&mapping);
    mapping
}

#[test]
fn a_child_gives_up_its_parents_gathers_and_space_and_the_parent_goes_on() {
    if !can_run() {
        return;
    }
    let space = space_on_flash();
    let mapping = evicted(&space);
    // Leaves scratch memory and, after a gather that has ended, a ring for the next one.
    mapping.read_in_place(5 * PAGE, &mut [0; 8]).unwrap();
    let (mut first, mut second, mut third) = (vec![0; 1000 * 16], vec![0; 1000 * 16], vec![0; 1000 * 16]);
    mapping.gather_pieces(&mut pieces(&mut first)).unwrap();
    let mut polled = mapping.start_gather(pieces(&mut second)).unwrap();
    let mut dropped = mapping.start_gather(pieces(&mut third)).unwrap();
    assert!(polled.poll().is_pending() && dropped.poll().is_pending());
    if rings() == 0 {
        skip_part("the part with an io_uring", "the flash tier does not overlap its reads here");
    }
    let parents = mapped();
    let child = fork();
    if child == 0 {
        let (inherited, holes) = (rings(), fill_holes(&parents));
        let is_told = polled.poll() == Poll::Ready(Err(Error::Forked));
        drop((polled, dropped));
        drop(mapping);
        drop(space);
        end(match (inherited, is_told, holes.len() > 3, are_kept(&holes)) {
            (0, true, true, true) => 0,
            (1.., ..) => 1,
            (_, false, ..) => 2,
            (_, _, false, _) => 3,
            (_, _, _, false) => 4,
        });
    }
    join(child);
    dropped.wait().unwrap();
    while polled.poll().is_pending() {
        std::thread::yield_now();
    }
    assert_eq!(polled.poll(), Poll::Ready(Ok(())));
    drop(polled);
    assert!(is_right(&first) && is_right(&second) && is_right(&third));
    drop(mapping);
    assert_eq!(space.close(), Ok(()));
}

/// A context forks while others wait for fetches and for reads in place. Both processes end their run.
#[test]
fn contexts_of_a_child_are_told_that_it_was_forked() {
    if !can_run() {
        return;
    }
    let space = space_on_flash();
    let mapping = evicted(&space);
    let (told, right, child) = (Cell::new(0), Cell::new(0), Cell::new(-1));
    let count = |outcome: Result<(), Error>| match outcome {
        Ok(()) => right.set(right.get() + 1),
        Err(Error::Forked) => told.set(told.get() + 1),
        Err(other) => panic!("{other}"),
    };
    let (mapping, count, child_seen) = (&mapping, &count, &child);
    let report = contexts::run(
        &space,
        (0..300).map(|index| async move {
            // Scattered, so that nothing is read ahead.
            let at = index * 7919 % 2048 * PAGE;
            match index {
                // The child goes on in this run, and ends below.
                150 => child_seen.set(fork()),
                _ if index % 2 == 0 => count(mapping.fetch(at..at + PAGE).await),
                _ => count(mapping.copy(at, &mut [0; 16]).await),
            }
        }),
    );
    let ended = (report.contexts, told.get() + right.get());
    if child.get() == 0 {
        // A run that begins in the child, too.
        let again = contexts::run(&space, [async { assert_eq!(mapping.fetch(..PAGE).await, Err(Error::Forked)) }]);
        let is_right = ended == (300, 299) && told.get() > 0 && again.contexts == 1;
        let is_open = space.clone().close() == Err(CloseError::InUse);
        end(i32::from(!is_right) + 2 * i32::from(!is_open));
    }
    join(child.get());
    assert_eq!((ended, told.get()), ((300, 299), 0));
}
