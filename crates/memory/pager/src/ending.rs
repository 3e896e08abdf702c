// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends the process when the last thread of the program has ended: the pager's own threads must not keep it alive.
//!
//! Most programs end by exit(3). A program whose main thread has ended earlier (pthread_exit(3), a direct exit(2), a
//! system call filter) ends when the last of its other threads does. The kernel notifies the worker, however that
//! thread ended (`sys/src/lifeline.rs`). If the kernel cannot, because the worker's thread could not leave the
//! program's descriptor table, then threads that end in ways the library sees notify the worker. It then polls for a
//! while.
//!
//! The status of a process is that of the thread that ended last. If that thread did not report its status, the kernel
//! is asked, provided that the thread was the only one besides the main thread when the main thread ended, or is the
//! main thread itself; otherwise the last reported status counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::lifeline::Lifeline;
use aquifer_sys::raw::{Errno, exit_process, now_ns, thread_id};
use aquifer_sys::thread_pidfd::ThreadPidfd;
use aquifer_sys::{signals, thread_state};

use crate::pager::Pager;
use crate::spaces::SPACES_MAX;

/// Threads of one space, with room to spare: four listeners, the worker, and one thread each to trim, record, maintain
/// the tier, renew its leases, move data within it and request shares.
const THREADS_OF_SPACE: usize = 16;
/// Threads of all spaces.
const OWN_MAX: usize = THREADS_OF_SPACE * (1 + SPACES_MAX);
/// A thread that has reported its end is gone soon after: how often the worker checks, and for how long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOKS_MAX: Duration = Duration::from_secs(2);
/// How many times the kernel is asked for the status of a thread that is gone, and the pause between two tries.
const ASKED_MAX: usize = 50;
const ASKED_AGAIN: Duration = Duration::from_millis(1);

static OWN: [AtomicU32; OWN_MAX] = [const { AtomicU32::new(0) }; OWN_MAX];
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicI32 = AtomicI32::new(0);
/// The worker has been notified that the program has no threads; or the program has closed the descriptor for that
/// notification.
static HAS_HEARD: AtomicBool = AtomicBool::new(false);
/// A thread has reported its status since the main thread ended.
static SAID_SINCE: AtomicBool = AtomicBool::new(false);
/// The only other thread that existed when the main thread ended.
static LAST: OnceLock<Option<ThreadPidfd>> = OnceLock::new();
/// A thread is ending, and the worker has not checked yet.
static LOOK: AtomicBool = AtomicBool::new(false);
/// When the worker stops checking, or zero while it does not check; and the time of its next check. Both by the
/// monotonic clock.
static LOOK_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static LOOK_AT_NS: AtomicU64 = AtomicU64::new(0);

