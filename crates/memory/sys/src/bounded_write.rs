// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes to a file of the kernel's for a limited time.
//!
//! A write to such a file is a command, and can wait in the kernel without an end: `offline` for a memory block tries
//! again until all of the block's pages have moved, or a signal arrives (`offline_pages` in `mm/memory_hotplug.c`). So
//! a thread of its own writes, and once the time is over:
//!
//! 1. its descriptor is replaced by one that cannot be written. The kernel starts some writes again after a signal,
//!    such as one that waits for another program's; and the thread may not have come to its write yet. Both fail with
//!    EBADF.
//! 2. it gets a signal whose handler does nothing, which ends the write that has begun with EINTR.
//!
//! The signal is SIGURG, which is ignored by default: one that comes late does no harm. A process that calls this
//! module has no other handler for it. See signal(7), dup(2), pthread_kill(3).
//!
//! Threads: any. The calls allocate.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::raw;
use crate::signals::{KernelAction, bit, exchange_action, with_restorer};

/// The signal that ends a write.
const SIGNAL: i32 = libc::SIGURG;
/// The time between two signals. One is enough, unless the kernel is busy with something that no signal ends.
const REPEAT: Duration = Duration::from_millis(50);
/// How long the kernel may take to end a write after the first signal. Between two looks for signals it moves the pages
/// of one block, at most 2 GiB, once.
const END_MAX: Duration = Duration::from_secs(30);
/// Threads that write at one time. There are several only where earlier ones have not ended after their signals.
const WRITERS_MAX: usize = 4;

static WRITERS: AtomicUsize = AtomicUsize::new(0);

/// One of the threads that write, counted while it exists.
struct Writer;

impl Writer {
    fn new() -> io::Result<Writer> {
        let more = |writers| (writers < WRITERS_MAX).then_some(writers + 1);
        // Relaxed: a count, which orders nothing.
        let counted = WRITERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map(|_| Writer).map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        WRITERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes `bytes` to `file` in one write(2), and returns how many were written. EINTR if the write has not ended within
/// `limit`, and then it has no effect any more. ETIMEDOUT if even signals have not ended it: it may still have an
/// effect, and its thread remains. EBUSY if several such threads remain.
pub fn write_within(file: File, bytes: &[u8], limit: Duration) -> io::Result<usize> {
    let (writer, file, bytes) = (Writer::new()?, Arc::new(file), bytes.to_vec());
    let unwritable = File::open("/dev/null")?;
    handle_signal()?;
    let (done, outcome) = mpsc::channel();
    let thread = thread::Builder::new().name("bounded-write".into()).spawn({
        let file = Arc::clone(&file);
        move || {
            let _counted = writer;
            let written = unblock_signal().and_then(|()| (&*file).write(&bytes));
            // Nobody waits any more if it comes too late.
            let _ = done.send(written);
        }
    })?;
    if let Ok(written) = outcome.recv_timeout(limit) {
        let _ = thread.join();
        return written;
    }
    // If it is refused, the signal alone ends the write.
    let _ = raw::replace_descriptor(unwritable.into_raw_fd(), file.as_raw_fd());
    let begun = Instant::now();
    let written = loop {
        // SAFETY: the thread is neither joined nor detached yet, so its number is valid, even if it has ended. The
        // handler does nothing.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), SIGNAL) };
        match outcome.recv_timeout(REPEAT) {
            Err(RecvTimeoutError::Timeout) if begun.elapsed() < END_MAX => {}
            Err(_) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            Ok(written) => break written,
        }
    };
    let _ = thread.join();
    // Where the descriptor was replaced before the write, or before the kernel started it again.
    written.map_err(|error| match error.raw_os_error() {
        Some(libc::EBADF) => io::Error::from_raw_os_error(libc::EINTR),
        _ => error,
    })
}

extern "C" fn nothing(_: i32) {}

/// Makes the signal end system calls, and do nothing else. It stays so.
fn handle_signal() -> io::Result<()> {
    // Without SA_RESTART: the kernel would start a write to a pipe again.
    let handler = nothing as extern "C" fn(i32) as usize;
    let action = with_restorer(KernelAction { handler, flags: libc::SA_ONSTACK as u64, restorer: 0, mask: 0 });
    // SAFETY: the handler does nothing, so it is sound at any point of any thread.
    unsafe { exchange_action(SIGNAL, Some(&action)) }.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// A thread inherits the signals that its creator has blocked.
fn unblock_signal() -> io::Result<()> {
    let mask = bit(SIGNAL);
    let args = [libc::SIG_UNBLOCK as usize, &raw const mask as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: rt_sigprocmask(2) reads the mask.
    let unblocked = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    unblocked.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// A pipe that is full: a write waits until somebody reads.
    fn full_pipe() -> (io::PipeReader, File) {
        let (reader, writer) = io::pipe().unwrap();
        // SAFETY: fcntl(2) with F_SETPIPE_SZ changes only the size of the pipe's buffer: one page.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) }, 4096);
        let mut file = File::from(OwnedFd::from(writer));
        file.write_all(&[1; 4096]).unwrap();
        (reader, file)
    }

    #[test]
    fn a_write_that_does_not_end_is_ended_by_a_signal() {
        let (mut reader, file) = full_pipe();
        let begun = Instant::now();
        let ended = write_within(file, b"offline", SHORT).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::Interrupted, "{ended}");
        assert!(begun.elapsed() >= SHORT && begun.elapsed() < END_MAX, "{:?}", begun.elapsed());
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, [1; 4096], "nothing was written, and no descriptor is left open");
    }

    /// As in the agent, whose threads leave signals to the one that waits for them.
    #[test]
    fn a_write_is_ended_although_its_creator_blocks_all_signals() {
        let blocked = crate::signals::Blocked::all();
        let (_reader, file) = full_pipe();
        let ended = write_within(file, b"offline", SHORT);
        drop(blocked);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_write_that_ends_in_time_is_as_any_other() {
        let (mut reader, writer) = io::pipe().unwrap();
        assert_eq!(write_within(File::from(OwnedFd::from(writer)), b"offline", END_MAX).unwrap(), 7);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "offline");
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write_within(full, b"offline", END_MAX).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
