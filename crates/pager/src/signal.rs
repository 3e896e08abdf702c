// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Signal delivery: the faulting thread gets a SIGBUS and resolves its own fault in the handler.
//!
//! Every other signal is blocked while the handler runs. What is not ours goes on to the program's own
//! action for SIGBUS, or to the default.
//!
//! Next on the path: `resolve.rs`.

#![allow(unsafe_code, reason = "a signal handler is given raw pointers by the kernel")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use aquifer_core::units::ThreadIndex;
use aquifer_stats::Counter;
use aquifer_sys::raw::Errno;
use aquifer_sys::signals::{self, KernelAction};
use aquifer_sys::thread_slot::{self, Inside};

use crate::abort::say;
use crate::pager::{Pager, THREADS_MOST};
use crate::resolve::Outcome;

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// What the program has asked to happen on SIGBUS. Default: end the process.
static PROGRAMS_ACTION: Mutex<KernelAction> =
    Mutex::new(KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 });

const BUS_MCEERR_AR: i32 = 4;

/// Makes `pager` the one that resolves this process's faults, and installs the handler.
pub fn install(pager: &'static Pager) -> Result<(), Errno> {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    // SAFETY: `on_sigbus` only does what may be done at any point of any thread: see `resolve.rs`.
    let old = unsafe { signals::exchange_action(libc::SIGBUS, Some(&signals::fault_action(on_sigbus))) }?;
    if let Ok(mut action) = PROGRAMS_ACTION.lock() {
        *action = old;
    }
    Ok(())
}

/// Whether the handler is in place, so that the program's own wishes must go through
/// [`exchange_programs_action`].
pub fn is_installed() -> bool {
    !PAGER.load(Ordering::Acquire).is_null()
}

/// The program's own sigaction(2) for SIGBUS: remembered, and used for faults that are not ours.
pub fn exchange_programs_action(new: Option<&KernelAction>) -> KernelAction {
    let _blocked = signals::Blocked::all();
    let Ok(mut action) = PROGRAMS_ACTION.lock() else { return KernelAction::default() };
    let old = *action;
    if let Some(new) = new {
        *action = *new;
    }
    old
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let errno = signals::errno();
    // SAFETY: the kernel gives a valid siginfo to a handler installed with SA_SIGINFO, and si_addr and
    // si_code are set for SIGBUS.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // SAFETY: the pointer was made from a `&'static Pager`, or is null.
    let pager = unsafe { PAGER.load(Ordering::Acquire).as_ref() };
    let outcome = match pager {
        Some(pager) if code != BUS_MCEERR_AR => {
            let _inside = Inside::enter();
            pager.resolve(address, ThreadIndex(thread_slot::index(THREADS_MOST)))
        }
        _ => Outcome::Foreign,
    };
    match outcome {
        Outcome::Resolved => {
            // SAFETY: the context of a SIGBUS that a page fault has raised.
            if let (Some(pager), true) = (pager, unsafe { signals::was_write(context) }) {
                pager.counters.add(Counter::FaultsWrite, 1);
            }
        }
        Outcome::NoRoom => {
            say(&["no memory: nothing more can be written back, so no frame can be freed; the access gets SIGBUS"]);
            pass_on(signal, info, context);
        }
        Outcome::Lost | Outcome::Foreign => pass_on(signal, info, context),
    }
    signals::set_errno(errno);
}

/// Gives the fault to the program's own action. With the default one, the access is repeated and ends it.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = PROGRAMS_ACTION.lock().map(|action| *action).unwrap_or_default();
    match action.handler {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: SIG_DFL runs no code of ours.
            let _ = unsafe { signals::exchange_action(signal, Some(&KernelAction::default())) };
        }
        handler if action.flags & libc::SA_SIGINFO as u64 != 0 => {
            // SAFETY: the program installed this address as a handler of this type.
            let handler: signals::Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the program installed this address as a handler without SA_SIGINFO.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
