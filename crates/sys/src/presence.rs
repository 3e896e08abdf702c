// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whether a process, or a transfer that it began, may still write to what its relatives use, too.
//!
//! A process number does not tell. The first thread of a process can end long before the others do, and is a zombie
//! then; what a killed process handed to the disk is written when it has been a zombie for a while. So each process
//! holds a lock (fcntl(2), "Open file description locks") on a byte of a file in memory, by an open file description
//! of its own, which is also registered with its rings ([`crate::uring`]). The kernel drops the lock with the last
//! reference: when all threads have ended *and* all requests that were in flight.
//!
//! Descriptions of one's own come from opening `/proc/thread-self/fd/N`. Without /proc, children go on with their
//! parent's, and nobody can tell whether they have ended.
//!
//! Threads: any. Locks nothing of ours, and does not allocate.

use std::io::Write;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::own_descriptors::{keep, out_of_the_way};
use crate::raw::{Errno, replace_descriptor, syscall};

/// Registered with every ring. -1: nobody has asked for it.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// What a ring keeps open until its last request has ended.
pub(crate) fn descriptor() -> Option<RawFd> {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    (descriptor >= 0).then_some(descriptor)
}

/// A file that processes hold bytes of.
#[derive(Debug)]
pub struct Presence {
    file: RawFd,
    /// Of this process's own description, once it has one.
    own: RawFd,
}

/// An open file description of its own, that holds one byte or none. Closed when dropped.
#[derive(Debug)]
pub struct Hold {
    descriptor: RawFd,
}

impl Presence {
    /// A new file for this process and those that it forks, of which nobody holds a byte. What this process holds of
    /// it, its rings hold, too.
    pub fn new() -> Result<Self, Errno> {
        let args = [c"aquifer-presence".as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: memfd_create(2) reads the name and makes a new descriptor.
        let file = keep(unsafe { syscall(libc::SYS_memfd_create, args) }? as RawFd);
        let presence = Self::of(file)?;
        DESCRIPTOR.store(presence.own, Ordering::Release);
        Ok(presence)
    }

    /// The file behind a descriptor that stays open for as long as this process lives.
    pub fn of(file: RawFd) -> Result<Self, Errno> {
        // Only so that the number is taken.
        // SAFETY: fcntl(2) takes numbers, and makes a second descriptor of the same file.
        let own = unsafe { syscall(libc::SYS_fcntl, [file as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]) }?;
        Ok(Self { file, own: keep(own as RawFd) })
    }

    /// A description of its own, which holds nothing yet.
    pub fn open(&self) -> Result<Hold, Errno> {
        let mut path = [0u8; 48];
        // The last byte stays 0: the path is shorter than that for every number there is.
        let _ = write!(&mut path[..47], "/proc/thread-self/fd/{}", self.file);
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
        // SAFETY: openat(2) reads the path, which ends with 0.
        let opened =
            unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }?;
        Ok(Hold { descriptor: out_of_the_way(opened as RawFd) })
    }

    /// `hold` is what this process is told by from now on, and no longer what it has from its parent. EBADF when
    /// somebody has closed it.
    pub fn become_holder(&self, hold: Hold) -> Result<(), Errno> {
        let descriptor = hold.descriptor;
        std::mem::forget(hold);
        replace_descriptor(descriptor, self.own)
    }
}

impl Hold {
    /// Holds a byte until this, and every copy that fork(2) has made of it, is closed. EAGAIN when somebody else has
    /// it.
    pub fn take(&self, byte: u32) -> Result<(), Errno> {
        lock(self.descriptor, libc::F_OFD_SETLK, byte).map(|_| ())
    }

    /// Whether another description holds the byte; the process's own one counts as another. True when in doubt.
    pub fn sees(&self, byte: u32) -> bool {
        lock(self.descriptor, libc::F_OFD_GETLK, byte) != Ok(libc::F_UNLCK)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: our own, and nobody uses it any more.
        let _ = unsafe { syscall(libc::SYS_close, [self.descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Asks for a lock on one byte, or who has it. Returns what the kernel left in `l_type`.
fn lock(descriptor: RawFd, command: i32, byte: u32) -> Result<i32, Errno> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: i64::from(byte),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: fcntl(2) reads and writes the lock, which lives until it returns.
    unsafe { syscall(libc::SYS_fcntl, [descriptor as usize, command as usize, &raw mut lock as usize, 0, 0, 0]) }?;
    Ok(i32::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::uring::Ring;

    /// One test, since rings know one presence in a process.
    #[test]
    fn a_byte_is_held_until_the_last_copy_and_the_last_ring_is_closed() {
        let presence = Presence::new().expect("a memfd");
        let hold = |byte| {
            let hold = presence.open().expect("/proc");
            hold.take(byte).map(|()| hold)
        };
        let asking = presence.open().expect("/proc");
        assert!(!asking.sees(1));
        let holding = hold(1).expect("nobody has it");
        assert!(asking.sees(1) && !asking.sees(0) && !asking.sees(2));
        assert_eq!(hold(1).map(|_| ()), Err(Errno(libc::EAGAIN)));
        // What fork(2) does with every descriptor.
        // SAFETY: dup(2) takes a number.
        let copied = unsafe { syscall(libc::SYS_dup, [holding.descriptor as usize, 0, 0, 0, 0, 0]) };
        let copy = Hold { descriptor: copied.expect("a descriptor") as RawFd };
        drop(holding);
        assert!(asking.sees(1));
        drop(copy);
        assert!(!asking.sees(1));

        presence.become_holder(hold(2).expect("nobody has it")).expect("open");
        presence.become_holder(hold(3).expect("nobody has it")).expect("open");
        assert!(asking.sees(3) && !asking.sees(2), "a child lets go of what its parent holds");

        if let Err(why) = crate::uring::probe() {
            return aquifer_test_support::skip_part("the second half", why);
        }
        let file = Arc::new(File::open("/proc/self/exe").expect("this test"));
        let ring = Ring::new(file, 1).expect("it was probed");
        presence.become_holder(hold(4).expect("nobody has it")).expect("open");
        assert!(asking.sees(3), "a ring may have requests in flight");
        drop(ring);
        // The kernel takes a ring apart on a thread of its own.
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !asking.sees(3)
        }));
    }
}
