// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Loads and stores at addresses that the program gave to a system call, where the kernel would return EFAULT and
//! continue.
//!
//! A program may pass any address: some do so on purpose, to find out whether it can be read (Abseil's
//! `AddressIsReadable` passes it to rt_sigprocmask(2)). So before the library reads a structure in place of the kernel,
//! it asks the kernel whether the address is readable. Memory that the kernel cannot read because it is evicted is
//! managed, and a load fetches it.

#![allow(unsafe_code, reason = "loads and stores at the program's addresses")]

use aquifer_sys::raw::{Errno, syscall};

use crate::start::instance;

const PAGE_BYTES: usize = 4096;
/// An address this close above the stack pointer is in a caller's frame: most structures are, and need no check.
const FRAMES_BYTES: usize = 16 << 10;
/// The longest string that execve(2) takes: the kernel's MAX_ARG_STRLEN.
const STRING_BYTES_MAX: usize = 128 << 10;

/// Returns the value at `start`; `None` if a load would end the program.
pub fn load<T: Copy>(start: usize) -> Option<T> {
    is_readable(start, size_of::<T>()).then(|| {
        // SAFETY: the bytes are readable, or evicted: such a fault is resolved as for any load. Structures of the
        // kernel have no invalid values.
        unsafe { std::ptr::with_exposed_provenance::<T>(start).read_unaligned() }
    })
}

/// Stores `value` at `start`. Returns false if a store would end the program.
pub fn store<T>(start: usize, value: T) -> bool {
    // The check overwrites eight bytes, which must be part of the value.
    let can_be_asked = start.is_multiple_of(size_of::<u64>()) && size_of::<T>() >= size_of::<u64>();
    if can_be_asked && !is_a_frames(start, size_of::<T>()) && !is_writable(start) && !is_ours(start) {
        return false;
    }
    // SAFETY: the bytes are writable, or evicted: such a fault is resolved as for any store.
    unsafe { std::ptr::with_exposed_provenance_mut::<T>(start).write_unaligned(value) };
    true
}

/// Stores a word at `start`. Returns false if a store would end the program.
pub fn store_word(start: usize, value: i32) -> bool {
    let possible = can_store_word(start);
    if possible {
        // SAFETY: the word is writable, or evicted: such a fault is resolved as for any store.
        unsafe { std::ptr::with_exposed_provenance_mut::<i32>(start).write_unaligned(value) };
    }
    possible
}

/// Returns whether a word can be stored at `start`. Keeps the present value.
pub fn can_store_word(start: usize) -> bool {
    let Some(old) = load::<i32>(start) else { return false };
    // SAFETY: prctl(2) writes one word there, or fails.
    let asked = unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_PDEATHSIG as usize, start, 0, 0, 0, 0]) };
    if asked.is_ok() {
        // SAFETY: the kernel has just written to it; if it has been evicted since, the fault is resolved.
        unsafe { std::ptr::with_exposed_provenance_mut::<i32>(start).write_unaligned(old) };
    }
    asked.is_ok() || is_ours(start)
}

/// Returns whether the library can read `len` bytes at `start`.
pub fn is_readable(start: usize, len: usize) -> bool {
    if is_a_frames(start, len) {
        return true;
    }
    let Some(last) = start.checked_add(len.max(1) - 1) else { return false };
    let mut pages = (start / PAGE_BYTES..=last / PAGE_BYTES).map(|page| (page * PAGE_BYTES).max(start & !7));
    pages.all(|at| kernel_reads(at) || is_ours(at))
}

/// Returns the length of a string without its NUL; `None` if it becomes unreadable before it ends, or is too long.
pub fn string_len(start: usize) -> Option<usize> {
    let mut len = 0;
    while len < STRING_BYTES_MAX {
        let at = start.checked_add(len)?;
        let rest = PAGE_BYTES - at % PAGE_BYTES;
        if !is_readable(at, rest) {
            return None;
        }
        let text = std::ptr::with_exposed_provenance::<libc::c_char>(at);
        // SAFETY: the rest of the page is readable.
        let part = unsafe { libc::strnlen(text, rest) };
        len += part;
        if part < rest {
            return Some(len);
        }
    }
    None
}

fn is_a_frames(start: usize, len: usize) -> bool {
    let here = 0_u8;
    let stack = &raw const here as usize;
    start >= stack && len <= FRAMES_BYTES && start - stack <= FRAMES_BYTES - len
}

/// Returns whether the memory is managed: the kernel cannot read it while it is evicted.
fn is_ours(at: usize) -> bool {
    instance().is_some_and(|instance| instance.adopter.may_need_pin(at, 1) && instance.adopter.manages(at, 1))
}

/// Returns whether the kernel can read a word: rt_sigprocmask(2) reads its set before it rejects an invalid `how`.
fn kernel_reads(address: usize) -> bool {
    const NO_SUCH: usize = 77;
    // Null means "no set".
    address != 0
        // SAFETY: changes nothing.
        && unsafe { syscall(libc::SYS_rt_sigprocmask, [NO_SUCH, address, 0, size_of::<u64>(), 0, 0]) }
            == Err(Errno(libc::EINVAL))
}

/// Returns whether the kernel can write a word: rt_sigprocmask(2) without a set writes the old one.
fn is_writable(address: usize) -> bool {
    let block = libc::SIG_BLOCK as usize;
    // SAFETY: the caller overwrites the bytes that this call writes.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [block, 0, address, size_of::<u64>(), 0, 0]) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maps two pages, of which the second cannot be touched.
    fn half() -> usize {
        // SAFETY: new memory, a part of which is unmapped again.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start =
                libc::mmap(std::ptr::null_mut(), 2 * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_eq!(libc::mprotect(start.add(PAGE_BYTES), PAGE_BYTES, libc::PROT_NONE), 0);
            start as usize
        }
    }

    #[test]
    fn only_what_is_there_is_loaded_and_stored() {
        let (near, far) = (7_u64, Box::new(9_u64));
        assert_eq!(load::<u64>(&raw const near as usize), Some(7));
        assert_eq!(load::<u64>(&raw const *far as usize), Some(9));
        for start in [0, 1, 4097, usize::MAX - 3, usize::MAX, 1 << 47] {
            assert_eq!(load::<u64>(start), None, "{start:#x}");
        }
        assert!(!store(8, 1_u64));
        let start = half();
        assert!(store(start + 4088, 0x0102_0304_0506_0708_u64) && !store(start + 4096, 1_u64));
        assert_eq!(load::<u64>(start + 4088), Some(0x0102_0304_0506_0708));
        assert_eq!((load::<u16>(start + 4094), load::<u16>(start + 4095)), (Some(0x0102), None));
        assert!(is_readable(start, 4096) && !is_readable(start, 4097) && is_readable(start, 0));
        assert!(store_word(start, 5) && can_store_word(start) && load::<i32>(start) == Some(5));
        assert!(!store_word(start + 4096, 5) && !store_word(start + 4094, 5) && !store_word(0, 5));
    }

    #[test]
    fn a_string_ends_or_is_none() {
        let start = half();
        assert_eq!(string_len(start), Some(0));
        // SAFETY: the first page is mapped.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(b'x', 4095) };
        assert_eq!((string_len(start), string_len(start + 4095)), (Some(4095), Some(0)));
        assert!(store(start + 4095, b'x'));
        assert_eq!((string_len(start), string_len(3)), (None, None));
        let long = vec![b'x'; 2 * STRING_BYTES_MAX];
        assert_eq!(string_len(long.as_ptr() as usize), None);
    }
}
