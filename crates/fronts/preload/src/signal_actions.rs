// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Wraps sigaction(2) and signal(2): the program neither sees nor changes Aquifer's own actions.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;
use std::mem::MaybeUninit;

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
        let wants_alternate = open.as_ref().is_some_and(|new| new.sa_flags & libc::SA_ONSTACK != 0);
        if instance_inside().is_some() && (wants_alternate || signal_actions::takes_all()) {
            return exchange(signal, open.as_ref(), old);
        }
        let new = open.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as sigaction(2).
        let result = unsafe { libc_functions::sigaction().map_or(-1, |sigaction| sigaction(signal, new, old)) };
        // SAFETY: as above.
        if let Some(old) = unsafe { old.as_mut() }
            && result == 0
            && let Some(action) = signal_actions::programs_action(signal, old.sa_sigaction)
        {
            write_action(old, &action);
        }
        take_over(signal);
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
    signals::touch_stack();
    let before = signal::exchange_programs_action(signal, wish.as_ref());
    // SAFETY: as above.
    if let Some(old) = unsafe { old.as_mut() } {
        write_action(old, &before);
    }
    0
}

/// Finds the code by which handlers return that the C library sets: in the kernel, after the C library has set an
/// action that was set already. Called before the program starts.
pub fn find_restorer() {
    // One of the signals that are ignored by default.
    const HARMLESS: c_int = libc::SIGURG;
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: reads the action, and sets the same again.
    unsafe {
        let Some(sigaction) = libc_functions::sigaction() else { return };
        if sigaction(HARMLESS, std::ptr::null(), action.as_mut_ptr()) != 0
            || sigaction(HARMLESS, action.as_ptr(), std::ptr::null_mut()) != 0
        {
            return;
        }
        if let Ok(found) = signals::exchange_action(HARMLESS, None)
            && found.flags & signals::SA_RESTORER != 0
        {
            signals::set_programs_restorer(found.restorer);
        }
    }
}

/// Writes an action as the C library shows it. Its signal set begins with the kernel's mask, eight bytes.
fn write_action(to: &mut libc::sigaction, action: &KernelAction) {
    to.sa_sigaction = action.handler;
    to.sa_flags = (action.flags & !signals::SA_RESTORER) as c_int;
    to.sa_restorer = None;
    // SAFETY: a signal set of the caller's, which is longer than the kernel's.
    unsafe {
        libc::sigemptyset(&mut to.sa_mask);
        std::ptr::from_mut(&mut to.sa_mask).cast::<u64>().write(action.mask);
    }
}

/// Takes over an action that this thread set directly while the calls of other threads already trapped.
fn take_over(signal: c_int) {
    if signal_actions::takes_all() {
        signal_actions::take_over(signal);
    }
}

/// Carries out sigaction(2) for a signal that is the program's, bypassing the C library.
fn exchange(signal: c_int, new: Option<&libc::sigaction>, old: *mut libc::sigaction) -> c_int {
    // The C library's own signals.
    if matches!(signal, 32 | 33) {
        return libc_result(Err(Errno(libc::EINVAL))) as c_int;
    }
    let wish = new.map(|new| {
        // SAFETY: the kernel's mask is the first eight bytes of libc's.
        let mask = unsafe { (&raw const new.sa_mask).cast::<u64>().read() };
        let flags = u64::from(new.sa_flags as u32);
        signals::with_restorer(KernelAction { handler: new.sa_sigaction, flags, restorer: 0, mask })
    });
    match signal_actions::exchange(signal, wish.as_ref()) {
        Ok(before) => {
            // SAFETY: the caller's pointer is valid or null, as sigaction(2).
            if let Some(old) = unsafe { old.as_mut() } {
                write_action(old, &before);
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
        let before = signal_actions::programs_action(signal, before).map_or(before, |action| action.handler);
        take_over(signal);
        return before;
    }
    let wish = KernelAction { handler, flags: libc::SA_RESTART as u64, restorer: 0, mask: 0 };
    signals::touch_stack();
    signal::exchange_programs_action(signal, Some(&wish)).handler
}
