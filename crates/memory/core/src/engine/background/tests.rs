// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a stream goes on when it leaves a stripe.

use super::*;
use crate::engine::Settings;
use crate::map::Delivery;
use crate::policy::{self, PolicyName};
use crate::stripes::Stripes;

/// In the shard's next stripe are two mappings. A stream comes first to the one at the stripe's near end, whichever its
/// direction. A descending one used to be led to the other, which does not meet that end, and read-ahead stopped.
#[test]
fn a_stream_goes_on_in_the_nearest_mapping_of_the_next_stripe() {
    let stripes = Stripes::new(2, Settings::PLAIN.budget_pages);
    let pages = stripes.pages();
    // Two stripes of shard 0, with a stripe of shard 1 between them.
    let (low, high) = (PageIndex(4 * pages), PageIndex(6 * pages));
    assert!(stripes.shard_of(low) == 0 && stripes.shard_of(high) == 0);
    for descending in [false, true] {
        let mut engine = Engine::new(Settings::PLAIN, policy::build(PolicyName::S3Fifo));
        engine.become_shard(stripes, 0);
        let (from, next) = if descending { (high, low) } else { (low, high) };
        let middle = next + pages / 2;
        for (start, end) in [(from, from + pages), (next, middle), (middle, next + pages)] {
            engine.add(start, end, Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
        }
        let here = Here { place: stripes.place_of(from), start: from, end: from + pages };
        // Read-ahead of the whole stripe.
        let mapping = engine.next_stripe(next, next + pages, here, descending);
        let nearest = if descending { (middle, next + pages) } else { (next, middle) };
        assert_eq!(mapping, Some(nearest), "descending: {descending}");
    }
}
