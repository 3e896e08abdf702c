// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traps the program's system calls: Syscall User Dispatch, prctl(2), since Linux 5.11.
//!
//! A trapped call raises SIGSYS on its thread before it does anything. Calls from our own text go to the kernel,
//! and so do all while the thread's selector allows it (`thread_slot.rs`). It is for each thread, and neither
//! forked children nor executed programs have it. Without kernel support nothing is trapped.
//!
//! Most trapped calls are repeated by a few instructions of our own text that the handler returns to: then the
//! call happens on the program's own stack and outside any handler, and signals, cancellation and garbage
//! collectors find the thread where they expect it.

use std::arch::global_asm;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::raw::{Errno, syscall};
use crate::signals::{self, KernelAction};
use crate::thread_slot::{self, Trapping};

/// Handles trapped calls. A thread may be cancelled in one: the handler's frame is unwound then.
pub type TrapHandler = extern "C-unwind" fn(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void);

/// What the x86-64 ABI lets a leaf function use below its stack pointer.
const RED_ZONE_BYTES: usize = 128;

global_asm!(
    ".text",
    ".hidden aquifer_call_here",
    ".globl aquifer_call_here",
    ".type aquifer_call_here,@function",
    "aquifer_call_here:",
    ".cfi_startproc",
    // The return address lies below the caller's red zone.
    ".cfi_def_cfa rsp, 136",
    ".cfi_offset rip, -136",
    "nop",
    ".hidden aquifer_call_here_syscall",
    ".globl aquifer_call_here_syscall",
    "aquifer_call_here_syscall:",
    "syscall",
    "ret 128",
    ".cfi_endproc",
    ".size aquifer_call_here, . - aquifer_call_here",
);

unsafe extern "C" {
    fn aquifer_call_here_syscall();
}

/// How the handler is told that a SIGSYS is ours: SYS_USER_DISPATCH.
const USER_DISPATCH: i32 = 2;
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const PR_SYS_DISPATCH_ON: usize = 1;
const PR_SYS_DISPATCH_OFF: usize = 0;
/// Bytes of a `syscall` instruction.
const SYSCALL_BYTES: i64 = 2;

static TEXT_START: AtomicUsize = AtomicUsize::new(0);
static TEXT_LEN: AtomicUsize = AtomicUsize::new(0);
static HANDLER: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Says where our own text is, and what handles trapped calls. Traps nothing yet.
///
/// # Safety
/// The handler must be sound to run at any system call of the program.
pub unsafe fn prepare(text: std::ops::Range<usize>, handler: TrapHandler) {
    HANDLER.store(handler as usize, Ordering::Relaxed);
    TEXT_LEN.store(text.len(), Ordering::Relaxed);
    TEXT_START.store(text.start, Ordering::Release);
}

/// Installs the handler; threads arm themselves from now on. Returns the program's own action for SIGSYS,
/// where it was in place until now.
pub fn enable() -> Option<KernelAction> {
    let old = install();
    ENABLED.store(INSTALLED.load(Ordering::Relaxed), Ordering::Release);
    old
}

/// Installs the handler. Returns the program's own action for SIGSYS, where it was in place until now.
pub fn install() -> Option<KernelAction> {
    if TEXT_START.load(Ordering::Acquire) == 0 || INSTALLED.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: `prepare` has stored a `Handler` that is sound to run.
    let handler = unsafe { std::mem::transmute::<usize, signals::Handler>(HANDLER.load(Ordering::Relaxed)) };
    // SAFETY: as above.
    let old = unsafe { signals::exchange_action(libc::SIGSYS, Some(&signals::trap_action(handler))) }.ok()?;
    INSTALLED.store(true, Ordering::Release);
    Some(old)
}

/// Whether the handler is in place.
pub fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Makes this thread's calls trap until [`disarm_after_fork`], whether or not others do. False where the kernel cannot.
/// The handler must have been [installed](install).
pub fn arm_for_fork() -> bool {
    if thread_slot::trapping() == Trapping::Ready
        && INSTALLED.load(Ordering::Acquire)
        && switch(PR_SYS_DISPATCH_ON).is_ok()
    {
        thread_slot::set_trapping(Trapping::Armed);
    }
    thread_slot::trapping() == Trapping::Armed
}

/// In the parent: as it was before.
pub fn disarm_after_fork() {
    if !ENABLED.load(Ordering::Relaxed) && thread_slot::trapping() == Trapping::Armed {
        let _ = switch(PR_SYS_DISPATCH_OFF);
        thread_slot::set_trapping(Trapping::Ready);
    }
}

