// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traps the program's system calls: Syscall User Dispatch, prctl(2), since Linux 5.11.
//!
//! A trapped call raises SIGSYS on its thread before it does anything. Calls from Aquifer's own text go to the kernel,
//! and so do all calls while the thread's selector allows it (`thread_slot.rs`). Trapping is set for each thread, and
//! neither forked children nor executed programs inherit it. Without kernel support nothing is trapped.
//!
//! Most trapped calls are repeated by a few instructions of Aquifer's own text to which the handler returns. The call
//! then happens on the program's own stack and outside any handler, and signals, cancellation and garbage collectors
//! find the thread where they expect it. `cancellation.rs` has the rules for cancellation.

use std::arch::global_asm;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::cancellation::{self, ASYNCHRONOUS};
use crate::memory::OwnWord;
use crate::raw::{Errno, process_id, syscall};
use crate::signal_frames;
use crate::signal_stack;
use crate::signals::{self, KernelAction};
use crate::thread_slot::{self, Trapping};

/// Handles trapped calls, with the thread's cancel type deferred: `kind` is the previous type. A thread may
/// nevertheless be cancelled in a trapped call: that unwinds the handler's frame.
pub type TrapHandler =
    extern "C-unwind" fn(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, kind: i32);

/// How far below its stack pointer the x86-64 ABI lets a leaf function store data.
const RED_ZONE_BYTES: usize = 128;

global_asm!(
    ".text",
    ".hidden aquifer_on_trap",
    ".globl aquifer_on_trap",
    ".type aquifer_on_trap,@function",
    "aquifer_on_trap:",
    ".cfi_startproc",
    "mov rcx, qword ptr [rip + {handler}]",
    "jmp aquifer_deferred",
    ".cfi_endproc",
    ".size aquifer_on_trap, . - aquifer_on_trap",
    ".hidden aquifer_call_here",
    ".globl aquifer_call_here",
    ".type aquifer_call_here,@function",
    "aquifer_call_here:",
    ".cfi_startproc",
    // The return address lies below the caller's red zone.
    ".cfi_def_cfa rsp, {back}",
    ".cfi_offset rip, -{back}",
    "nop",
    ".hidden aquifer_call_here_syscall",
    ".globl aquifer_call_here_syscall",
    "aquifer_call_here_syscall:",
    "syscall",
    "ret {red_zone}",
    ".cfi_endproc",
    ".size aquifer_call_here, . - aquifer_call_here",
    ".hidden aquifer_called_here",
    ".globl aquifer_called_here",
    ".type aquifer_called_here,@function",
    ".cfi_startproc",
    // As above, with the arguments that `aquifer_call` has read above the return address.
    ".cfi_def_cfa rsp, {back} + {args}",
    ".cfi_offset rip, -{back}",
    "nop",
    "aquifer_called_here:",
    "add rsp, {args}",
    ".cfi_def_cfa_offset {back}",
    "ret {red_zone}",
    ".cfi_endproc",
    ".size aquifer_called_here, . - aquifer_called_here",
    ".hidden aquifer_wait_here",
    ".globl aquifer_wait_here",
    ".type aquifer_wait_here,@function",
    ".cfi_startproc",
    // As `aquifer_call_here`, with a word below the return address.
    ".cfi_def_cfa rsp, {back} + {word}",
    ".cfi_offset rip, -{back}",
    "nop",
    "aquifer_wait_here:",
    "syscall",
    // `syscall` has overwritten this register already.
    "pop rcx",
    ".cfi_def_cfa_offset {back}",
    "cmp rax, {fault}",
    "je 2f",
    "mov dword ptr [rcx], 0",
    "ret {red_zone}",
    "2:",
    "inc dword ptr [rcx]",
    "mov eax, {futex}",
    "sub qword ptr [rsp], {instruction}",
    "ret {red_zone}",
    ".cfi_endproc",
    ".size aquifer_wait_here, . - aquifer_wait_here",
    handler = sym HANDLER,
    fault = const -(libc::EFAULT as i64),
    futex = const libc::SYS_futex,
    instruction = const SYSCALL_BYTES,
    word = const size_of::<usize>(),
    red_zone = const RED_ZONE_BYTES,
    back = const RED_ZONE_BYTES + size_of::<usize>(),
    args = const ARGS_BYTES,
);

/// The frame of `aquifer_call`, which [`Trapped::call_open_here`] leaves on the program's stack; from low to high.
#[repr(C)]
struct OpenCall {
    /// Return address of `aquifer_call`: `aquifer_called_here`.
    returns_to: usize,
    args: [usize; 6],
    /// Where the program continues.
    back: usize,
}

