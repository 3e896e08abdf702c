// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A ring's obligations to its caller: it returns every buffer once, with the bytes of the file, or an error.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::*;
use crate::direct_io::lasting_buffer;
use crate::memory::Reserved;

const PAGE: usize = 4096;

fn buffer(fill: u8, len: usize) -> FrameBuffer {
    let mut buffer = lasting_buffer(len / PAGE);
    buffer.bytes_mut().fill(fill);
    buffer
}

fn file(len: usize) -> Arc<File> {
    let directory = std::env::temp_dir();
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(directory).unwrap();
    file.write_all_at(&vec![5; len], 0).unwrap();
    Arc::new(file)
}

/// A ring, or `None` with the reason printed if io_uring is not usable.
fn ring(file: &Arc<File>, depth: u32) -> Option<Ring> {
    if let Err(why) = probe() {
        aquifer_test_support::skip(why);
        return None;
    }
    Some(Ring::new(Arc::<std::fs::File>::clone(file), depth).unwrap())
}

fn drain(ring: &mut Ring) -> Vec<Finished> {
    let mut all = Vec::new();
    while ring.in_flight() > 0 {
        ring.complete(true, 3, &mut |finished| all.push(finished));
    }
    all
}

#[test]
fn written_bytes_are_read_and_tags_come_back() {
    let file = file(16 * PAGE);
    let Some(mut ring) = ring(&file, 8) else { return };
    for tag in 0..8u8 {
        ring.submit_write(buffer(tag, PAGE), u64::from(tag) * 4096, u64::from(tag)).unwrap();
    }
    let refused = ring.submit_read(buffer(0, PAGE), 0, 99).unwrap_err();
    assert_eq!(refused.len(), PAGE);
    let mut tags: Vec<u64> = drain(&mut ring).iter().map(|f| (f.outcome.unwrap(), f.tag).1).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5, 6, 7]);
    for tag in 0..8u8 {
        ring.submit_read(buffer(0xff, PAGE), u64::from(tag) * 4096, u64::from(tag)).unwrap();
    }
    ring.kick().unwrap();
    for finished in drain(&mut ring) {
        assert_eq!(finished.outcome, Ok(()));
        assert!(finished.buffer.bytes().iter().all(|byte| u64::from(*byte) == finished.tag));
    }
}

#[test]
fn a_read_past_the_end_is_short_and_says_how_much_came() {
    let file = file(PAGE);
    let Some(mut ring) = ring(&file, 2) else { return };
    ring.submit_read(buffer(0, 2 * PAGE), 0, 1).unwrap();
    let finished = drain(&mut ring).pop().unwrap();
    assert_eq!(finished.outcome, Err(TransferError::Short { transferred: PAGE }));
    assert!(finished.buffer.bytes()[..PAGE].iter().all(|byte| *byte == 5));
}

#[test]
fn an_error_of_the_kernel_keeps_its_errno() {
    let read_only = Arc::new(File::open("/proc/self/exe").unwrap());
    let Some(mut ring) = ring(&read_only, 2) else { return };
    ring.submit_write(buffer(0, PAGE), 0, 1).unwrap();
    assert_eq!(drain(&mut ring).pop().unwrap().outcome, Err(TransferError::Errno(libc::EBADF)));
}

#[test]
fn dropping_a_ring_with_requests_in_flight_waits_for_them() {
    let file = file(64 * PAGE);
    for _ in 0..20 {
        let Some(mut ring) = ring(&file, 64) else { return };
        for tag in 0..64 {
            ring.submit_write(buffer(6, PAGE), tag * 4096, tag).unwrap();
        }
        ring.kick().unwrap();
        ring.submit_read(buffer(0, PAGE), 0, 0).unwrap_err();
        drop(ring);
        let mut bytes = vec![0; 64 * PAGE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 6));
    }
}

