// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Signals, by direct system calls: installing the fault handler, and blocking signals temporarily.
//!
//! See rt_sigaction(2). libc's wrapper is bypassed because the library interposes it for the program's calls.

use std::arch::global_asm;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use crate::raw::{self, Errno, syscall};
use crate::thread_slot::{self, Inside};

global_asm!(
    ".text",
    ".hidden aquifer_restore",
    ".globl aquifer_restore",
    ".type aquifer_restore,@function",
    // Unwinders look up the byte before a return address, and recognise this code by its bytes.
    "nop",
    "aquifer_restore:",
    "mov rax, 15",
    "syscall",
    ".size aquifer_restore, . - aquifer_restore",
);

unsafe extern "C" {
    fn aquifer_restore();
}

/// The address of the code by which Aquifer's own handlers return.
pub(crate) fn restorer() -> usize {
    aquifer_restore as *const () as usize
}

/// The code by which handlers of the program return, once Aquifer has moved their frames.
pub(crate) static PROGRAMS_RESTORER: AtomicPtr<()> = AtomicPtr::new(aquifer_restore as *const () as *mut ());

/// Makes the program's handlers return by the code at `restorer`: the C library's, whose rt_sigreturn(2) traps, as
/// Aquifer's own does not.
///
/// # Safety
/// `restorer` is the restorer of a `struct sigaction` of the kernel's, and stays mapped.
pub unsafe fn set_programs_restorer(restorer: usize) {
    PROGRAMS_RESTORER.store(std::ptr::with_exposed_provenance_mut(restorer), Ordering::Relaxed);
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAction {
    /// Address of the handler, or SIG_DFL, or SIG_IGN.
    pub handler: usize,
    /// `SA_` flags.
    pub flags: u64,
    /// Address of the code that returns from the handler.
    pub restorer: usize,
    /// Signals blocked while the handler runs.
    pub mask: u64,
}

/// The kernel's flag for an action that has a restorer.
pub const SA_RESTORER: u64 = 0x0400_0000;

/// The type of a handler.
pub type Handler = extern "C" fn(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void);

/// Reads and sets the action for `signal`.
///
/// # Safety
/// A handler in `new` must be sound to run at any point of any thread.
pub unsafe fn exchange_action(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let mut old = KernelAction::default();
    let new = new.map_or(0, |action| std::ptr::from_ref(action) as usize);
    // SAFETY: rt_sigaction(2) reads one action or none, and writes one; the caller vouches for the handler.
    unsafe { syscall(libc::SYS_rt_sigaction, [signal as usize, new, &raw mut old as usize, 8, 0, 0]) }?;
    Ok(old)
}

/// The action that runs `handler` with every signal blocked, on the alternate stack if there is one.
pub fn fault_action(handler: Handler) -> KernelAction {
    KernelAction {
        handler: handler as usize,
        flags: libc::SA_SIGINFO as u64 | libc::SA_ONSTACK as u64 | SA_RESTORER,
        restorer: restorer(),
        mask: u64::MAX,
    }
}

/// The same action, whose handler returns through Aquifer's code.
pub fn with_restorer(action: KernelAction) -> KernelAction {
    let restorer = restorer();
    KernelAction { flags: action.flags | SA_RESTORER, restorer, ..action }
}

/// The action that runs the code at `handler`, on the alternate stack if there is one, with the signals that others
/// send blocked: a handler of the program that interrupted that code would find Aquifer's stack in its context.
pub fn trap_action(handler: usize) -> KernelAction {
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER) as u64 | SA_RESTORER;
    let mask = !(OURS | SYNCHRONOUS);
    KernelAction { handler, flags, restorer: restorer(), mask }
}

/// The bit of one signal in a mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The signals that deliver faults and trapped system calls to Aquifer. The kernel ends a program that gets one of them
/// while it is blocked, so they are removed from the program's own masks.
pub const OURS: u64 = bit(libc::SIGBUS) | bit(libc::SIGSYS);

/// The other signals that the kernel raises on the thread that has caused them. The kernel ends a program that gets one
/// of them while it is blocked.
const SYNCHRONOUS: u64 = bit(libc::SIGFPE) | bit(libc::SIGILL) | bit(libc::SIGSEGV) | bit(libc::SIGTRAP);

/// The C library's internal signal with which setuid(2) and similar calls reach all threads, and wait for each of them.
static SETXID: u64 = bit(33);

/// The signals that others send, for a thread to block while it calls the C library. The rest stay unblocked: the
/// thread may fault, and setuid(2) on another thread may wait for it.
pub fn sent_by_others() -> u64 {
    !(OURS | SYNCHRONOUS | SETXID)
}

/// Makes what short work needs of the calling thread's stack resident, before every signal is blocked or a lock is
/// taken: a fault there could not be signalled, or would wait for a thread that waits for the lock. No more than that:
/// an alternate stack or a coroutine's may be small.
#[inline(never)]
pub fn touch_stack() {
    std::hint::black_box([0u8; 512]);
}

