// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kernel has Aquifer's alternate signal stack for each thread that was [given](give) one; the program's own, set
//! by sigaltstack(2), is recorded separately.
//!
//! A fault is a signal, and the kernel must be able to write its frame. A program may free the memory of its alternate
//! stack without harm, if its own handlers no longer run: Ruby does so when it exits. So the kernel does not get the
//! program's stack. [`exchange`] emulates sigaltstack(2), and `signal_frames.rs` moves the frames of the program's
//! handlers (SA_ONSTACK) to where the program wants them.
//!
//! A program that makes the system call directly, before calls trap, bypasses this. The next handler of Aquifer's that
//! interrupts it finds the program's stack in its context, and [sets Aquifer's again](reclaim). If such a program only
//! queries its stack, it gets Aquifer's, and may expect its handlers there; so until it sets its own, they run there.
//!
//! Threads that were given none use the alternate stack that the kernel has for them.

use std::arch::asm;

use crate::dispatch;
use crate::raw::{Errno, syscall};
use crate::signals::{self, Blocked};
use crate::thread_slot;

/// The smallest stack that sigaltstack(2) accepts: the kernel's MINSIGSTKSZ.
const SMALLEST_BYTES: usize = 2048;
/// Linux 4.7: the stack is disabled while a handler runs on it.
const SS_AUTODISARM: i32 = i32::MIN;

/// The calling thread's stacks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stacks {
    /// Aquifer's: its first byte, and the byte after its last. Zero if the thread has none.
    start: usize,
    end: usize,
    /// The program's; a length of zero if it has none.
    programs_start: usize,
    programs_len: usize,
    /// Whether the program's stack has SS_AUTODISARM.
    disarms: bool,
    /// Whether the program may take Aquifer's stack for its own: it was there before the thread's calls trapped, and
    /// the program has set none since. Go's runtime asks the kernel when a thread begins, and uses what it finds.
    passes_for_programs: bool,
    /// The thread that they belong to: a child of clone(2) with CLONE_VM may share this memory, and has no such stack.
    thread: u32,
    /// The program's stack pointer at the trapped call in progress; stale if there is none.
    trapped_at: usize,
}

impl Stacks {
    fn is_ours(&self, address: usize) -> bool {
        self.start < address && address <= self.end
    }

    /// As the kernel's `on_sig_stack`: a stack that is disarmed while it is used never counts as used.
    fn is_programs(&self, address: usize) -> bool {
        !self.disarms && self.programs_start < address && address - self.programs_start <= self.programs_len
    }

    /// Whether the kernel has a stack of the program's where it should have Aquifer's.
    fn lacks(&self, kernels: &libc::stack_t) -> bool {
        let is_programs = self.end != 0 && kernels.ss_sp as usize != self.start;
        is_programs && kernels.ss_flags & libc::SS_DISABLE == 0 && self.thread == this_thread()
    }

    fn programs(&self) -> libc::stack_t {
        if self.programs_len == 0 {
            return stack(0, 0, libc::SS_DISABLE);
        }
        stack(self.programs_start, self.programs_len, if self.disarms { SS_AUTODISARM } else { 0 })
    }

    fn set_programs(&mut self, new: &libc::stack_t) {
        let enabled = new.ss_flags & libc::SS_DISABLE == 0;
        self.programs_start = if enabled { new.ss_sp as usize } else { 0 };
        self.programs_len = if enabled { new.ss_size } else { 0 };
        self.disarms = enabled && new.ss_flags & SS_AUTODISARM != 0;
        self.passes_for_programs = false;
    }
}

fn stack(start: usize, len: usize, flags: i32) -> libc::stack_t {
    libc::stack_t { ss_sp: std::ptr::with_exposed_provenance_mut(start), ss_flags: flags, ss_size: len }
}

fn tell_kernel(stack: &libc::stack_t) -> Result<usize, Errno> {
    // SAFETY: sigaltstack(2) reads one `stack_t`; the caller of `give` vouched for the range, or the stack is disabled.
    unsafe { syscall(libc::SYS_sigaltstack, [std::ptr::from_ref(stack) as usize, 0, 0, 0, 0, 0]) }
}

