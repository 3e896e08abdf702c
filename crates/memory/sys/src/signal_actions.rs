// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's actions for its signals: the kernel starts its handlers on Aquifer's stack.
//!
//! The kernel's action for such a signal is an entry point of Aquifer, in `signal_frames.rs`, and the program's action
//! is stored in a table. Two kinds of handlers pass through it: those that want an alternate stack (SA_ONSTACK),
//! because the kernel has Aquifer's; and, from when the program's calls trap, all others, because the stack on which a
//! signal arrives may be evicted memory (a coroutine's), to which the kernel cannot write a frame.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::dispatch;
use crate::raw::Errno;
use crate::signal_frames::aquifer_on_programs_signal;
use crate::signals::{self, KernelAction, bit, exchange_action};

const SIGNALS: usize = 65;

/// The program's action for one signal. A writer makes `version` odd; a reader that finds it odd or changed reads
/// again.
struct Wish {
    version: AtomicU32,
    handler: AtomicUsize,
    flags: AtomicU64,
    restorer: AtomicUsize,
    mask: AtomicU64,
}

static WISHES: [Wish; SIGNALS] = [const {
    Wish {
        version: AtomicU32::new(0),
        handler: AtomicUsize::new(0),
        flags: AtomicU64::new(0),
        restorer: AtomicUsize::new(0),
        mask: AtomicU64::new(0),
    }
}; SIGNALS];

impl Wish {
    fn stored(&self) -> KernelAction {
        KernelAction {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Acquire),
            restorer: self.restorer.load(Ordering::Acquire),
            mask: self.mask.load(Ordering::Acquire),
        }
    }

    /// Retries until nothing has changed between two reads of the version. A writer makes a few system calls meanwhile,
    /// with every signal but Aquifer's blocked.
    fn read(&self) -> KernelAction {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let action = self.stored();
            if before.is_multiple_of(2) && self.version.load(Ordering::Acquire) == before {
                return action;
            }
            std::thread::yield_now();
        }
    }

    /// Keeps readers and other writers waiting while the returned value lives. Every signal must be blocked on this
    /// thread, except Aquifer's, whose handlers use no entry of this table: the stack may be evicted memory.
    fn lock(&self) -> Locked<'_> {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let taken = before.is_multiple_of(2)
                && self.version.compare_exchange(before, before + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                return Locked(self);
            }
            std::thread::yield_now();
        }
    }
}

/// The program's action for one signal, while one thread changes it in the table and in the kernel.
struct Locked<'a>(&'a Wish);

impl Locked<'_> {
    fn store(&self, action: &KernelAction) {
        self.0.handler.store(action.handler, Ordering::Release);
        self.0.flags.store(action.flags, Ordering::Release);
        self.0.restorer.store(action.restorer, Ordering::Release);
        self.0.mask.store(action.mask, Ordering::Release);
    }

    /// Sets the action in the kernel, through the entry if it needs that, and returns the program's action before.
    fn exchange(&self, signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
        let before = self.0.stored();
        let old = match new {
            Some(new) => self.exchange_in_kernel(signal, new),
            // SAFETY: only reads the action.
            None => unsafe { exchange_action(signal, None) },
        }?;
        Ok(if old.handler == entry() { before } else { old })
    }

    /// Sets the action in the kernel, through the entry if it needs that, and returns the kernel's action before.
    fn exchange_in_kernel(&self, signal: i32, new: &KernelAction) -> Result<KernelAction, Errno> {
        let mut kernels = *new;
        if passes_through(signal, new) {
            self.store(new);
            kernels = through_entry(new);
        }
        // SAFETY: the handler is the program's own, at its own risk; Aquifer's entry may run at any point of any
        // thread.
        unsafe { exchange_action(signal, Some(&kernels)) }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.version.fetch_add(1, Ordering::AcqRel);
    }
}

fn wish_of(signal: i32) -> Option<&'static Wish> {
    usize::try_from(signal).ok().and_then(|signal| WISHES.get(signal))
}

/// The mask with which the handler of `signal` is to run, where the kernel has given `mask` to the entry.
pub(crate) fn mask_in_handler(mask: u64, signal: i32, action: &KernelAction) -> u64 {
    let is_deferred = action.flags & libc::SA_NODEFER as u64 == 0 || action.mask & bit(signal) != 0;
    mask & !signals::OURS & if is_deferred { u64::MAX } else { !bit(signal) }
}

