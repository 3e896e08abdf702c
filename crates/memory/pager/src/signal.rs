// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Signal delivery: the faulting thread gets a SIGBUS and resolves its own fault in the handler.
//!
//! Every other signal is blocked while the handler runs. A SIGBUS that is not a fault on managed memory goes on to the
//! program's own action for it, or to the default.
//!
//! Next on the path: `space.rs`.

#![allow(unsafe_code, reason = "a signal handler is given raw pointers by the kernel")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use aquifer_core::units::ThreadIndex;
use aquifer_driver::Outcome;
use aquifer_stats::Counter;
use aquifer_sys::dispatch;
use aquifer_sys::raw::Errno;
use aquifer_sys::signals::{self, FailedAccess, Interrupted, KernelAction};
use aquifer_sys::thread_slot::{self, Inside};
use aquifer_sys::{shown_calls, signal_actions, signal_frames, signal_stack};

use crate::abort::say;
use crate::fault_stacks;
use crate::pager::{Pager, THREADS_MAX};
use crate::spaces;

/// The space of an unchanged program, whose memory may be anywhere.
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// The program's own actions for SIGBUS and SIGSYS. Default: end the process.
static PROGRAMS_ACTIONS: [Mutex<KernelAction>; 2] =
    [const { Mutex::new(KernelAction { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 }) }; 2];

fn programs_action(signal: i32) -> &'static Mutex<KernelAction> {
    &PROGRAMS_ACTIONS[usize::from(signal == libc::SIGSYS)]
}

const BUS_MCEERR_AR: i32 = 4;

static HAS_HANDLER: AtomicBool = AtomicBool::new(false);

/// Makes `pager` resolve the faults that are in no space of a caller's, and installs the handler.
pub fn install(pager: &'static Pager) -> Result<(), Errno> {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    install_handler()
}

/// Installs the handler, unless it is installed. Waits for no lock, which a forked child could find held for ever: if
/// several threads do this, each finds the program's own action or the handler.
pub(crate) fn install_handler() -> Result<(), Errno> {
    if HAS_HANDLER.load(Ordering::Acquire) {
        return Ok(());
    }
    let ours = signals::fault_action(on_sigbus);
    let keep = |old: KernelAction| {
        if old.handler != ours.handler
            && let Ok(mut action) = programs_action(libc::SIGBUS).try_lock()
        {
            *action = signal_actions::programs_action(libc::SIGBUS, old.handler).unwrap_or(old);
        }
    };
    // The program's action is known before the handler can need it.
    // SAFETY: only reads the action.
    keep(unsafe { signals::exchange_action(libc::SIGBUS, None) }?);
    // SAFETY: `on_sigbus` only does things that are allowed at any point of any thread: see `space.rs`.
    keep(unsafe { signals::exchange_action(libc::SIGBUS, Some(&ours)) }?);
    HAS_HANDLER.store(true, Ordering::Release);
    Ok(())
}

/// Keeps other threads from the program's own actions for as long as the returned value lives.
pub(crate) fn lock_programs_actions() -> impl Sized {
    PROGRAMS_ACTIONS.each_ref().map(|action| action.lock())
}

/// Makes the program's system calls trap from now on, so that none meets a missing page: see `dispatch.rs`.
pub(crate) fn trap_calls() {
    // A child of vfork(2) has actions of its own, and its parent's memory.
    if !dispatch::is_owner() {
        return;
    }
    // Once for each thread: it may have set actions directly while its calls did not trap.
    if thread_slot::is_first_sweep() || !signal_actions::takes_all() {
        signal_actions::take_all_over();
        keep_programs_trap(dispatch::enable());
    }
    // Arms this thread immediately. The others are armed at their next fault, or at their next call of a wrapped
    // function.
    dispatch::arm_if_due();
}

/// Makes at least this thread's next call trap. False if the kernel cannot do so.
pub fn trap_fork() -> bool {
    keep_programs_trap(dispatch::install());
    dispatch::arm_for_fork()
}

fn keep_programs_trap(old: Option<KernelAction>) {
    signals::touch_stack();
    // A SIGSYS that somebody sends wants the same lock.
    let _blocked = signals::Blocked::all();
    if let Some(old) = old
        && let Ok(mut action) = programs_action(libc::SIGSYS).lock()
    {
        *action = signal_actions::programs_action(libc::SIGSYS, old.handler).unwrap_or(old);
    }
}

/// In a forked child: what the parent's other threads had begun with signals is not finished by anybody.
pub(crate) fn become_child() {
    dispatch::own_after_fork();
    shown_calls::become_child();
    signal_stack::adopt_in_child();
    signal_actions::forget_writers();
}

/// Whether the library's handler is installed for this signal, so that the program's own action must go through
/// [`exchange_programs_action`].
pub fn is_ours(signal: i32) -> bool {
    match signal {
        libc::SIGBUS => HAS_HANDLER.load(Ordering::Acquire),
        libc::SIGSYS => dispatch::is_installed(),
        _ => false,
    }
}

/// The program's own sigaction(2) for a signal that the library handles: the action is stored, and used for signals
/// that are not the library's.
pub fn exchange_programs_action(signal: i32, new: Option<&KernelAction>) -> KernelAction {
    let _blocked = signals::Blocked::all();
    let Ok(mut action) = programs_action(signal).lock() else { return KernelAction::default() };
    let old = *action;
    // A child of vfork(2) has actions of its own, and its parent's memory.
    if let Some(new) = new.filter(|_| dispatch::is_owner()) {
        *action = *new;
    }
    old
}

