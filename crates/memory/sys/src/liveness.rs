// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Detects by a lock whether a process, or a transfer that it started, may still write to memory that other processes
//! of its family use.
//!
//! A process number is not enough. The first thread of a process can end long before the others do, and is a zombie
//! from then on; a killed process's pending disk writes can complete when it has been a zombie for a while. So each
//! process holds a lock (fcntl(2), "Open file description locks") on a byte of a memory file, through its own open file
//! description, which is also registered with its rings ([`crate::uring`]). The kernel drops the lock with the last
//! reference: when all threads have ended *and* all requests that were in flight.
//!
//! A separate description comes from opening `/proc/thread-self/fd/N`. Without /proc, children keep using their
//! parent's, and nothing can tell whether they have ended.
//!
//! Threads: any. Takes no lock of Aquifer's, and does not allocate.

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::own_descriptors::{KeptFile, close, keep, keep_in_passing, unprotect};
use crate::raw::{Errno, replace_descriptor, syscall};

/// The descriptor that is registered with every ring. -1 when no `Liveness` has been created.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// The descriptor that a ring keeps open until its last request has ended.
pub(crate) fn descriptor() -> Option<RawFd> {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    (descriptor >= 0).then_some(descriptor)
}

/// A file whose bytes processes lock.
#[derive(Debug)]
pub struct Liveness {
    file: RawFd,
    /// The file, if it was created here.
    _created: Option<KeptFile>,
    /// The descriptor of this process's own description, once it has one.
    own: RawFd,
}

/// A separate open file description that holds one byte or none. Closed when dropped. The program cannot close it: the
/// program's next file could get its number, and the process would then be marked by that file's locks.
#[derive(Debug)]
pub struct LivenessLock {
    descriptor: RawFd,
}

impl Liveness {
    /// Creates a file for this process and those that it forks, with no byte locked. This process's rings also hold
    /// every lock that the process holds.
    pub fn new() -> Result<Self, Errno> {
        let args = [c"aquifer-liveness".as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: memfd_create(2) reads the name and creates a new descriptor.
        let file = unsafe { syscall(libc::SYS_memfd_create, args) }? as RawFd;
        // SAFETY: the descriptor was just created, and has no other owner.
        let file = KeptFile::new(unsafe { OwnedFd::from_raw_fd(file) });
        let mut liveness = Self::of(file.as_raw_fd())?;
        liveness._created = Some(file);
        DESCRIPTOR.store(liveness.own, Ordering::Release);
        Ok(liveness)
    }

    /// Wraps the file of a descriptor that stays open for as long as this process lives.
    pub fn of(file: RawFd) -> Result<Self, Errno> {
        // Only reserves the number.
        // SAFETY: fcntl(2) accesses no memory, and creates a second descriptor of the same file.
        let own = unsafe { syscall(libc::SYS_fcntl, [file as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]) }?;
        Ok(Self { file, _created: None, own: keep(own as RawFd) })
    }

    /// Opens a separate description, which holds no byte yet.
    pub fn open(&self) -> Result<LivenessLock, Errno> {
        let mut path = [0u8; 48];
        // The last byte stays 0: the path is shorter than that for every possible number.
        let _ = write!(&mut path[..47], "/proc/thread-self/fd/{}", self.file);
        let flags = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
        // SAFETY: openat(2) reads the path, which ends with 0.
        let opened =
            unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }?;
        Ok(LivenessLock { descriptor: keep_in_passing(opened as RawFd) })
    }

    /// Marks this process by `lock` from now on, instead of by the lock that it inherited from its parent. EBADF if
    /// the descriptor has been closed.
    pub fn become_holder(&self, lock: LivenessLock) -> Result<(), Errno> {
        let descriptor = lock.descriptor;
        std::mem::forget(lock);
        unprotect(descriptor);
        replace_descriptor(descriptor, self.own)
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        let _ = DESCRIPTOR.compare_exchange(self.own, -1, Ordering::AcqRel, Ordering::Relaxed);
        close(self.own);
    }
}