/// As `tell_kernel`, also in a handler that runs on the alternate stack. The kernel refuses to change the stack to
/// which the stack pointer points, both here and, since Linux 6.12, when a handler returns; so the stack pointer is
/// elsewhere during the call.
fn tell_kernel_in_handler(stack: &libc::stack_t) {
    signals::touch_stack();
    // A handler would start at the top of the stack that this thread is on.
    let _blocked = Blocked::all();
    // SAFETY: as in `tell_kernel`. The call and the kernel use no memory at the stack pointer, which is restored. No
    // signal is delivered meanwhile.
    unsafe {
        asm!(
            "mov {kept}, rsp",
            "xor esp, esp",
            "syscall",
            "mov rsp, {kept}",
            kept = out(reg) _,
            inlateout("rax") libc::SYS_sigaltstack as isize => _,
            in("rdi") std::ptr::from_ref(stack), in("rsi") 0usize,
            out("rcx") _, out("r11") _,
        );
    }
}

/// In a handler on Aquifer's stack: sets the alternate stack to which it will return, if that is Aquifer's, too, and
/// not the one that the kernel has.
pub(crate) fn set_in_handler(new: &libc::stack_t, kernels: &libc::stack_t) {
    let stacks = thread_slot::signal_stacks();
    let is_ours = new.ss_sp as usize == stacks.start && new.ss_flags & libc::SS_DISABLE == 0;
    if is_ours && kernels.ss_sp == new.ss_sp && kernels.ss_size != new.ss_size {
        tell_kernel_in_handler(new);
    }
}

/// Makes `start..start + len` the calling thread's alternate stack, until [`take_away`]. The program's is reset to
/// none.
///
/// # Safety
/// The range is mapped, and not used by anything else until then.
pub unsafe fn give(start: usize, len: usize) {
    let passes_for_programs = !dispatch::is_enabled();
    let stacks = Stacks { start, end: start + len, thread: this_thread(), passes_for_programs, ..Stacks::default() };
    thread_slot::set_signal_stacks(stacks);
    let _ = tell_kernel(&stack(start, len, 0));
}

/// Call it before the stack is unmapped.
pub fn take_away() {
    // A handler that comes between the two must not find its frame on a stack that nobody knows.
    let _ = tell_kernel(&stack(0, 0, libc::SS_DISABLE));
    thread_slot::set_signal_stacks(Stacks::default());
}

/// In a forked child: the stacks are those of its only thread.
pub fn adopt_in_child() {
    let mut stacks = thread_slot::signal_stacks();
    if stacks.end != 0 {
        stacks.thread = this_thread();
        thread_slot::set_signal_stacks(stacks);
    }
}

/// The calling thread's alternate stack as the kernel has it.
fn kernels() -> libc::stack_t {
    let mut found = stack(0, 0, libc::SS_DISABLE);
    // SAFETY: sigaltstack(2) writes one `stack_t`. Without a new stack it cannot fail.
    let _ = unsafe { syscall(libc::SYS_sigaltstack, [0, &raw mut found as usize, 0, 0, 0, 0]) };
    found
}