/// Makes this thread's calls trap, once that is wanted, and again after [`Trapped::repeat`].
pub fn arm_if_due() {
    if !ENABLED.load(Ordering::Relaxed) {
        return;
    }
    match thread_slot::trapping() {
        Trapping::Never => {}
        Trapping::Armed => thread_slot::resume(),
        Trapping::Ready => {
            // An old kernel refuses: then only what is called by the names that we wrap is served.
            let armed = switch(PR_SYS_DISPATCH_ON).is_ok();
            thread_slot::set_trapping(if armed { Trapping::Armed } else { Trapping::Never });
        }
    }
}

/// Ends trapping on this thread, for good.
pub fn disarm() {
    if thread_slot::trapping() == Trapping::Armed {
        let _ = switch(PR_SYS_DISPATCH_OFF);
    }
    thread_slot::set_trapping(Trapping::Never);
}

fn switch(to: usize) -> Result<usize, Errno> {
    let mut args = [PR_SET_SYSCALL_USER_DISPATCH, to, 0, 0, 0, 0];
    if to == PR_SYS_DISPATCH_ON {
        args[2] = TEXT_START.load(Ordering::Relaxed);
        args[3] = TEXT_LEN.load(Ordering::Relaxed);
        args[4] = thread_slot::selector_address();
    }
    // SAFETY: prctl(2) keeps the selector's address, which is valid for as long as the thread lives.
    unsafe { syscall(libc::SYS_prctl, args) }
}

/// A trapped call, as its handler sees it.
#[derive(Debug)]
pub struct Trapped {
    context: *mut libc::ucontext_t,
}

impl Trapped {
    /// The trapped call behind a SIGSYS; `None` when it has another reason.
    ///
    /// # Safety
    /// The pointers are what the kernel gave to the running handler of a SIGSYS.
    pub unsafe fn new(info: *const libc::siginfo_t, context: *mut libc::c_void) -> Option<Self> {
        // SAFETY: the caller's promise.
        let code = unsafe { (*info).si_code };
        (code == USER_DISPATCH).then_some(Self { context: context.cast() })
    }

    fn register(&mut self, index: i32) -> &mut i64 {
        // SAFETY: the context is the handler's, exclusively, until it returns; the index is one of libc's.
        unsafe { &mut (*self.context).uc_mcontext.gregs[index as usize] }
    }

    /// Which call.
    pub fn number(&mut self) -> i64 {
        *self.register(libc::REG_RAX)
    }

    /// Its arguments.
    pub fn args(&mut self) -> [usize; 6] {
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(|index| *self.register(index) as usize)
    }

    /// The program goes on with this stack.
    pub fn set_stack(&mut self, stack: usize) {
        *self.register(libc::REG_RSP) = stack as i64;
    }

    /// The program sees this result, in the kernel's manner.
    pub fn set_result(&mut self, result: isize) {
        *self.register(libc::REG_RAX) = result as i64;
    }

    /// The call happens when the handler has returned, from our own text, on the program's stack.
    pub fn call_here(&mut self) {
        let stack = *self.register(libc::REG_RSP) as usize - RED_ZONE_BYTES - size_of::<usize>();
        let back = *self.register(libc::REG_RIP) as usize;
        // SAFETY: below the red zone of the program's stack, where a signal's frame could be as well.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(stack).write(back) };
        *self.register(libc::REG_RSP) = stack as i64;
        self.jump();
    }

    /// As [`call_here`](Self::call_here), for a call that does not return and needs the stack as it is:
    /// rt_sigreturn(2).
    pub fn call_and_never_return(&mut self) {
        self.jump();
    }

    fn jump(&mut self) {
        *self.register(libc::REG_RIP) = aquifer_call_here_syscall as *const () as i64;
    }

    /// The call is repeated where it was made, and this thread's next calls are not trapped until it has been
    /// in our code again: for calls that return twice.
    pub fn repeat(&mut self) {
        thread_slot::pause();
        *self.register(libc::REG_RIP) -= SYSCALL_BYTES;
    }

    /// The thread's signal mask, as it will be when the handler has returned.
    pub fn mask(&mut self) -> &mut u64 {
        // SAFETY: as in `register`; the kernel's mask is the first eight bytes of libc's.
        unsafe { &mut *(&raw mut (*self.context).uc_sigmask).cast::<u64>() }
    }
}
