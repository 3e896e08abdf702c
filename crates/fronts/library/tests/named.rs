// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Named mappings: what was synced is found again, and nothing else; the file is read lazily and never written back to.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use aquifer::Mapping;
use aquifer_test_support::Random;
use common::{MIB, PAGE, Scratch, bytes_with, can_run, evict_all, is_stored};

/// A length that does not end with a page.
const BYTES: usize = 18 * MIB - 700;
const STEPS: usize = 500;

/// Returns a range of 1 to `max` bytes, most of the time in the first 2 MiB.
fn some_range(random: &mut Random, max: usize) -> std::ops::Range<usize> {
    let whole = if random.index(4) == 0 { BYTES } else { 2 * MIB };
    let start = random.index(whole);
    start..start + 1 + random.index(max.min(BYTES - start))
}

fn check(mapping: &Mapping, range: std::ops::Range<usize>, wanted: &[u8], story: &str) {
    let mut found = vec![0; range.len()];
    mapping.read(range.start, &mut found).unwrap_or_else(|failure| panic!("{story}: {failure}"));
    let wrong = found.iter().zip(&wanted[range.clone()]).position(|(found, wanted)| found != wanted);
    assert_eq!(wrong, None, "{story}: the first wrong byte of {range:?}");
}

/// Plays a seeded history of one mapping, which is closed and opened again and again.
fn play(tier: &str, block_size: &str, seed: u64) {
    let story = format!("tier {tier}, blocks {block_size}, seed {seed}");
    let scratch = Scratch::new(&format!("named-model-{seed}"));
    let (mut now, mut synced) = (vec![0; BYTES], vec![0; BYTES]);
    let mut random = Random(seed);
    let space = scratch.space(tier, block_size);
    let mut mapping = space.map_named("model", BYTES).expect("it can be made");
    for _ in 0..STEPS {
        match random.index(100) {
            step @ 0..=44 => {
                let (range, byte) = (some_range(&mut random, 3 * PAGE), random.bits() as u8);
                now[range.clone()].iter_mut().enumerate().for_each(|(at, new)| *new = byte ^ at as u8);
                let new = &now[range.clone()];
                let written = if step < 25 {
                    mapping.write(range.start, new)
                } else {
                    mapping.write_in_place(range.start, new).map(|_| ())
                };
                written.unwrap_or_else(|failure| panic!("{story}: {failure}"));
            }
            45..=64 => check(&mapping, some_range(&mut random, 5 * PAGE), &now, &story),
            65..=72 => {
                let page = some_range(&mut random, 1).start / PAGE * PAGE;
                let range = page..(page + 20 * PAGE).min(BYTES);
                mapping.discard(range.clone()).unwrap();
                now[range].fill(0);
            }
            73..=82 => mapping.evict(some_range(&mut random, MIB)).unwrap(),
            83..=84 => assert!(!mapping.status(some_range(&mut random, MIB)).unwrap().is_empty()),
            85..=93 => {
                let range = some_range(&mut random, MIB);
                mapping.sync(range.clone()).unwrap_or_else(|failure| panic!("{story}: {failure}"));
                let pages = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE).min(BYTES);
                synced[pages.clone()].copy_from_slice(&now[pages]);
            }
            94..=95 => {
                mapping.snapshot().unwrap_or_else(|failure| panic!("{story}: {failure}"));
                synced.copy_from_slice(&now);
            }
            _ => {
                mapping.unmap().unwrap();
                mapping = space.open_named("model").unwrap_or_else(|failure| panic!("{story}: {failure}"));
                now.copy_from_slice(&synced);
            }
        }
    }
    check(&mapping, 0..BYTES, &now, &story);
    drop(mapping);
    drop(space);
    let space = scratch.space("dram:size=64MiB", "auto");
    let mapping = space.map_named("model", BYTES).unwrap();
    assert_eq!((mapping.name(), mapping.len()), (Some("model"), BYTES));
    check(&mapping, 0..BYTES, &synced, &story);
}

#[test]
fn a_reopened_mapping_has_exactly_the_synced_contents() {
    if !can_run() {
        return;
    }
    for (seed, (tier, block_size)) in [
        ("dram:size=64MiB", "auto"),
        ("dram:size=64MiB", "4KiB"),
        ("compressed:size=8MiB", "auto"),
        ("dram:size=64MiB", "256KiB"),
        ("compressed:size=4MiB>dram:size=64MiB", "auto"),
    ]
    .into_iter()
    .enumerate()
    {
        play(tier, block_size, seed as u64 + 1);
    }
}

