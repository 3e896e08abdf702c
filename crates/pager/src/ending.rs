// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process ends with its last thread, and the pager's own threads must not keep it.
//!
//! Most programs end by exit(3). One whose main thread has ended before (pthread_exit(3), exit(2) by itself, a filter
//! of system calls) ends when the last of its other threads does. The worker hears of that from the kernel, whatever
//! way it was (`sys/src/lifeline.rs`); and where it cannot, since its thread could not leave the program's table of
//! descriptors, from the threads that end by ways that we see. Then it looks, for a while.
//!
//! The status of a process is that of the thread that ended last. Where that one did not say it, the kernel is asked
//! if it was the only one beside the main thread when that ended, or the main thread itself; else it is what was said
//! last.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, exit_process, now_ns, thread_id};
use aquifer_sys::thread_end::ThreadEnd;
use aquifer_sys::{signals, thread_state};

use crate::pager::Pager;

/// Threads of the pager, with room: four listeners, and one each that works, trims, records, tends the tier, moves
/// what is in it and asks for shares.
const OWN_MOST: usize = 16;
/// A thread that has said that it ends is gone soon after: how often the worker looks, and for how long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOKS_MOST: Duration = Duration::from_secs(2);
/// How often the kernel is asked for the status of a thread that is gone, and after which pause.
const ASKED_MOST: usize = 50;
const ASKED_AGAIN: Duration = Duration::from_millis(1);

static OWN: [AtomicU32; OWN_MOST] = [const { AtomicU32::new(0) }; OWN_MOST];
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicI32 = AtomicI32::new(0);
/// The worker has heard that the program has no threads; or the program has closed what it hears it by.
static HAS_HEARD: AtomicBool = AtomicBool::new(false);
/// A thread has said its status since the main thread ended.
static SAID_SINCE: AtomicBool = AtomicBool::new(false);
/// The only thread that there was beside the main thread when that ended.
static LAST: OnceLock<Option<ThreadEnd>> = OnceLock::new();
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
    HAS_HEARD.store(false, Ordering::Relaxed);
    SAID_SINCE.store(false, Ordering::Relaxed);
    LOOK.store(false, Ordering::Relaxed);
    LOOK_UNTIL_NS.store(0, Ordering::Relaxed);
}

/// The calling thread of the program is about to end, with this status where it says one.
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
        pager.worker_bell.ring();
    }
}

/// What the worker waits at besides its bell.
pub(crate) fn heard_by(pager: &Pager) -> Option<i32> {
    (!HAS_HEARD.load(Ordering::Relaxed)).then(|| pager.lifeline.descriptor())
}

/// After the worker has slept.
pub(crate) fn hear(pager: &Pager) {
    if !HAS_HEARD.load(Ordering::Relaxed) && pager.lifeline.has_parted() {
        HAS_HEARD.store(true, Ordering::Relaxed);
        LOOK.store(true, Ordering::Release);
    }
}

/// The worker's look: ends the process when only the pager's threads are left. Allocates nothing of the program's: a
/// fork may be waiting for the worker, with the locks of the program's heap held.
pub(crate) fn look() {
    if LOOK.swap(false, Ordering::AcqRel) {
        LOOK_UNTIL_NS.store(now_ns() + LOOKS_MOST.as_nanos() as u64, Ordering::Relaxed);
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
        // The one that is there may be the one that has said that it ends.
        Some(1) | None if now_ns() < until => {
            LOOK_AT_NS.store(now_ns() + LOOK_AGAIN.as_nanos() as u64, Ordering::Relaxed);
        }
        // Whoever ends last says so again.
        _ => LOOK_UNTIL_NS.store(0, Ordering::Relaxed),
    }
}

/// Ends the process as it would have ended without us.
fn end() -> ! {
    let asked = if SAID_SINCE.load(Ordering::Relaxed) {
        None
    } else if MAIN_HAS_ENDED.load(Ordering::Relaxed) {
        LAST.get().and_then(Option::as_ref).and_then(|last| {
            // The kernel knows it a moment after the thread is gone.
            (0..ASKED_MOST).find_map(|_| last.status().or_else(|| pause(ASKED_AGAIN)))
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

/// The main thread ends: if one other is there, its status will be asked for. Once: whoever comes later says it.
fn remember_last() {
    let mut others = (0, 0);
    let counted = each_of_the_program(&mut |thread| {
        if thread != std::process::id() {
            others = (others.0 + 1, thread);
        }
    });
    if counted.is_ok() && others.0 == 1 {
        let _ = LAST.set(ThreadEnd::of(others.1).ok());
    }
}

/// How long the worker may sleep that would sleep for `limit`: it may have to look again before.
pub(crate) fn sleep_most(limit: Duration) -> Duration {
    if LOOK_UNTIL_NS.load(Ordering::Relaxed) == 0 { limit } else { limit.min(LOOK_AGAIN) }
}

/// Threads that are neither ours nor ended. `None` where the kernel does not tell.
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
