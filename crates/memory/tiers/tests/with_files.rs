// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier with files beside it is a tier; its files are read at their own offsets, and nowhere else.

#![allow(unsafe_code, reason = "a process forks")]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use aquifer_core::units::SlabIndex;
use aquifer_sys::FrameBuffer;
use aquifer_tiers::conformance::{check, frames};
use aquifer_tiers::{Cause, FILES_MAX, FilePages, Operation, PAGE, Request, Tier, TierSpec, Wait, WithFiles, open};

/// A file whose pages are filled with their number and one of the file.
struct Numbered(u8);

impl FilePages for Numbered {
    fn read(&self, page: u64, buffer: &mut FrameBuffer) -> Result<(), Cause> {
        for (number, bytes) in (page..).zip(buffer.bytes_mut().chunks_exact_mut(PAGE)) {
            bytes.fill(self.0 ^ number as u8);
        }
        Ok(())
    }

    fn give_up_in_child(&self) {}
}

fn tier() -> (WithFiles, Arc<aquifer_tiers::Files>) {
    WithFiles::over(open(&"dram:size=16MiB".parse::<TierSpec>().unwrap()).unwrap())
}

#[test]
fn a_tier_with_files_passes_the_suite() {
    check("with files", &|| Box::new(tier().0));
}

#[test]
fn a_file_is_read_at_its_offsets_by_thread_and_queue() {
    let (tier, files) = tier();
    let file = |number| Arc::new(Numbered(number)) as Arc<dyn FilePages>;
    let slabs: Vec<SlabIndex> = (0..3).map(|number| files.attach(&file(number * 50)).unwrap()).collect();
    files.detach(slabs[1]);
    let mut queue = tier.open_queue(4).unwrap();
    for (number, slab) in slabs.iter().enumerate() {
        let offset = slab.offset() + 7 * PAGE as u64;
        let mut frame = frames::frame(2, 0xee);
        assert_eq!(tier.read(offset, &mut frame).is_ok(), number != 1);
        let mut outcome = None;
        queue.submit(Request { operation: Operation::Read, offset, buffer: frame, tag: 5 }).unwrap();
        assert_eq!(queue.in_flight(), 1);
        queue.complete(Wait::ForOne, 1, &mut |completion| outcome = Some(completion));
        let completion = outcome.expect("it is ready");
        assert_eq!((completion.tag, completion.outcome.is_ok()), (5, number != 1));
        if number != 1 {
            let bytes = completion.buffer.bytes();
            let filled = number as u8 * 50;
            assert_eq!((bytes[0], bytes[PAGE]), (filled ^ 7, filled ^ 8));
        }
        assert!(tier.mapped(offset, PAGE).is_none());
        assert!(tier.write(offset, &completion.buffer).is_err(), "nothing is written back to a file");
        frames::give_back(completion.buffer);
    }
    assert_eq!(files.attach(&file(9)), Some(slabs[1]), "a place that is free again");
    let more = (0..FILES_MAX).take_while(|_| files.attach(&file(1)).is_some()).count();
    assert_eq!(more, FILES_MAX - 3);
}

/// How long a child may take.
const CHILD_MAX: Duration = Duration::from_secs(20);

/// A file whose reads begin and end when the test does, too.
struct Slow {
    begin: Barrier,
    end: Barrier,
}

impl FilePages for Slow {
    fn read(&self, _: u64, _: &mut FrameBuffer) -> Result<(), Cause> {
        self.begin.wait();
        self.end.wait();
        Ok(())
    }

    fn give_up_in_child(&self) {}
}

/// Ends the process without running what the parent has registered.
fn exit(status: i32) -> ! {
    // SAFETY: _exit(2) takes a number and does not return.
    unsafe { libc::_exit(status) }
}

/// Once, such a child waited for ever, with all signals blocked, for a reader that only its parent has.
#[test]
fn a_forked_child_waits_for_no_reader_of_its_parent() {
    let (tier, files) = tier();
    let slow = Arc::new(Slow { begin: Barrier::new(2), end: Barrier::new(2) });
    let slab = files.attach(&(Arc::clone(&slow) as Arc<dyn FilePages>)).unwrap();
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = frames::frame(1, 0);
            tier.read(slab.offset(), &mut frame).unwrap();
            frames::give_back(frame);
        });
        slow.begin.wait();
        // SAFETY: the child calls nothing but this crate, and ends by _exit(2); glibc lets a child allocate.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let adopted = tier.forks().expect("it has files").after_fork_in_child(false);
            let other = files.attach(&(Arc::new(Numbered(1)) as Arc<dyn FilePages>));
            files.detach(slab);
            exit(if adopted.is_ok() && other != Some(slab) { 0 } else { 1 });
        }
        let status = wait_for(child);
        slow.end.wait();
        status
    });
    assert_eq!(status, Some(0), "`None`: it hangs");
    files.detach(slab);
    let mut frame = frames::frame(1, 0);
    assert!(tier.read(slab.offset(), &mut frame).is_err(), "the parent has removed it");
    frames::give_back(frame);
}

/// Returns the exit status of a child, or kills it after a while.
fn wait_for(child: libc::pid_t) -> Option<i32> {
    assert!(child > 0, "fork");
    let (started, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: waitpid(2) writes one number.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if started.elapsed() > CHILD_MAX {
            // SAFETY: kill(2) and waitpid(2) of the test's own child, which nobody has waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &raw mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