/// A ring whose descriptor the program has closed cannot wait for its requests. Its buffers' memory was unmapped all
/// the same, while the kernel could still write into it.
#[test]
fn memory_of_a_ring_that_cannot_wait_stays_mapped() {
    // While the other end is open, a read of an empty pipe does not end.
    let (empty, _writer) = std::io::pipe().unwrap();
    if let Err(why) = probe() {
        return aquifer_test_support::skip(why);
    }
    let mut ring = Ring::new(Arc::new(empty), 2).unwrap();
    let lent = Reserved::new(PAGE).unwrap();
    let address = lent.address();
    // SAFETY: the only buffer of the range, which is dropped after the ring.
    let buffer = unsafe { lent.buffer(0, PAGE) };
    ring.submit_read(buffer, 0, 1).unwrap();
    ring.kick().unwrap();
    // The number of the ring's descriptor is another file's from now on.
    let null = File::open("/dev/null").unwrap();
    // SAFETY: dup2(2) on descriptors of this test; the ring closes what has its number now.
    assert!(unsafe { libc::dup2(null.as_raw_fd(), ring.descriptor()) } >= 0);
    drop(ring);
    drop(lent);
    let mut resident = 0;
    // SAFETY: mincore(2) writes one byte for one page, and fails where nothing is mapped.
    let looked = unsafe { libc::mincore(address as *mut libc::c_void, PAGE, &raw mut resident) };
    assert_eq!(looked, 0, "the kernel may still write there");
}

#[test]
fn dropping_a_ring_that_was_never_kicked_does_nothing_to_the_file() {
    let file = file(PAGE);
    let Some(mut ring) = ring(&file, 2) else { return };
    ring.submit_write(buffer(6, PAGE), 0, 0).unwrap();
    drop(ring);
    let mut bytes = vec![0; PAGE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
}

#[test]
fn completing_an_idle_ring_returns_at_once() {
    let file = file(PAGE);
    let Some(mut ring) = ring(&file, 2) else { return };
    assert_eq!(ring.complete(true, 8, &mut |_| {}), 0);
    assert_eq!(ring.complete(false, 8, &mut |_| {}), 0);
    ring.kick().unwrap();
}

#[test]
fn short_answers_are_continued_where_they_stopped_and_only_so_often() {
    let transfer = |transferred| Transfer {
        direction: Direction::Read,
        buffer: buffer(0, 4 * PAGE),
        offset: 0,
        transferred,
        continuations: 0,
        tag: 0,
    };
    let mut partial = transfer(0);
    assert_eq!(advance(&mut partial, 4096), None);
    assert_eq!(partial.transferred, PAGE);
    assert_eq!(advance(&mut partial, 3 * 4096), Some(Ok(())));
    let mut interrupted = transfer(0);
    for _ in 0..CONTINUATIONS_MAX {
        assert_eq!(advance(&mut interrupted, -libc::EAGAIN), None);
    }
    assert_eq!(advance(&mut interrupted, -libc::EAGAIN), Some(Err(TransferError::Errno(libc::EAGAIN))));
    assert_eq!(advance(&mut transfer(PAGE), 0), Some(Err(TransferError::Short { transferred: PAGE })));
    assert_eq!(advance(&mut transfer(0), -libc::EIO), Some(Err(TransferError::Errno(libc::EIO))));
}

#[test]
fn the_reason_for_absence_names_the_setting() {
    let text = |errno, disabled| Unusable { errno, disabled }.to_string();
    assert!(text(libc::EPERM, Some(2)).contains("sysctl -w kernel.io_uring_disabled=0"));
    assert!(text(libc::EPERM, Some(0)).contains("seccomp"));
    assert!(text(libc::ENOSYS, None).contains("Linux 5.6"));
}

/// The defect: dropping a ring with requests in flight read memory that the child does not have.
#[test]
fn a_forked_child_drops_its_copy_of_a_ring_without_touching_it() {
    let file = file(16 * PAGE);
    let Some(ring) = ring(&file, 8) else { return };
    let mut ring = Some(ring);
    let own = ring.as_mut().expect("it was made");
    (0..8).for_each(|tag| own.submit_read(buffer(0, PAGE), tag * 4096, tag).unwrap());
    own.kick().unwrap();
    let number = own.descriptor() as usize;
    let is_ring = |number| crate::descriptors::is(number, b"anon_inode:[io_uring]");
    assert!(is_ring(number));
    // SAFETY: the child drops its copy of the ring and ends by exit_group(2).
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        close_inherited();
        let is_closed = !is_ring(number);
        drop(ring.take());
        crate::raw::exit_process(i32::from(!is_closed));
    }
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "ended by a signal, or the descriptor is open");
    let own = ring.as_mut().expect("only the child has dropped it");
    assert!(is_ring(number) && drain(own).iter().all(|f| f.outcome.is_ok() && f.buffer.bytes() == [5; PAGE]));
}
