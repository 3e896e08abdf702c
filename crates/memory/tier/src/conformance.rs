// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every tier must do, as one suite for the tests of every tier. It panics with an explanation when a tier fails a
//! check.
//!
//! A tier's test file calls [`check`] with a function that opens a fresh tier, and [`model::replay`] with random steps.
//! Not for programs. Offsets used are below [`CAPACITY_BYTES_MIN`].

mod background;
mod failures;
pub mod frames;
pub mod model;
mod synchronous;

pub use background::overlapping_gains_time;

use crate::tier::Tier;

/// Least capacity of a tier under test.
pub const CAPACITY_BYTES_MIN: u64 = 8 << 20;

/// Opens a fresh tier each time.
pub type Open<'a> = dyn Fn() -> Box<dyn Tier> + 'a;

/// One thing that every tier must do.
type Check = fn(&Open);

const CHECKS: [(&str, Check); 18] = [
    ("a tier says what it is", synchronous::a_tier_says_what_it_is),
    ("requests around the longest one that is worth making are whole", synchronous::requests_around_the_longest),
    ("reads return the last write", synchronous::reads_return_the_last_write),
    ("blocks of every size are whole", synchronous::blocks_of_every_size_are_whole),
    ("the last page can be used", synchronous::the_last_page_can_be_used),
    ("unaligned requests are refused", synchronous::unaligned_requests_are_refused),
    ("requests past the end are refused", synchronous::requests_past_the_end_are_refused),
    ("discarding leaves neighbours alone", synchronous::discarding_leaves_neighbours_alone),
    ("threads share a tier", synchronous::threads_share_a_tier),
    ("requests in flight overlap", background::requests_in_flight_overlap),
    ("the depth bounds a queue", background::the_depth_bounds_a_queue),
    ("bad requests fail in their completion", background::bad_requests_fail_in_their_completion),
    ("completions come as asked", background::completions_come_as_asked),
    ("the descriptor announces completions", background::the_descriptor_announces_completions),
    ("queues are dropped in flight", background::queues_are_dropped_in_flight),
    ("a queue outlives its tier", background::a_queue_outlives_its_tier),
    ("failures surface after each n", failures::failures_surface_after_each_n),
    ("a full tier keeps its data", failures::a_full_tier_keeps_its_data),
];

/// Runs the whole suite; `what` names the tier in messages.
pub fn check(what: &str, open: &Open) {
    for (name, check) in CHECKS {
        println!("{what}: {name}");
        check(open);
    }
}
