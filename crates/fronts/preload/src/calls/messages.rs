// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Passes socket messages through the library's own memory: recvmsg(2), sendmsg(2), and several at a time by
//! recvmmsg(2) and sendmmsg(2).
//!
//! The kernel consumes a datagram before it looks where to put it. So if not all memory that the call touches can be
//! pinned, the kernel gets the library's own headers, names, control data and buffers. Its results are copied to the
//! program's memory afterwards, where faults are resolved as usual.
//!
//! Runs on the program's threads, which may be cancelled or leave by siglongjmp(3) while the kernel executes the call.

#![allow(unsafe_code, reason = "structures of the program's system calls")]

use aquifer_pager::Adopter;

use super::{ADDRESS_BYTES, Caller, FAULT, TRANSFER_BYTES_MAX};
use crate::bounce::{self, Bounce, ENTRIES_MAX, Entries};
use crate::inner_pointers::each_pointer;
use crate::pointers::message_count;
use crate::program_memory::{is_readable, load, store};

/// The maximum length of one message's control data that is copied. The kernel refuses to send more than
/// `net.core.optmem_max`, 128 KiB unless it was raised, and never delivers this much.
const CONTROL_BYTES_MAX: usize = 1 << 20;
/// The largest buffer for one part of a recvmmsg(2). Only bytes that the kernel writes cost DRAM; and the longest call,
/// of 1024 datagrams of 64 KiB, fits into one part.
const RECEIVED_BYTES_MAX: usize = 64 << 20;
/// The same for sendmmsg(2), which can be split into parts of any size.
const SENT_BYTES_MAX: usize = 1 << 20;
const STRIDE: usize = size_of::<libc::mmsghdr>();

/// A copy of a message's header, and of its name and control data.
pub(super) struct Copied {
    given: libc::msghdr,
    ours: libc::msghdr,
    name: [u8; ADDRESS_BYTES],
    control: Vec<u8>,
}

impl Copied {
    /// Returns `None` if a part cannot be read. Does not copy the `entries`.
    pub(super) fn of(given: &libc::msghdr, entries: &[libc::iovec], reads: bool) -> Option<Self> {
        let mut ours = *given;
        (ours.msg_iov, ours.msg_iovlen) = (entries.as_ptr().cast_mut(), entries.len());
        let mut this = Self { given: *given, ours, name: [0; ADDRESS_BYTES], control: Vec::new() };
        let (name, control) = (this.name_bytes(), this.control_bytes());
        if !is_readable(given.msg_name as usize, name) && name > 0 {
            return None;
        }
        if !is_readable(given.msg_control as usize, control) && control > 0 {
            return None;
        }
        this.control = vec![0; control];
        if !reads {
            // SAFETY: both are readable, or evicted: such a fault is resolved as for any load.
            unsafe {
                given.msg_name.cast::<u8>().copy_to_nonoverlapping(this.name.as_mut_ptr(), name);
                given.msg_control.cast::<u8>().copy_to_nonoverlapping(this.control.as_mut_ptr(), control);
            }
        }
        Some(this)
    }

    /// Removes descriptors from the control data: the receiver gets them with the first part of a stream. The rest
    /// describes every part: the sender's identity, or the type of a TLS record.
    pub(super) fn without_descriptors(mut self) -> Self {
        self.control = without_descriptors(&self.control);
        self.ours.msg_controllen = self.control.len();
        if self.control.is_empty() {
            self.ours.msg_control = std::ptr::null_mut();
        }
        self
    }

    fn name_bytes(&self) -> usize {
        if self.given.msg_name.is_null() { 0 } else { (self.given.msg_namelen as usize).min(ADDRESS_BYTES) }
    }

    fn control_bytes(&self) -> usize {
        let is_sane = !self.given.msg_control.is_null() && self.given.msg_controllen <= CONTROL_BYTES_MAX;
        if is_sane { self.given.msg_controllen } else { 0 }
    }

    /// Returns the header to pass to the kernel, valid for as long as `self` is not moved or dropped.
    fn prepared(&mut self) -> libc::msghdr {
        if self.name_bytes() > 0 {
            self.ours.msg_name = self.name.as_mut_ptr().cast();
        }
        if !self.control.is_empty() {
            self.ours.msg_control = self.control.as_mut_ptr().cast();
        }
        self.ours
    }

    /// Returns the address of that header.
    pub(super) fn header(&mut self) -> usize {
        self.prepared();
        &raw mut self.ours as usize
    }