fn this_thread() -> u32 {
    // SAFETY: gettid(2) has no arguments, and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether the kernel has Aquifer's stack, so that [`exchange`] emulates sigaltstack(2).
pub fn is_in_use() -> bool {
    let stacks = thread_slot::signal_stacks();
    stacks.end != 0 && kernels().ss_sp as usize == stacks.start
}

/// The program's sigaltstack(2), called with the stack pointer `at`: records the new stack, returns the old one.
pub fn exchange(new: Option<&libc::stack_t>, at: usize) -> Result<libc::stack_t, Errno> {
    let mut stacks = thread_slot::signal_stacks();
    let mut old = stacks.programs();
    let on_ours = stacks.is_ours(at);
    if on_ours {
        // A handler that has interrupted a trapped call stays on Aquifer's stack. A handler may ask for the stack it
        // runs on.
        old = stack(stacks.start, stacks.end - stacks.start, libc::SS_ONSTACK);
    } else if stacks.is_programs(at) {
        old.ss_flags |= libc::SS_ONSTACK;
    }
    let Some(new) = new else { return Ok(old) };
    if stacks.is_programs(at) || on_ours && stacks.programs_len > 0 && !stacks.disarms {
        return Err(Errno(libc::EPERM));
    }
    match new.ss_flags & !SS_AUTODISARM {
        libc::SS_DISABLE => {}
        0 | libc::SS_ONSTACK if new.ss_size < SMALLEST_BYTES => return Err(Errno(libc::ENOMEM)),
        0 | libc::SS_ONSTACK => {}
        _ => return Err(Errno(libc::EINVAL)),
    }
    // A child of vfork(2) shares this memory with its parent, whose stack this is.
    if stacks.end == 0 || stacks.thread == this_thread() {
        stacks.set_programs(new);
        thread_slot::set_signal_stacks(stacks);
    }
    Ok(old)
}

/// Whether exactly one of two addresses lies on the alternate stack on which this thread's handlers run: the one that
/// the program has set, or Aquifer's where that passes for it. The former may be any part of the thread's own stack,
/// above or below the frames that its handlers interrupt.
pub fn divides(one: usize, other: usize) -> bool {
    let stacks = thread_slot::signal_stacks();
    let (start, len) = match stacks.passes_for_programs {
        true => (stacks.start, stacks.end - stacks.start),
        false => (stacks.programs_start, stacks.programs_len),
    };
    let is_there = |address: usize| address.wrapping_sub(start) < len;
    is_there(one) != is_there(other)
}

/// In a handler: if the kernel has a stack of the program's, or only a part of Aquifer's that is no longer shared, sets
/// Aquifer's.
///
/// # Safety
/// `context` is the pointer that the kernel passed to the running handler.
pub unsafe fn reclaim(context: *mut libc::c_void) {
    let mut stacks = thread_slot::signal_stacks();
    // SAFETY: the kernel's context belongs exclusively to the handler until it returns.
    let found = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_stack };
    if !stacks.lacks(found) {
        // SAFETY: as above.
        let at = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RSP as usize] } as usize;
        // A handler for which Aquifer's stack was shortened has been left by a jump.
        if stacks.end != 0 && found.ss_sp as usize == stacks.start && !stacks.is_ours(at) && !stacks.is_programs(at) {
            let whole = stack(stacks.start, stacks.end - stacks.start, 0);
            set_in_handler(&whole, found);
            *found = whole;
        }
        return;
    }
    stacks.set_programs(found);
    thread_slot::set_signal_stacks(stacks);
    // Here for kernels before Linux 6.12, which set what they find when the handler returns.
    *found = stack(stacks.start, stacks.end - stacks.start, 0);
    tell_kernel_in_handler(found);
}

/// As [`reclaim`], outside handlers.
pub(crate) fn reclaim_now() {
    let mut stacks = thread_slot::signal_stacks();
    let found = kernels();
    if !stacks.lacks(&found) {
        return;
    }
    if tell_kernel(&stack(stacks.start, stacks.end - stacks.start, 0)).is_ok() {
        stacks.set_programs(&found);
        thread_slot::set_signal_stacks(stacks);
    }
}

/// Called in the handler of a trapped call, made with the stack pointer `at`. Returns the argument for [`trap_ends`].
pub fn trap_begins(at: usize) -> usize {
    let mut stacks = thread_slot::signal_stacks();
    let before = stacks.trapped_at;
    // A handler on Aquifer's stack, which has interrupted a trapped call, makes another: the program's stack is in use
    // down to where the first one was made.
    if !stacks.is_ours(at) {
        stacks.trapped_at = at;
        thread_slot::set_signal_stacks(stacks);
    }
    before
}

/// Ends the trapped call that [`trap_begins`] began.
pub fn trap_ends(before: usize) {
    trap_begins(before);
}

