// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves the frames of the program's signals from Aquifer's stack to the program's.
//!
//! The entry copies the signal's frame (registers, floating-point state, siginfo) to where the kernel would have put
//! it, and jumps to the handler there. rt_sigreturn(2) accepts a frame at any address. siglongjmp(3) and unwinding out
//! of a handler work as usual. The kernel neither writes a frame to the program's stack, which may be evicted, nor
//! reads one there on a thread whose calls trap: a handler returns by the C library's code, where rt_sigreturn(2)
//! traps, and its frame is [copied](copy_to_ours) to Aquifer's stack again.
//!
//! `signal_stack.rs` decides where. Every signal except Aquifer's own is blocked while a frame is being moved. Another
//! signal may have come before that: see [`settle`].

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use crate::dispatch;
use crate::signal_actions::{mask_in_handler, wished};
use crate::signal_stack;
use crate::signals::{self, KernelAction, PROGRAMS_RESTORER};

/// The registers, the stack and the signal mask with which the program's handler starts.
#[repr(C)]
struct Start {
    /// The alternate stack to set in the kernel, if `cuts` is not zero.
    rest: libc::stack_t,
    cuts: usize,
    stack: usize,
    signal: usize,
    info: usize,
    context: usize,
    handler: usize,
    mask: u64,
}

/// The kernel's `struct rt_sigframe` up to its siginfo: the return address, `struct ucontext`, `siginfo_t`.
const CONTEXT_OFFSET: usize = 8;
const INFO_OFFSET: usize = CONTEXT_OFFSET + offset_of!(libc::ucontext_t, uc_sigmask) + 8;
const FRAME_BYTES: usize = INFO_OFFSET + size_of::<libc::siginfo_t>();
/// Alignment that XSAVE requires.
const FLOATING_ALIGN: usize = 64;
/// `struct _fpx_sw_bytes`, at this offset in the floating-point state: a magic number, and the total size.
const EXTENDED_OFFSET: usize = 464;
const EXTENDED_MAGIC: u32 = 0x4650_5853;
const PLAIN_FLOATING_BYTES: usize = 512;

/// The end of the frame at `frame`, including the floating-point state above it.
///
/// # Safety
/// The kernel has written a frame there.
unsafe fn end_of(frame: usize) -> usize {
    let context = std::ptr::with_exposed_provenance::<libc::ucontext_t>(frame + CONTEXT_OFFSET);
    // SAFETY: the caller promises a frame there; its pointer is null or points to the state above.
    unsafe {
        let floating = (*context).uc_mcontext.fpregs as usize;
        if floating == 0 {
            return frame + FRAME_BYTES;
        }
        let extended = std::ptr::with_exposed_provenance::<[u32; 2]>(floating + EXTENDED_OFFSET).read();
        floating + if extended[0] == EXTENDED_MAGIC { extended[1] as usize } else { PLAIN_FLOATING_BYTES }
    }
}

/// Moves the frame of a signal to where `action` wants its handler. Returns the frame's new address, or its old one if
/// it stays (the handler's return address is stored there), and the alternate stack to set in the kernel until the
/// handler returns.
///
/// # Safety
/// The kernel has written a frame at `frame`, for a handler that runs now, with every signal except Aquifer's blocked.
unsafe fn moved(frame: usize, action: &KernelAction) -> (usize, Option<libc::stack_t>) {
    let context = std::ptr::with_exposed_provenance_mut::<libc::ucontext_t>(frame + CONTEXT_OFFSET);
    // SAFETY: the caller promises a frame there, whose context is only read.
    let (interrupted, kernels) =
        unsafe { ((*context).uc_mcontext.gregs[libc::REG_RSP as usize] as usize, (*context).uc_stack) };
    let wants_alternate = action.flags & libc::SA_ONSTACK as u64 != 0;
    let range = signal_stack::range_for(frame, interrupted, &kernels, wants_alternate);
    let restorer = PROGRAMS_RESTORER.load(Ordering::Relaxed) as usize;
    let Some(range) = range else {
        // SAFETY: the frame's first word is its return address. By this code the handler's return traps.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(frame).write(restorer) };
        return (frame, None);
    };
    // SAFETY: the caller promises a frame there.
    let len = unsafe { end_of(frame) } - frame;
    let to = range.top.saturating_sub(len);
    let to = to.saturating_sub(to.wrapping_sub(frame) % FLOATING_ALIGN);
    if to <= range.lowest {
        // As the kernel does when it cannot start a handler.
        signals::end_by(libc::SIGSEGV);
        return (frame, None);
    }
    // SAFETY: the kernel would write to the same place, below the stack pointer or below the top of the alternate
    // stack. If it is not mapped the program ends by SIGSEGV; natively, its own handler for that could still run.
    unsafe {
        copied(frame, to, len);
        let mut restorer = restorer;
        if let Some(stack) = range.disarmed {
            let copy = std::ptr::with_exposed_provenance_mut::<libc::ucontext_t>(to + CONTEXT_OFFSET);
            (*copy).uc_stack = stack;
            restorer = aquifer_restore_stack as *const () as usize;
        }
        std::ptr::with_exposed_provenance_mut::<usize>(to).write(restorer);
    }
    (to, range.rest)
}

