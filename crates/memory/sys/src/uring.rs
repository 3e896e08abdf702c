// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Owns an io_uring for one file: transfers overlap, and their memory cannot be freed during a transfer.
//!
//! See io_uring(7). Needs Linux 5.6 (`IORING_OP_READ`); [`probe`] says whether it is usable here and, if not, which
//! setting disables it. Callers without it do the same transfers with `pread` and `pwrite`.
//!
//! Ownership: a [`FrameBuffer`] moves into a slot with `submit_*` and is returned in its [`Finished`]. Dropping the
//! ring waits for requests that the kernel is processing, then drops the buffers. If it cannot wait, their memory stays
//! mapped: `abandoned.rs`.
//!
//! Threads: one at a time (`&mut self`); may be moved between threads. Allocates in [`Ring::new`] only. A forked child
//! must not touch a ring of its parent: its memory is not inherited (`dontfork`). It may drop its copy, which does
//! nothing, and closes its copy of the descriptor by [`close_inherited`].

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, mem};

use io_uring::{IoUring, Probe, opcode, squeue, types};

use crate::frame_buffer::FrameBuffer;
use crate::made_in::OfProcess;
use crate::wakeup::readable;
use crate::{abandoned, liveness};

mod inherited;

pub use self::inherited::close_inherited;

/// Maximum number of requests in flight on one ring. The kernel allows 32768; a disk is saturated far below this.
pub const DEPTH_MAX: u32 = 4096;
/// Maximum length of a single transfer. The kernel truncates at 2 GiB; frames are at most a few MiB.
pub const TRANSFER_BYTES_MAX: usize = 1 << 30;
/// How many times one request is continued after a short transfer, EINTR or EAGAIN before it fails.
const CONTINUATIONS_MAX: u8 = 32;
/// How many times the kernel may report a lack of resources for a submission before the ring gives up: with the pause
/// below this is about two seconds.
const SUBMIT_ATTEMPTS_MAX: u32 = 2000;
const SUBMIT_PAUSE: Duration = Duration::from_millis(1);

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Why a transfer did not move all of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The kernel's error.
    Errno(i32),
    /// The file ended, or the kernel repeatedly transferred too little.
    Short {
        /// Bytes that were transferred.
        transferred: usize,
    },
}

/// A completed request. The buffer belongs to the caller again.
#[derive(Debug)]
pub struct Finished {
    /// The tag that the caller passed to `submit_*`.
    pub tag: u64,
    /// The caller's buffer.
    pub buffer: FrameBuffer,
    /// Its offset in the file.
    pub offset: u64,
    /// `true` for a write.
    pub is_write: bool,
    /// Whether all bytes were transferred.
    pub outcome: Result<(), TransferError>,
}

/// One request, from `submit_*` until its `Finished` is returned.
struct Transfer {
    direction: Direction,
    buffer: FrameBuffer,
    offset: u64,
    transferred: usize,
    continuations: u8,
    tag: u64,
}

/// Overlapping transfers between frames and one file.
pub struct Ring {
    ring: OfProcess<IoUring>,
    /// One slot per request in flight; its index is the kernel's `user_data`.
    slots: Box<[Option<Transfer>]>,
    free: Vec<u32>,
    /// Slots whose entry is in the submission queue and has not been consumed by the kernel, oldest first.
    pushed: VecDeque<u32>,
    /// Number of entries that the kernel has consumed and not completed.
    started: usize,
    /// Slots of requests that ended without the kernel, because the ring is broken.
    failed: VecDeque<u32>,
    /// Set once when the kernel refuses submissions permanently. Nothing is submitted afterwards.
    broken: Option<i32>,
    /// The file of the requests. Open as long as the ring.
    file: Arc<dyn AsFd + Send + Sync>,
}

