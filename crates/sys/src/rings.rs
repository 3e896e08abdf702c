// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds out whether this process has an io_uring: see io_uring(7) and proc_pid_fd(5).
//!
//! Allocates nothing, and calls nothing of libc's that does.

use crate::raw::syscall;

/// Descriptors that are looked at. A program makes its rings early, when few are open.
const DESCRIPTORS_MOST: usize = 1024;

/// Whether one of the first descriptors is an io_uring.
pub fn are_there() -> bool {
    (0..DESCRIPTORS_MOST).any(is_ring)
}

fn is_ring(descriptor: usize) -> bool {
    const RING: &[u8] = b"anon_inode:[io_uring]";
    let mut path = *b"/proc/self/fd/\0\0\0\0\0";
    let digits = [1000, 100, 10, 1].map(|unit| b'0' + (descriptor / unit % 10) as u8);
    let skip = digits.iter().take(3).take_while(|digit| **digit == b'0').count();
    path[14..18 - skip].copy_from_slice(&digits[skip..]);
    let mut target = [0u8; RING.len()];
    let args = [path.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0, 0];
    // SAFETY: readlink(2) reads a path that ends in NUL, and writes no more than the target has.
    matches!(unsafe { syscall(libc::SYS_readlink, args) }, Ok(len) if &target[..len] == RING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_found_while_it_is_open() {
        assert!(!is_ring(0));
        let mut parameters = [0u8; 120];
        let args = [1, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: io_uring_setup(2) reads and writes 120 bytes.
        let Ok(ring) = (unsafe { syscall(libc::SYS_io_uring_setup, args) }) else {
            eprintln!("skipped, because this kernel has no io_uring");
            return;
        };
        assert!(is_ring(ring) && are_there());
        // SAFETY: closes what was opened above.
        let _ = unsafe { syscall(libc::SYS_close, [ring, 0, 0, 0, 0, 0]) };
        assert!(!is_ring(ring));
    }
}