/// Called by the entry, which has blocked all signals except Aquifer's; `mask` is what was blocked before.
///
/// # Safety
/// The kernel has written a frame at `frame`, for a handler of `signal` that runs now.
unsafe extern "C" fn programs_signal(signal: i32, frame: usize, start: *mut Start, mask: u64) {
    let action = wished(signal);
    // SAFETY: the caller promises the frame; `start` belongs to the entry.
    unsafe {
        let settled = settle(frame);
        let (to, rest) = moved(frame, &action);
        start.write(starting(signal, (to, rest.or(settled)), action.handler, mask_in_handler(mask, signal, &action)));
    }
    // The handler's return must trap.
    dispatch::arm_if_due();
}

/// The signal whose frame is at `frame` may have interrupted another signal's entry before that entry blocked signals.
/// Then this moves the other signal's frame, too, and changes the context at `frame` as if the first instruction of the
/// other handler had been interrupted, as it would be without Aquifer: the kernel may start several handlers at once,
/// and the last one runs first. Returns the alternate stack to set in the kernel until the other handler returns.
///
/// Recursive: at most one level for each signal there is, because none starts twice before its entry has run.
///
/// # Safety
/// As for [`moved`].
unsafe fn settle(frame: usize) -> Option<libc::stack_t> {
    let context = std::ptr::with_exposed_provenance_mut::<libc::ucontext_t>(frame + CONTEXT_OFFSET);
    // SAFETY: the caller promises a frame there, which belongs to its handler alone.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let starts =
        aquifer_on_programs_signal as *const () as usize..aquifer_programs_signals_blocked as *const () as usize;
    if !starts.contains(&(registers[libc::REG_RIP as usize] as usize)) {
        return None;
    }
    // The entry leaves the stack pointer at its frame until then.
    let others = registers[libc::REG_RSP as usize] as usize;
    let info = std::ptr::with_exposed_provenance::<libc::siginfo_t>(others + INFO_OFFSET);
    // SAFETY: the kernel has written this frame for the entry; its action has SA_SIGINFO.
    let signal = unsafe { (*info).si_signo };
    let action = wished(signal);
    // SAFETY: as above.
    let (settled, (to, rest)) = unsafe { (settle(others), moved(others, &action)) };
    if to == others {
        return settled;
    }
    let rest = rest.or(settled);
    let start = starting(signal, (to, None), action.handler, 0);
    for (register, value) in [
        (libc::REG_RIP, start.handler),
        (libc::REG_RSP, start.stack),
        (libc::REG_RDI, start.signal),
        (libc::REG_RSI, start.info),
        (libc::REG_RDX, start.context),
        (libc::REG_RAX, 0),
    ] {
        registers[register as usize] = value as i64;
    }
    // SAFETY: as above; the kernel's mask is the first eight bytes of libc's.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        mask.write(mask_in_handler(mask.read(), signal, &action));
        if let Some(rest) = rest {
            (*context).uc_stack = rest;
        }
    }
    rest
}

/// The largest frame that is copied. A choice: more than any processor's state takes (some 11 KiB with AMX).
const FRAME_BYTES_MAX: usize = 32 << 10;