/// The program's action for `signal`.
pub(crate) fn wished(signal: i32) -> KernelAction {
    WISHES[signal as usize].read()
}

fn entry() -> usize {
    aquifer_on_programs_signal as *const () as usize
}

/// Whether handlers without SA_ONSTACK pass through the entry.
static TAKES_ALL: AtomicBool = AtomicBool::new(false);

/// Whether every handler passes through Aquifer's entry, so that only [`exchange`] knows the program's actions.
pub fn takes_all() -> bool {
    TAKES_ALL.load(Ordering::Acquire)
}

/// Whether a handler with this action passes through Aquifer's entry.
fn passes_through(signal: i32, action: &KernelAction) -> bool {
    let handles = action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN && action.handler != entry();
    // The C library sets its own two when it needs them, with a plain system call.
    let is_libcs = matches!(signal, 32 | 33);
    handles && !is_libcs && (takes_all() || action.flags & libc::SA_ONSTACK as u64 != 0)
}

/// The kernel's action for one of the program's that passes through the entry. The kernel writes `siginfo_t` only with
/// SA_SIGINFO, and the signal's number is read there when frames are moved. With SA_NODEFER it could start one handler
/// many times at once, on Aquifer's stack, which has room for all signals once; [`mask_in_handler`] unblocks the signal
/// later.
fn through_entry(action: &KernelAction) -> KernelAction {
    let flags = action.flags & !(libc::SA_NODEFER as u64) | (libc::SA_ONSTACK | libc::SA_SIGINFO) as u64;
    signals::with_restorer(KernelAction { handler: entry(), flags, mask: action.mask & !signals::OURS, ..*action })
}

/// The program's rt_sigaction(2).
pub fn exchange(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let wish = wish_of(signal).ok_or(Errno(libc::EINVAL))?;
    signals::touch_stack();
    let _blocked = signals::Blocked::all_but_ours();
    if dispatch::is_owner() {
        return wish.lock().exchange(signal, new);
    }
    // In a child of vfork(2), whose actions are its own, but whose table is its parent's.
    // SAFETY: as in `Locked::exchange`.
    let old = unsafe { exchange_action(signal, new) }?;
    Ok(if old.handler == entry() { wish.read() } else { old })
}

/// The program's action for `signal`, if the kernel has returned `found` as the handler because it passes through the
/// entry.
pub fn programs_action(signal: i32, found: usize) -> Option<KernelAction> {
    wish_of(signal).filter(|_| found == entry()).map(Wish::read)
}

/// From now on, all handlers of the program pass through the entry; takes over those that the program has set.
pub fn take_all_over() {
    TAKES_ALL.store(true, Ordering::Release);
    let ours = signals::OURS | bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    (1..SIGNALS as i32).filter(|signal| ours & bit(*signal) == 0).for_each(take_over);
}

/// Takes over the action for `signal` that the program may have set past Aquifer.
pub fn take_over(signal: i32) {
    let Some(wish) = wish_of(signal) else { return };
    signals::touch_stack();
    let _blocked = signals::Blocked::all_but_ours();
    if !dispatch::is_owner() {
        return;
    }
    let wish = wish.lock();
    // SAFETY: only reads the action.
    let Ok(mut action) = (unsafe { exchange_action(signal, None) }) else { return };
    if !passes_through(signal, &action) {
        return;
    }
    // Another thread may set an action meanwhile, past this table: the last one counts.
    for _ in 0..TAKE_OVERS_MAX {
        match wish.exchange_in_kernel(signal, &action) {
            Ok(old) if old.handler != entry() && old != action => action = old,
            _ => return,
        }
    }
}

/// How often [`take_over`] finds that another thread has set an action meanwhile. A choice: each such thread is at its
/// first calls of sigaction(2) since the pager's start.
const TAKE_OVERS_MAX: u32 = 64;

/// In a forked child: no thread exists here that would finish a change.
pub fn forget_writers() {
    for wish in &WISHES {
        let version = wish.version.load(Ordering::Relaxed);
        wish.version.store(version.next_multiple_of(2), Ordering::Release);
    }
}
