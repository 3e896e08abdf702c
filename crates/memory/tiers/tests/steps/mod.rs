// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Random mixes of everything that a tier can do, to be checked by `conformance::model`.

use aquifer_tiers::conformance::model::{PAGES, Step};
use proptest::prelude::*;

/// Up to 80 steps. Many positions are near the start, so that steps overlap.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || {
        (prop_oneof![0u64..24, 0..PAGES], prop_oneof![Just(1u64), 1..8u64, Just(32), Just(512)])
            .prop_map(|(page, pages)| (page, pages.min(PAGES - page)))
    };
    let step = prop_oneof![
        2 => Just(Step::Complete),
        1 => Just(Step::Flush),
        2 => place().prop_map(|(page, pages)| Step::Discard { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::Read { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::ReadBehind { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::Write { page, pages }),
        6 => place().prop_map(|(page, pages)| Step::WriteBehind { page, pages }),
    ];
    prop::collection::vec(step, 1..80)
}

/// Few cases: each moves megabytes. `PROPTEST_CASES` asks for more.
pub fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(24);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
