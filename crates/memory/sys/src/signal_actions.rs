// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's actions for handlers that want an alternate stack (SA_ONSTACK): the kernel starts them on Aquifer's.
//!
//! The kernel's action for such a signal is an entry point of Aquifer, in `signal_frames.rs`, and the program's action
//! is stored in a table.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

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
    /// Retries until nothing has changed between two reads of the version. A writer does six stores with every signal
    /// blocked.
    fn read(&self) -> KernelAction {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let action = KernelAction {
                handler: self.handler.load(Ordering::Acquire),
                flags: self.flags.load(Ordering::Acquire),
                restorer: self.restorer.load(Ordering::Acquire),
                mask: self.mask.load(Ordering::Acquire),
            };
            if before.is_multiple_of(2) && self.version.load(Ordering::Acquire) == before {
                return action;
            }
            std::thread::yield_now();
        }
    }

    /// Every signal must be blocked on this thread.
    fn write(&self, action: &KernelAction) {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let taken = before.is_multiple_of(2)
                && self.version.compare_exchange(before, before + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                break;
            }
            std::thread::yield_now();
        }
        self.handler.store(action.handler, Ordering::Release);
        self.flags.store(action.flags, Ordering::Release);
        self.restorer.store(action.restorer, Ordering::Release);
        self.mask.store(action.mask, Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// The program's action for `signal`.
pub(crate) fn wished(signal: i32) -> KernelAction {
    WISHES[signal as usize].read()
}

fn entry() -> usize {
    aquifer_on_programs_signal as *const () as usize
}

/// Whether a handler with this action runs on the alternate stack.
fn wants_alternate(action: &KernelAction) -> bool {
    let handles = action.handler != libc::SIG_DFL && action.handler != libc::SIG_IGN && action.handler != entry();
    handles && action.flags & libc::SA_ONSTACK as u64 != 0
}

/// The program's rt_sigaction(2).
pub fn exchange(signal: i32, new: Option<&KernelAction>) -> Result<KernelAction, Errno> {
    let Some(wish) = usize::try_from(signal).ok().and_then(|signal| WISHES.get(signal)) else {
        return Err(Errno(libc::EINVAL));
    };
    let _blocked = signals::Blocked::all();
    let before = wish.read();
    let ours = new.map(|new| {
        if !wants_alternate(new) {
            return *new;
        }
        wish.write(new);
        signals::with_restorer(KernelAction { handler: entry(), ..*new })
    });
    // SAFETY: the handler is the program's own, at its own risk; Aquifer's entry may run at any point of any thread.
    let old = unsafe { exchange_action(signal, ours.as_ref()) }?;
    Ok(if old.handler == entry() { before } else { old })
}

/// The program's handler for `signal`, where the kernel has returned `found` as the handler.
pub fn programs_handler(signal: i32, found: usize) -> usize {
    let wish = usize::try_from(signal).ok().and_then(|signal| WISHES.get(signal));
    wish.filter(|_| found == entry()).map_or(found, |wish| wish.read().handler)
}

/// Takes over the actions that the program set without passing through the library.
pub fn take_over() {
    let ours = signals::OURS | bit(libc::SIGKILL) | bit(libc::SIGSTOP);
    for signal in (1..SIGNALS as i32).filter(|signal| ours & bit(*signal) == 0) {
        // SAFETY: only reads the action.
        let found = unsafe { exchange_action(signal, None) };
        if let Ok(action) = found
            && wants_alternate(&action)
        {
            let _ = exchange(signal, Some(&action));
        }
    }
}
