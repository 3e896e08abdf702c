// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which system calls threads are in, as far as they announce them: for code that must know before trapping begins.
//!
//! A thread announces a call before it makes it, and then checks a flag that an observer sets before it looks at the
//! announced calls. So at least one of the two sees the other: a thread whose call is not seen here will see that it
//! must wait.
//!
//! Threads: any, including in signal handlers. Allocates nothing.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

use crate::raw::syscall;
use crate::{signal_stack, thread_slot};

/// Maximum number of threads that can announce calls at one time. A choice: calls of further threads are not seen.
const THREADS_MAX: usize = 512;
/// Calls per thread: its own, and that of a signal handler that has interrupted it. Further calls are not seen.
const CALLS_MAX: usize = 2;
/// Maximum stack distance between two calls of one thread at which the earlier one is known to have been left by
/// siglongjmp(3): its frame is at the same place as the later one's, or deeper, and on the same stack.
const ABANDONED_BYTES: usize = 256 << 10;

/// The record number of a thread that no longer needs a record.
const NO_MORE: u16 = u16::MAX;
const _: () = assert!(THREADS_MAX < NO_MORE as usize);

const FREE: u32 = 0;
/// Being filled in by its thread.
const CLAIMED: u32 = 1;
const SHOWN: u32 = 2;

struct Call {
    state: AtomicU32,
    frame: AtomicUsize,
    number: AtomicI64,
    args: [AtomicUsize; 6],
}

impl Call {
    /// Whether it was left by a jump, as code with a frame at `frame` finds.
    fn is_abandoned(&self, frame: usize) -> bool {
        let own = self.frame.load(Ordering::Relaxed);
        frame.wrapping_sub(own) < ABANDONED_BYTES && !signal_stack::divides(frame, own)
    }
}

struct Record {
    /// The thread's number; zero when the record is free.
    thread: AtomicU32,
    calls: [Call; CALLS_MAX],
}

static RECORDS: [Record; THREADS_MAX] = [const {
    Record {
        thread: AtomicU32::new(0),
        calls: [const {
            Call {
                state: AtomicU32::new(FREE),
                frame: AtomicUsize::new(0),
                number: AtomicI64::new(0),
                args: [const { AtomicUsize::new(0) }; 6],
            }
        }; CALLS_MAX],
    }
}; THREADS_MAX];
/// Records from this index on have never been used. Only grows.
static EVER_USED: AtomicUsize = AtomicUsize::new(0);

/// The kernel's number of this thread.
pub fn this_thread() -> u32 {
    // SAFETY: gettid(2) has no arguments, and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Lets this thread announce its calls from now on.
pub fn join() {
    let thread = this_thread();
    let free = |record: &Record| record.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if let Some(index) = RECORDS.iter().position(free) {
        EVER_USED.fetch_max(index + 1, Ordering::SeqCst);
        thread_slot::set_record(index as u16 + 1);
    }
}

/// Call it before the thread ends.
pub fn leave() {
    if let Some(record) = own() {
        thread_slot::set_record(0);
        record.calls.iter().for_each(|call| call.state.store(FREE, Ordering::Release));
        record.thread.store(0, Ordering::Release);
    }
}

/// In a forked child: its only thread goes on with its own record, and the others are free.
pub fn become_child() {
    let own = own();
    for record in &RECORDS[..EVER_USED.load(Ordering::Relaxed)] {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, record));
        if !is_own {
            record.calls.iter().for_each(|call| call.state.store(FREE, Ordering::Relaxed));
        }
        record.thread.store(if is_own { this_thread() } else { 0 }, Ordering::Relaxed);
    }
}

fn own() -> Option<&'static Record> {
    RECORDS.get(usize::from(thread_slot::record()).checked_sub(1)?)
}

/// This thread will announce no more calls.
pub fn announce_no_more() {
    leave();
    thread_slot::set_record(NO_MORE);
}

/// Whether [`announce_no_more`] was called on this thread.
pub fn announces_no_more() -> bool {
    thread_slot::record() == NO_MORE
}