impl Ring {
    /// Creates a ring for `file` with room for `depth` requests, between 1 and [`DEPTH_MAX`].
    pub fn new(file: Arc<dyn AsFd + Send + Sync>, depth: u32) -> io::Result<Ring> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring: IoUring = IoUring::builder().dontfork().build(depth)?;
        let ring = OfProcess::new(ring).map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        // The file is not registered: the kernel dismantles the ring of an ended process later, in one of its own
        // workers, and would keep the file open until then, with all of its space. A request keeps it open while it is
        // in flight.
        if let Some(descriptor) = liveness::descriptor() {
            ring.submitter().register_files(&[descriptor])?;
        }
        inherited::opened(ring.as_raw_fd());
        let capacity = depth as usize;
        Ok(Ring {
            ring,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            pushed: VecDeque::with_capacity(capacity),
            started: 0,
            failed: VecDeque::with_capacity(capacity),
            broken: None,
            file,
        })
    }

    /// Queues a request that fills `buffer` from `offset`. Returns the buffer when the ring is full.
    pub fn submit_read(&mut self, buffer: FrameBuffer, offset: u64, tag: u64) -> Result<(), FrameBuffer> {
        self.submit(Direction::Read, buffer, offset, tag)
    }

    /// Queues a request that stores `buffer` at `offset`. Returns the buffer when the ring is full.
    pub fn submit_write(&mut self, buffer: FrameBuffer, offset: u64, tag: u64) -> Result<(), FrameBuffer> {
        self.submit(Direction::Write, buffer, offset, tag)
    }

    /// Number of requests queued and not yet returned.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Readable when a completion is ready. Requests that have not been passed to the kernel by `kick` do not count.
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Passes every queued request to the kernel. An error means that the kernel accepts no more requests; those that
    /// were not started then end with that errno through [`Ring::complete`].
    pub fn kick(&mut self) -> Result<(), i32> {
        if self.pushed.is_empty() { self.broken.map_or(Ok(()), Err) } else { self.enter(0) }
    }

    /// Returns completed requests through `sink`, at most `max`. With `wait`, starts queued requests and sleeps until
    /// at least one completes, if any is in flight. Returns the number of requests passed to `sink`.
    pub fn complete(&mut self, wait: bool, max: usize, sink: &mut dyn FnMut(Finished)) -> usize {
        let mut count = 0;
        loop {
            while count < max {
                let Some(finished) = self.next_finished() else { break };
                sink(finished);
                count += 1;
            }
            // Continuations of short transfers must start even when no caller waits. A submission that fails ends its
            // requests, which the next round returns.
            if wait && count == 0 && max > 0 && self.in_flight() > 0 {
                let _ = self.enter(1);
            } else if self.continued_waits() && count < max {
                let _ = self.enter(0);
                return count;
            } else {
                return count;
            }
        }
    }

    /// Works like [`complete`](Self::complete) with `wait`, but waits no longer than `limit`, and possibly less.
    pub fn complete_within(&mut self, limit: Duration, max: usize, sink: &mut dyn FnMut(Finished)) -> usize {
        let count = self.complete(false, max, sink);
        if count > 0 || max == 0 || self.in_flight() == 0 {
            return count;
        }
        // A submission that fails ends its requests, which the next round returns.
        let _ = self.kick();
        if self.pushed.is_empty() && self.failed.is_empty() {
            self.wait_within(limit);
        }
        self.complete(false, max, sink)
    }

    fn submit(&mut self, direction: Direction, buffer: FrameBuffer, offset: u64, tag: u64) -> Result<(), FrameBuffer> {
        assert!(buffer.len() <= TRANSFER_BYTES_MAX, "a transfer is at most 1 GiB");
        let Some(slot) = self.free.pop() else { return Err(buffer) };
        let transfer = Transfer { direction, buffer, offset, transferred: 0, continuations: 0, tag };
        self.slots[slot as usize] = Some(transfer);
        self.push(slot);
        Ok(())
    }

    /// Whether the submission queue holds an entry that continues a transfer, rather than one that the caller queued.
    fn continued_waits(&self) -> bool {
        self.pushed.iter().any(|slot| self.slots[*slot as usize].as_ref().is_some_and(|t| t.continuations > 0))
    }

    /// Puts the remainder of the transfer in `slot` into the submission queue.
    fn push(&mut self, slot: u32) {
        if self.broken.is_some() {
            self.failed.push_back(slot);
            return;
        }
        let transfer = self.slots[slot as usize].as_mut().expect("a pushed slot is taken");
        let entry = entry(self.file.as_fd().as_raw_fd(), transfer).user_data(u64::from(slot));
        // SAFETY: `push` needs the entry's parameters, here the buffer and the file, to stay valid for the whole
        // operation. The buffer stays in `slots` until the completion for this slot has been seen, and `Drop` waits for
        // completions first; `FrameBuffer::new` requires that its memory stays mapped, and that nothing else touches
        // it, until the buffer is dropped. The file is open as long as the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has at least as many entries as there are slots");
        self.pushed.push_back(slot);
    }

    /// Passes pushed entries to the kernel and waits until `want` completions are ready.
    fn enter(&mut self, want: usize) -> Result<(), i32> {
        if let Some(errno) = self.broken {
            // The submission queue still holds entries of requests that have been returned.
            let worth_waiting = want > 0 && self.started > 0 && self.failed.is_empty();
            return if worth_waiting { self.wait_only() } else { Err(errno) };
        }
        let mut attempts = 0;
        loop {
            let errno = match self.ring.submitter().submit_and_wait(want) {
                Ok(taken) => {
                    let taken = taken.min(self.pushed.len());
                    self.pushed.drain(..taken);
                    self.started += taken;
                    if want > 0 || self.pushed.is_empty() {
                        return Ok(());
                    }
                    libc::EAGAIN
                }
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            match errno {
                libc::EINTR => {}
                // Completions make room; the caller takes them and calls again.
                libc::EAGAIN | libc::EBUSY if !self.ring.completion().is_empty() => return Ok(()),
                libc::EAGAIN | libc::EBUSY if attempts < SUBMIT_ATTEMPTS_MAX => {
                    attempts += 1;
                    std::thread::sleep(SUBMIT_PAUSE);
                }
                errno => {
                    self.broken = Some(errno);
                    self.failed.append(&mut self.pushed);
                    return Err(errno);
                }
            }
        }
    }

    /// Waits for one completion and submits nothing.
    fn wait_only(&self) -> Result<(), i32> {
        loop {
            // SAFETY: the system call takes no pointer: no argument and no signal mask are given, and it submits
            // nothing (`to_submit` is 0). The descriptor is the ring's own.
            let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, ENTER_GETEVENTS, None) };
            match entered {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.raw_os_error().unwrap_or(libc::EIO)),
            }
        }
    }

    /// Waits for one completion, at most `limit`. Submits nothing: no entry is pushed.
    fn wait_within(&self, limit: Duration) {
        // Linux before 5.11, or a submission queue that still holds entries of requests that have been returned.
        if !self.ring.params().is_feature_ext_arg() || self.broken.is_some() {
            readable(self.descriptor(), limit);
            return;
        }
        let timeout = types::Timespec::from(limit);
        // Fails when the time is over, or a signal has arrived.
        let _ = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout));
    }

    /// Takes one completed request; continues short ones on the way.
    fn next_finished(&mut self) -> Option<Finished> {
        if let Some(slot) = self.failed.pop_front() {
            let errno = self.broken.unwrap_or(libc::EIO);
            return Some(self.release(slot, Err(TransferError::Errno(errno))));
        }
        loop {
            let completion = self.ring.completion().next()?;
            self.started -= 1;
            let slot = u32::try_from(completion.user_data()).expect("user_data is a slot");
            let transfer = self.slots[slot as usize].as_mut().expect("the kernel answers each request once");
            match advance(transfer, completion.result()) {
                Some(outcome) => return Some(self.release(slot, outcome)),
                None => self.push(slot),
            }
        }
    }

    fn release(&mut self, slot: u32, outcome: Result<(), TransferError>) -> Finished {
        let transfer = self.slots[slot as usize].take().expect("a slot is released once");
        self.free.push(slot);
        Finished {
            tag: transfer.tag,
            buffer: transfer.buffer,
            offset: transfer.offset,
            is_write: transfer.direction == Direction::Write,
            outcome,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A forked child has neither the ring's memory nor, by now, its descriptor. Other things may have their places.
        if self.ring.is_this_process() {
            self.settle();
            inherited::closes(self.ring.as_raw_fd());
        }
    }
}

