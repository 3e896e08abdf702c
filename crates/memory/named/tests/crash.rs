// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The power fails at every write: what is found afterwards is the last completed sync, or the one that was under way,
//! as a whole.
//!
//! Between two confirmed syncs a disk may carry out writes in any order, and tear any of them. So for each number of
//! steps the file is reopened from what survived: all of the unconfirmed steps, none, all but the last, which is torn,
//! and random selections; where they are few, every selection.
//!
//! The process may also be killed, or have an error from the disk, before the power fails. What it has written can then
//! be read by the next process, and may still be lost.

mod common;

use aquifer_named::format::PAGE;
use aquifer_named::{Failure, Store};
use common::{Disk, Pages, Random, Step, Survival, contents, is_uncertain, page, survivors, sync};

/// Histories; more with this variable.
const HISTORIES: u64 = 12;
const HISTORIES_VARIABLE: &str = "AQUIFER_NAMED_HISTORIES";
const SYNCS: usize = 6;
/// Random selections for each number of steps.
const SELECTIONS: usize = 6;
/// Up to this many unconfirmed steps, every selection of them is tried: 128.
const UNCERTAIN_MAX: usize = 7;

/// One history: its steps, and the contents that became durable, each with the number of the step after which they
/// were.
struct History {
    steps: Vec<Step>,
    /// The number of steps before each sync returned, or the file was opened again, and the contents from then on.
    states: Vec<(usize, Pages)>,
}

/// Changes random pages of a mapping, over and over.
fn play(seed: u64) -> History {
    let mut random = Random(seed);
    let pages = [1, 3, 40, 300][random.below(4)];
    let disk = Disk::default();
    let mut store = Store::create(disk.clone(), (pages * PAGE) as u64 - 5).expect("the disk has room");
    let mut model: Pages = vec![page(0); pages];
    let mut states = vec![(disk.steps(), model.clone())];
    for _ in 0..SYNCS {
        let count_max = if random.below(4) == 0 { 100 } else { 5 };
        let count = 1 + random.below(count_max);
        let changes: Vec<(usize, u64)> =
            (0..count).map(|_| (random.below(pages), if random.below(5) == 0 { 0 } else { random.next() })).collect();
        sync(&mut store, &changes).expect("the disk has room");
        changes.iter().for_each(|(index, number)| model[*index] = page(*number));
        states.push((disk.steps(), model.clone()));
    }
    assert!(contents(&store) == model, "seed {seed}: wrong without any crash");
    let steps = disk.0.borrow().steps.clone();
    History { steps, states }
}

/// Opens what survived, and checks it. `cut` is the number of steps that were made.
fn check(history: &History, cut: usize, bytes: Vec<u8>, story: &str) {
    let done = history.states.iter().rposition(|(at, _)| *at <= cut).expect("cut after the file was made");
    let store = Store::open(Disk::of(bytes)).unwrap_or_else(|failure| panic!("{story}: {failure}"));
    let found = contents(&store);
    let next = history.states.get(done + 1).map(|(_, pages)| pages);
    assert!(found == history.states[done].1 || Some(&found) == next, "{story}: neither the old nor the new state");
}

/// Cuts the power after `cut` steps, and checks what survives in several ways.
fn cut_power(history: &History, cut: usize, random: &mut Random, story: &str) {
    let steps = &history.steps[..cut];
    let attempt = |name: &str, chance: &mut dyn FnMut() -> Survival| {
        let story = format!("{story}, {cut} steps, {name}");
        check(history, cut, survivors(steps, chance), &story);
    };
    attempt("all", &mut || Survival::All);
    attempt("none", &mut || Survival::Nothing);
    let uncertain = is_uncertain(steps).into_iter().filter(|is_uncertain| *is_uncertain).count();
    for bits in [1, 0x7f, 0xaaaa_aaaa_aaaa_aaaa] {
        let mut left = uncertain;
        attempt("all, the last torn", &mut || {
            left -= 1;
            if left == 0 { Survival::Sectors(bits) } else { Survival::All }
        });
    }
    for _ in 0..SELECTIONS {
        attempt("some", &mut || match random.below(3) {
            0 => Survival::All,
            1 => Survival::Nothing,
            _ => Survival::Sectors(random.next()),
        });
    }
}

/// Cuts the power after `cut` steps, and checks every selection of the steps that are not confirmed, if they are few.
fn cut_power_in_every_way(history: &History, cut: usize, story: &str) {
    let steps = &history.steps[..cut];
    let uncertain = is_uncertain(steps).into_iter().filter(|is_uncertain| *is_uncertain).count();
    if uncertain > UNCERTAIN_MAX {
        return;
    }
    for selection in 0..1u32 << uncertain {
        let mut left = selection;
        let bytes = survivors(steps, &mut || {
            let survives = left & 1 != 0;
            left >>= 1;
            if survives { Survival::All } else { Survival::Nothing }
        });
        check(history, cut, bytes, &format!("{story}, {cut} steps, selection {selection:b}"));
    }
}

