// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several threads wait until one descriptor is readable, and each event wakes one of them: epoll(7), edge-triggered.
//!
//! With poll(2), all of them would wake for every event, and all but one would find nothing. When the wait is to end
//! for good, all of them wake. Its counterpart for one thread that waits for several descriptors is `any_readable.rs`.

use std::time::Duration;

use crate::own_descriptors::{close, close_copy, keep};
use crate::raw::{Errno, syscall};

/// The object at which threads wait.
#[derive(Debug)]
pub struct Readiness {
    descriptor: i32,
    /// An eventfd(2).
    end: i32,
}

impl Readiness {
    /// Watches `watched`, which must stay open. The program cannot close the new descriptor.
    pub fn of(watched: i32) -> Result<Self, Errno> {
        // SAFETY: epoll_create1(2) accesses no memory.
        let descriptor = unsafe { syscall(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) }?;
        let descriptor = keep(descriptor as i32);
        // SAFETY: eventfd2(2) accesses no memory.
        let end = unsafe { syscall(libc::SYS_eventfd2, [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0]) };
        let end = end.map(|end| keep(end as i32)).inspect_err(|_| close(descriptor))?;
        let this = Self { descriptor, end };
        this.add(watched, libc::EPOLLIN | libc::EPOLLET)?;
        // Nobody ever reads it: once written to, it ends every wait.
        this.add(end, libc::EPOLLIN)?;
        Ok(this)
    }

    /// Makes every wait return immediately from now on.
    pub fn end(&self) {
        let one = 1u64;
        // SAFETY: write(2) reads eight bytes.
        let _ = unsafe { syscall(libc::SYS_write, [self.end as usize, &raw const one as usize, 8, 0, 0, 0]) };
    }

    /// After fork(2), in a child that does not use this value again: closes the child's copies, by which it could wake
    /// its parent's threads for good.
    pub fn close_in_child(&self) {
        close_copy(self.descriptor, b"anon_inode:[eventpoll]");
        close_copy(self.end, b"anon_inode:[eventfd]");
    }

    fn add(&self, watched: i32, events: i32) -> Result<(), Errno> {
        let event = libc::epoll_event { events: events as u32, u64: 0 };
        let add = libc::EPOLL_CTL_ADD as usize;
        let args = [self.descriptor as usize, add, watched as usize, &raw const event as usize, 0, 0];
        // SAFETY: epoll_ctl(2) reads one event.
        unsafe { syscall(libc::SYS_epoll_ctl, args) }.map(|_| ())
    }

    /// Waits, at most `limit`. The thread that returns must read the descriptor until it is empty: an event that
    /// arrives in between wakes another thread, or makes the next wait return immediately.
    pub fn wait(&self, limit: Duration) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let timeout = limit.as_millis().min(i32::MAX as u128) as usize;
        // SAFETY: epoll_wait(2) writes one event.
        let _ = unsafe {
            syscall(libc::SYS_epoll_wait, [self.descriptor as usize, &raw mut event as usize, 1, timeout, 0, 0])
        };
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        close(self.descriptor);
        close(self.end);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use super::*;

    const WAITERS: u32 = 4;
    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Waits until `so` holds, within a time limit.
    fn until(mut so: impl FnMut() -> bool, what: &str) {
        let started = Instant::now();
        while !so() {
            assert!(started.elapsed() < TIMEOUT, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Each event wakes one waiter: a second waiter wakes only for a second event.
    #[test]
    fn one_event_wakes_one_waiter() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let readiness = Arc::new(Readiness::of(here.as_raw_fd()).unwrap());
        let woken = Arc::new(AtomicU32::new(0));
        for _ in 0..WAITERS {
            let (readiness, woken) = (readiness.clone(), woken.clone());
            std::thread::spawn(move || {
                readiness.wait(TIMEOUT);
                woken.fetch_add(1, Ordering::SeqCst);
            });
        }
        // All waiters are asleep, as far as a test can tell.
        std::thread::sleep(Duration::from_millis(200));
        for event in 1..=WAITERS {
            (&there).write_all(&[1]).unwrap();
            until(|| woken.load(Ordering::SeqCst) >= event, "an event wakes somebody");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(woken.load(Ordering::SeqCst), event, "and nobody else");
        }
        let mut bytes = [0; 8];
        assert_eq!(here.read(&mut bytes).unwrap(), WAITERS as usize);
    }

    /// An event that arrives while no thread waits is not lost.
    #[test]
    fn an_event_before_the_wait_ends_it() {
        let (here, there) = UnixStream::pair().unwrap();
        let readiness = Readiness::of(here.as_raw_fd()).unwrap();
        (&there).write_all(&[1]).unwrap();
        let started = Instant::now();
        readiness.wait(TIMEOUT);
        assert!(started.elapsed() < TIMEOUT);
    }

    #[test]
    fn the_end_ends_every_wait() {
        let (here, _there) = UnixStream::pair().unwrap();
        let readiness = Arc::new(Readiness::of(here.as_raw_fd()).unwrap());
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let readiness = readiness.clone();
                std::thread::spawn(move || readiness.wait(TIMEOUT))
            })
            .collect();
        let started = Instant::now();
        readiness.end();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        readiness.wait(TIMEOUT);
        assert!(started.elapsed() < TIMEOUT);
    }
}