/// What [`Trapped::wait_here`] leaves on the program's stack, from low to high.
#[repr(C)]
struct Wait {
    /// Where waits that have failed are counted.
    failed: usize,
    /// Where the program goes on.
    back: usize,
}

const ARGS_BYTES: usize = size_of::<[usize; 6]>();
const _: () = assert!(offset_of!(OpenCall, back) == size_of::<usize>() + ARGS_BYTES);

unsafe extern "C" {
    fn aquifer_on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void);
    fn aquifer_call_here_syscall();
    fn aquifer_called_here();
    fn aquifer_wait_here();
}

/// `si_code` of a SIGSYS caused by dispatch: SYS_USER_DISPATCH.
const USER_DISPATCH: i32 = 2;
/// Where `siginfo_t` of a SIGSYS has `si_arch`, and its value for calls of 64-bit code: AUDIT_ARCH_X86_64.
const ARCH_OFFSET: usize = 28;
const X86_64: u32 = 0xc000_003e;
const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const PR_SYS_DISPATCH_ON: usize = 1;
const PR_SYS_DISPATCH_OFF: usize = 0;
/// Bytes of a `syscall` instruction, and of `int 0x80`.
const SYSCALL_BYTES: i64 = 2;

static TEXT_START: AtomicUsize = AtomicUsize::new(0);
static TEXT_LEN: AtomicUsize = AtomicUsize::new(0);
static HANDLER: AtomicUsize = AtomicUsize::new(0);
static LIBCS_START: AtomicUsize = AtomicUsize::new(0);
static LIBCS_LEN: AtomicUsize = AtomicUsize::new(0);
/// Address at which the C library's cancellation points trap, if they all share one; otherwise 0.
static LIBCS_POINT: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static ENABLED: AtomicBool = AtomicBool::new(false);
/// The number of the process whose threads this memory describes. A child of vfork(2) sees its parent's number; a child
/// with a copy of the memory sees 0.
static OWNER: OnceLock<OwnWord> = OnceLock::new();

/// Sets the ranges of Aquifer's own text and of the C library's, and the handler of trapped calls. Traps nothing yet.
///
/// # Safety
/// Both texts stay mapped. The handler must be sound to run at any system call of the program.
pub unsafe fn prepare(text: Range<usize>, libcs: Range<usize>, handler: TrapHandler) {
    if let Ok(word) = OwnWord::new() {
        word.word().store(process_id(), Ordering::Relaxed);
        let _ = OWNER.set(word);
    }
    HANDLER.store(handler as usize, Ordering::Relaxed);
    LIBCS_START.store(libcs.start, Ordering::Relaxed);
    LIBCS_LEN.store(libcs.len(), Ordering::Relaxed);
    TEXT_LEN.store(text.len(), Ordering::Relaxed);
    TEXT_START.store(text.start, Ordering::Release);
}

/// Installs the handler; threads arm themselves from now on. Returns the program's own action for SIGSYS, if this call
/// replaced it.
pub fn enable() -> Option<KernelAction> {
    let old = install();
    ENABLED.store(INSTALLED.load(Ordering::Relaxed), Ordering::Release);
    old
}

/// Installs the handler. Returns the program's own action for SIGSYS, if this call replaced it. A child of vfork(2)
/// installs nothing: its actions are its own, and its parent would take the handler for installed.
pub fn install() -> Option<KernelAction> {
    if TEXT_START.load(Ordering::Acquire) == 0 || INSTALLED.load(Ordering::Relaxed) || !is_owner() {
        return None;
    }
    let start = std::ptr::with_exposed_provenance(LIBCS_START.load(Ordering::Relaxed));
    // SAFETY: the text is mapped, and nothing writes to it, as the caller of `prepare` promised.
    let libcs = unsafe { std::slice::from_raw_parts(start, LIBCS_LEN.load(Ordering::Relaxed)) };
    LIBCS_POINT.store(cancellation::point_in(libcs), Ordering::Relaxed);
    let action = signals::trap_action(aquifer_on_trap as *const () as usize);
    // SAFETY: `prepare` has stored a handler that is sound to run.
    let old = unsafe { signals::exchange_action(libc::SIGSYS, Some(&action)) }.ok()?;
    INSTALLED.store(true, Ordering::Release);
    // Another thread may have installed it meanwhile.
    (old.handler != action.handler).then_some(old)
}

