// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plants bugs in the driver, one at a time: the histories must find every one.
//!
//! `cargo test -p aquifer-sim --features planted --test planted`; `cargo xtask ci` runs it. `AQUIFER_MODEL_HISTORIES=N`
//! searches longer.

use std::panic::catch_unwind;

use aquifer_driver::planted::{Bug, plant};
use aquifer_sim::model::history;

/// Number of histories within which each bug must be found.
const HISTORIES: u64 = 400;

#[test]
fn every_planted_bug_is_found() {
    let max = std::env::var("AQUIFER_MODEL_HISTORIES").map_or(HISTORIES, |text| text.parse().expect("a number"));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let searches: Vec<_> = Bug::ALL
        .map(|bug| {
            let search = move || {
                plant(Some(bug));
                (0..max).find_map(|seed| catch_unwind(|| history::run(seed, None)).err().map(|why| (seed, why)))
            };
            (bug, std::thread::spawn(search))
        })
        .into_iter()
        .map(|(bug, search)| (bug, search.join().expect("the search itself does not panic")))
        .collect();
    std::panic::set_hook(hook);
    let mut missed = Vec::new();
    for (bug, found) in searches {
        match found {
            Some((seed, why)) => {
                let why = why.downcast_ref::<String>().cloned().unwrap_or_else(|| {
                    why.downcast_ref::<&str>().copied().unwrap_or("a panic without text").to_owned()
                });
                println!("{bug:?}: found by seed {seed}: {}", why.lines().next().unwrap_or_default());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {max} histories: {missed:?}");
}
