// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Listener delivery: threads read faults from the userfaultfd and resolve them for the faulting thread.
//!
//! Serves the kernel's own accesses too: a system call with a buffer that is far away just takes longer.
//! There are several listeners, so that one which waits for the medium does not keep others waiting.
//!
//! What is lost is poisoned for good. Where there is only no room now, the page stays as it is, and the thread gets
//! SIGBUS for this one access, as under signal delivery.
//!
//! Next on the path: `resolve.rs`.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::ThreadIndex;
use aquifer_stats::Counter;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::readiness::Readiness;
use aquifer_sys::signals;
use aquifer_sys::thread_state::{self, Waits};
use aquifer_sys::uffd::{FaultMessage, Uffd};

use crate::abort::{abort, say};
use crate::pager::{Pager, StartFailure, THREADS_MOST, start_thread};
use crate::resolve::{Outcome, WAIT_MOST};

/// Listener threads: a choice, so that some can wait on the medium while others serve. Not measured.
const LISTENERS: [&CStr; 4] = [c"aquifer-fault0", c"aquifer-fault1", c"aquifer-fault2", c"aquifer-fault3"];

/// How long one wait for a fault lasts. Nothing happens when it ends; it only bounds it.
const WAIT_ONCE: Duration = Duration::from_secs(3600);

/// How long a system call of the program waits for room at most: a tier may come back, and the call cannot be told.
/// A choice: longer than the worker's pause before it tries a failing tier again, and short for who looks on.
const KERNEL_WAIT_MOST: Duration = Duration::from_secs(2);
/// One such wait, after which room is looked for again.
const KERNEL_WAIT_ONCE: Duration = Duration::from_millis(50);

/// A failure that comes again within this time is the same one still.
const STREAK_GAP: Duration = Duration::from_secs(1);

/// How long a failure has lasted that is met again and again. Written by any listener; relaxed, since when exactly
/// it began does not matter.
#[derive(Debug, Default)]
pub(crate) struct Streak {
    since_ns: AtomicU64,
    last_ns: AtomicU64,
}

impl Streak {
    /// It is met at `now_ns`: for how long has it been?
    fn lasts(&self, now_ns: u64) -> Duration {
        let last_ns = self.last_ns.swap(now_ns, Ordering::Relaxed);
        if now_ns.saturating_sub(last_ns) > STREAK_GAP.as_nanos() as u64 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
        }
        Duration::from_nanos(now_ns.saturating_sub(self.since_ns.load(Ordering::Relaxed)))
    }
}

/// Starts the listeners, where this process may have them.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    let Some(uffd) = pager.listener_uffd() else { return Ok(()) };
    let readiness: &Readiness = Box::leak(Box::new(Readiness::of(uffd.descriptor()).map_err(StartFailure::Uffd)?));
    for name in LISTENERS {
        start_thread(name, move || listen(pager, uffd, readiness))?;
    }
    Ok(())
}

fn listen(pager: &'static Pager, uffd: &Uffd, readiness: &Readiness) -> ! {
    loop {
        match uffd.read_fault() {
            Ok(Some(fault)) => {
                let thread = ThreadIndex((fault.thread % u32::from(THREADS_MOST)) as u16);
                let page = fault.address as usize & !4095;
                match pager.resolve(page, thread, fault.write) {
                    // Installing has woken it, unless another thread's installing came first.
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
                        abort(&["memory is lost, and this kernel cannot tell the program (UFFDIO_POISON, Linux 6.6)"]);
                    }
                    Outcome::Foreign => {
                        say(&["a fault came for memory that is not managed any more; it is retried"]);
                        let _ = uffd.wake(page, 4096);
                    }
                }
            }
            Ok(None) => readiness.wait(WAIT_ONCE),
            Err(Errno(_)) => abort(&["the userfaultfd cannot be read"]),
        }
    }
}

/// There is no room for a page whose contents are as they were: the page is left alone, for when there is. The
/// thread makes the access itself, in the handler for signal delivery, and gets its SIGBUS there. A system call's
/// access cannot be told, so it waits for a while.
fn refuse(pager: &Pager, uffd: &Uffd, fault: FaultMessage) {
    let page = fault.address as usize & !4095;
    let ticket = pager.progress.ticket();
    let waited = pager.no_room.lasts(now_ns());
    let told = match thread_state::of(fault.thread) {
        Ok(Waits::InProgram) => signals::fail_access(fault.thread, page),
        Ok(Waits::InKernel { .. }) if waited < KERNEL_WAIT_MOST => {
            pager.progress.sleep(ticket, KERNEL_WAIT_ONCE);
            Ok(())
        }
        Ok(Waits::InKernel { .. }) => Err(Errno(libc::ETIMEDOUT)),
        Ok(Waits::Not) => Ok(()),
        Err(errno) => Err(errno),
    };
    match told {
        // Or the thread has just ended.
        Ok(()) | Err(Errno(libc::ENOENT | libc::ESRCH)) if waited < WAIT_MOST => {}
        _ => abort(&[
            "no memory: nothing more can be written back, so no frame can be freed, and the program waits for one; free ",
            "space where the tier lives, or add DRAM (--dram)",
        ]),
    }
    let _ = uffd.wake(page, 4096);
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
