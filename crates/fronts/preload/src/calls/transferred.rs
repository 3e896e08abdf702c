// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls that transfer bytes: read(2), recvmsg(2) and similar ones. All of their memory is pinned if that is possible;
//! otherwise files are transferred in windows, and everything else through the library's own buffers (`bounce.rs`).

use aquifer_pager::Adopter;

use super::{ADDRESS_BYTES, Caller, FAULT, TRANSFER_BYTES_MAX, messages};
use crate::bounce::{self, Entries};
use crate::program_memory::{is_readable, load, store};

impl Caller {
    /// Makes a call with one buffer and, on sockets, the peer's address.
    pub(super) unsafe fn bytes(&self, adopter: &'static Adopter, number: i64, args: [usize; 6], reads: bool) -> isize {
        let entries = [libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(args[1]),
            iov_len: args[2].min(TRANSFER_BYTES_MAX),
        }];
        let at = matches!(number, libc::SYS_pread64 | libc::SYS_pwrite64);
        let (also, waits_for_all) = match number {
            libc::SYS_recvfrom => {
                ([(args[4], ADDRESS_BYTES), (args[5], size_of::<libc::socklen_t>())], waits_for_all(args[3]))
            }
            libc::SYS_sendto => ([(args[4], args[5]), (0, 0)], false),
            _ => ([(0, 0); 2], false),
        };
        let total = bounce::bytes(&entries);
        let part = |entries: &[libc::iovec], done: usize| {
            let [entry] = entries else { return FAULT };
            let (start, len) = (entry.iov_base as usize, entry.iov_len);
            if !matches!(number, libc::SYS_recvfrom | libc::SYS_sendto) {
                // SAFETY: the caller's promise, or the library's own memory.
                return unsafe { self.further(number, args, at, done, start, len) };
            }
            let Some(mut name) = Name::of(args[4], args[5], reads) else { return FAULT };
            let len_or_place = name.len_or_place(args[5], reads);
            let flags = if reads { args[3] } else { flags_of_part(args[3], done, len, total) };
            // SAFETY: as above; the address is a copy.
            let result = unsafe { self.raw(number, [args[0], start, len, flags, name.place(), len_or_place]) };
            if reads && result >= 0 {
                name.give_back();
            }
            result
        };
        let memory = Memory { descriptor: args[0], entries: &entries, reads, also: &also, whole: waits_for_all };
        // SAFETY: the caller's promise.
        unsafe { self.transfer(adopter, number, args, &memory, part) }
    }

    pub(super) unsafe fn vector(&self, adopter: &'static Adopter, number: i64, args: [usize; 6], reads: bool) -> isize {
        // SAFETY: the caller's promise.
        let entries = unsafe { Entries::read(args[1], args[2]) };
        if entries.list().len() != args[2] {
            // SAFETY: as above.
            return unsafe { self.raw(number, args) };
        }
        // The newer calls take -1 for the current file offset.
        let at = match number {
            libc::SYS_preadv2 | libc::SYS_pwritev2 => args[3] != usize::MAX,
            _ => matches!(number, libc::SYS_preadv | libc::SYS_pwritev),
        };
        let also = [(args[1], size_of_val(entries.list()))];
        let part = |entries: &[libc::iovec], done: usize| {
            // SAFETY: as above.
            unsafe { self.further(number, args, at, done, entries.as_ptr() as usize, entries.len()) }
        };
        let memory = Memory { descriptor: args[0], entries: entries.list(), reads, also: &also, whole: false };
        // SAFETY: as above.
        unsafe { self.transfer(adopter, number, args, &memory, part) }
    }

    /// Makes the call after its first `done` bytes were transferred, with other memory: `count` bytes or entries at
    /// `start`. `at`: the call takes a file offset, which is then `done` bytes further on.
    unsafe fn further(
        &self,
        number: i64,
        args: [usize; 6],
        at: bool,
        done: usize,
        start: usize,
        count: usize,
    ) -> isize {
        let fourth = if at { args[3].wrapping_add(done) } else { args[3] };
        // SAFETY: the caller's promise.
        unsafe { self.raw(number, [args[0], start, count, fourth, args[4], args[5]]) }
    }

    pub(super) unsafe fn message(
        &self,
        adopter: &'static Adopter,
        number: i64,
        args: [usize; 6],
        reads: bool,
    ) -> isize {
        let header = load::<libc::msghdr>(args[1]).filter(|header| header.msg_iovlen <= bounce::ENTRIES_MAX);
        let Some(given) = header else {
            // SAFETY: the caller's promise.
            return unsafe { self.raw(number, args) };
        };
        // SAFETY: as above.
        let entries = unsafe { Entries::read(given.msg_iov as usize, given.msg_iovlen) };
        if entries.list().len() != given.msg_iovlen {
            // SAFETY: as above.
            return unsafe { self.raw(number, args) };
        }
        let also = [
            (args[1], size_of::<libc::msghdr>()),
            (given.msg_iov as usize, size_of_val(entries.list())),
            (given.msg_name as usize, given.msg_namelen as usize),
            (given.msg_control as usize, given.msg_controllen),
        ];
        let total = bounce::bytes(entries.list()).min(TRANSFER_BYTES_MAX);
        let part = |entries: &[libc::iovec], done: usize| {
            let Some(mut ours) = messages::Copied::of(&given, entries, reads) else { return FAULT };
            let mut flags = args[2];
            if !reads {
                flags = flags_of_part(flags, done, bounce::bytes(entries), total);
                if done > 0 {
                    ours = ours.without_descriptors();
                }
            }
            // SAFETY: the payload is the library's or pinned; name and control data are copies.
            let result = unsafe { self.raw(number, [args[0], ours.header(), flags, 0, 0, 0]) };
            if reads && result >= 0 {
                // SAFETY: the kernel's results go back to the memory that the program named.
                unsafe { ours.give_back(args[1]) };
            }
            result
        };
        let whole = reads && waits_for_all(args[2]);
        let memory = Memory { descriptor: args[0], entries: entries.list(), reads, also: &also, whole };
        // SAFETY: as above.
        unsafe { self.transfer(adopter, number, args, &memory, part) }
    }

    /// Makes a transfer: by the program's own call, if all its memory can be pinned. Otherwise by `part`, which makes
    /// the call with the given entries after a number of bytes, and lets the kernel touch no other memory of the
    /// program.
    unsafe fn transfer(
        &self,
        adopter: &'static Adopter,
        number: i64,
        args: [usize; 6],
        memory: &Memory<'_>,
        part: impl Fn(&[libc::iovec], usize) -> isize,
    ) -> isize {
        // SAFETY: the caller's promise.
        let whole = || unsafe { self.raw(number, args) };
        let &Memory { descriptor, entries, reads, also, whole: is_whole } = memory;
        let far = |(start, len): &(usize, usize)| adopter.may_need_pin(*start, *len);
        let payload = |entry: &libc::iovec| (entry.iov_base as usize, entry.iov_len);
        if !entries.iter().map(payload).chain(also.iter().copied()).any(|range| far(&range)) {
            return whole();
        }
        let total = bounce::bytes(entries).min(TRANSFER_BYTES_MAX);
        let max = adopter.pin_bytes_max();
        if total <= max {
            let Some(mut pins) = adopter.call_pins() else { return whole() };
            let ranges = |each: &mut dyn FnMut(usize, usize)| {
                let all = also.iter().copied().chain(entries.iter().map(payload));
                all.filter(far).for_each(|(start, len)| each(start, len));
            };
            if pins.add_all(&ranges) {
                return whole();
            }
        }
        if bounce::is_file(descriptor) {
            let window = |done: usize| {
                let window = bounce::window(entries, done, max.min(total - done));
                let ranges = |each: &mut dyn FnMut(usize, usize)| {
                    window.iter().map(payload).filter(far).for_each(|(start, len)| each(start, len));
                };
                let mut pins = adopter.call_pins();
                if pins.as_mut().is_some_and(|pins| pins.add_all(&ranges)) {
                    return part(&window, done);
                }
                // SAFETY: the window is a part of the program's vector.
                unsafe { bounce::file_through(&window, reads, |entries, more| part(entries, done + more)) }
            };
            return bounce::in_windows(total, max, window);
        }
        let whole_message = is_whole || bounce::is_message_socket(descriptor);
        // SAFETY: the caller's promise.
        unsafe { bounce::through(entries, reads, whole_message, part) }
    }
}

