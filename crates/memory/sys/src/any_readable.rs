// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One descriptor that is readable while any of several others is: epoll(7), level-triggered.
//!
//! For a queue made of other queues, each with its own descriptor. Its counterpart for several threads that wait for
//! one descriptor is `readiness.rs`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::raw::{Errno, syscall};

/// One descriptor that stands for several others.
#[derive(Debug)]
pub struct AnyReadable(OwnedFd);

impl AnyReadable {
    /// Creates one that watches no descriptors.
    pub fn new() -> Result<AnyReadable, Errno> {
        // SAFETY: epoll_create1(2) accesses no memory.
        let descriptor = unsafe { syscall(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) }?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(AnyReadable(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }))
    }

    /// Watches another descriptor, which must stay open until it is removed. EEXIST if it is already watched.
    pub fn add(&self, watched: i32) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, watched)
    }

    /// Stops watching a descriptor.
    pub fn leave_out(&self, watched: i32) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_DEL, watched)
    }

    fn control(&self, operation: i32, watched: i32) -> Result<(), Errno> {
        let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let args = [self.descriptor() as usize, operation as usize, watched as usize, &raw const event as usize, 0, 0];
        // SAFETY: epoll_ctl(2) reads one event.
        unsafe { syscall(libc::SYS_epoll_ctl, args) }.map(|_| ())
    }

    /// The descriptor to wait on.
    pub fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::wakeup::readable;

    #[test]
    fn it_is_readable_while_any_watched_descriptor_is() {
        let any = AnyReadable::new().unwrap();
        let pairs: Vec<_> = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
        pairs.iter().for_each(|(here, _)| any.add(here.as_raw_fd()).unwrap());
        assert_eq!(any.add(pairs[0].0.as_raw_fd()), Err(Errno(libc::EEXIST)));
        let is_readable = || readable(any.descriptor(), Duration::ZERO);
        assert!(!is_readable());
        for (here, there) in &pairs {
            { there }.write_all(&[1]).unwrap();
            assert!(is_readable() && is_readable());
            { here }.read_exact(&mut [0]).unwrap();
            assert!(!is_readable());
        }
        { &pairs[1].1 }.write_all(&[1]).unwrap();
        any.leave_out(pairs[1].0.as_raw_fd()).unwrap();
        assert!(!is_readable());
    }
}
