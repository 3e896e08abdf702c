// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process ends with its last thread, and the pager's own threads must not keep it.
//!
//! Most programs end by exit(3). One whose main thread has ended before (pthread_exit(3), or the end of a clone(2)
//! child) ends when the last of its other threads does. The kernel does not say when only ours are left, so from then
//! on the worker looks, each time that a thread ends.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{exit_process, thread_id};

use crate::pager::Pager;

/// Threads of the pager: listeners, worker, trim and recorder, with room.
const OWN_MOST: usize = 16;
/// A thread that has said that it ends is gone soon after.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOKS_MOST: u32 = 400;

static OWN: [AtomicU32; OWN_MOST] = [const { AtomicU32::new(0) }; OWN_MOST];
static MAIN_HAS_ENDED: AtomicBool = AtomicBool::new(false);
static STATUS: AtomicI32 = AtomicI32::new(0);
/// Somebody ends, and the worker has not looked yet.
static LOOK: AtomicBool = AtomicBool::new(false);

/// The calling thread is the pager's.
pub(crate) fn enlist() {
    let own = thread_id();
    let _ = OWN.iter().any(|it| it.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// After fork(2): no thread of the pager's is here.
pub(crate) fn forget_all() {
    OWN.iter().for_each(|it| it.store(0, Ordering::Relaxed));
    MAIN_HAS_ENDED.store(false, Ordering::Relaxed);
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

/// The worker's look: ends the process when only the pager's threads are left.
pub(crate) fn look() {
    if !LOOK.swap(false, Ordering::AcqRel) {
        return;
    }
    for _ in 0..LOOKS_MOST {
        match program_threads() {
            // Whoever ends last says so again.
            Some(count) if count > 1 => return,
            Some(0) => exit_process(STATUS.load(Ordering::Relaxed)),
            _ => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Threads that are neither ours nor ended. `None` where the kernel does not tell.
fn program_threads() -> Option<usize> {
    let names = fs::read_dir("/proc/self/task").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let own = |name: &str| name.parse().is_ok_and(|id: u32| OWN.iter().any(|it| it.load(Ordering::Relaxed) == id));
    Some(names.filter(|name| !own(name) && !has_ended(name)).count())
}

fn has_ended(thread: &str) -> bool {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    text.rsplit_once(')').is_none_or(|(_, rest)| matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}