/// Whether the handler is in place.
pub fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Whether threads arm themselves: a thread that starts from now on traps before its first call.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Whether this process is the one that its memory describes. False in a child of vfork(2), which shares it with its
/// parent: what it noted there about its own calls and actions would later be mistaken for its parent's.
pub fn is_owner() -> bool {
    let Some(word) = OWNER.get() else { return true };
    let own = process_id();
    if own == 0 {
        // A filter of system calls refuses to say.
        return true;
    }
    match word.word().compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(found) => found == own,
    }
}

/// In a forked child: it owns its copy of the memory from now on. If its first child of vfork(2) noted that instead,
/// this process would count as a child itself.
pub fn own_after_fork() {
    if let Some(word) = OWNER.get() {
        word.word().store(process_id(), Ordering::Relaxed);
    }
}

/// Makes this thread's calls trap until [`disarm_after_fork`], whether or not other threads' calls do. Returns false if
/// the kernel cannot. The handler must have been [installed](install).
pub fn arm_for_fork() -> bool {
    if thread_slot::trapping() == Trapping::Ready
        && INSTALLED.load(Ordering::Acquire)
        && is_owner()
        && switch(PR_SYS_DISPATCH_ON).is_ok()
    {
        thread_slot::set_trapping(Trapping::Armed);
    }
    thread_slot::trapping() == Trapping::Armed
}

/// Restores the state before [`arm_for_fork`], in the parent.
pub fn disarm_after_fork() {
    if !ENABLED.load(Ordering::Relaxed) && thread_slot::trapping() == Trapping::Armed {
        let _ = switch(PR_SYS_DISPATCH_OFF);
        thread_slot::set_trapping(Trapping::Ready);
    }
}

/// Makes this thread's calls trap if trapping is enabled; resumes trapping after [`Trapped::repeat`].
pub fn arm_if_due() {
    if !ENABLED.load(Ordering::Relaxed) {
        return;
    }
    match thread_slot::trapping() {
        Trapping::Never => {}
        Trapping::Armed => thread_slot::resume(),
        Trapping::Ready if !is_owner() => {}
        Trapping::Ready => {
            signal_stack::reclaim_now();
            // An old kernel refuses: then only calls of the functions that the library wraps are handled.
            let armed = switch(PR_SYS_DISPATCH_ON).is_ok();
            thread_slot::set_trapping(if armed { Trapping::Armed } else { Trapping::Never });
        }
    }
}

/// Ends trapping on this thread permanently.
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
    /// The thread's cancel type in the program's code.
    kind: i32,
    is_native: bool,
}

impl Trapped {
    /// The trapped call that raised a SIGSYS; `None` if the signal has another cause.
    ///
    /// # Safety
    /// The pointers are those that the kernel passed to the running handler of a SIGSYS.
    pub unsafe fn new(info: *const libc::siginfo_t, context: *mut libc::c_void, kind: i32) -> Option<Self> {
        // SAFETY: the caller promises the kernel's `siginfo_t`, which is only read.
        let (code, arch) = unsafe { ((*info).si_code, info.byte_add(ARCH_OFFSET).cast::<u32>().read()) };
        (code == USER_DISPATCH).then_some(Self { context: context.cast(), kind, is_native: arch == X86_64 })
    }

    /// Whether the call is one of 64-bit code. `int 0x80` makes calls of 32-bit code, with other numbers and arguments.
    pub fn is_native(&self) -> bool {
        self.is_native
    }

    fn register(&mut self, index: i32) -> &mut i64 {
        // SAFETY: the context belongs exclusively to the handler until it returns; the index is one of libc's.
        unsafe { &mut (*self.context).uc_mcontext.gregs[index as usize] }
    }

    /// The number of the call.
    pub fn number(&mut self) -> i64 {
        *self.register(libc::REG_RAX)
    }

    /// The arguments of the call.
    pub fn args(&mut self) -> [usize; 6] {
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(|index| *self.register(index) as usize)
    }

    /// The program's stack pointer.
    pub fn stack(&mut self) -> usize {
        *self.register(libc::REG_RSP) as usize
    }

    /// Sets the stack pointer with which the program continues.
    pub fn set_stack(&mut self, stack: usize) {
        *self.register(libc::REG_RSP) = stack as i64;
    }

    /// Sets the result that the program sees, as the kernel would return it.
    pub fn set_result(&mut self, result: isize) {
        *self.register(libc::REG_RAX) = result as i64;
    }