/// A call that is announced until this value is dropped.
#[derive(Debug)]
pub struct Shown {
    /// Index among the thread's calls; `None` if the call cannot be announced.
    index: Option<usize>,
}

/// Announces a call that this thread is about to make.
pub fn show(number: i64, args: &[usize; 6]) -> Shown {
    let here = 0u8;
    let frame = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
    let Some(record) = own() else { return Shown { index: None } };
    let usable = |call: &Call| call.state.load(Ordering::Relaxed) == FREE || call.is_abandoned(frame);
    let Some(index) = record.calls.iter().position(usable) else { return Shown { index: None } };
    let call = &record.calls[index];
    // Claimed first: a handler that interrupts the stores below takes another entry.
    call.frame.store(frame, Ordering::Relaxed);
    call.state.store(CLAIMED, Ordering::Release);
    call.number.store(number, Ordering::Relaxed);
    call.args.iter().zip(args).for_each(|(shown, given)| shown.store(*given, Ordering::Relaxed));
    // SeqCst pairs with `each`, and with the caller's check whether an observer has started to look.
    call.state.swap(SHOWN, Ordering::SeqCst);
    Shown { index: Some(index) }
}

/// Whether this thread has announced a call, which a signal handler may have interrupted. `frame` is an address in the
/// frame of a function in which calls are announced.
pub fn is_in_call(frame: usize) -> bool {
    let is_current = |call: &Call| call.state.load(Ordering::Relaxed) != FREE && !call.is_abandoned(frame);
    own().is_some_and(|record| record.calls.iter().any(is_current))
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let (Some(index), Some(record)) = (self.index, own()) {
            record.calls[index].state.store(FREE, Ordering::Release);
        }
    }
}

/// Calls `each` with the thread, the number and the arguments of every announced call.
pub fn each(each: &mut dyn FnMut(u32, i64, [usize; 6])) {
    for record in &RECORDS[..EVER_USED.load(Ordering::SeqCst)] {
        let thread = record.thread.load(Ordering::Acquire);
        for call in &record.calls {
            if thread != 0 && call.state.load(Ordering::SeqCst) == SHOWN {
                let args = std::array::from_fn(|index| call.args[index].load(Ordering::Relaxed));
                each(thread, call.number.load(Ordering::Relaxed), args);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Vec<(i64, usize)> {
        let mut calls = Vec::new();
        let own = this_thread();
        each(&mut |thread, number, args| {
            if thread == own {
                calls.push((number, args[1]));
            }
        });
        calls
    }

    #[test]
    fn a_call_is_seen_until_it_is_over_and_so_is_one_within_it() {
        drop(show(1, &[7; 6]));
        assert!(seen().is_empty(), "a thread that has not joined shows nothing");
        join();
        let outer = show(1, &[7; 6]);
        // As far away as a handler's stack.
        let far = Box::new([0u8; 2 * ABANDONED_BYTES]);
        std::hint::black_box(&far);
        assert_eq!(seen(), [(1, 7)]);
        assert!(is_in_call(std::ptr::from_ref(&far).addr() - 2 * ABANDONED_BYTES));
        drop(outer);
        assert!(seen().is_empty() && !is_in_call(0));
        leave();
    }

    #[inline(never)]
    fn deeper(number: i64) -> Shown {
        // In use until the end, so that this function has its own frame, below the caller's.
        let room = std::hint::black_box([0u8; 64]);
        let shown = show(number, &[8; 6]);
        std::hint::black_box(&room);
        shown
    }

    #[test]
    fn a_call_left_by_a_jump_is_no_longer_shown() {
        join();
        std::mem::forget(deeper(1));
        let here = 0u8;
        assert!(!is_in_call(std::ptr::from_ref(std::hint::black_box(&here)).addr()));
        let next = show(2, &[9; 6]);
        assert_eq!(seen(), [(2, 9)]);
        let nested = deeper(3);
        assert_eq!(seen(), [(2, 9), (3, 8)]);
        drop((nested, next));
        leave();
    }
}