    /// Copies the kernel's results from this header, name and control data to the program's.
    ///
    /// # Safety
    /// The program's header is at `place`, and its name and control data are the program's to be written to.
    pub(super) unsafe fn give_back(&self, place: usize) {
        let header = std::ptr::with_exposed_provenance_mut::<libc::msghdr>(place);
        let name = self.name_bytes().min(self.ours.msg_namelen as usize);
        let control = self.control.len().min(self.ours.msg_controllen);
        // SAFETY: the caller's promise. Faults are resolved as for any store.
        unsafe {
            self.given.msg_name.cast::<u8>().copy_from_nonoverlapping(self.name.as_ptr(), name);
            self.given.msg_control.cast::<u8>().copy_from_nonoverlapping(self.control.as_ptr(), control);
            (*header).msg_namelen = self.ours.msg_namelen;
            (*header).msg_controllen = self.ours.msg_controllen;
            (*header).msg_flags = self.ours.msg_flags;
        }
    }
}

/// Returns control data without the descriptors in it (SCM_RIGHTS), up to the first entry that is not valid: see
/// cmsg(3).
fn without_descriptors(control: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    let (mut rest, mut kept) = (control, Vec::with_capacity(control.len()));
    while let Some(header) = rest.first_chunk::<HEADER_BYTES>() {
        // SAFETY: any bytes are a `cmsghdr`.
        let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        if !(HEADER_BYTES..=rest.len()).contains(&header.cmsg_len) {
            break;
        }
        let (entry, others) = rest.split_at(header.cmsg_len.next_multiple_of(align_of::<usize>()).min(rest.len()));
        if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            kept.extend_from_slice(entry);
        }
        rest = others;
    }
    kept
}

/// One of several messages: the place of the program's header, the memory it points to, and the copies.
struct Message {
    place: usize,
    entries: Entries,
    copied: Copied,
    /// The position of its bytes in the bounce buffer.
    offset: usize,
    len: usize,
}

/// Messages that go to the kernel in one call.
struct Part {
    messages: Vec<Message>,
    bounce: Bounce,
}

