// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A payment of the debts of shards without a worker ends in time (`driver/src/debts.rs`), however slow the tier is.
//! After the tier has failed, it is tried again at intervals.

use std::rc::Rc;

use aquifer_core::engine::PLAN_MAX;
use aquifer_core::policy::PolicyName;
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_driver::{Space, owes, pay_debts};

use super::history::map;
use super::schedule::Schedule;
use super::space::View;
use super::trouble::{Delays, KINDS, Kind};
use super::world::{Start, World};

/// How long each write takes.
const WRITE_NS: u64 = 1_000_000;
/// A payment carries out no further plan after this time.
const PAYING_NS: u64 = 10_000_000;
/// The order of the blocks: one of them is as many pages as one plan may write.
const ORDER: u8 = 5;

const START: Start = Start {
    policy: PolicyName::S3Fifo,
    shards: 2,
    budget_pages: 3_072,
    tier_slabs: 512,
    prefetch: false,
    elastic: false,
    overlaps: false,
    is_mapped: false,
    request_pages: 512,
    queue_max: 2,
    has_worker: [false; SHARDS_MAX],
};

/// Two shards, both of which owe more than can be written in the time of one payment: resident memory is 1.6 times the
/// budget.
fn owing(delays: Delays) -> Rc<World> {
    let world = Rc::new(World::new(START, 1, delays));
    for window in 0..2 {
        map(&world, window, ORDER, START.budget_pages, 100);
    }
    world
}

/// The caller has work of its own, for which faults may wait. So a call ends early, and later calls pay the rest.
#[test]
fn a_payment_takes_no_longer_than_its_time_and_one_plan() {
    let world = owing(Delays::of_each(WRITE_NS));
    let mut schedule = Schedule::new(Rc::clone(&world), 2);
    schedule.start(false, move |pauser| {
        let view = View { world, pauser, thread: 0, shard: 0 };
        let debts = || [0, 1].map(|shard| view.within(shard).engine().debt_pages());
        let enough = (PAYING_NS / WRITE_NS) << ORDER;
        assert!(debts().iter().all(|debt| *debt > enough), "{:?} pages are too few for this test", debts());
        let mut calls = 0;
        while owes(&view) {
            let started = view.world.clock_ns.get();
            pay_debts(&view).expect("the space goes on");
            let took = view.world.clock_ns.get() - started;
            assert!(took <= PAYING_NS + PLAN_MAX as u64 * WRITE_NS, "call {calls} took {took} ns; debts {:?}", debts());
            calls += 1;
            assert!(calls < 100, "the debts are never paid: {:?}", debts());
        }
        assert!(calls > 3, "{calls} calls paid everything");
    });
    schedule.run(None);
}

/// Former bug: after eight failures in a row, nothing was cleaned ahead of demand any more, and only a worker allowed
/// another attempt. So without workers the debts stayed until the program had a fault there.
#[test]
fn a_tier_that_has_failed_is_tried_again_at_intervals() {
    const FAILING_NS: u64 = 5_000_000_000;
    let world = owing(Delays::none());
    let mut failing = [0; KINDS.len()];
    failing[Kind::Write as usize] = 100;
    world.trouble.set(failing);
    let mut schedule = Schedule::new(Rc::clone(&world), 2);
    schedule.start(false, move |pauser| {
        let view = View { world, pauser, thread: 0, shard: 0 };
        let pay = || {
            pay_debts(&view).expect("the space goes on");
            view.world.clock_ns.set(view.world.clock_ns.get() + 1_000_000);
        };
        while view.world.clock_ns.get() < FAILING_NS {
            pay();
        }
        let failures = view.world.trouble.happened();
        assert!((20..=60).contains(&failures), "{failures} write-backs failed in five seconds");
        view.world.trouble.end();
        let calls = (0..5_000).take_while(|_| owes(&view)).map(|_| pay()).count();
        assert!(!owes(&view), "the debts are not paid after {calls} calls, although the tier has recovered");
    });
    schedule.run(None);
}
