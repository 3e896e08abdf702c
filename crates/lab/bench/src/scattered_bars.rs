// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bars for programs with scattered accesses, at 30, 50 and 70 % of local memory. `verdict.rs` has the others.

use crate::verdict::Bar;

const WORKLOADS: [&str; 5] = ["bfs", "pr", "bc", "cg", "load"];
const LOCAL_PERCENTS: [u32; 3] = [30, 50, 70];

/// Ours, theirs, how many times as fast ours must be, and the aim.
const PAIRS: [(&str, &str, f64, Option<f64>); 5] = [
    ("aquifer-dram", "swap-ram", 4.0, Some(8.0)),
    ("aquifer-dram", "swap-zram", 2.5, Some(4.0)),
    ("aquifer-flash", "swap-disk", 1.5, Some(3.0)),
    ("aquifer-compressed", "swap-zram-counted", 1.5, None),
    ("aquifer-donor", "swap-ram", 1.5, Some(2.0)),
];

/// All of them. At 30 %, graphs on a flash tier have higher bars, in `verdict.rs`; a donor has none for `cg`.
pub(crate) fn all() -> impl Iterator<Item = Bar> {
    let places = WORKLOADS.into_iter().flat_map(|workload| LOCAL_PERCENTS.map(|local| (workload, local)));
    places.flat_map(|(workload, local_percent)| {
        let asked = move |ours| match ours {
            "aquifer-flash" => workload == "cg" || local_percent != 30,
            "aquifer-donor" => workload != "cg",
            _ => true,
        };
        PAIRS.into_iter().filter(move |(ours, ..)| asked(*ours)).map(move |(ours, theirs, at_least, aim)| Bar {
            workload,
            local_percent,
            ours,
            theirs,
            at_least,
            aim,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_bar_at_every_level_but_the_named_exceptions() {
        let bars: Vec<_> = all().map(|bar| (bar.workload, bar.local_percent, bar.ours)).collect();
        assert_eq!(bars.len(), 5 * 3 * 5 - 4 - 3);
        assert!(bars.contains(&("cg", 30, "aquifer-flash")) && bars.contains(&("bc", 70, "aquifer-donor")));
        assert!(!bars.contains(&("bc", 30, "aquifer-flash")) && !bars.contains(&("cg", 30, "aquifer-donor")));
    }
}