/// Creates, syncs and closes a mapping in which every word is its index times `salt`.
fn stored(scratch: &Scratch, bytes: usize, salt: u64) {
    let space = scratch.space("dram:size=64MiB", "64KiB");
    let mut mapping = space.map_named("stored", bytes).unwrap();
    let words = mapping.view_mut::<u64>(..).unwrap();
    words.iter_mut().enumerate().for_each(|(index, word)| *word = (index as u64 + 1) * salt);
    mapping.snapshot().unwrap();
}

#[test]
fn a_mapping_is_opened_without_reading_it_and_unchanged_blocks_are_not_written_back() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-lazy");
    stored(&scratch, 40 * MIB, 3);
    let space = scratch.space("dram:size=64MiB", "64KiB");
    let mapping = space.open_named("stored").unwrap();
    assert_eq!(bytes_with(&mapping, is_stored), 40 * MIB);
    assert_eq!(space.statistics().fetched_bytes, 0);
    for _ in 0..2 {
        let words = mapping.view::<u64>(..).unwrap();
        assert!((0..words.len()).step_by(100).all(|index| words[index] == (index as u64 + 1) * 3));
    }
    let statistics = space.statistics();
    assert!(statistics.evicted_blocks > 100, "{statistics:?}");
    assert_eq!(statistics.written_back_bytes, 0, "the file has them");
}

#[test]
fn a_synced_block_is_clean_and_comes_back_from_the_file() {
    if !can_run() {
        return;
    }
    let scratch = Scratch::new("named-clean");
    stored(&scratch, 2 * MIB, 3);
    let space = scratch.space("dram:size=64MiB", "64KiB");
    let mut mapping = space.open_named("stored").unwrap();
    let words = mapping.view_mut::<u64>(..).unwrap();
    words.iter_mut().step_by(PAGE / 8).for_each(|word| *word = !*word);
    mapping.sync(..MIB).unwrap();
    let is_right = |mapping: &Mapping| {
        let words = mapping.view::<u64>(..).unwrap();
        let wanted = |index: u64| if index.is_multiple_of(512) { !((index + 1) * 3) } else { (index + 1) * 3 };
        words.iter().zip(0..).all(|(word, index)| *word == wanted(index))
    };
    for _ in 0..3 {
        evict_all(&mapping);
        assert!(is_right(&mapping));
    }
    let written = space.statistics().written_back_bytes;
    assert!(written <= MIB as u64, "{written} bytes: only the half that was not synced differs from the file");
    mapping.snapshot().unwrap();
    drop(mapping);
    assert!(is_right(&space.open_named("stored").unwrap()));
}

/// Set in the process that the next test kills: its directory.
const CHILD: &str = "AQUIFER_TEST_NAMED_CHILD";
const CHILD_BYTES: usize = 3 * MIB;

/// Writes one number to every page and syncs, over and over. Says each number that is durable.
fn count_up(scratch: &std::path::Path) {
    let space = aquifer::Space::builder().dram("16MiB").tier("dram:size=16MiB").named_in(scratch).open().unwrap();
    let mut mapping = space.map_named("counter", CHILD_BYTES).unwrap();
    let mut number = mapping.view::<u64>(..8).unwrap()[0];
    loop {
        number += 1;
        mapping.view_mut::<u64>(..).unwrap().iter_mut().step_by(PAGE / 8).for_each(|word| *word = number);
        mapping.snapshot().unwrap();
        println!("durable {number}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_process_that_is_killed_leaves_a_whole_snapshot() {
    if !can_run() {
        return;
    }
    if let Some(scratch) = std::env::var_os(CHILD) {
        return count_up(scratch.as_ref());
    }
    let scratch = Scratch::new("named-killed");
    for turn in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_is_killed_leaves_a_whole_snapshot", "--nocapture"])
            .env(CHILD, &scratch.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut durable = 0;
        for _ in 0..2 + turn {
            let said = lines.by_ref().map_while(Result::ok);
            let mut numbers = said.filter_map(|line| line.rsplit_once("durable ")?.1.parse().ok());
            durable = numbers.next().expect("it goes on until it is killed");
        }
        std::thread::sleep(std::time::Duration::from_millis(3 * turn));
        child.kill().unwrap();
        child.wait().unwrap();
        let space = scratch.space("dram:size=16MiB", "auto");
        let mapping = space.open_named("counter").unwrap();
        let words = mapping.view::<u64>(..).unwrap();
        let first: u64 = words[0];
        assert!(first >= durable, "{first} is older than {durable}, which was durable");
        assert!(words.iter().step_by(PAGE / 8).all(|word| *word == first), "turn {turn}: a mixture");
    }
}