impl LivenessLock {
    /// Locks a byte until this value, and every copy of it that fork(2) has made, is closed. EAGAIN if another
    /// description holds the byte.
    pub fn take(&self, byte: u32) -> Result<(), Errno> {
        lock(self.descriptor, libc::F_OFD_SETLK, byte).map(|_| ())
    }

    /// Whether another description holds the byte; the process's own one counts as another. True when in doubt.
    pub fn sees(&self, byte: u32) -> bool {
        lock(self.descriptor, libc::F_OFD_GETLK, byte) != Ok(libc::F_UNLCK)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        close(self.descriptor);
    }
}

/// Takes a lock on one byte, or queries its holder. Returns the kernel's value of `l_type`.
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
    use crate::own_descriptors::{around_ours, is_ours, leave_the_programs};
    use crate::uring::Ring;

    /// A program that closes all descriptors between the opening of a lock and its use does not close the lock. A
    /// thread of the pager that starts meanwhile has no copy, by which the byte would stay held.
    #[test]
    fn a_lock_outlives_closing_all_descriptors_and_ends_with_its_value() {
        let args = [c"test".as_ptr() as usize, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0];
        // SAFETY: memfd_create(2) reads the name and creates a new descriptor.
        let file = unsafe { syscall(libc::SYS_memfd_create, args) }.expect("a memfd") as RawFd;
        let liveness = Liveness::of(file).expect("a descriptor");
        let (asking, held) = (liveness.open().expect("/proc"), liveness.open().expect("/proc"));
        held.take(7).expect("nobody has it");
        let number = held.descriptor;
        let mut is_closed = false;
        let _ = around_ours(3, u32::MAX, |first, last| {
            is_closed |= (first..=last).contains(&(number as u32));
            Ok::<(), ()>(())
        });
        assert!(is_ours(number) && !is_closed, "closefrom(3) of the program would close {number}");

        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let of_pager = std::thread::spawn(move || {
            leave_the_programs();
            tell.send(()).expect("the test waits");
            let _ = ended.recv();
        });
        told.recv().expect("it tells");
        assert!(asking.sees(7));
        drop(held);
        assert!(!asking.sees(7), "a thread of the pager keeps the lock");
        assert!(!is_ours(number), "the program may get the number next");
        drop(end);
        of_pager.join().expect("it ends");
    }

    /// A single test, since rings register only one such file per process.
    #[test]
    fn a_byte_is_held_until_the_last_copy_and_the_last_ring_is_closed() {
        let liveness = Liveness::new().expect("a memfd");
        let locked = |byte| {
            let lock = liveness.open().expect("/proc");
            lock.take(byte).map(|()| lock)
        };
        let asking = liveness.open().expect("/proc");
        assert!(!asking.sees(1));
        let first = locked(1).expect("nobody has it");
        assert!(asking.sees(1) && !asking.sees(0) && !asking.sees(2));
        assert_eq!(locked(1).map(|_| ()), Err(Errno(libc::EAGAIN)));
        // What fork(2) does with every descriptor.
        // SAFETY: dup(2) accesses no memory.
        let copied = unsafe { syscall(libc::SYS_dup, [first.descriptor as usize, 0, 0, 0, 0, 0]) };
        let copy = LivenessLock { descriptor: copied.expect("a descriptor") as RawFd };
        drop(first);
        assert!(asking.sees(1));
        drop(copy);
        assert!(!asking.sees(1));

        liveness.become_holder(locked(2).expect("nobody has it")).expect("open");
        liveness.become_holder(locked(3).expect("nobody has it")).expect("open");
        assert!(asking.sees(3) && !asking.sees(2), "a child lets go of what its parent holds");

        if let Err(why) = crate::uring::probe() {
            return aquifer_test_support::skip_part("the part with an io_uring", why);
        }
        let file = Arc::new(File::open("/proc/self/exe").expect("this test"));
        let ring = Ring::new(file, 1).expect("it was probed");
        liveness.become_holder(locked(4).expect("nobody has it")).expect("open");
        assert!(asking.sees(3), "a ring may have requests in flight");
        drop(ring);
        // The kernel dismantles a ring on one of its own threads.
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !asking.sees(3)
        }));
    }
}
