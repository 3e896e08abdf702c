// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's own actions for SIGBUS and SIGSYS.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;

use aquifer_pager::signal;
use aquifer_sys::raw::Errno;
use aquifer_sys::signal_actions;
use aquifer_sys::signals::{self, KernelAction};

use crate::kernel::libc_result;
use crate::libc_functions;
use crate::start::{instance, instance_inside};

/// Wraps sigaction(2). For the library's own signals, while its handlers are in place, the action is only stored.
///
/// # Safety
/// The same as for sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if !signal::is_ours(signal) {
        // SAFETY: the caller's pointers are valid or null, as sigaction(2).
        let mut open = unsafe { new.as_ref() }.copied();
        if let Some(open) = &mut open
            && instance().is_some()
        {
            for ours in [libc::SIGBUS, libc::SIGSYS] {
                // SAFETY: removes one signal from a set that this function owns.
                unsafe { libc::sigdelset(&mut open.sa_mask, ours) };
            }
        }
        if let Some(new) = &open
            && new.sa_flags & libc::SA_ONSTACK != 0
            && instance_inside().is_some()
        {
            return exchange(signal, new, old);
        }
        let new = open.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as sigaction(2).
        let result = unsafe { libc_functions::sigaction().map_or(-1, |sigaction| sigaction(signal, new, old)) };
        // SAFETY: as above.
        if let Some(old) = unsafe { old.as_mut() }
            && result == 0
        {
            old.sa_sigaction = signal_actions::programs_handler(signal, old.sa_sigaction);
        }
        return result;
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
        write_mask(&mut old.sa_mask, before.mask);
    }
    0
}

/// Fills the C library's signal set with the kernel's mask, which is its first eight bytes.
fn write_mask(set: &mut libc::sigset_t, mask: u64) {
    // SAFETY: a signal set of the caller's, which is longer than the kernel's.
    unsafe {
        libc::sigemptyset(set);
        std::ptr::from_mut(set).cast::<u64>().write(mask);
    }
}

/// Calls sigaction(2) with SA_ONSTACK for a signal that is the program's.
fn exchange(signal: c_int, new: &libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // The C library's own signals.
    if matches!(signal, 32 | 33) {
        return libc_result(Err(Errno(libc::EINVAL))) as c_int;
    }
    // SAFETY: the kernel's mask is the first eight bytes of libc's.
    let mask = unsafe { (&raw const new.sa_mask).cast::<u64>().read() };
    let flags = u64::from(new.sa_flags as u32);
    let wish = signals::with_restorer(KernelAction { handler: new.sa_sigaction, flags, restorer: 0, mask });
    match signal_actions::exchange(signal, Some(&wish)) {
        Ok(before) => {
            // SAFETY: the caller's pointer is valid or null, as sigaction(2).
            if let Some(old) = unsafe { old.as_mut() } {
                old.sa_sigaction = before.handler;
                old.sa_flags = (before.flags & !signals::SA_RESTORER) as c_int;
                old.sa_restorer = None;
                write_mask(&mut old.sa_mask, before.mask);
            }
            0
        }
        Err(errno) => libc_result(Err(errno)) as c_int,
    }
}

/// Wraps signal(2).
///
/// # Safety
/// The same as for signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if !signal::is_ours(signal) {
        // SAFETY: as signal(2).
        let before = unsafe { libc_functions::signal().map_or(libc::SIG_ERR, |function| function(signal, handler)) };
        return signal_actions::programs_handler(signal, before);
    }
    let wish = KernelAction { handler, flags: libc::SA_RESTART as u64, restorer: 0, mask: 0 };
    signals::errno();
    signal::exchange_programs_action(signal, Some(&wish)).handler
}
