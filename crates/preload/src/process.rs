// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fork, and the program's own wishes for SIGBUS.
//!
//! A forked child inherits no registration: pages that are away would read as zeros in it. Until the child
//! can go on as a pager of its own, a fork while memory may be away ends the program with a message.
//! (`posix_spawn`, `system`, `popen` and `vfork` share the parent's memory until the exec, and work.)

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;

use aquifer_pager::abort::abort;
use aquifer_pager::signal;
use aquifer_sys::signals::{self, KernelAction};

use crate::next;
use crate::start::instance;

/// fork(2).
///
/// # Safety
/// As fork(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    if instance().is_some_and(|instance| instance.adopter.is_active()) {
        abort(&[
            "the program forks while part of its memory is away, which is not supported yet: the child would read zeros; ",
            "give it enough DRAM (--dram) to stay below its budget",
        ]);
    }
    // SAFETY: as fork(2).
    unsafe { next::fork().map_or(-1, |fork| fork()) }
}

/// sigaction(2). For SIGBUS, while the fault handler is in place, the wish is remembered instead.
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if signal != libc::SIGBUS || !signal::is_installed() {
        // SAFETY: as sigaction(2).
        return unsafe { next::sigaction().map_or(-1, |sigaction| sigaction(signal, new, old)) };
    }
    // SAFETY: the caller's pointers are valid or null, as sigaction(2).
    let wish = unsafe { new.as_ref() }.map(|new| KernelAction {
        handler: new.sa_sigaction,
        flags: new.sa_flags as u64,
        restorer: 0,
        mask: 0,
    });
    let before = signal::exchange_programs_action(wish.as_ref());
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        old.sa_sigaction = before.handler;
        old.sa_flags = before.flags as c_int;
    }
    0
}

/// signal(2).
///
/// # Safety
/// As signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if signal != libc::SIGBUS || !signal::is_installed() {
        // SAFETY: as signal(2).
        return unsafe { next::signal().map_or(libc::SIG_ERR, |function| function(signal, handler)) };
    }
    let wish = KernelAction { handler, flags: libc::SA_RESTART as u64, restorer: 0, mask: 0 };
    signals::errno();
    signal::exchange_programs_action(Some(&wish)).handler
}
