// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Detects asynchronous I/O in this process, whose transfers are not visible as system calls: an io_uring, or a context
//! of io_setup(2). See io_uring(7) and proc_pid_maps(5).
//!
//! Allocates nothing, and calls no libc function that does.

use crate::descriptors;
use crate::raw::{Errno, syscall};

/// The kernel's name of an io_uring's descriptor.
const RING: &[u8] = b"anon_inode:[io_uring]";

/// Whether one of the first descriptors is an io_uring.
pub fn are_there() -> bool {
    descriptors::any_is(RING)
}

/// The kernel's names of the mappings of asynchronous I/O: an io_uring's, and the completion ring of a context.
const MAPPINGS: [&[u8]; 2] = [b" anon_inode:[io_uring]\n", b" /[aio] (deleted)\n"];
/// How much of the list of mappings is read in one call.
const PIECE_BYTES: usize = 1024;
/// How much of the previous piece is kept, so that no name between two pieces is missed: more than the longest name.
const KEPT_BYTES: usize = 32;

/// Whether asynchronous I/O has mapped its rings; true also if the mappings cannot be read. Also finds an io_uring
/// whose descriptor was closed or registered.
pub fn are_mapped() -> bool {
    let path = c"/proc/thread-self/maps";
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: openat(2) with a path that ends in NUL.
    let Ok(maps) = (unsafe { syscall(libc::SYS_openat, args) }) else { return true };
    let found = maps_name_rings(maps).unwrap_or(true);
    // SAFETY: close(2) takes the descriptor that was opened above.
    let _ = unsafe { syscall(libc::SYS_close, [maps, 0, 0, 0, 0, 0]) };
    found
}

fn maps_name_rings(maps: usize) -> Result<bool, Errno> {
    let mut text = [0u8; KEPT_BYTES + PIECE_BYTES];
    loop {
        let args = [maps, text[KEPT_BYTES..].as_mut_ptr() as usize, PIECE_BYTES, 0, 0, 0];
        // SAFETY: read(2) writes at most the size of the piece.
        let len = unsafe { syscall(libc::SYS_read, args) }?;
        if len == 0 {
            return Ok(false);
        }
        let text_end = KEPT_BYTES + len;
        if MAPPINGS.iter().any(|name| text[..text_end].windows(name.len()).any(|part| part == *name)) {
            return Ok(true);
        }
        text.copy_within(len..text_end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_found_while_it_is_open() {
        assert!(!descriptors::is(0, RING));
        let mut parameters = [0u8; 120];
        let args = [1, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: io_uring_setup(2) reads and writes 120 bytes.
        let Ok(ring) = (unsafe { syscall(libc::SYS_io_uring_setup, args) }) else {
            aquifer_test_support::skip("this kernel has no io_uring");
            return;
        };
        assert!(descriptors::is(ring, RING) && are_there());
        // SAFETY: close(2) takes the descriptor that was made above.
        let _ = unsafe { syscall(libc::SYS_close, [ring, 0, 0, 0, 0, 0]) };
        assert!(!descriptors::is(ring, RING));
    }

    #[test]
    fn a_context_is_found() {
        let mut context = 0usize;
        // SAFETY: io_setup(2) writes one word.
        let made = unsafe { syscall(libc::SYS_io_setup, [1, &raw mut context as usize, 0, 0, 0, 0]) };
        if made.is_err() {
            aquifer_test_support::skip("this kernel has no asynchronous I/O");
            return;
        }
        // The absence of rings is tested in e2e: tests that run in parallel with this one have rings.
        assert!(are_mapped());
        // SAFETY: io_destroy(2) ends the context that was made above.
        let _ = unsafe { syscall(libc::SYS_io_destroy, [context, 0, 0, 0, 0, 0]) };
    }
}
