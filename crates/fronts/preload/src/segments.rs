// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Segments of System V shared memory. They are not managed, but a segment can replace managed memory.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use aquifer_sys::own_stack;
use aquifer_sys::raw::syscall;

use crate::calls::in_libcs_manner;
use crate::mappings::can_be_mapped;
use crate::start::instance;

/// Wraps shmat(2): with SHM_REMAP, the segment replaces what is mapped at its address.
///
/// # Safety
/// The same as for shmat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(segment: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let attached = attach([segment as usize, address as usize, flags as usize, 0, 0, 0]);
    std::ptr::with_exposed_provenance_mut(in_libcs_manner(attached) as usize)
}

/// Carries out shmat(2), with the kernel's convention for results.
pub fn attach(args: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let attach = move || unsafe { syscall(libc::SYS_shmat, args) };
    // Attached segments start at multiples of SHMLBA: a page.
    let is_rounded = args[2] & libc::SHM_RND as usize != 0;
    let start = if is_rounded { args[1] & !4095 } else { args[1] };
    let len = segment_bytes(args[0] as c_int);
    let attached = match (instance(), len) {
        (Some(instance), Some(len)) if args[2] & libc::SHM_REMAP as usize != 0 && can_be_mapped(start, len) => {
            instance.adopter.release(start, len, attach)
        }
        (Some(instance), Some(len)) => attach().inspect(|start| instance.adopter.has_appeared(*start, len)),
        _ => attach(),
    };
    attached.map_or_else(|errno| -(errno.0 as isize), |start| start as isize)
}

/// The size of a segment. The kernel writes its status to the thread's own stack, which is not managed.
fn segment_bytes(segment: c_int) -> Option<usize> {
    own_stack::call(move || {
        let mut status = MaybeUninit::<libc::shmid_ds>::zeroed();
        let args = [segment as usize, libc::IPC_STAT as usize, status.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel writes the status of the segment to this frame, or fails. All zeros are a valid status.
        unsafe { syscall(libc::SYS_shmctl, args).ok().map(|_| status.assume_init().shm_segsz) }
    })
}