/// The stack for the frame of one of the program's handlers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackRange {
    /// The frame must end below this address.
    pub(crate) top: usize,
    /// The frame must not start below this address.
    pub(crate) lowest: usize,
    /// The program's stack before it was disarmed, if it is disarmed from now on.
    pub(crate) disarmed: Option<libc::stack_t>,
    /// The alternate stack to set in the kernel until the handler returns, if Aquifer's work waits on Aquifer's stack.
    pub(crate) rest: Option<libc::stack_t>,
}

/// How far below its stack pointer the x86-64 ABI lets a leaf function store data.
const RED_ZONE_BYTES: usize = 128;
/// The part of the calling thread's own Aquifer stack that nothing uses, when this function's caller runs at `here` on
/// it. `None` if the caller runs elsewhere, or `frame` is on that stack already.
pub(crate) fn room_below(here: usize, frame: usize) -> Option<std::ops::Range<usize>> {
    let stacks = thread_slot::signal_stacks();
    let room = stacks.start..here.saturating_sub(KEPT_BELOW_BYTES);
    (stacks.is_ours(here) && !stacks.is_ours(frame) && !room.is_empty()).then_some(room)
}

/// What is left below the stack pointer for the functions that copy a frame, and a fault in them: two signal frames and
/// the fault's handler.
const KEPT_BELOW_BYTES: usize = 64 << 10;
/// Room for two signal frames and their handlers, as in `threads.rs` of the preload library.
const REST_BYTES_MIN: usize = 96 << 10;

