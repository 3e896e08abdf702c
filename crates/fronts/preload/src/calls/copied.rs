// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Passes copies of structures to system calls, where the structures cannot be pinned.
//!
//! A thread may wait in accept(2) or poll(2) for days, and its pins keep whole blocks resident. So beyond the limit
//! for all calls, a call gets copies of its structures, and the bytes that the kernel has changed are copied back to
//! the program's. Only arguments that are certainly pointers are replaced: the table lists calls that wait, or that
//! consume data that cannot be obtained again. Other calls are short, and can be repeated.
//!
//! Runs on the program's threads, which may be cancelled or leave by siglongjmp(3) while the kernel executes the call.

#![allow(unsafe_code, reason = "structures of the program's system calls")]

use aquifer_pager::Adopter;

use super::{Caller, FAULT};
use crate::pointers::{SYS_IO_PGETEVENTS, length};
use crate::program_memory::is_readable;

/// Maximum number of bytes of one call's structures that are copied: as many as poll(2) needs for two million
/// descriptors.
const COPIED_BYTES_MAX: usize = 16 << 20;

/// Returns which arguments of a call are pointers to structures: one bit each. No bit if the call is not in the table.
fn pointers(number: i64, args: &[usize; 6]) -> u8 {
    const fn of(indexes: &[u8]) -> u8 {
        let (mut bits, mut at) = (0, 0);
        while at < indexes.len() {
            bits |= 1 << indexes[at];
            at += 1;
        }
        bits
    }
    match number {
        libc::SYS_getcwd | libc::SYS_getrandom | libc::SYS_open | libc::SYS_pipe | libc::SYS_pipe2 | libc::SYS_poll => {
            of(&[0])
        }
        libc::SYS_semop => of(&[1]),
        libc::SYS_getdents | libc::SYS_getdents64 | libc::SYS_msgrcv | libc::SYS_msgsnd => of(&[1]),
        libc::SYS_openat | libc::SYS_connect | libc::SYS_epoll_wait => of(&[1]),
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getpeername | libc::SYS_getsockname => of(&[1, 2]),
        libc::SYS_openat2 => of(&[1, 2]),
        libc::SYS_semtimedop | libc::SYS_splice | libc::SYS_copy_file_range | libc::SYS_wait4 => of(&[1, 3]),
        libc::SYS_epoll_pwait | libc::SYS_mq_timedsend => of(&[1, 4]),
        libc::SYS_epoll_pwait2 | libc::SYS_mq_timedreceive => of(&[1, 3, 4]),
        libc::SYS_nanosleep => of(&[0, 1]),
        libc::SYS_ppoll => of(&[0, 2, 3]),
        libc::SYS_rt_sigtimedwait => of(&[0, 1, 2]),
        libc::SYS_clock_nanosleep => of(&[2, 3]),
        libc::SYS_sendfile => of(&[2]),
        libc::SYS_socketpair => of(&[3]),
        libc::SYS_waitid => of(&[2, 4]),
        // The sixth argument of these points to a pointer, so it is not copied.
        libc::SYS_pselect6 | libc::SYS_select => of(&[1, 2, 3, 4]),
        libc::SYS_io_getevents | SYS_IO_PGETEVENTS => of(&[3, 4]),
        libc::SYS_fcntl => match args[1] as i32 {
            libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW => of(&[2]),
            libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => of(&[2]),
            _ => 0,
        },
        _ => 0,
    }
}

/// A structure of the program: its bytes before the call, and as the kernel has left them.
struct Structure {
    index: usize,
    start: usize,
    before: Vec<u8>,
    ours: Vec<u8>,
}

impl Structure {
    /// Returns `None` if it cannot be read at all.
    fn of(index: usize, start: usize, len: usize) -> Option<Self> {
        // If the length is a guess, the structure may be shorter.
        let rest_of_page = 4096 - start % 4096;
        let len = if is_readable(start, len) { len } else { rest_of_page.min(len) };
        if !is_readable(start, len) {
            return None;
        }
        let mut before = vec![0; len];
        let source = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: the bytes are readable, or evicted: such a fault is resolved as for any load. Another thread of the
        // program may change them at the same time, as it may while the kernel reads them.
        unsafe { source.copy_to_nonoverlapping(before.as_mut_ptr(), len) };
        let ours = before.clone();
        Some(Self { index, start, before, ours })
    }

