// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's own wishes for SIGBUS and SIGSYS.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;

use aquifer_pager::signal;
use aquifer_sys::signals::{self, KernelAction};

use crate::next;
use crate::start::instance;

/// sigaction(2). For our own signals, while our handlers are in place, the wish is remembered instead.
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !signal::is_ours(signal) {
        // SAFETY: the caller's pointers are valid or null, as sigaction(2).
        let mut open = unsafe { new.as_ref() }.copied();
        if let Some(open) = &mut open
            && instance().is_some()
        {
            for ours in [libc::SIGBUS, libc::SIGSYS] {
                // SAFETY: removes one signal from a set of our own.
                unsafe { libc::sigdelset(&mut open.sa_mask, ours) };
            }
        }
        let new = open.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as sigaction(2).
        return unsafe { next::sigaction().map_or(-1, |sigaction| sigaction(signal, new, old)) };
    }
    // SAFETY: the caller's pointers are valid or null, as sigaction(2).
    let wish = unsafe { new.as_ref() }.map(|new| KernelAction {
        handler: new.sa_sigaction,
        flags: new.sa_flags as u64,
        restorer: 0,
        // SAFETY: the kernel's mask is the first eight bytes of libc's.
        mask: unsafe { (&raw const new.sa_mask).cast::<u64>().read() },
    });
    let before = signal::exchange_programs_action(signal, wish.as_ref());
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
    if !signal::is_ours(signal) {
        // SAFETY: as signal(2).
        return unsafe { next::signal().map_or(libc::SIG_ERR, |function| function(signal, handler)) };
    }
    let wish = KernelAction { handler, flags: libc::SA_RESTART as u64, restorer: 0, mask: 0 };
    signals::errno();
    signal::exchange_programs_action(signal, Some(&wish)).handler
}
