// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's signal masks, without the two signals that deliver faults and system calls to the library.
//!
//! Threads often block every signal; but the kernel ends a program whose fault cannot be signalled. So SIGBUS and
//! SIGSYS stay unblocked in every mask, and the program does not notice.

#![allow(unsafe_code, reason = "the C ABI of the C library, and the kernel's structures")]

use std::ffi::c_int;

use aquifer_pager::signal;
use aquifer_sys::raw::syscall;
use aquifer_sys::signal_actions;
use aquifer_sys::signals::{self, KernelAction, bit};

use crate::kernel::libc_result;
use crate::pointers::SYS_IO_PGETEVENTS;
use crate::program_memory::{load, store};
use crate::start::instance_inside;

/// glibc reserves the first two real-time signals for itself, and removes them from every mask that it is given.
const LIBCS_OWN: u64 = bit(32) | bit(33);
/// The size of a mask in the kernel.
const MASK_BYTES: usize = 8;
const INVALID: isize = -(libc::EINVAL as isize);
const FAULT: isize = -(libc::EFAULT as isize);

/// Carries out rt_sigprocmask(2) on `mask`, which is the thread's mask.
pub fn change(mask: &mut u64, args: &[usize; 6]) -> isize {
    let [how, new, old, size, ..] = *args;
    if size != MASK_BYTES {
        return INVALID;
    }
    let before = *mask;
    if new != 0 {
        let Some(new) = load::<u64>(new) else { return FAULT };
        let new = new & !signals::OURS;
        *mask = match how as c_int {
            libc::SIG_BLOCK => before | new,
            libc::SIG_UNBLOCK => before & !new,
            libc::SIG_SETMASK => new,
            _ => return INVALID,
        } & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP));
    }
    if old != 0 && !store(old, before) { FAULT } else { 0 }
}

/// Answers rt_sigaction(2), so that it neither changes nor shows the library's signals. Returns `None` if the kernel
/// can answer.
pub fn action(args: &[usize; 6]) -> Option<isize> {
    let [number, new, old, size, ..] = *args;
    let signal = number as c_int;
    if size != MASK_BYTES {
        return None;
    }
    if signal::is_ours(signal) {
        let wish = load::<KernelAction>(new);
        if new != 0 && wish.is_none() {
            return Some(FAULT);
        }
        let before = signal::exchange_programs_action(signal, wish.as_ref());
        return Some(if old != 0 && !store(old, before) { FAULT } else { 0 });
    }
    if new == 0 && old == 0 {
        return None;
    }
    let wish = if new == 0 { Some(KernelAction::default()) } else { load(new) };
    let Some(mut ours) = wish else { return Some(FAULT) };
    ours.mask &= !signals::OURS;
    match signal_actions::exchange(signal, (new != 0).then_some(&ours)) {
        Ok(before) => Some(if old != 0 && !store(old, before) { FAULT } else { 0 }),
        Err(errno) => Some(-(errno.0 as isize)),
    }
}

/// A call that waits with another signal mask: handlers that run during the wait start with that mask.
pub struct WithMask {
    args: [usize; 6],
    /// The argument that must be the address of `mask`, or of `pair`.
    index: Option<usize>,
    paired: bool,
    mask: u64,
    /// pselect6(2) reaches the mask through one more pointer.
    pair: [usize; 2],
}

impl WithMask {
    /// Inspects a call.
    pub fn of(number: i64, args: [usize; 6]) -> Self {
        let mut this = Self { args, index: None, paired: false, mask: 0, pair: [0; 2] };
        let index = match number {
            libc::SYS_rt_sigsuspend => 0,
            libc::SYS_ppoll => 3,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
            libc::SYS_pselect6 | SYS_IO_PGETEVENTS => 5,
            _ => return this,
        };
        this.paired = index == 5;
        let mut address = args[index];
        if this.paired && address != 0 {
            // If it cannot be read, the kernel itself returns the error.
            this.pair = load(address).unwrap_or_default();
            address = this.pair[0];
        }
        if let Some(mask) = load::<u64>(address) {
            this.mask = mask & !signals::OURS;
            this.index = (mask != this.mask).then_some(index);
        }
        this
    }

    /// Returns whether the mask had to be changed.
    pub fn is_changed(&self) -> bool {
        self.index.is_some()
    }

    /// Returns the arguments to call with, valid for as long as `self` is not moved or dropped.
    pub fn args(&mut self) -> [usize; 6] {
        let mut args = self.args;
        self.pair[0] = &raw const self.mask as usize;
        if let Some(index) = self.index {
            args[index] = if self.paired { &raw const self.pair as usize } else { &raw const self.mask as usize };
        }
        args
    }
}

fn mask_call(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> isize {
    let mut mask = None;
    if !new.is_null() {
        let Some(new) = load::<u64>(new as usize) else { return FAULT };
        let keeps = instance_inside().is_some() && how != libc::SIG_UNBLOCK;
        mask = Some(new & !LIBCS_OWN & !if keeps { signals::OURS } else { 0 });
    }
    let address = mask.as_ref().map_or(0, |mask| std::ptr::from_ref(mask) as usize);
    let mut before = 0u64;
    let args = [how as usize, address, &raw mut before as usize, MASK_BYTES, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads one mask and writes one, both this function's.
    let result = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
    if result.is_ok() && !old.is_null() && !store(old as usize, before) {
        return FAULT;
    }
    result.map_or_else(|errno| -(errno.0 as isize), |_| 0)
}

/// Wraps sigprocmask(2).
///
/// # Safety
/// The same as for sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    let result = mask_call(how, new, old);
    libc_result(if result < 0 { Err(aquifer_sys::raw::Errno(-result as i32)) } else { Ok(0) }) as c_int
}

/// Wraps pthread_sigmask(3).
///
/// # Safety
/// The same as for pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    -mask_call(how, new, old) as c_int
}