/// Sets the signal mask of the calling thread.
pub fn set_mask(mask: u64) {
    let args = [libc::SIG_SETMASK as usize, &raw const mask as usize, 0, 8, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads one mask.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
}

/// Unblocks Aquifer's own signals on the calling thread.
pub fn unblock_ours() {
    let ours = OURS;
    let args = [libc::SIG_UNBLOCK as usize, &raw const ours as usize, 0, 8, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads one mask.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
}

/// Unblocks on the calling thread the C library's internal signal, with which setuid(2) and similar calls reach all
/// threads.
pub fn open_to_libc() {
    let args = [libc::SIG_UNBLOCK as usize, &raw const SETXID as usize, 0, 8, 0, 0];
    // SAFETY: rt_sigprocmask(2) reads one mask.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
}

/// Blocks signals on this thread while the value exists. The thread counts as inside the pager, so that its system
/// calls do not trap: a call that trapped now would end the program. Signals are blocked because a handler of the
/// program that ran meanwhile would count as inside, too: its new mappings would not be managed, and its calls would
/// meet evicted memory.
#[derive(Debug)]
pub struct Blocked {
    old: u64,
    interrupted: Interrupted,
    inside: Option<Inside>,
}

impl Blocked {
    /// Blocks all signals that can be blocked.
    pub fn all() -> Self {
        Self::these(u64::MAX)
    }

    /// Blocks the signals that others send: for calls into the C library that may touch the program's memory.
    pub fn others() -> Self {
        Self::these(sent_by_others())
    }

    /// Blocks all signals but those of faults, and the one for which setuid(2) waits: the stack may be evicted memory.
    pub fn all_but_ours() -> Self {
        Self::these(!(OURS | SETXID))
    }

    /// The thread's mask before this value was created, which is restored when it is dropped.
    pub fn mask_outside(&self) -> u64 {
        self.old
    }

    fn these(signals: u64) -> Self {
        let mut old = 0u64;
        let args = [libc::SIG_BLOCK as usize, &raw const signals as usize, &raw mut old as usize, 8, 0, 0];
        // SAFETY: rt_sigprocmask(2) reads one mask and writes one.
        let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
        Self { old, interrupted: Interrupted::new(old), inside: Some(Inside::enter()) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // Leaves the pager before the first signal can arrive: its handler is the program's.
        drop(self.inside.take());
        self.interrupted.end();
        set_mask(self.old);
    }
}

/// While it exists, [`end_if_asked`] knows which signals the program has unblocked on this thread.
#[derive(Debug)]
pub struct Interrupted {
    before: u64,
}

impl Interrupted {
    /// `mask` is the signal mask of the interrupted code. If it blocks all signals that others send, that code is the
    /// pager's own, and the program's mask is known already.
    pub fn new(mask: u64) -> Self {
        let open = !mask & !bit(libc::SIGKILL) & !bit(libc::SIGSTOP) & sent_by_others();
        let before = thread_slot::open_signals();
        Self { before: if open == 0 { before } else { thread_slot::set_open_signals(open) } }
    }

    /// Call it when the thread returns to the interrupted code.
    pub fn end(&self) {
        thread_slot::set_open_signals(self.before);
    }
}

/// Signals whose default action does not end the process: they are ignored, or stop or continue it.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH);

/// Ends the process if a signal that should end it is pending: a signal that is blocked only because this thread is in
/// the pager's code, and for which the program has the default action. For waits of the pager, which may be long.
pub fn end_if_asked() {
    let open = thread_slot::open_signals() & !HARMLESS & !OURS;
    let mut pending = 0u64;
    // SAFETY: rt_sigpending(2) writes one mask.
    let asked = unsafe { syscall(libc::SYS_rt_sigpending, [&raw mut pending as usize, 8, 0, 0, 0, 0]) };
    if asked.is_err() || pending & open == 0 {
        return;
    }
    for signal in (1..=64).filter(|signal| pending & open & bit(*signal) != 0) {
        // SAFETY: only reads the action.
        let is_default = unsafe { exchange_action(signal, None) }.is_ok_and(|action| action.handler == libc::SIG_DFL);
        if is_default {
            let mask = bit(signal);
            let args = [libc::SIG_UNBLOCK as usize, &raw const mask as usize, 0, 8, 0, 0];
            // SAFETY: rt_sigprocmask(2) reads one mask. The process ends here.
            let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, args) };
        }
    }
}

/// One piece of a long wait, which bounds the delay of a signal. A choice: immediate for a person, negligible for a
/// CPU.
pub const HEEDED_WITHIN: Duration = Duration::from_millis(200);

/// Sleeps, like a tier that waits for its medium. A signal that ends the program ends it within [`HEEDED_WITHIN`].
pub fn sleep(limit: Duration) {
    let mut left = limit;
    while !left.is_zero() {
        let piece = left.min(HEEDED_WITHIN);
        std::thread::sleep(piece);
        left -= piece;
        if !left.is_zero() {
            end_if_asked();
        }
    }
}

/// Ends the process by the default action of `signal`, as soon as this thread has it unblocked. If a filter refuses the
/// calls for that, the process ends here, with the status that a shell shows after that signal.
pub fn end_by(signal: i32) {
    // SAFETY: SIG_DFL runs no handler.
    let is_default = unsafe { exchange_action(signal, Some(&KernelAction::default())) };
    // SAFETY: getpid(2) and gettid(2) have no arguments, and cannot fail.
    let (process, thread) = unsafe { (syscall(libc::SYS_getpid, [0; 6]), syscall(libc::SYS_gettid, [0; 6])) };
    if let (Ok(process), Ok(thread)) = (process, thread) {
        // SAFETY: tgkill(2) accesses no memory.
        let sent = unsafe { syscall(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]) };
        if sent.is_ok() && (is_default.is_ok() || signal == libc::SIGKILL) {
            return;
        }
    }
    exit_now(128 + signal)
}