    /// Stores only the changed bytes, because another thread may be using the bytes next to them.
    fn give_back(&self) {
        let changed = self.before.iter().zip(&self.ours).enumerate().filter(|(_, (before, after))| before != after);
        for (at, (_, after)) in changed {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(self.start + at);
            // SAFETY: the kernel would have written there; a fault is resolved as for any store.
            unsafe { target.write_volatile(*after) };
        }
    }
}

impl Caller {
    /// Makes a call of the table, with its structures pinned or else copied. Returns `None` for any other call.
    pub(super) unsafe fn copied(&self, adopter: &'static Adopter, number: i64, args: &[usize; 6]) -> Option<isize> {
        let pointers = pointers(number, args);
        if pointers == 0 {
            return None;
        }
        let far = |(index, start): (usize, usize)| {
            let len = length(number, index, args);
            (pointers >> index & 1 != 0 && adopter.may_need_pin(start, len)).then_some((index, start, len))
        };
        let structures = || args.iter().copied().enumerate().filter_map(far);
        let ranges = |each: &mut dyn FnMut(usize, usize)| structures().for_each(|(_, start, len)| each(start, len));
        let mut pins = adopter.call_pins()?;
        // A guessed length may end in unmapped memory: the kernel reads only as much as it needs.
        if pins.add_all(&ranges) {
            // SAFETY: the caller's promise.
            let result = unsafe { self.raw(number, *args) };
            if result != FAULT || pointers_may_lead_on(number) {
                return (result != FAULT).then_some(result);
            }
            return Some(result);
        }
        drop(pins);
        if structures().map(|(_, _, len)| len).sum::<usize>() > COPIED_BYTES_MAX {
            return None;
        }
        let mut copies = Vec::with_capacity(args.len());
        let mut given = *args;
        for (index, start, len) in structures() {
            copies.push(Structure::of(index, start, len)?);
        }
        for copy in &mut copies {
            given[copy.index] = copy.ours.as_mut_ptr() as usize;
        }
        // SAFETY: as above; the structures are copies of the program's.
        let result = unsafe { self.raw(number, given) };
        copies.iter().for_each(Structure::give_back);
        Some(result)
    }
}

/// Returns whether another argument may point to memory that has not been looked at.
fn pointers_may_lead_on(number: i64) -> bool {
    matches!(number, libc::SYS_pselect6 | SYS_IO_PGETEVENTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_has_changed_is_stored() {
        let mut memory = *b"abcdefgh";
        let start = memory.as_mut_ptr() as usize;
        let mut copy = Structure::of(0, start, memory.len()).expect("it can be read");
        copy.ours[2] = b'X';
        // Another thread's store during the call. SAFETY: the test's own memory.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start + 7).write_volatile(b'Y') };
        copy.give_back();
        assert_eq!(&std::hint::black_box(memory), b"abXdefgY");
        assert!(Structure::of(0, 16, 8).is_none());
    }

    #[test]
    fn calls_that_wait_or_consume_are_in_the_table() {
        let args = [0; 6];
        for number in [libc::SYS_accept, libc::SYS_poll, libc::SYS_msgrcv, libc::SYS_rt_sigtimedwait, libc::SYS_waitid]
        {
            assert_ne!(pointers(number, &args), 0);
        }
        for number in [libc::SYS_ptrace, libc::SYS_ioctl, libc::SYS_set_robust_list, libc::SYS_lseek] {
            assert_eq!(pointers(number, &args), 0);
        }
        assert_eq!(pointers(libc::SYS_fcntl, &[0, libc::F_SETFL as usize, 0, 0, 0, 0]), 0);
        assert_ne!(pointers(libc::SYS_fcntl, &[0, libc::F_SETLKW as usize, 0, 0, 0, 0]), 0);
    }
}