/// Lists the calling thread as one of the pager's.
pub(crate) fn enlist() {
    let own = thread_id();
    let _ = OWN.iter().any(|it| it.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// The calling thread is about to end.
pub(crate) fn delist() {
    let own = thread_id();
    let _ = OWN.iter().any(|it| it.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// After fork(2): this process has no pager threads.
pub(crate) fn forget_all() {
    OWN.iter().for_each(|it| it.store(0, Ordering::Relaxed));
    MAIN_HAS_ENDED.store(false, Ordering::Relaxed);
    HAS_HEARD.store(false, Ordering::Relaxed);
    SAID_SINCE.store(false, Ordering::Relaxed);
    LOOK.store(false, Ordering::Relaxed);
    LOOK_UNTIL_NS.store(0, Ordering::Relaxed);
}

/// The calling thread of the program is about to end, with this status if it reports one.
pub fn thread_ends(pager: Option<&Pager>, status: Option<i32>) {
    STATUS.store(status.unwrap_or(0), Ordering::Relaxed);
    if thread_id() == std::process::id() {
        MAIN_HAS_ENDED.store(true, Ordering::Relaxed);
    } else if MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        SAID_SINCE.store(true, Ordering::Relaxed);
    }
    if MAIN_HAS_ENDED.load(Ordering::Relaxed)
        && let Some(pager) = pager
    {
        LOOK.store(true, Ordering::Release);
        pager.wake_workers();
    }
}

/// The descriptor that the worker waits on in addition to its wakeup.
pub(crate) fn heard_by(lifeline: &Lifeline) -> Option<i32> {
    (!HAS_HEARD.load(Ordering::Relaxed)).then(|| lifeline.descriptor())
}

/// Called after the worker has slept.
pub(crate) fn hear(lifeline: &Lifeline) {
    if !HAS_HEARD.load(Ordering::Relaxed) && lifeline.has_parted() {
        HAS_HEARD.store(true, Ordering::Relaxed);
        LOOK.store(true, Ordering::Release);
    }
}

/// The worker's check: ends the process if only the pager's threads are left. Allocates nothing from the program's
/// heap: a fork may be waiting for the worker, with the locks of that heap held.
pub(crate) fn look() {
    if LOOK.swap(false, Ordering::AcqRel) {
        LOOK_UNTIL_NS.store(now_ns() + LOOKS_MAX.as_nanos() as u64, Ordering::Relaxed);
        LOOK_AT_NS.store(0, Ordering::Relaxed);
        if MAIN_HAS_ENDED.load(Ordering::Relaxed) && !HAS_HEARD.load(Ordering::Relaxed) {
            remember_last();
        }
    }
    let until = LOOK_UNTIL_NS.load(Ordering::Relaxed);
    if until == 0 || now_ns() < LOOK_AT_NS.load(Ordering::Relaxed) {
        return;
    }
    match program_threads() {
        Some(0) => end(),
        // The remaining thread may be the one that has reported its end.
        Some(1) | None if now_ns() < until => {
            LOOK_AT_NS.store(now_ns() + LOOK_AGAIN.as_nanos() as u64, Ordering::Relaxed);
        }
        // The next thread that ends starts the checks again.
        _ => LOOK_UNTIL_NS.store(0, Ordering::Relaxed),
    }
}

/// Ends the process as it would have ended without the pager.
fn end() -> ! {
    let asked = if SAID_SINCE.load(Ordering::Relaxed) {
        None
    } else if MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        LAST.get().and_then(Option::as_ref).and_then(|last| {
            // The kernel knows the status a moment after the thread is gone.
            (0..ASKED_MAX).find_map(|_| last.status().or_else(|| pause(ASKED_AGAIN)))
        })
    } else {
        thread_state::status_of_the_ended(std::process::id())
    };
    if let Some(status) = asked {
        let signal = status & 0x7f;
        if signal != 0 {
            signals::end_by(signal);
            signals::set_mask(0);
        }
        exit_process(status >> 8 & 0xff);
    }
    exit_process(STATUS.load(Ordering::Relaxed))
}

fn pause<T>(time: Duration) -> Option<T> {
    std::thread::sleep(time);
    None
}

/// Called when the main thread has ended: if exactly one other thread exists, remembers it, so that the kernel can be
/// asked for its status. Remembers only one thread: threads created later report their own status.
fn remember_last() {
    let mut others = (0, 0);
    let counted = each_of_the_program(&mut |thread| {
        if thread != std::process::id() {
            others = (others.0 + 1, thread);
        }
    });
    if counted.is_ok() && others.0 == 1 {
        let _ = LAST.set(ThreadPidfd::of(others.1).ok());
    }
}

/// How long the worker may sleep instead of `limit`: it may have to check again earlier.
pub(crate) fn sleep_max(limit: Duration) -> Duration {
    if LOOK_UNTIL_NS.load(Ordering::Relaxed) == 0 { limit } else { limit.min(LOOK_AGAIN) }
}

/// Number of the program's threads that have not ended. `None` if the kernel does not say.
fn program_threads() -> Option<usize> {
    let mut count = 0;
    each_of_the_program(&mut |_| count += 1).ok()?;
    Some(count)
}

fn each_of_the_program(each: &mut dyn FnMut(u32)) -> Result<(), Errno> {
    thread_state::each(&mut |thread| {
        let own = OWN.iter().any(|it| it.load(Ordering::Relaxed) == thread);
        if !own && !thread_state::has_ended(thread) {
            each(thread);
        }
    })
}