/// A `siginfo_t` as rt_tgsigqueueinfo(2) expects it: the sender's part is left empty.
#[repr(C)]
struct QueuedSignal {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    sender: u64,
    value: usize,
    rest: [usize; 12],
}

const _: () = assert!(size_of::<QueuedSignal>() == size_of::<libc::siginfo_t>());

/// The `si_code` of [`fail_access`]. The kernel leaves numbers below zero to processes; nothing else uses this one.
const ACCESS_FAILS: i32 = -0x6171;

/// Raises SIGBUS on one thread of this process, whose access to `address` fails. A thread that waits in a page fault
/// gets the signal immediately, and repeats the access when its handler returns. The handler calls [`failed_access`].
pub fn fail_access(thread: u32, address: usize) -> Result<(), Errno> {
    let signal = QueuedSignal {
        signal: libc::SIGBUS,
        errno: 0,
        code: ACCESS_FAILS,
        padding: 0,
        sender: 0,
        value: address,
        rest: [0; 12],
    };
    // SAFETY: getpid(2) has no arguments.
    let process = unsafe { syscall(libc::SYS_getpid, [0; 6]) }?;
    let args = [process, thread as usize, libc::SIGBUS as usize, &raw const signal as usize, 0, 0];
    // SAFETY: the kernel reads one `siginfo_t`, whose size has been checked above.
    unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, args) }.map(|_| ())
}

/// A failed access.
#[derive(Clone, Copy, Debug)]
pub struct FailedAccess {
    /// The address.
    pub address: usize,
    /// The kernel's `si_code`.
    pub code: i32,
    /// Whether it came from [`fail_access`]: then the thread's context does not say whether it was a write.
    pub sent: bool,
}

/// The access that a SIGBUS reports. A signal from [`fail_access`] is rewritten to look like the kernel's.
///
/// # Safety
/// `info` is the pointer that the kernel passed to the running handler of a SIGBUS.
pub unsafe fn failed_access(info: *mut libc::siginfo_t) -> FailedAccess {
    const BUS_ADRERR: i32 = 2;
    // SAFETY: the kernel's `siginfo_t` belongs exclusively to the handler; `value` and si_addr are plain numbers in it.
    unsafe {
        let sent = (*info).si_code == ACCESS_FAILS;
        if sent {
            let address = (*info.cast::<QueuedSignal>()).value;
            (*info.cast::<QueuedSignal>()).code = BUS_ADRERR;
            // A queued signal has its sender at the place of a fault's si_addr.
            (*info.cast::<QueuedSignal>()).sender = address as u64;
        }
        FailedAccess { address: (*info).si_addr() as usize, code: (*info).si_code, sent }
    }
}

/// Whether the access that raised this signal was a write: bit 1 of the page fault's error code.
///
/// # Safety
/// `context` is the pointer that the kernel passed to a handler of a signal raised by a page fault.
#[cfg(target_arch = "x86_64")]
pub unsafe fn was_write(context: *const libc::c_void) -> bool {
    const WRITE: libc::greg_t = 1 << 1;
    // SAFETY: the kernel's context is a `ucontext_t`, as the caller promises, and is only read.
    let code = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    code & WRITE != 0
}

/// Ends the process immediately, without running anything else in it.
pub fn exit_now(code: i32) -> ! {
    raw::exit_process(code)
}

/// Reads the errno of the interrupted code, which the handler restores.
pub fn errno() -> i32 {
    // SAFETY: the C library keeps errno at a fixed offset from the thread register; the pointer is valid.
    unsafe { *libc::__errno_location() }
}

/// Restores errno.
pub fn set_errno(value: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}
