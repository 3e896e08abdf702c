// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds open descriptors of this process by the names that the kernel gives them: see proc_pid_fd(5).
//!
//! Allocates nothing, and calls no libc function that does.

use crate::raw::{Errno, syscall};

/// Number of descriptors examined. A program opens the descriptors that matter here early, when few are open.
const DESCRIPTORS_MAX: usize = 1024;
/// The greatest descriptor whose name can be asked for.
const DESCRIPTOR_MAX: usize = 99_999;
/// Maximum length of a name to look for.
const NAME_BYTES_MAX: usize = 32;

/// Whether one of the first [`DESCRIPTORS_MAX`] descriptors has this name of at most [`NAME_BYTES_MAX`] bytes.
pub fn any_is(name: &[u8]) -> bool {
    (0..DESCRIPTORS_MAX).any(|descriptor| is(descriptor, name))
}

/// Whether this process has a virtual machine of KVM, or a device of one that vhost runs.
pub fn has_virtual_machine() -> bool {
    let names: [&[u8]; 4] = [b"anon_inode:kvm-vm", b"/dev/vhost-net", b"/dev/vhost-vsock", b"/dev/vhost-scsi"];
    names.into_iter().any(any_is)
}

/// Whether this descriptor, at most five digits long, has this name of at most [`NAME_BYTES_MAX`] bytes.
pub(crate) fn is(descriptor: usize, name: &[u8]) -> bool {
    has_name(descriptor, name) == Ok(true)
}

/// As [`is`]. Fails if the descriptor is not open or has more digits, or without /proc.
pub(crate) fn has_name(descriptor: usize, name: &[u8]) -> Result<bool, Errno> {
    if descriptor > DESCRIPTOR_MAX {
        return Err(Errno(libc::EBADF));
    }
    let mut path = *b"/proc/thread-self/fd/\0\0\0\0\0\0";
    let digits = [10_000, 1000, 100, 10, 1].map(|unit| b'0' + (descriptor / unit % 10) as u8);
    let skip = digits.iter().take(4).take_while(|digit| **digit == b'0').count();
    path[21..26 - skip].copy_from_slice(&digits[skip..]);
    // One byte more than the longest name: a longer name does not match.
    let mut target = [0u8; NAME_BYTES_MAX + 1];
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0];
    // SAFETY: readlinkat(2) reads a path that ends in NUL, and writes at most the length of the target.
    unsafe { syscall(libc::SYS_readlinkat, args) }.map(|len| &target[..len] == name)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_descriptor_is_known_by_its_whole_name() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let descriptor = file.as_raw_fd() as usize;
        assert!(is(descriptor, b"/dev/null") && any_is(b"/dev/null"));
        assert!(!is(descriptor, b"/dev/nul") && !is(descriptor, b"/dev/nulls"));
        assert!(!has_virtual_machine());
    }
}
