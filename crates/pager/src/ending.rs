// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process ends with its last thread, and the pager's own threads must not keep it.
//!
//! Most programs end by exit(3). One whose main thread has ended before (pthread_exit(3), or the end of a clone(2)
//! child) ends when the last of its other threads does. The kernel does not say when only ours are left, so from then
//! on the worker looks, for a while after each time that a thread ends.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{exit_process, now_ns, thread_id};
use aquifer_sys::thread_state;

use crate::pager::Pager;

/// Threads of the pager: listeners, worker, trim and recorder, with room.
const OWN_MOST: usize = 16;
/// A thread that has said that it ends is gone soon after: how often the worker looks, and for how long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOKS_MOST: Duration = Duration::from_secs(2);

static OWN: [AtomicU32; OWN_MOST] = [const { AtomicU32::new(0) }; OWN_MOST];
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicI32 = AtomicI32::new(0);
/// Somebody ends, and the worker has not looked yet.
static LOOK: AtomicBool = AtomicBool::new(false);
/// The worker's: until when it looks, or zero, and when next. By the monotonic clock.
static LOOK_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static LOOK_AT_NS: AtomicU64 = AtomicU64::new(0);

/// The calling thread is the pager's.
pub(crate) fn enlist() {
    let own = thread_id();
    let _ = OWN.iter().any(|it| it.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// After fork(2): no thread of the pager's is here.
pub(crate) fn forget_all() {
    OWN.iter().for_each(|it| it.store(0, Ordering::Relaxed));
    MAIN_HAS_ENDED.store(false, Ordering::Relaxed);
    LOOK.store(false, Ordering::Relaxed);
    LOOK_UNTIL_NS.store(0, Ordering::Relaxed);
}

/// The calling thread of the program is about to end, with this status where it says one.
pub fn thread_ends(pager: Option<&Pager>, status: Option<i32>) {
    if thread_id() == std::process::id() {
        STATUS.store(status.unwrap_or(0), Ordering::Relaxed);
        MAIN_HAS_ENDED.store(true, Ordering::Relaxed);
    }
    if MAIN_HAS_ENDED.load(Ordering::Relaxed)
        && let Some(pager) = pager
    {
        LOOK.store(true, Ordering::Release);
        pager.worker_bell.ring();
    }
}

/// The worker's look: ends the process when only the pager's threads are left. Allocates nothing of the program's: a
/// fork may be waiting for the worker, with the locks of the program's heap held.
pub(crate) fn look() {
    if LOOK.swap(false, Ordering::AcqRel) {
        LOOK_UNTIL_NS.store(now_ns() + LOOKS_MOST.as_nanos() as u64, Ordering::Relaxed);
        LOOK_AT_NS.store(0, Ordering::Relaxed);
    }
    let until = LOOK_UNTIL_NS.load(Ordering::Relaxed);
    if until == 0 || now_ns() < LOOK_AT_NS.load(Ordering::Relaxed) {
        return;
    }
    match program_threads() {
        Some(0) => exit_process(STATUS.load(Ordering::Relaxed)),
        // The one that is there may be the one that has said that it ends.
        Some(1) | None if now_ns() < until => {
            LOOK_AT_NS.store(now_ns() + LOOK_AGAIN.as_nanos() as u64, Ordering::Relaxed);
        }
        // Whoever ends last says so again.
        _ => LOOK_UNTIL_NS.store(0, Ordering::Relaxed),
    }
}

/// How long the worker may sleep that would sleep for `limit`: it may have to look again before.
pub(crate) fn sleep_most(limit: Duration) -> Duration {
    if LOOK_UNTIL_NS.load(Ordering::Relaxed) == 0 { limit } else { limit.min(LOOK_AGAIN) }
}

/// Threads that are neither ours nor ended. `None` where the kernel does not tell.
fn program_threads() -> Option<usize> {
    let mut count = 0;
    thread_state::each(&mut |thread| {
        let own = OWN.iter().any(|it| it.load(Ordering::Relaxed) == thread);
        count += usize::from(!own && !thread_state::has_ended(thread));
    })
    .ok()?;
    Some(count)
}
