// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Listener delivery: threads read faults from the userfaultfd and resolve them for the faulting thread.
//!
//! This serves the kernel's own accesses too: a system call with an evicted buffer just takes longer. There are several
//! listeners, so that one that waits for the medium does not delay other faults.
//!
//! A lost page is poisoned permanently. If there is only no room at present, the page stays as it is, and the thread
//! gets SIGBUS for this one access, as under signal delivery.
//!
//! Next on the path: `space.rs`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::{PageIndex, ThreadIndex};
use aquifer_driver::{Fatal, Outcome, WAIT_MAX};
use aquifer_stats::Counter;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::readiness::Readiness;
use aquifer_sys::signals;
use aquifer_sys::thread_state::{self, Waits};
use aquifer_sys::uffd::{FaultMessage, Uffd};

use crate::abort::{abort, say};
use crate::pager::{Owner, Pager, StartFailure, THREADS_MAX};

/// Listener threads: a choice, so that some can wait for the medium while others resolve faults. Not measured.
const LISTENERS: [&CStr; 4] = [c"aquifer-fault0", c"aquifer-fault1", c"aquifer-fault2", c"aquifer-fault3"];

/// The longest wait for a fault. Nothing happens when it ends; this is only an upper limit.
const WAIT_ONCE: Duration = Duration::from_secs(3600);

/// How long a system call of the program waits for room at most: a tier may come back, and there is no way to fail the
/// call. A choice: longer than the worker's pause before it retries a failing tier, and short for a person who waits.
const KERNEL_WAIT_MAX: Duration = Duration::from_secs(2);
/// One such wait, after which the listener looks for room again.
const KERNEL_WAIT_ONCE: Duration = Duration::from_millis(50);

/// A failure that recurs within this time counts as the same failure.
const STREAK_GAP: Duration = Duration::from_secs(1);

/// How long a recurring failure has lasted. Written by any listener; relaxed, because the exact moment at which it
/// began does not matter.
#[derive(Debug, Default)]
pub(crate) struct Streak {
    since_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Streak {
    /// Records an occurrence at `now_ns`, and returns how long the failure has lasted.
    fn lasts(&self, now_ns: u64) -> Duration {
        let last_ns = self.last_ns.swap(now_ns, Ordering::Relaxed);
        if now_ns.saturating_sub(last_ns) > STREAK_GAP.as_nanos() as u64 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
        Duration::from_nanos(now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed)))
    }
}

/// Starts the listeners, if this process may have any.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    let (Some(uffd), Some(readiness)) = (pager.listener_uffd(), &pager.readiness) else { return Ok(()) };
    for name in LISTENERS {
        pager.start_thread(name, move || listen(pager, uffd, readiness))?;
    }
    Ok(())
}

fn listen(pager: &'static Pager, uffd: &Uffd, readiness: &Readiness) {
    while pager.service.goes_on() {
        match uffd.read_fault() {
            Ok(Some(fault)) => {
                let thread = ThreadIndex((fault.thread % u32::from(THREADS_MAX)) as u16);
                let page = fault.address as usize & !4095;
                match pager.resolve(page, thread, fault.write) {
                    // Installing the block has woken the thread, unless another thread installed it first.
                    Outcome::Resolved => {
                        let _ = uffd.wake(page, 4096);
                        pager.counters.add(Counter::FaultsWrite, u64::from(fault.write));
                    }
                    Outcome::NoRoom => refuse(pager, uffd, fault),
                    Outcome::Lost if pager.can_poison => {
                        let _ = uffd.poison(page, 4096);
                        let _ = uffd.wake(page, 4096);
                    }
                    Outcome::Lost => {
                        abort(&[
                            "memory is lost, and this kernel cannot report it (UFFDIO_POISON); use Linux 6.6 or newer",
                        ]);
                    }
                    Outcome::Foreign => {
                        say(&["a fault arrived for memory that is no longer managed; the access is retried"]);
                        let _ = uffd.wake(page, 4096);
                    }
                }
            }
            Ok(None) => readiness.wait(WAIT_ONCE),
            Err(Errno(errno)) => return pager.cannot_go_on(Fatal::UnreadFaults(errno)),
        }
    }
}

/// No room for a page whose contents are intact: the page is left alone until there is room. The thread repeats the
/// access itself, in the handler for signal delivery, and gets its SIGBUS there. An access by a system call cannot be
/// signalled, so it waits for a while.
fn refuse(pager: &Pager, uffd: &Uffd, fault: FaultMessage) {
    let page = fault.address as usize & !4095;
    let progress = &pager.shard_of(PageIndex::at(page)).shard.progress;
    let ticket = progress.ticket();
    let waited = pager.no_room.lasts(now_ns());
    let answered = match thread_state::of(fault.thread) {
        Ok(Waits::InProgram) => signals::fail_access(fault.thread, page),
        Ok(Waits::InKernel { .. }) if waited < kernel_wait_max(pager) => {
            progress.sleep(ticket, KERNEL_WAIT_ONCE);
            Ok(())
        }
        Ok(Waits::InKernel { .. }) => Err(Errno(libc::ETIMEDOUT)),
        Ok(Waits::Not) => Ok(()),
        Err(errno) => Err(errno),
    };
    match answered {
        // ENOENT and ESRCH: the thread has just ended.
        Ok(()) | Err(Errno(libc::ENOENT | libc::ESRCH)) if waited < WAIT_MAX => {}
        _ if pager.service.owner() == Owner::Caller => {
            // An ended space is better than a call that never returns.
            pager.cannot_go_on(Fatal::NoAnswer);
            let _ = uffd.poison(page, 4096);
        }
        _ => abort(&[
            "no memory: nothing more can be written back, so no frame can be freed, and the program waits for one; free ",
            "space where the tier lives, or add DRAM (--dram)",
        ]),
    }
    let _ = uffd.wake(page, 4096);
}

/// How long a system call waits for room at most. In a caller's space the wait is longer, since the process goes
/// on when the time is over.
fn kernel_wait_max(pager: &Pager) -> Duration {
    match pager.service.owner() {
        Owner::Program => KERNEL_WAIT_MAX,
        Owner::Caller => WAIT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streak_lasts_until_there_is_a_gap() {
        let streak = Streak::default();
        let second = 1_000_000_000;
        assert_eq!(streak.lasts(100 * second), Duration::ZERO);
        assert_eq!(streak.lasts(101 * second), Duration::from_secs(1));
        assert_eq!(streak.lasts(102 * second), Duration::from_secs(2));
        assert_eq!(streak.lasts(104 * second), Duration::ZERO);
    }
}