impl Part {
    /// Takes messages from the front of the `count` whose headers are at `place`: as many as fit, and at most
    /// [`ENTRIES_MAX`]. An error if not even the first can be taken.
    ///
    /// # Safety
    /// The program has given them to a system call.
    unsafe fn of(place: usize, count: usize, reads: bool) -> Result<Self, isize> {
        let max = if reads { RECEIVED_BYTES_MAX } else { SENT_BYTES_MAX };
        let mut messages: Vec<Message> = Vec::with_capacity(count.min(ENTRIES_MAX));
        let mut total = 0;
        for index in 0..count.min(ENTRIES_MAX) {
            // SAFETY: the caller's promise.
            let message = unsafe { Self::message(place.wrapping_add(index * STRIDE), total, reads) };
            match message {
                Ok(message) if index == 0 || total + message.len <= max => {
                    total += message.len;
                    messages.push(message);
                }
                Err(error) if index == 0 => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        let Some(bounce) = Bounce::new(total.max(1)) else { return Err(-(libc::ENOMEM as isize)) };
        if !reads {
            // SAFETY: as above. The kernel refuses unreadable entries when their turn comes.
            let copied = |it: &Message| unsafe { bounce.copy(it.offset, it.entries.list(), it.len, false) };
            let good = messages.iter().position(|message| !copied(message)).unwrap_or(messages.len());
            messages.truncate(good);
            if good == 0 {
                return Err(FAULT);
            }
        }
        Ok(Self { messages, bounce })
    }

    /// # Safety
    /// The same as for [`of`](Self::of).
    unsafe fn message(place: usize, offset: usize, reads: bool) -> Result<Message, isize> {
        let given = load::<libc::msghdr>(place).ok_or(FAULT)?;
        if given.msg_iovlen > ENTRIES_MAX {
            return Err(-(libc::EMSGSIZE as isize));
        }
        // SAFETY: the caller's promise.
        let entries = unsafe { Entries::read(given.msg_iov as usize, given.msg_iovlen) };
        if entries.list().len() != given.msg_iovlen {
            return Err(FAULT);
        }
        let copied = Copied::of(&given, &[], reads).ok_or(FAULT)?;
        let len = bounce::bytes(entries.list()).min(TRANSFER_BYTES_MAX);
        Ok(Message { place, entries, copied, offset, len })
    }

    /// Makes the call, and copies its results to the program.
    ///
    /// # Safety
    /// The same as for [`of`](Self::of); `call` is recvmmsg(2) or sendmmsg(2) for headers at its first argument.
    unsafe fn transfer(&mut self, reads: bool, call: impl FnOnce(usize, usize) -> isize) -> isize {
        let pieces: Vec<_> = self.messages.iter().map(|it| self.bounce.piece(it.offset, it.len)).collect();
        let header = |(message, piece): (&mut Message, &[libc::iovec; 1])| {
            let mut msg_hdr = message.copied.prepared();
            (msg_hdr.msg_iov, msg_hdr.msg_iovlen) = (piece.as_ptr().cast_mut(), 1);
            libc::mmsghdr { msg_hdr, msg_len: 0 }
        };
        let mut headers: Vec<libc::mmsghdr> = self.messages.iter_mut().zip(&pieces).map(header).collect();
        let result = call(headers.as_mut_ptr() as usize, headers.len());
        for (message, header) in self.messages.iter_mut().zip(&headers).take(usize::try_from(result).unwrap_or(0)) {
            if reads {
                let len = message.len.min(header.msg_len as usize);
                message.copied.ours = header.msg_hdr;
                // SAFETY: the caller's promise.
                unsafe {
                    self.bounce.copy(message.offset, message.entries.list(), len, true);
                    message.copied.give_back(message.place);
                }
            }
            store(message.place + std::mem::offset_of!(libc::mmsghdr, msg_len), header.msg_len);
        }
        result
    }
}

impl Caller {
    /// Carries out recvmmsg(2) and sendmmsg(2).
    pub(super) unsafe fn messages(&self, adopter: &'static Adopter, number: i64, args: [usize; 6]) -> isize {
        let ranges = |each: &mut dyn FnMut(usize, usize)| {
            let mut far = |start, len| {
                if adopter.may_need_pin(start, len) {
                    each(start, len);
                }
            };
            if number == libc::SYS_recvmmsg {
                far(args[4], size_of::<libc::timespec>());
            }
            // SAFETY: the caller's promise.
            unsafe { each_pointer(number, &args, &mut far) };
        };
        // `each_pointer` lists the memory of no more messages than that.
        if message_count(number, &args) <= ENTRIES_MAX {
            let mut pins = adopter.call_pins();
            if pins.as_mut().is_some_and(|pins| pins.add_all(&ranges)) {
                // SAFETY: as above.
                return unsafe { self.raw(number, args) };
            }
        }
        // SAFETY: as above.
        unsafe { self.copied_messages(number, args) }
    }

    /// Makes one call if all messages fit into one [`Part`], and otherwise one call for each part. With MSG_WAITFORONE,
    /// the transfer ends where a call after the first would have to wait.
    unsafe fn copied_messages(&self, number: i64, args: [usize; 6]) -> isize {
        let reads = number == libc::SYS_recvmmsg;
        let (place, count, mut flags) = (args[1], message_count(number, &args), args[3]);
        let mut timeout = None;
        if reads && args[4] != 0 {
            let Some(given) = load::<libc::timespec>(args[4]) else { return FAULT };
            timeout = Some(given);
        }
        let mut done = 0;
        loop {
            let late = timeout.as_mut().map_or(0, |timeout| &raw mut *timeout as usize);
            let call = |headers: usize, count: usize| {
                // SAFETY: all memory that the kernel touches is the library's.
                unsafe { self.raw(number, [args[0], headers, count, flags, late, 0]) }
            };
            // SAFETY: the caller's promise.
            let result = match unsafe { Part::of(place.wrapping_add(done * STRIDE), count - done, reads) } {
                // SAFETY: as above.
                Ok(mut part) => (unsafe { part.transfer(reads, call) }, part.messages.len()),
                // The kernel looks at the socket before it looks at the first message.
                Err(error) if done == 0 => (Some(call(place, 0)).filter(|it| *it < 0).unwrap_or(error), 0),
                Err(error) => (error, 0),
            };
            let (moved, asked) = match result {
                (error, _) if error < 0 && done == 0 => return error,
                (result, asked) => (usize::try_from(result).unwrap_or(0), asked),
            };
            done += moved;
            let is_late = timeout.is_some_and(|timeout| timeout.tv_sec == 0 && timeout.tv_nsec == 0);
            if moved == 0 || moved < asked || done == count || is_late {
                timeout.inspect(|timeout| _ = store(args[4], *timeout));
                return done as isize;
            }
            if flags & libc::MSG_WAITFORONE as usize != 0 {
                flags |= libc::MSG_DONTWAIT as usize;
            }
        }
    }
}