/// Copies the frame of a handler that is about to return from the program's stack to the low end of Aquifer's, and sets
/// the alternate stack in the frame if the kernel has another: since Linux 6.12 it does not change the stack on which
/// rt_sigreturn(2) is called. `kernels` is what it has. `None` if the frame is there already, or does not fit.
///
/// # Safety
/// Runs on Aquifer's stack, and rt_sigreturn(2) is about to be called with the frame at `frame`.
pub(crate) unsafe fn copy_to_ours(frame: usize, kernels: &libc::stack_t) -> Option<usize> {
    let here = 0u8;
    // SAFETY: the caller promises a frame there.
    unsafe { open_ours(std::ptr::with_exposed_provenance_mut(frame + CONTEXT_OFFSET)) };
    let room = signal_stack::room_below(std::ptr::from_ref(std::hint::black_box(&here)) as usize, frame)?;
    // SAFETY: the caller promises a frame there. If there is none, this access or the kernel's ends the program.
    let len = unsafe { end_of(frame) }.checked_sub(frame).filter(|len| *len <= FRAME_BYTES_MAX)?;
    let to = room.start + frame.wrapping_sub(room.start) % FLOATING_ALIGN;
    if to + len > room.end {
        return None;
    }
    // SAFETY: nothing uses the low end of the stack that this function runs on.
    unsafe {
        copied(frame, to, len);
        let copy = std::ptr::with_exposed_provenance::<libc::ucontext_t>(to + CONTEXT_OFFSET);
        signal_stack::set_in_handler(&(*copy).uc_stack, kernels);
    }
    Some(to)
}

/// Removes Aquifer's signals from the mask to which a handler returns: the program may have blocked every signal there.
///
/// # Safety
/// `context` is that of a signal's frame whose handler is about to return.
pub unsafe fn open_ours(context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the caller's promise. The kernel's mask is the first eight bytes of libc's.
    unsafe { *(&raw mut (*context).uc_sigmask).cast::<u64>() &= !signals::OURS };
}

/// Copies a frame of `len` bytes.
///
/// # Safety
/// There is a frame at `frame`, and `to..to + len` may be overwritten.
unsafe fn copied(frame: usize, to: usize, len: usize) {
    // SAFETY: the caller's promise. The copy's pointer is adjusted.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance::<u8>(frame),
            std::ptr::with_exposed_provenance_mut(to),
            len,
        );
        let copy = std::ptr::with_exposed_provenance_mut::<libc::ucontext_t>(to + CONTEXT_OFFSET);
        let floating = (*copy).uc_mcontext.fpregs;
        if !floating.is_null() {
            (*copy).uc_mcontext.fpregs =
                std::ptr::with_exposed_provenance_mut((floating as usize).wrapping_sub(frame).wrapping_add(to));
        }
    }
}

fn starting(signal: i32, to: (usize, Option<libc::stack_t>), handler: usize, mask: u64) -> Start {
    let (stack, rest) = to;
    let (info, context) = (stack + INFO_OFFSET, stack + CONTEXT_OFFSET);
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let cuts = usize::from(rest.is_some());
    Start { rest: rest.unwrap_or(none), cuts, stack, signal: signal as usize, info, context, handler, mask }
}

/// Replaces the running handler, which is Aquifer's, with the program's, with `mask`, on the stack that it would have
/// had. Returns if that is not possible, because Aquifer's handler has interrupted Aquifer's own work.
///
/// # Safety
/// `context` is the pointer that the kernel passed to the running handler, which holds no resources, and blocks every
/// signal except Aquifer's.
pub unsafe fn become_programs(signal: i32, context: *mut libc::c_void, action: &KernelAction, mask: u64) {
    let frame = context as usize - CONTEXT_OFFSET;
    // SAFETY: the caller promises that `context` belongs to a frame of the kernel.
    unsafe {
        let settled = settle(frame);
        let (to, rest) = moved(frame, action);
        if to != frame {
            let start = starting(signal, (to, rest.or(settled)), action.handler, mask & !signals::OURS);
            aquifer_start_programs_handler(&raw const start);
        }
    }
}

