// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The model's rates where the result is known: one thread, few cores, a lock that is the limit.

use super::*;

const FAULTS: u64 = 20_000;

fn rate(cost: Cost, cores: u32, threads: u32, shards: u32) -> f64 {
    simulate(cost, Setting { cores, threads, shards }, FAULTS, 1).faults_per_second
}

fn near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.05
}

/// Ten microseconds of CPU time, two of them by the worker, 0.4 with the lock held.
const USUAL: Cost = Cost { thread_ns: 8_000.0, worker_ns: 2_000.0, locks: 2.0, held_ns: 400.0 };

#[test]
fn one_thread_is_as_fast_as_its_own_work_if_the_worker_has_a_core() {
    assert!(near(rate(USUAL, 2, 1, 1), 1e9 / 8_000.0), "{}", rate(USUAL, 2, 1, 1));
}

#[test]
fn all_cpu_time_counts_where_cores_are_short() {
    let both = rate(USUAL, 1, 1, 1);
    assert!(near(both, 1e9 / 10_000.0), "{both}");
    let four = rate(Cost { held_ns: 0.0, locks: 0.0, ..USUAL }, 4, 16, 1);
    assert!(near(four, 4e9 / 10_000.0), "{four}");
}

#[test]
fn the_lock_bounds_what_many_cores_give_and_shards_lift_the_bound() {
    let cost = Cost { held_ns: 2_000.0, ..USUAL };
    let (one, many) = (rate(cost, 32, 64, 1), rate(cost, 32, 64, 16));
    assert!(one < 1e9 / 2_000.0, "{one}: held for 2 us a fault");
    assert!(one > 0.4e9 / 2_000.0, "{one}: sleepers and wakes cost, but not everything");
    assert!(many > 4.0 * one && many < 32e9 / 10_000.0, "{many} beside {one}");
}

#[test]
fn waiting_grows_with_the_threads() {
    let waited = |threads| simulate(USUAL, Setting { cores: 8, threads, shards: 1 }, FAULTS, 1).waited_ns;
    assert!(waited(1) < waited(4) && waited(4) < waited(8), "{} {} {}", waited(1), waited(4), waited(8));
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_one_similar_ones() {
    let setting = Setting { cores: 8, threads: 16, shards: 2 };
    let run = |seed| simulate(USUAL, setting, FAULTS, seed);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(near(run(1).faults_per_second, run(2).faults_per_second));
}

#[test]
fn no_core_does_more_than_one_thing_at_a_time() {
    for (cores, threads, shards) in [(1, 5, 1), (2, 3, 4), (3, 64, 2), (64, 64, 64)] {
        let run = simulate(USUAL, Setting { cores, threads, shards }, FAULTS, 3);
        assert!(run.faults_per_second <= 1.05 * f64::from(cores) * 1e9 / USUAL.thread_ns, "{cores} {threads} {run:?}");
        assert!((0.0..=1.0).contains(&run.lock_use) && run.waited_ns >= 0.0, "{run:?}");
    }
}