#[test]
fn a_crash_at_any_write_leaves_the_last_sync_or_the_next() {
    let histories = std::env::var(HISTORIES_VARIABLE).ok().and_then(|count| count.parse().ok()).unwrap_or(HISTORIES);
    for seed in 1..=histories {
        let history = play(seed);
        let mut random = Random(!seed);
        for cut in history.states[0].0..=history.steps.len() {
            cut_power(&history, cut, &mut random, &format!("seed {seed}"));
        }
    }
}

/// What ends a sync.
#[derive(Clone, Copy, Debug)]
enum End {
    /// A call of the disk fails. The mapping is closed and opened again, as the error asks for.
    Error,
    /// The process is killed before the call.
    Kill,
}

/// Two syncs, a third one that ends at its call number `calls`, and after opening the file again a fourth one. Returns
/// the history, and whether the third sync was over before that call.
fn play_interrupted(calls: usize, end: End) -> (History, bool) {
    let disk = Disk::default();
    let mut store = Store::create(disk.clone(), 10 * PAGE as u64).unwrap();
    let mut states = Vec::new();
    for changes in [[(0, 1), (1, 2), (9, 3)], [(1, 4), (2, 5), (9, 6)]] {
        sync(&mut store, &changes).unwrap();
        states.push((disk.steps(), contents(&store)));
    }
    let start = disk.0.borrow().calls;
    disk.0.borrow_mut().fails_after = Some((start + calls, 5));
    let is_over = sync(&mut store, &[(0, 7), (1, 8), (2, 9)]).is_ok();
    disk.0.borrow_mut().fails_after = None;
    drop(store);
    if matches!(end, End::Kill) {
        disk.0.borrow_mut().steps.pop_if(|step| matches!(step, Step::FailedSync));
    }
    let mut store = Store::open(disk.clone()).unwrap();
    states.push((disk.steps(), contents(&store)));
    sync(&mut store, &[(0, 10), (1, 11), (5, 12)]).unwrap();
    states.push((disk.steps(), contents(&store)));
    let steps = disk.0.borrow().steps.clone();
    (History { steps, states }, is_over)
}

/// Once, opening trusted a superblock that could be read but was not durable, and the next sync overwrote pages of the
/// last sync that had returned. A power failure then left neither.
#[test]
fn a_process_that_ends_in_a_sync_and_then_a_power_failure_destroy_no_completed_sync() {
    let mut random = Random(1);
    for calls in 0.. {
        let mut is_over = true;
        for end in [End::Error, End::Kill] {
            let (history, was_over) = play_interrupted(calls, end);
            is_over &= was_over;
            for cut in history.states[0].0..=history.steps.len() {
                let story = format!("{end:?} at call {calls}");
                cut_power(&history, cut, &mut random, &story);
                cut_power_in_every_way(&history, cut, &story);
            }
        }
        if is_over {
            assert!(calls > 4, "pages, a node, the superblock, and two syncs");
            return;
        }
    }
}

/// After any failed call, what was durable still is, and the store either goes on or refuses to.
#[test]
fn a_call_that_fails_loses_nothing_for_every_call() {
    for calls in 0.. {
        let disk = Disk::default();
        let mut store = Store::create(disk.clone(), 300 * PAGE as u64).unwrap();
        sync(&mut store, &[(0, 1), (7, 2), (299, 3)]).unwrap();
        let old = contents(&store);
        let start = disk.0.borrow().calls;
        disk.0.borrow_mut().fails_after = Some((start + calls, 5));
        let changes: Vec<(usize, u64)> = (0..150).map(|index| (index, index as u64 + 10)).collect();
        let outcome = sync(&mut store, &changes);
        disk.0.borrow_mut().fails_after = None;
        if outcome.is_ok() {
            assert!(calls > 6, "a sync makes several calls");
            return;
        }
        let survived = Store::open(Disk::of(disk.bytes())).unwrap();
        let found = contents(&survived);
        let mut new = old.clone();
        changes.iter().for_each(|(index, number)| new[*index] = page(*number));
        assert!(found == old || found == new, "{calls} calls: a mixture");
        match sync(&mut store, &changes) {
            Ok(count) => {
                assert_eq!(count, 150);
                assert!(contents(&store) == new);
                // Nothing was left in use by the sync that failed: 150 and one pages, two nodes and the root.
                let mut places: Vec<u64> = (0..300).map(|index| store.lookup().place(index)).collect();
                places.sort_unstable();
                assert!(*places.last().unwrap() < 2 * 160, "{places:?}");
            }
            Err(failure) => assert_eq!(failure, Failure::Broken, "{calls} calls"),
        }
    }
}
