// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program makes a process with a copy of its memory: fork(2), and clone(2) without CLONE_VM.
//!
//! The call is made from the handler that it traps into, between what the pager does before and after
//! (`pager/src/fork.rs`). The child returns from the handler, too: to where its parent made the call, on the stack that
//! the call asked for.
//!
//! `posix_spawn`, `system`, `popen` and `vfork` share the parent's memory until the exec, and need nothing of this.

#![allow(unsafe_code, reason = "the C ABI of the C library, and clone(2)")]

use aquifer_pager::abort::abort;
use aquifer_pager::signal;
use aquifer_sys::dispatch::{self, Trapped};
use aquifer_sys::raw::syscall;

use crate::next;
use crate::own_allocator;
use crate::start::{instance, instance_inside};

/// The structure of clone3(2), as long as it has ever been, and what is read of it by name.
const CLONE_ARGS_BYTES_MOST: usize = 128;
const FLAGS: usize = 0;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;

/// fork(2).
///
/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let active = instance().is_some_and(|instance| instance.adopter.is_active());
    if active && !signal::trap_fork() {
        abort(&[
            "the program forks while part of its memory is away, and this kernel does not let system calls be ",
            "trapped (Linux 5.11); give it enough DRAM (--dram) to stay below its budget",
        ]);
    }
    // SAFETY: as fork(2). The C library's own call traps.
    let result = unsafe { next::fork().map_or(-1, |fork| fork()) };
    if active && result != 0 {
        dispatch::disarm_after_fork();
    }
    result
}

/// Whether a call makes a process with a copy of this memory.
pub fn copies_memory(number: i64, args: &[usize; 6]) -> bool {
    let flags = match number {
        libc::SYS_fork => 0,
        libc::SYS_vfork => libc::CLONE_VM as usize,
        libc::SYS_clone => args[0],
        // SAFETY: clone3(2)'s structure begins with its flags; a fault there is resolved as for any load.
        _ => unsafe { std::ptr::with_exposed_provenance::<u64>(args[0]).read() as usize },
    };
    flags & libc::CLONE_VM as usize == 0
}

/// Makes the child, and sets the result that each of the two sees.
pub fn make(trapped: &mut Trapped, number: i64, args: [usize; 6]) {
    let Some(instance) = instance_inside() else { return trapped.repeat() };
    let mut structure = [0u64; CLONE_ARGS_BYTES_MOST / 8];
    let (mut args, mut stack) = (args, 0);
    match number {
        libc::SYS_clone => stack = std::mem::take(&mut args[1]),
        libc::SYS_clone3 => {
            if args[1] > CLONE_ARGS_BYTES_MOST {
                return trapped.set_result(-(libc::E2BIG as isize));
            }
            // SAFETY: the program's structure has as many bytes as it says.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(args[0]);
                std::ptr::copy_nonoverlapping(from, structure.as_mut_ptr().cast(), args[1]);
            }
            if structure[STACK] != 0 {
                stack = (structure[STACK] + structure[STACK_SIZE]) as usize;
                (structure[STACK], structure[STACK_SIZE]) = (0, 0);
            }
            args[0] = structure.as_ptr() as usize;
        }
        _ => {}
    }
    let flags = if number == libc::SYS_clone3 { structure[FLAGS] as usize } else { args[0] };
    if number != libc::SYS_fork && flags & libc::CLONE_SETTLS as usize != 0 {
        // The child would come to itself in our handler with another thread's words.
        return trapped.set_result(-(libc::EINVAL as isize));
    }
    let result = instance.adopter.fork(|| {
        own_allocator::at_rest(|| {
            // SAFETY: the program's own call, but for the stack: the child goes on with a copy of this one.
            match unsafe { syscall(number, args) } {
                Ok(value) => value as isize,
                Err(errno) => -(errno.0 as isize),
            }
        })
    });
    if result == 0 && stack != 0 {
        trapped.set_stack(stack);
    }
    trapped.set_result(result);
}
