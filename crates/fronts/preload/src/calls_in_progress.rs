// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The memory that a system call of another thread may touch, by the table of `pointers.rs`.
//!
//! The thread is in its call, or has just left it, so its pointers may be invalid: the kernel reads through them and
//! returns an error if they are. Runs once, on the thread that starts the pager.

#![allow(unsafe_code, reason = "reads of this process's memory by the kernel")]

use aquifer_sys::raw::syscall;

use crate::bounce::ENTRIES_MAX;
use crate::calls::{ADDRESS_BYTES, TRANSFER_BYTES_MAX};
use crate::pointers::{FUTEX_WAITER_BYTES, Shape, length, message_count, shape};

/// Maximum number of messages of one recvmmsg(2) that are looked at: more than a socket queues.
const MESSAGES_MAX: usize = 64 << 10;

/// Calls `each` with the address and the length of all memory that the call may touch.
pub fn of(number: i64, args: &[usize; 6], each: &mut dyn FnMut(usize, usize)) {
    for (index, start) in args.iter().enumerate() {
        each(*start, length(number, index, args));
    }
    match shape(number, args) {
        Shape::Bytes { .. } => {
            each(args[1], args[2].min(TRANSFER_BYTES_MAX));
            each(args[4], ADDRESS_BYTES);
        }
        Shape::Vector { .. } | Shape::Remote => entries(args[1], args[2], each),
        Shape::Message { .. } => _ = header(args[1], each),
        Shape::Messages => {
            for index in 0..message_count(number, args).min(MESSAGES_MAX) {
                // The kernel stops at an unreadable header.
                if !header(args[1].wrapping_add(index * size_of::<libc::mmsghdr>()), each) {
                    return;
                }
            }
        }
        Shape::Waiters(count) => {
            for index in 0..count {
                let Some([_, word, _]) = words(args[0].wrapping_add(index * FUTEX_WAITER_BYTES)) else { return };
                each(word, size_of::<u32>());
            }
        }
        Shape::Plain | Shape::Strings(_) | Shape::Submit | Shape::Word => {}
    }
}

fn entries(start: usize, count: usize, each: &mut dyn FnMut(usize, usize)) {
    let count = count.min(ENTRIES_MAX);
    each(start, count * size_of::<libc::iovec>());
    for index in 0..count {
        // An address and a length.
        let Some([address, len]) = words(start.wrapping_add(index * size_of::<libc::iovec>())) else { return };
        each(address, len.min(TRANSFER_BYTES_MAX));
    }
}

/// Reads a `struct msghdr`: name and its length, vector and its length, control and its length, flags. Returns false if
/// it cannot be read.
fn header(start: usize, each: &mut dyn FnMut(usize, usize)) -> bool {
    let Some([name, _, vector, count, control, control_len, _]) = words(start) else { return false };
    each(start, size_of::<libc::mmsghdr>());
    each(name, ADDRESS_BYTES);
    each(control, control_len.min(TRANSFER_BYTES_MAX));
    entries(vector, count, each);
    true
}

/// Reads words of this process's memory by process_vm_readv(2), if they are readable.
fn words<const COUNT: usize>(start: usize) -> Option<[usize; COUNT]> {
    let mut words = [0usize; COUNT];
    let len = size_of_val(&words);
    let here = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: len };
    let there = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: len };
    // SAFETY: getpid(2) has no arguments.
    let process = unsafe { syscall(libc::SYS_getpid, [0; 6]) }.ok()?;
    let args = [process, &raw const here as usize, 1, &raw const there as usize, 1, 0];
    // SAFETY: the kernel writes no more than the words have room for.
    let read = unsafe { syscall(libc::SYS_process_vm_readv, args) };
    (read == Ok(len)).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointers::{SYS_FUTEX_REQUEUE, SYS_FUTEX_WAITV};

    fn reach(number: i64, args: [usize; 6]) -> Vec<(usize, usize)> {
        let mut reached = Vec::new();
        of(number, &args, &mut |start, len| reached.push((start, len)));
        reached
    }

    #[test]
    fn buffers_vectors_and_messages_are_found() {
        assert!(reach(libc::SYS_read, [3, 0x5000, 1 << 20, 0, 0, 0]).contains(&(0x5000, 1 << 20)));
        let entry =
            |start: usize, len| libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: len };
        let vector = [entry(0x7000, 10), entry(0x9000, 20)];
        let found = reach(libc::SYS_readv, [3, vector.as_ptr() as usize, 2, 0, 0, 0]);
        assert!(found.contains(&(0x7000, 10)) && found.contains(&(0x9000, 20)), "{found:?}");
        let waiters = [[5usize, 0xa000, 2], [5, 0xb000, 2]];
        for number in [SYS_FUTEX_WAITV, SYS_FUTEX_REQUEUE] {
            let found = reach(number, [waiters.as_ptr() as usize, 2, 0, 0, 0, 0]);
            assert!(found.contains(&(0xa000, 4)) && found.contains(&(0xb000, 4)), "{found:?}");
        }
        // SAFETY: a structure of numbers and pointers, for which all zeros is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (vector.as_ptr().cast_mut(), 2);
        (message.msg_control, message.msg_controllen) = (std::ptr::with_exposed_provenance_mut(0x8000), 64);
        let found = reach(libc::SYS_recvmsg, [3, &raw const message as usize, 0, 0, 0, 0]);
        assert!(found.contains(&(0x9000, 20)) && found.contains(&(0x8000, 64)), "{found:?}");
    }

    #[test]
    fn pointers_to_nowhere_are_no_trouble() {
        for number in [libc::SYS_readv, libc::SYS_recvmsg, libc::SYS_recvmmsg] {
            assert!(!reach(number, [3, 8, 1000, 0, 0, 0]).is_empty());
            assert!(!reach(number, [3, usize::MAX - 3, usize::MAX, 0, 0, 0]).is_empty());
        }
    }
}
