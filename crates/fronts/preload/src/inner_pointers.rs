// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a system call touches through one more pointer: entries of vectors, strings of an array, and the targets
//! of pointers in structures that no table lists, such as those of ioctl(2), setsockopt(2), bpf(2).
//!
//! Pointers that no table lists are guessed once a call has failed with EFAULT: each word of the structure that could
//! be an address of managed memory is treated as one. Making too much memory resident is harmless.

#![allow(unsafe_code, reason = "looks at what the program's arguments point to")]

use crate::bounce::{self, Entries};
use crate::pointers::{FUTEX_WAITER_BYTES, Shape, message_count, shape};
use crate::program_memory::{load, string_len};

/// Requests of io_submit(2) with vectors: linux/aio_abi.h.
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
/// Maximum number of strings or requests of one call that are looked at; the memory of further ones is not made
/// resident. More than any program has been seen to use.
const POINTERS_MAX: usize = 4096;
/// How many words of a structure are searched for pointers: `union bpf_attr` is the longest that was found, 168 bytes.
const GUESSED_WORDS: usize = 32;
/// How many bytes a guessed pointer may point to: a filter of 4096 instructions (BPF_MAXINSNS) takes 32 KiB.
const GUESSED_BYTES: usize = 64 << 10;
/// How many structures deep guesses go. Two, since a structure may point to another one, as for SIOCETHTOOL.
const GUESSED_DEEP: usize = 2;

/// Calls `each` with the memory that the arguments of a call point to through one more pointer.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn each_pointer(number: i64, args: &[usize; 6], each: &mut dyn FnMut(usize, usize)) {
    // For memory that cannot be read, the kernel itself returns the error.
    let word = |start: usize, index: usize| load::<usize>(start.wrapping_add(index * size_of::<usize>())).unwrap_or(0);
    match shape(number, args) {
        Shape::Remote | Shape::Vector { .. } => {
            // SAFETY: the caller's promise.
            let entries = unsafe { Entries::read(args[1], args[2].min(bounce::ENTRIES_MAX)) };
            each(args[1], size_of_val(entries.list()));
            entries.list().iter().for_each(|entry| each(entry.iov_base as usize, entry.iov_len));
            if matches!(number, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev) {
                // SAFETY: the caller's promise.
                let far = unsafe { Entries::read(args[3], args[4].min(bounce::ENTRIES_MAX)) };
                each(args[3], size_of_val(far.list()));
                far.list().iter().for_each(|entry| each(entry.iov_base as usize, entry.iov_len));
            }
        }
        Shape::Messages => {
            const STRIDE: usize = size_of::<libc::mmsghdr>();
            let count = message_count(number, args).min(bounce::ENTRIES_MAX);
            each(args[1], count * STRIDE);
            for index in 0..count {
                let Some(header) = load::<libc::msghdr>(args[1].wrapping_add(index * STRIDE)) else { break };
                // SAFETY: the caller's promise.
                let entries =
                    unsafe { Entries::read(header.msg_iov as usize, header.msg_iovlen.min(bounce::ENTRIES_MAX)) };
                each(header.msg_iov as usize, size_of_val(entries.list()));
                each(header.msg_name as usize, header.msg_namelen as usize);
                each(header.msg_control as usize, header.msg_controllen);
                entries.list().iter().for_each(|entry| each(entry.iov_base as usize, entry.iov_len));
            }
        }
        Shape::Submit => {
            let count = args[1].min(POINTERS_MAX);
            each(args[2], count * size_of::<usize>());
            for index in 0..count {
                let request = word(args[2], index);
                // `struct iocb`: 64 bytes, with the kind of request at 16, and the buffer's address and length at 24
                // and 32, which describe a vector's entries for some kinds.
                each(request, 64);
                let (start, count) = (word(request, 3), word(request, 4));
                if !matches!((word(request, 2) & 0xffff) as u16, IOCB_CMD_PREADV | IOCB_CMD_PWRITEV) {
                    each(start, count);
                    continue;
                }
                // SAFETY: the caller's promise.
                let entries = unsafe { Entries::read(start, count.min(bounce::ENTRIES_MAX)) };
                each(start, size_of_val(entries.list()));
                entries.list().iter().for_each(|entry| each(entry.iov_base as usize, entry.iov_len));
            }
        }
        Shape::Strings(first) => {
            for array in [args[first + 1], args[first + 2]] {
                for index in 0..if array == 0 { 0 } else { POINTERS_MAX } {
                    let string = word(array, index);
                    if string == 0 {
                        break;
                    }
                    if let Some(len) = string_len(string) {
                        each(string, len + 1);
                    }
                }
            }
        }
        Shape::Waiters(count) => {
            each(args[0], count * FUTEX_WAITER_BYTES);
            for index in 0..count {
                // The address is the second of three words.
                each(word(args[0], index * 3 + 1), size_of::<u32>());
            }
        }
        Shape::Bytes { .. } | Shape::Message { .. } | Shape::Plain | Shape::Word => {}
    }
}

/// Calls `each` with the memory that the structure at `start` could point to, `deep` structures deep, at most two.
pub fn guess(start: usize, deep: usize, each: &mut dyn FnMut(usize, usize)) {
    if deep == 0 || !start.is_multiple_of(align_of::<usize>()) {
        return;
    }
    for index in 0..GUESSED_WORDS {
        let Some(word) = load::<usize>(start.wrapping_add(index * size_of::<usize>())) else { break };
        each(word, GUESSED_BYTES);
        guess(word, deep.min(GUESSED_DEEP) - 1, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_a_structures_pointers_are_guessed() {
        // As long as what is looked at, so that no neighbour in the heap counts, whatever other tests put there.
        let structure = |first: usize, second: usize| {
            let mut words = Box::new([0; GUESSED_WORDS]);
            (words[0], words[1]) = (first, second);
            words
        };
        let filter = structure(0, 0);
        let inner = structure(7, &raw const *filter as usize);
        let outer = structure(&raw const *inner as usize, 3);
        let seen = |deep| {
            let mut seen = Vec::new();
            guess(&raw const *outer as usize, deep, &mut |start, _| seen.push(start));
            seen
        };
        assert!(seen(0).is_empty());
        assert!(seen(1).contains(&(&raw const *inner as usize)));
        assert!(!seen(1).contains(&(&raw const *filter as usize)));
        assert!(seen(2).contains(&(&raw const *filter as usize)));
        assert_eq!(seen(9).len(), seen(2).len());
    }

    #[test]
    fn addresses_of_nothing_are_passed_over() {
        for start in [0, 1, 8, 4096, usize::MAX - 7, 1 << 47, 0xffff_8000_0000_0000] {
            guess(start, 2, &mut |_, _| panic!("{start:#x} was read"));
        }
    }
}