/// Runs after a handler on a stack that disarms itself: records the program's stack again, and sets Aquifer's in the
/// kernel.
///
/// # Safety
/// `context` belongs to a frame that `moved` has made.
unsafe extern "C" fn rearm(context: *mut libc::c_void) {
    // A handler that came now would find the stack armed, and start over the frame. The return restores the mask.
    signals::set_mask(!signals::OURS);
    // SAFETY: the caller promises a handler's context.
    unsafe { signal_stack::reclaim(context) };
}

/// Every signal except Aquifer's, for the entry to block.
static OTHERS: u64 = !signals::OURS;

global_asm!(
    ".text",
    ".hidden aquifer_on_programs_signal",
    ".globl aquifer_on_programs_signal",
    ".type aquifer_on_programs_signal,@function",
    "aquifer_on_programs_signal:",
    // The frame's first word is the return address, as after a call. An unwinder that goes on from there restores all
    // registers from the frame.
    ".cfi_startproc",
    // Until signals are blocked, `settle` expects the stack pointer at the frame.
    "mov ebx, edi",
    "mov edi, {set}",
    "lea rsi, [rip + {others}]",
    "lea rdx, [rsp - 8]",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    ".hidden aquifer_programs_signals_blocked",
    ".globl aquifer_programs_signals_blocked",
    "aquifer_programs_signals_blocked:",
    "mov edi, ebx",
    "mov rsi, rsp",
    "mov rcx, [rsp - 8]",
    "sub rsp, {bytes}",
    ".cfi_adjust_cfa_offset {bytes}",
    "mov rdx, rsp",
    "mov rbx, rsp",
    "call {programs_signal}",
    "mov rdi, rbx",
    ".cfi_endproc",
    ".hidden aquifer_start_programs_handler",
    ".globl aquifer_start_programs_handler",
    "aquifer_start_programs_handler:",
    "mov rbx, rdi",
    "mov r12, [rbx + {signal}]",
    "mov r13, [rbx + {info}]",
    "mov r14, [rbx + {context}]",
    "mov r15, [rbx + {handler}]",
    // `rbx` points into Aquifer's stack, which nothing uses until the kernel has read the mask, unless somebody sends
    // SIGBUS or SIGSYS.
    "mov rsp, [rbx + {stack}]",
    ".cfi_startproc",
    // The kernel refuses sigaltstack(2) on the alternate stack itself.
    "cmp qword ptr [rbx + {cuts}], 0",
    "je 2f",
    "lea rdi, [rbx + {rest}]",
    "xor esi, esi",
    "mov eax, {sigaltstack}",
    "syscall",
    "2:",
    "mov edi, {set}",
    "lea rsi, [rbx + {mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov rdi, r12",
    "mov rsi, r13",
    "mov rdx, r14",
    "xor eax, eax",
    "jmp r15",
    ".cfi_endproc",
    ".size aquifer_on_programs_signal, . - aquifer_on_programs_signal",
    ".hidden aquifer_restore_stack",
    ".globl aquifer_restore_stack",
    ".type aquifer_restore_stack,@function",
    "nop",
    "aquifer_restore_stack:",
    "mov rdi, rsp",
    "call {rearm}",
    "jmp qword ptr [rip + {restorer}]",
    ".size aquifer_restore_stack, . - aquifer_restore_stack",
    // The kernel enters with the stack as after a call; the next call requires an alignment of 16 bytes.
    bytes = const size_of::<Start>().next_multiple_of(16) + 8,
    rest = const offset_of!(Start, rest),
    cuts = const offset_of!(Start, cuts),
    sigaltstack = const libc::SYS_sigaltstack,
    stack = const offset_of!(Start, stack),
    signal = const offset_of!(Start, signal),
    info = const offset_of!(Start, info),
    context = const offset_of!(Start, context),
    handler = const offset_of!(Start, handler),
    mask = const offset_of!(Start, mask),
    others = sym OTHERS,
    set = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    restorer = sym PROGRAMS_RESTORER,
    programs_signal = sym programs_signal,
    rearm = sym rearm,
);

unsafe extern "C" {
    pub(crate) fn aquifer_on_programs_signal();
    fn aquifer_programs_signals_blocked();
    fn aquifer_restore_stack();
    /// # Safety
    /// The frame that `start` names is that of the running handler, moved.
    fn aquifer_start_programs_handler(start: *const Start) -> !;
}