impl Ring {
    /// Waits until the kernel writes into no frame of the ring any more, and lets go of the registered file.
    fn settle(&mut self) {
        // Entries still in the submission queue have never been seen by the kernel, and are not submitted.
        while self.started > 0 {
            while self.ring.completion().next().is_some() {
                self.started -= 1;
            }
            if self.started == 0 {
                break;
            }
            if self.wait_only().is_err() {
                // The kernel may still write into these frames.
                let transfers = mem::take(&mut self.slots).into_iter().flatten();
                transfers.for_each(|transfer| abandoned::give_up(transfer.buffer));
                return;
            }
        }
        // The kernel dismantles a closed ring later, in one of its own workers. Until then it would keep the file that
        // `liveness.rs` registers, as if requests were in flight. If unregistering fails, that file is released later;
        // it also fails if no file is registered.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// `IORING_ENTER_GETEVENTS` of io_uring_enter(2); the crate does not export its constants.
const ENTER_GETEVENTS: u32 = 1;

/// The entry for the remainder of a transfer.
fn entry(file: RawFd, transfer: &mut Transfer) -> squeue::Entry {
    let done = transfer.transferred;
    let offset = transfer.offset + done as u64;
    let rest = &mut transfer.buffer.bytes_mut()[done..];
    let len = u32::try_from(rest.len()).expect("checked against TRANSFER_BYTES_MAX in `submit`");
    match transfer.direction {
        Direction::Read => opcode::Read::new(types::Fd(file), rest.as_mut_ptr(), len).offset(offset).build(),
        Direction::Write => opcode::Write::new(types::Fd(file), rest.as_ptr(), len).offset(offset).build(),
    }
}

/// Processes one completion of the kernel. Returns `None` when the remainder must be submitted.
fn advance(transfer: &mut Transfer, result: i32) -> Option<Result<(), TransferError>> {
    match usize::try_from(result) {
        Ok(0) if !transfer.buffer.is_empty() => {
            return Some(Err(TransferError::Short { transferred: transfer.transferred }));
        }
        Ok(transferred) => {
            transfer.transferred += transferred;
            if transfer.transferred >= transfer.buffer.len() {
                return Some(Ok(()));
            }
            if transfer.continuations == CONTINUATIONS_MAX {
                return Some(Err(TransferError::Short { transferred: transfer.transferred }));
            }
        }
        Err(_) => {
            let errno = -result;
            let transient = errno == libc::EINTR || errno == libc::EAGAIN;
            if !transient || transfer.continuations == CONTINUATIONS_MAX {
                return Some(Err(TransferError::Errno(errno)));
            }
        }
    }
    transfer.continuations += 1;
    None
}

/// Why io_uring cannot be used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The kernel's error.
    pub errno: i32,
    /// The value of the sysctl `kernel.io_uring_disabled`, if it exists.
    pub disabled: Option<u8>,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        match (self.errno, self.disabled) {
            (libc::ENOSYS, _) => write!(f, "io_uring is not in this kernel ({error}); Linux 5.6 or later has it"),
            (libc::EPERM | libc::EACCES, Some(level @ 1..)) => write!(
                f,
                "io_uring is switched off: sysctl kernel.io_uring_disabled is {level} ({error}); \
                 set it to 0 as root: sysctl -w kernel.io_uring_disabled=0"
            ),
            (libc::EPERM | libc::EACCES, _) => write!(
                f,
                "io_uring is refused ({error}), most likely by the seccomp filter of a container; \
                 allow io_uring_setup, io_uring_enter and io_uring_register in its profile"
            ),
            (libc::ENOMEM, _) => {
                write!(f, "io_uring cannot lock its memory ({error}); raise `ulimit -l` or free memory")
            }
            (libc::EOPNOTSUPP, _) => {
                write!(f, "io_uring here cannot read and write files by offset; Linux 5.6 or later can")
            }
            _ => write!(f, "io_uring cannot be set up ({error}); look into the kernel log"),
        }
    }
}

/// Whether io_uring is usable in this process now.
pub fn probe() -> Result<(), Unusable> {
    let unusable =
        |error: io::Error| Unusable { errno: error.raw_os_error().unwrap_or(libc::EIO), disabled: disabled() };
    let ring = IoUring::new(1).map_err(unusable)?;
    let mut operations = Probe::new();
    ring.submitter().register_probe(&mut operations).map_err(unusable)?;
    let supported = operations.is_supported(opcode::Read::CODE) && operations.is_supported(opcode::Write::CODE);
    if supported { Ok(()) } else { Err(Unusable { errno: libc::EOPNOTSUPP, disabled: disabled() }) }
}

fn disabled() -> Option<u8> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
