// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a program's slabs are divided among the spans of its volume, with real donors and a real agent: by the sizes of
//! the spans, evenly, or by the weights that were asked for.

mod world;

use aquifer_fabric::{Bytes, MemberLease, Presentation};
use aquifer_tiers::conformance::frames;

use world::{World, lease};

const SLAB_BYTES: u64 = 2 << 20;
/// Slabs that the program writes to.
const WRITTEN: u64 = 6;

/// Returns how many slabs the donors of two spans lend to a program. The first span is twice as large.
fn lent(presentation: Presentation) -> Vec<u64> {
    let mut world = World::start(2, 64);
    let small = MemberLease { bytes: Bytes::slabs(world::SLABS / 2), ..lease(1, 1, 0) };
    world.present_ranges(presentation, vec![lease(0, 0, 0), small]);
    let tier = world.open("24MiB");
    for slab in 0..WRITTEN {
        let frame = frames::frame(8, 1);
        tier.write(slab * SLAB_BYTES, &frame).unwrap_or_else(|failure| panic!("{failure}"));
        frames::give_back(frame);
    }
    world.donors.iter().map(|donor| donor.lent_bytes() / SLAB_BYTES).collect()
}

#[test]
fn one_range_uses_donors_in_proportion_to_what_they_lend() {
    assert_eq!(lent(Presentation::OneRange), [4, 2]);
}

#[test]
fn a_range_for_each_span_uses_them_evenly() {
    assert_eq!(lent(Presentation::RangePerSpan { weights: Vec::new() }), [3, 3]);
}

#[test]
fn weights_divide_the_slabs_among_the_spans() {
    assert_eq!(lent(Presentation::RangePerSpan { weights: vec![1, 2] }), [2, 4]);
    assert_eq!(lent(Presentation::RangePerSpan { weights: vec![5, 1] }), [5, 1]);
}
