// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! No wake-up is ever lost, in whatever order the threads run.
//!
//! A sleeper that misses its wake-up sleeps until its time limit: the program would not hang, but a fault would take
//! 200 ms instead of 20 us, once in a million, and nobody would know why. So the two ways of sleeping run here under a
//! scheduler that tries the orders in which their steps can be taken. The tested code is the product's: its files are
//! compiled again, with atomics that the scheduler sees, and with a model of the kernel (`model/raw.rs`) in which time
//! never passes. There a lost wake-up is a deadlock, which the scheduler reports with the order that led to it.
//!
//! The scheduler models only sequential consistency. All tested operations are `SeqCst`, except for the spinning of
//! `spin_then_sleep`, whose loads decide nothing.

#![allow(unsafe_code, reason = "the files under test make system calls; the model answers them")]

use std::time::Duration;

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU32 as Word};
use shuttle::thread;

#[path = "../src/futex.rs"]
#[allow(dead_code, reason = "the product's file")]
mod futex;
#[path = "model/raw.rs"]
mod raw;
#[path = "../src/wakeup.rs"]
#[allow(dead_code, reason = "the product's file")]
mod wakeup;

/// The model has no descriptors to protect or to close.
mod own_descriptors {
    pub fn keep(number: i32) -> i32 {
        number
    }
    pub fn close(_: i32) {}
    pub fn close_copy(_: i32, _: &[u8]) {}
}

/// The atomics that the scheduler sees.
mod atomic {
    pub use shuttle::sync::atomic::{AtomicU32, Ordering};
}

use atomic::Ordering::SeqCst;
use futex::EventCount;
use wakeup::Wakeup;

/// Number of orders tried where there are too many to try all; a few seconds.
const ORDERS: usize = 20_000;
/// Maximum number of preemptions in an order. Two are enough for every bug planted so far; PCT finds each with a
/// probability that falls with this number.
const PREEMPTIONS: usize = 3;
const LIMIT: Duration = Duration::from_secs(1);

/// Sleeps until `done`, as a fault waits for another thread's work.
fn wait_for(done: &AtomicBool, events: &EventCount, spins: u32) {
    loop {
        let ticket = events.ticket();
        if done.load(SeqCst) {
            return;
        }
        events.spin_then_sleep(ticket, spins, LIMIT);
    }
}

fn one_event_for_some_sleepers(sleepers: usize, spins: u32) {
    let (done, events) = (Arc::new(AtomicBool::new(false)), Arc::new(EventCount::new()));
    let threads: Vec<_> = (0..sleepers)
        .map(|_| {
            let (done, events) = (Arc::clone(&done), Arc::clone(&events));
            thread::spawn(move || wait_for(&done, &events, spins))
        })
        .collect();
    done.store(true, SeqCst);
    events.signal();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_event_reaches_one_sleeper_in_every_order() {
    shuttle::check_dfs(|| one_event_for_some_sleepers(1, 0), None);
}

#[test]
fn an_event_reaches_a_sleeper_that_spins_first() {
    shuttle::check_dfs(|| one_event_for_some_sleepers(1, 2), None);
}

#[test]
fn an_event_reaches_all_sleepers() {
    shuttle::check_pct(|| one_event_for_some_sleepers(3, 1), ORDERS, PREEMPTIONS);
}

/// Two workers each finish one task; a sleeper waits for each, and is woken also by the other's event.
#[test]
fn events_of_two_workers_reach_their_sleepers() {
    let story = || {
        let events = Arc::new(EventCount::new());
        let mut threads = Vec::new();
        for _ in 0..2 {
            let done = Arc::new(AtomicBool::new(false));
            let (for_sleeper, for_worker) = (Arc::clone(&events), Arc::clone(&events));
            let seen = Arc::clone(&done);
            threads.push(thread::spawn(move || wait_for(&seen, &for_sleeper, 0)));
            threads.push(thread::spawn(move || {
                done.store(true, SeqCst);
                for_worker.signal();
            }));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_pct(story, ORDERS, PREEMPTIONS);
}

/// Models the pager's worker: takes available work, and sleeps when there is none.
fn ringers_and_a_sleeper(ringers: u32, each: u32) {
    let (work, wakeup) = (Arc::new(Word::new(0)), Arc::new(Wakeup::new().unwrap()));
    let threads: Vec<_> = (0..ringers)
        .map(|_| {
            let (work, wakeup) = (Arc::clone(&work), Arc::clone(&wakeup));
            thread::spawn(move || {
                for _ in 0..each {
                    work.fetch_add(1, SeqCst);
                    wakeup.wake();
                }
            })
        })
        .collect();
    let mut taken = 0;
    while taken < ringers * each {
        match work.swap(0, SeqCst) {
            0 => wakeup.sleep(None, LIMIT),
            some => taken += some,
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_ring_is_heard_in_every_order() {
    shuttle::check_dfs(|| ringers_and_a_sleeper(1, 1), None);
}

#[test]
fn rings_of_several_are_heard() {
    shuttle::check_pct(|| ringers_and_a_sleeper(2, 2), ORDERS, PREEMPTIONS);
}

/// Another event that the sleeper waits for, such as one of an I/O queue, ends the sleep while a thread wakes it.
#[test]
fn a_ring_is_not_lost_when_something_else_woke_the_sleeper() {
    let story = || {
        let other = Arc::new(Wakeup::new().unwrap());
        let descriptor = raw::last_descriptor();
        let (work, wakeup) = (Arc::new(Word::new(0)), Arc::new(Wakeup::new().unwrap()));
        let device = thread::spawn(move || {
            let _keep = other;
            raw::write_event(descriptor);
        });
        let (their_work, their_wakeup) = (Arc::clone(&work), Arc::clone(&wakeup));
        let ringer = thread::spawn(move || {
            their_work.store(1, SeqCst);
            their_wakeup.wake();
        });
        let mut read = false;
        while work.load(SeqCst) == 0 {
            wakeup.sleep((!read).then_some(descriptor), LIMIT);
            read |= raw::take_event(descriptor);
        }
        device.join().unwrap();
        ringer.join().unwrap();
    };
    shuttle::check_pct(story, ORDERS, PREEMPTIONS);
}

/// A planted bug is found: a signaller that checks for sleepers before it counts its event, as if the two lines of
/// `signal` were exchanged.
#[test]
#[should_panic(expected = "deadlock")]
fn a_signal_that_looks_too_early_is_found() {
    let story = || {
        let (events, sleepers) = (Arc::new(Word::new(0)), Arc::new(Word::new(0)));
        let (their_events, their_sleepers) = (Arc::clone(&events), Arc::clone(&sleepers));
        let sleeper = thread::spawn(move || {
            their_sleepers.fetch_add(1, SeqCst);
            if their_events.load(SeqCst) == 0 {
                futex::wait(&their_events, 0, LIMIT);
            }
        });
        let anybody = sleepers.load(SeqCst) != 0;
        events.fetch_add(1, SeqCst);
        if anybody {
            futex::wake_all(&events);
        }
        sleeper.join().unwrap();
    };
    shuttle::check_dfs(story, None);
}
