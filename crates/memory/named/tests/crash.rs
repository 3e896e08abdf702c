// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The power fails at every write: what is found afterwards is the last completed sync, or the one that was under way,
//! as a whole.
//!
//! Between two confirmed syncs a disk may carry out writes in any order, and tear any of them. So for each number of
//! steps the file is reopened from what survived: all of the unconfirmed steps, none, all but the last, which is torn,
//! and random selections.

mod common;

use aquifer_named::format::PAGE;
use aquifer_named::{Failure, Store};
use common::{Disk, Pages, Random, Step, Survival, contents, page, survivors, sync};

/// Histories; more with this variable.
const HISTORIES: u64 = 12;
const HISTORIES_VARIABLE: &str = "AQUIFER_NAMED_HISTORIES";
const SYNCS: usize = 6;
/// Random selections for each number of steps.
const SELECTIONS: usize = 6;

/// One history: its steps, and the contents that became durable, each with the number of the step after which they
/// were.
struct History {
    steps: Vec<Step>,
    /// The number of steps before each sync was confirmed, and the contents from then on.
    states: Vec<(usize, Pages)>,
}

/// Changes random pages of a mapping, over and over.
fn play(seed: u64) -> History {
    let mut random = Random(seed);
    let pages = [1, 3, 40, 300][random.below(4)];
    let disk = Disk::default();
    let mut store = Store::create(disk.clone(), (pages * PAGE) as u64 - 5).expect("the disk has room");
    let steps = |disk: &Disk| disk.0.borrow().steps.len();
    let mut model: Pages = vec![page(0); pages];
    let mut states = vec![(steps(&disk), model.clone())];
    for _ in 0..SYNCS {
        let count_max = if random.below(4) == 0 { 100 } else { 5 };
        let count = 1 + random.below(count_max);
        let changes: Vec<(usize, u64)> =
            (0..count).map(|_| (random.below(pages), if random.below(5) == 0 { 0 } else { random.next() })).collect();
        sync(&mut store, &changes).expect("the disk has room");
        changes.iter().for_each(|(index, number)| model[*index] = page(*number));
        states.push((steps(&disk), model.clone()));
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

#[test]
fn a_crash_at_any_write_leaves_the_last_sync_or_the_next() {
    let histories = std::env::var(HISTORIES_VARIABLE).ok().and_then(|count| count.parse().ok()).unwrap_or(HISTORIES);
    for seed in 1..=histories {
        let history = play(seed);
        let mut random = Random(!seed);
        for cut in history.states[0].0..=history.steps.len() {
            let steps = &history.steps[..cut];
            let attempt = |name: &str, chance: &mut dyn FnMut() -> Survival| {
                let story = format!("seed {seed}, {cut} steps, {name}");
                check(&history, cut, survivors(steps, chance), &story);
            };
            attempt("all", &mut || Survival::All);
            attempt("none", &mut || Survival::Nothing);
            let unsynced = steps.iter().rev().take_while(|step| !matches!(step, Step::Sync)).count();
            for bits in [1, 0x7f, 0xaaaa_aaaa_aaaa_aaaa] {
                let mut left = unsynced;
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