    /// Whether the thread can be cancelled in this call.
    pub fn is_cancellation_point(&mut self) -> bool {
        self.kind == ASYNCHRONOUS || self.is_libcs_point()
    }

    fn is_libcs_point(&mut self) -> bool {
        let point = LIBCS_POINT.load(Ordering::Relaxed);
        point != 0 && *self.register(libc::REG_RIP) as usize == point
    }

    /// Makes the call after the handler has returned, from Aquifer's own text, on the program's stack.
    pub fn call_here(&mut self) {
        if self.is_libcs_point() {
            return self.call_open_here();
        }
        let back = *self.register(libc::REG_RIP) as usize;
        self.push(back);
        self.jump();
    }

    /// As [`call_here`](Self::call_here), for a futex(2) wait whose word was just fetched. If the word has been evicted
    /// again when the kernel reads it, the program's call traps once more, and the thread's count of failed waits
    /// increases. Returns false, and does nothing, if the call must be made in another way.
    pub fn wait_here(&mut self) -> bool {
        if self.is_libcs_point() {
            return false;
        }
        let back = *self.register(libc::REG_RIP) as usize;
        self.push(Wait { failed: thread_slot::waits_failed_address(), back });
        *self.register(libc::REG_RIP) = aquifer_wait_here as *const () as i64;
        true
    }

    /// As [`call_here`](Self::call_here), through `aquifer_call`, which makes the thread's cancel type asynchronous.
    /// The C library's cancellation points trap in a C function that then only makes its call and returns, so registers
    /// may change.
    fn call_open_here(&mut self) {
        let (number, args) = (self.number(), self.args());
        let back = *self.register(libc::REG_RIP) as usize;
        let stack = self.push(OpenCall { returns_to: aquifer_called_here as *const () as usize, args, back });
        *self.register(libc::REG_RDI) = number;
        *self.register(libc::REG_RSI) = (stack + offset_of!(OpenCall, args)) as i64;
        *self.register(libc::REG_RDX) = i64::from(ASYNCHRONOUS);
        *self.register(libc::REG_RIP) = cancellation::aquifer_call as *const () as i64;
    }

    /// Pushes `value` onto the program's stack. Returns its address.
    fn push<T>(&mut self, value: T) -> usize {
        let stack = *self.register(libc::REG_RSP) as usize - RED_ZONE_BYTES - size_of::<T>();
        // SAFETY: the place is below the red zone of the program's stack, where a signal's frame could be as well.
        unsafe { std::ptr::with_exposed_provenance_mut::<T>(stack).write(value) };
        *self.register(libc::REG_RSP) = stack as i64;
        stack
    }

    /// Makes rt_sigreturn(2) after the handler has returned, with a copy of the frame on Aquifer's stack: the program's
    /// may be evicted when the kernel reads it.
    pub fn return_from_signal(&mut self) {
        // The handler's return has read the frame's first word.
        let frame = self.stack().wrapping_sub(size_of::<usize>());
        // SAFETY: the context belongs exclusively to this handler.
        let kernels = unsafe { (*self.context).uc_stack };
        // SAFETY: the handler of a trapped call runs on Aquifer's stack, or nothing is copied.
        if let Some(copy) = unsafe { signal_frames::copy_to_ours(frame, &kernels) } {
            self.set_stack(copy + size_of::<usize>());
        }
        // No handler may run there before the kernel has read the frame, and unwinders must find code that they know as
        // the end of a handler.
        *self.mask() = !signals::OURS;
        *self.register(libc::REG_RIP) = signals::restorer() as i64;
    }

    /// As [`call_here`](Self::call_here), for a call that does not return and needs the stack as it is: exit(2).
    pub fn call_and_never_return(&mut self) {
        self.jump();
    }

    fn jump(&mut self) {
        *self.register(libc::REG_RIP) = aquifer_call_here_syscall as *const () as i64;
    }

    /// Repeats the call where it was made, and lets this thread's next calls pass untrapped until the thread has been
    /// in Aquifer's code again: for calls that return twice, and those that Aquifer does not know.
    pub fn repeat(&mut self) {
        thread_slot::pause();
        *self.register(libc::REG_RIP) -= SYSCALL_BYTES;
    }

    /// The thread's signal mask, as it will be after the handler has returned.
    pub fn mask(&mut self) -> &mut u64 {
        // SAFETY: as in `register`; the kernel's mask is the first eight bytes of libc's.
        unsafe { &mut *(&raw mut (*self.context).uc_sigmask).cast::<u64>() }
    }
}