/// Chooses the stack for the signal frame that the kernel has put at `frame`, when the stack pointer was `interrupted`
/// and the kernel's alternate stack was `kernels`. `wants_alternate` is the action's SA_ONSTACK. `None` if the frame
/// stays.
pub(crate) fn range_for(
    frame: usize,
    interrupted: usize,
    kernels: &libc::stack_t,
    wants_alternate: bool,
) -> Option<StackRange> {
    let mut stacks = thread_slot::signal_stacks();
    let has_alternate = wants_alternate && stacks.programs_len > 0;
    let below = |lowest| StackRange { top: interrupted - RED_ZONE_BYTES, lowest, disarmed: None, rest: None };
    if !stacks.is_ours(frame) {
        // The kernel's stack is the program's, and only Aquifer's entry has asked for it.
        let is_there = |address: usize| address.wrapping_sub(kernels.ss_sp as usize) < kernels.ss_size;
        return (!wants_alternate && is_there(frame) && !is_there(interrupted)).then(|| below(0));
    }
    if wants_alternate && stacks.passes_for_programs {
        return None;
    }
    let top = stacks.programs_start.saturating_add(stacks.programs_len);
    let (lowest, mut disarmed, mut rest) = (stacks.programs_start, None, None);
    if stacks.is_ours(interrupted) {
        // Aquifer's stack is in use by a trapped call, or by a handler that has interrupted one. The next handler must
        // not start at its top again.
        let len = (interrupted - RED_ZONE_BYTES).saturating_sub(stacks.start) & !63;
        if !has_alternate || stacks.disarms || len < REST_BYTES_MIN {
            return None;
        }
        rest = Some(stack(stacks.start, len, 0));
        let top = if stacks.is_programs(stacks.trapped_at) { stacks.trapped_at - RED_ZONE_BYTES } else { top };
        return Some(StackRange { top, lowest, disarmed, rest });
    }
    if stacks.is_programs(interrupted) {
        return Some(below(stacks.programs_start));
    }
    if !has_alternate {
        return Some(below(0));
    }
    if stacks.disarms {
        disarmed = Some(stacks.programs());
        stacks.set_programs(&stack(0, 0, libc::SS_DISABLE));
        thread_slot::set_signal_stacks(stacks);
    }
    Some(StackRange { top, lowest, disarmed, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::map_anonymous;

    const LEN: usize = 256 << 10;

    fn on_a_thread_with_a_stack(test: impl FnOnce(usize) + Send + 'static) {
        let run = || {
            let start = map_anonymous(LEN).unwrap();
            // SAFETY: the mapping was made above, and stays.
            unsafe { give(start, LEN) };
            test(start);
            take_away();
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn the_program_sees_its_own_and_the_kernel_has_ours() {
        on_a_thread_with_a_stack(|ours| {
            let theirs = stack(0x10000, 8192, 0);
            assert_eq!(exchange(Some(&theirs), 0).unwrap().ss_flags, libc::SS_DISABLE);
            assert_eq!((kernels().ss_sp as usize, is_in_use()), (ours, true));
            let found = exchange(None, 0x11000).unwrap();
            assert_eq!((found.ss_sp as usize, found.ss_size, found.ss_flags), (0x10000, 8192, libc::SS_ONSTACK));
            assert_eq!(exchange(Some(&theirs), 0x11000).unwrap_err().0, libc::EPERM);
            assert_eq!(exchange(Some(&stack(0x10000, 100, 0)), 0).unwrap_err().0, libc::ENOMEM);
            assert_eq!(exchange(Some(&stack(0x10000, 8192, 7)), 0).unwrap_err().0, libc::EINVAL);
            exchange(Some(&stack(0, 0, libc::SS_DISABLE)), 0).unwrap();
            assert_eq!(exchange(None, 0x11000).unwrap().ss_flags, libc::SS_DISABLE);
        });
    }

    #[test]
    fn the_programs_stack_divides_the_stack_that_it_is_a_part_of() {
        on_a_thread_with_a_stack(|ours| {
            assert!(divides(ours + 4096, 0x20000), "ours passes for the program's");
            assert!(!divides(0x11000, 0x20000) && !divides(ours, ours + 4096));
            exchange(Some(&stack(0, 0, libc::SS_DISABLE)), 0).unwrap();
            assert!(!divides(0x11000, 0x20000) && !divides(ours, 0x20000), "the program has no stack");
            exchange(Some(&stack(0x10000, 8192, 0)), 0).unwrap();
            assert!(divides(0x11000, 0x20000) && divides(0xf000, 0x11000));
            assert!(!divides(0x11000, 0x11800) && !divides(0xf000, 0x20000));
        });
    }

    #[test]
    fn a_handler_belongs_on_the_programs_stack_and_below_what_is_there() {
        on_a_thread_with_a_stack(|ours| {
            let (frame, outside) = (ours + LEN - 4096, 0x90000);
            let found = |frame, interrupted, alternate| {
                range_for(frame, interrupted, &kernels(), alternate).map(|to| (to.top, to.lowest))
            };
            assert_eq!(found(frame, outside, true), None, "the program may have found ours, and rely on it");
            assert_eq!(found(frame, outside, false), Some((outside - 128, 0)));
            exchange(Some(&stack(0, 0, libc::SS_DISABLE)), 0).unwrap();
            assert_eq!(found(frame, outside, true), Some((outside - 128, 0)), "the program has no stack");
            exchange(Some(&stack(0x10000, 8192, 0)), 0).unwrap();
            assert_eq!(found(frame, outside, true), Some((0x12000, 0x10000)));
            assert_eq!(found(frame, outside, false), Some((outside - 128, 0)));
            assert_eq!(found(frame, 0x11800, true), Some((0x11800 - 128, 0x10000)), "it is used already");
            assert_eq!(found(outside, outside + 1000, true), None, "the kernel had another");
        });
    }

    #[test]
    fn a_handler_in_a_trapped_call_leaves_the_rest_of_ours_to_others() {
        on_a_thread_with_a_stack(|ours| {
            let (frame, at) = (ours + LEN - 8192, ours + LEN - 4096);
            assert_eq!(range_for(frame, at, &kernels(), true).map(|to| to.top), None, "the program has no stack");
            exchange(Some(&stack(0x10000, 8192, 0)), 0).unwrap();
            let before = trap_begins(0x90000);
            let to = range_for(frame, at, &kernels(), true).unwrap();
            assert_eq!((to.top, to.lowest), (0x12000, 0x10000));
            let rest = to.rest.unwrap();
            assert!(rest.ss_sp as usize == ours && rest.ss_size <= LEN - 4096 - 128 && rest.ss_size > LEN - 4096 - 256);
            trap_begins(0x11000);
            assert_eq!(trap_begins(ours + 8192), 0x11000, "a call of a handler on ours");
            assert_eq!(range_for(frame, at, &kernels(), true).unwrap().top, 0x11000 - 128);
            assert!(range_for(frame, ours + 4096, &kernels(), true).is_none(), "too little is left");
            trap_ends(before);
        });
    }

    #[test]
    fn a_stack_that_disarms_itself_is_none_while_its_handler_runs() {
        on_a_thread_with_a_stack(|ours| {
            exchange(Some(&stack(0x10000, 8192, SS_AUTODISARM)), 0).unwrap();
            let to = range_for(ours + LEN - 4096, 0x90000, &kernels(), true).unwrap();
            assert_eq!((to.top, to.lowest), (0x12000, 0x10000));
            assert_eq!(to.disarmed.unwrap().ss_flags, SS_AUTODISARM);
            assert_eq!(exchange(None, 0x11000).unwrap().ss_flags, libc::SS_DISABLE);
        });
    }

    #[test]
    fn a_handler_that_wants_no_alternate_stack_leaves_one_that_is_not_ours() {
        on_a_thread_with_a_stack(|_| {
            let theirs = stack(0x10000, 8192, 0);
            let found = |interrupted, alternate| {
                range_for(0x11000, interrupted, &theirs, alternate).map(|to| (to.top, to.lowest))
            };
            assert_eq!(found(0x90000, false), Some((0x90000 - 128, 0)));
            assert_eq!(found(0x90000, true), None, "where the program wants it");
            assert_eq!(found(0x11800, false), None, "it was in use already");
        });
    }

    /// Sends SIGURG to this thread, whose handler on the alternate stack calls [`reclaim`].
    fn reclaim_in_a_handler() {
        extern "C" fn on_signal(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel's context.
            unsafe { reclaim(context) };
        }
        // SAFETY: the handler may run at any point; nothing else here uses this signal.
        unsafe { signals::exchange_action(libc::SIGURG, Some(&signals::fault_action(on_signal))) }.unwrap();
        let args = [std::process::id() as usize, this_thread() as usize, libc::SIGURG as usize, 0, 0, 0];
        // SAFETY: tgkill(2) touches no memory.
        unsafe { syscall(libc::SYS_tgkill, args) }.unwrap();
    }

    #[test]
    fn a_handler_on_the_programs_stack_gives_the_kernel_ours() {
        on_a_thread_with_a_stack(|ours| {
            let theirs = map_anonymous(LEN).unwrap();
            tell_kernel(&stack(theirs, LEN, 0)).unwrap();
            reclaim_in_a_handler();
            assert_eq!((kernels().ss_sp as usize, kernels().ss_size), (ours, LEN));
            assert_eq!(exchange(None, 0).unwrap().ss_sp as usize, theirs);
        });
    }

    #[test]
    fn a_handler_gives_the_kernel_the_whole_of_ours_once_nothing_else_uses_it() {
        on_a_thread_with_a_stack(|ours| {
            tell_kernel(&stack(ours, LEN / 2, 0)).unwrap();
            reclaim_in_a_handler();
            assert_eq!((kernels().ss_sp as usize, kernels().ss_size), (ours, LEN));
        });
    }

    #[test]
    fn a_signal_stack_set_past_the_library_is_adopted() {
        on_a_thread_with_a_stack(|ours| {
            let theirs = map_anonymous(LEN).unwrap();
            tell_kernel(&stack(theirs, LEN, 0)).unwrap();
            reclaim_now();
            assert_eq!((kernels().ss_sp as usize, is_in_use()), (ours, true));
            assert_eq!(exchange(None, 0).unwrap().ss_sp as usize, theirs);
        });
    }
}