/// The program's action for a signal that it gets now. With SA_RESETHAND, the next one gets the default.
fn action_to_run(signal: i32) -> KernelAction {
    let action = exchange_programs_action(signal, None);
    let has_handler = action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN;
    if has_handler && action.flags & libc::SA_RESETHAND as u64 != 0 {
        exchange_programs_action(signal, Some(&KernelAction { handler: libc::SIG_DFL, ..action }));
    }
    action
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let errno = signals::errno();
    // SAFETY: the kernel gives a valid siginfo to a handler installed with SA_SIGINFO.
    let FailedAccess { address, code, sent } = unsafe { signals::failed_access(info) };
    // SAFETY: as above.
    unsafe { signal_stack::reclaim(context) };
    let found = spaces::find(address);
    let pager = match &found {
        Some(found) => Some(found.pager()),
        // SAFETY: the pointer was made from a `&'static Pager`, or is null.
        None => unsafe { PAGER.load(Ordering::Acquire).as_ref() },
    };
    let is_callers = found.is_some();
    let outcome = match pager {
        // The listeners have resolved the faults that can be resolved, and the caller's stack for signals may be too
        // small to try again.
        Some(pager) if is_callers && pager.listener_uffd().is_some() => Outcome::Lost,
        Some(pager) if code != BUS_MCEERR_AR => {
            let _inside = Inside::enter();
            // SAFETY: the context of a SIGBUS raised by a page fault, unless a listener has sent the signal.
            let write = sent || unsafe { signals::was_write(context) };
            let interrupted = Interrupted::new(interrupted_mask(context));
            let thread = ThreadIndex(thread_slot::index(THREADS_MAX));
            let outcome = if is_callers {
                resolve_elsewhere(pager, address, thread, write)
            } else {
                pager.resolve(address, thread, write)
            };
            interrupted.end();
            pager.counters.add(Counter::FaultsWrite, u64::from(write && outcome == Outcome::Resolved));
            outcome
        }
        _ => Outcome::Foreign,
    };
    drop(found);
    if outcome == Outcome::NoRoom && !is_callers {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            say(&["no memory: nothing more can be written back, so no frame can be freed; the access gets SIGBUS"]);
        }
    }
    dispatch::arm_if_due();
    signals::set_errno(errno);
    if outcome != Outcome::Resolved {
        // SAFETY: the kernel's own arguments, and this handler holds no lock any more.
        unsafe { leave_for_programs(signal, info, context) };
        signals::set_errno(errno);
    }
}

/// Resolves a fault in a caller's space, on a stack that is large enough for that.
fn resolve_elsewhere(pager: &Pager, address: usize, thread: ThreadIndex, write: bool) -> Outcome {
    let pager = std::ptr::from_ref(pager) as usize;
    // SAFETY: the reference that this function was given lives until the call returns.
    fault_stacks::call(move || unsafe { &*(pager as *const Pager) }.resolve(address, thread, write))
}

/// As [`pass_on`], from the handler of SIGBUS. The program's own handler starts on the stack that the kernel would have
/// given it, and this handler's stack is left.
///
/// # Safety
/// The arguments are what the kernel gave to the running handler, which holds nothing.
unsafe fn leave_for_programs(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let action = action_to_run(signal);
    if action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN {
        let mask = interrupted_mask(context) | programs_mask(signal, &action);
        signals::set_mask(!signals::OURS);
        // SAFETY: the caller's promise.
        unsafe { signal_frames::become_programs(signal, context, &action, mask) };
    }
    // SAFETY: the caller's promise.
    unsafe { run(&action, signal, info, context) };
}

/// Gives the signal to the program's own action. The default action ends the program as soon as this handler returns.
///
/// # Safety
/// The arguments are what the kernel gave to the running handler.
pub unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    unsafe { run(&action_to_run(signal), signal, info, context) };
}

/// Carries out the program's action.
///
/// # Safety
/// As for [`pass_on`].
unsafe fn run(action: &KernelAction, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the caller's promise.
    let from_kernel = unsafe { (*info).si_code } > 0;
    match action.handler {
        // A signal sent by a process can be ignored; one raised by an access or a call cannot.
        libc::SIG_IGN if !from_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => signals::end_by(signal),
        handler if action.flags & libc::SA_SIGINFO as u64 != 0 => {
            // SAFETY: the program installed this address as a handler of this type.
            let handler: signals::Handler = unsafe { std::mem::transmute(handler) };
            runs_in_ours(action, context);
            handler(signal, info, context);
            // SAFETY: the caller's promise.
            unsafe { signal_frames::open_ours(context) };
        }
        handler => {
            // SAFETY: the program installed this address as a handler without SA_SIGINFO.
            let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
            runs_in_ours(action, context);
            handler(signal);
        }
    }
}

/// Sets the mask for a program's handler that runs inside the library's. It gets the signal mask that the kernel would
/// have given it, except that the signals for faults and trapped system calls stay unblocked: the handler may touch
/// evicted memory, or leave by siglongjmp(3).
fn runs_in_ours(action: &KernelAction, context: *const libc::c_void) {
    signals::set_mask((interrupted_mask(context) | action.mask) & !signals::OURS);
}

/// The signals that an action blocks while its handler runs.
fn programs_mask(signal: i32, action: &KernelAction) -> u64 {
    let itself = if action.flags & libc::SA_NODEFER as u64 == 0 { signals::bit(signal) } else { 0 };
    action.mask | itself
}

/// The signal mask of the code that the running handler interrupted.
fn interrupted_mask(context: *const libc::c_void) -> u64 {
    let context: *const libc::ucontext_t = context.cast();
    // SAFETY: the kernel's context of the running handler; its mask is the first eight bytes of libc's.
    unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() }
}