/// Returns whether a receive returns less than asked for only at the end of the stream.
fn waits_for_all(flags: usize) -> bool {
    flags & libc::MSG_WAITALL as usize != 0
}

/// Returns the flags for a part of a send: `len` of `total` bytes, after `done` bytes. The byte out of band is the last
/// one, and only the first part connects the socket.
fn flags_of_part(flags: usize, done: usize, len: usize, total: usize) -> usize {
    let is_last = done + len >= total;
    let last = if is_last { 0 } else { libc::MSG_OOB as usize };
    let first = if done == 0 { 0 } else { libc::MSG_FASTOPEN as usize };
    flags & !(first | last)
}

/// The memory of a transfer.
struct Memory<'a> {
    descriptor: usize,
    entries: &'a [libc::iovec],
    /// Whether the call fills the entries.
    reads: bool,
    /// Further structures that the call touches: address and length.
    also: &'a [(usize, usize)],
    /// Whether the transfer cannot be split.
    whole: bool,
}

/// A copy of a socket's address, for recvfrom(2) and sendto(2).
struct Name {
    bytes: [u8; ADDRESS_BYTES],
    len: libc::socklen_t,
    /// Where the program wants the address, how much of it, and where it wants the length.
    target: Option<(usize, usize, usize)>,
    is_given: bool,
}

impl Name {
    /// Returns `None` if the address or its length cannot be read. `len` points to the length if the call `reads` the
    /// address.
    fn of(start: usize, len: usize, reads: bool) -> Option<Self> {
        let mut this = Self { bytes: [0; ADDRESS_BYTES], len: 0, target: None, is_given: start != 0 };
        if start == 0 {
            return Some(this);
        }
        if reads {
            this.len = load(len)?;
            let room = (this.len as usize).min(ADDRESS_BYTES);
            this.target = is_readable(start, room).then_some((start, room, len));
            return this.target.map(|_| this);
        }
        // The kernel refuses a longer address without looking at it.
        let taken = len.min(ADDRESS_BYTES);
        if !is_readable(start, taken) {
            return None;
        }
        let source = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: the bytes are readable, or evicted: such a fault is resolved as for any load.
        unsafe { source.copy_to_nonoverlapping(this.bytes.as_mut_ptr(), taken) };
        Some(this)
    }

    fn place(&mut self) -> usize {
        if self.is_given { self.bytes.as_mut_ptr() as usize } else { 0 }
    }

    /// Returns the call's last argument.
    fn len_or_place(&mut self, given: usize, reads: bool) -> usize {
        if reads && self.is_given { &raw mut self.len as usize } else { given }
    }

    /// Copies the kernel's results to the memory that the program named.
    fn give_back(&self) {
        let Some((start, room, len)) = self.target else { return };
        let target = std::ptr::with_exposed_provenance_mut::<u8>(start);
        let count = room.min(self.len as usize);
        // SAFETY: the program has provided that much memory for the address; a fault is resolved as for any store.
        unsafe { target.copy_from_nonoverlapping(self.bytes.as_ptr(), count) };
        store(len, self.len);
    }
}
