// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A caller's space is recorded as a program's is, and an engine that receives the same calls makes the same decisions.
//!
//! The trouble it guards against: a question that only callers ask, such as whether a block has arrived, and that
//! changes what the engine answers later.

use std::path::{Path, PathBuf};

use aquifer::{Intent, Pattern, Space, contexts};
use aquifer_e2e::build::scratch;
use aquifer_e2e::run::replay;
use aquifer_test_support::skip;
use serde_json::Value;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

fn recorded_to(name: &str) -> Option<PathBuf> {
    if let Err(why) = aquifer::probe() {
        skip(why.to_string());
        return None;
    }
    Some(scratch(name).join("space.rec"))
}

fn space(tier: &str, block_size: &str, file: &Path) -> Space {
    let builder = Space::builder().dram("16MiB").tier(tier).block_size(block_size);
    builder.record(file.to_str().expect("UTF-8")).open().expect("it can be opened")
}

/// Replays, and expects the same decisions to the end.
#[track_caller]
fn same(file: &Path) {
    let ended = replay(file, &["--json"]);
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    let line: Value = serde_json::from_str(ended.stdout.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["same_decisions"], &line["closed"], &line["lost"]), (&true.into(), &true.into(), &0.into()));
    assert!(line["events"].as_u64() > Some(1_000), "{line}");
}

/// Contexts ask whether their memory has arrived, and wait; hints and threads come in between.
#[test]
fn contexts_hints_and_threads_are_replayed_with_the_same_decisions() {
    let Some(file) = recorded_to("recording-contexts") else { return };
    let space = space("emulated:cmm-h,size=64MiB", "4KiB", &file);
    let mut whole = space.map(24 * MIB).expect("it can be mapped");
    let words = whole.view_mut::<u64>(..).expect("aligned");
    words.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64 * 3);
    let mapping = &whole;
    mapping.pattern(.., Pattern::Random).expect("it is open");
    mapping.evict(12 * MIB..).expect("it is open");
    let words = mapping.view::<u64>(..).expect("aligned");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for start in (0..12 * MIB).step_by(MIB) {
                mapping.prefetch(start..start + 16 * PAGE, Intent::Read).expect("it is open");
                assert!(words[start / 8..(start + 16 * PAGE) / 8].iter().step_by(64).all(|word| word % 3 == 0));
                mapping.stream(start..start + MIB / 2).expect("it is open");
            }
        });
        let lookups = (0..3000_usize).map(|key| async move {
            let index = key.wrapping_mul(2_654_435_761) % words.len();
            if !mapping.ready(index * 8..index * 8 + 8) {
                mapping.fetch(index * 8..index * 8 + 8).await.expect("the tier is good");
            }
            assert_eq!(words[index], index as u64 * 3);
        });
        assert_eq!(contexts::run(&space, lookups).contexts, 3000);
    });
    let mut page = [0; PAGE];
    for at in (0..24 * MIB).step_by(37 * PAGE) {
        mapping.read_in_place(at, &mut page).expect("the tier is good");
    }
    assert!(!mapping.status(..).expect("it is open").is_empty());
    drop(whole);
    space.close().expect("its threads end");
    same(&file);
}

#[test]
fn two_spaces_have_a_recording_each_and_a_failing_tier_is_in_it() {
    let Some(first) = recorded_to("recording-two") else { return };
    let second = first.with_file_name("other.rec");
    for (file, tier) in [(&first, "dram:size=64MiB"), (&second, "failing:every=200,on=read:dram:size=64MiB")] {
        let space = space(tier, "auto", file);
        let mut mapping = space.map(40 * MIB).expect("it can be mapped");
        mapping.view_mut::<u64>(..).expect("aligned").iter_mut().step_by(512).for_each(|word| *word = 7);
        std::thread::scope(|scope| {
            for thread in 0..2_usize {
                let mapping = &mapping;
                scope.spawn(move || {
                    let mut bytes = [7; 300];
                    for at in (thread * 20 * MIB..(thread + 1) * 20 * MIB).step_by(3 * PAGE) {
                        // A tier that fails has lost memory, and says so.
                        let _ = mapping.read(at, &mut bytes);
                        let _ = mapping.read_in_place(at, &mut bytes);
                    }
                });
            }
        });
        drop(mapping);
        space.close().expect("its threads end");
    }
    same(&first);
    same(&second);
}

/// Writes in place, and a named mapping: fetched from its file, changed, synced and evicted.
#[test]
fn writes_in_place_and_named_mappings_are_replayed_with_the_same_decisions() {
    let Some(file) = recorded_to("recording-named") else { return };
    let directory = file.with_file_name("named");
    std::fs::create_dir_all(&directory).expect("a directory can be made");
    for recording in [&file.with_file_name("first.rec"), &file] {
        let builder = Space::builder().dram("16MiB").tier("dram:size=64MiB").named_in(&directory);
        let space = builder.record(recording.to_str().expect("UTF-8")).open().expect("it can be opened");
        let mut named = space.map_named("words", 20 * MIB).expect("it can be opened");
        let mut plain = space.map(20 * MIB).expect("it can be mapped");
        for mapping in [&mut named, &mut plain] {
            let words = mapping.view_mut::<u64>(..18 * MIB).expect("aligned");
            words.iter_mut().step_by(300).enumerate().for_each(|(index, word)| *word += index as u64 + 1);
            for at in (0..20 * MIB).step_by(11 * PAGE) {
                let bytes = [0; 40];
                mapping.write_in_place(at, if at % 2 == 0 { &bytes } else { &[7; 40] }).expect("the tier is good");
            }
            mapping.discard(2 * MIB..3 * MIB).expect("it is open");
        }
        named.sync(..10 * MIB).expect("there is room");
        named.evict(..).expect("it is open");
        assert!(named.view::<u64>(..).expect("aligned").iter().step_by(512).count() > 0);
        named.snapshot().expect("there is room");
        drop((named, plain));
        space.close().expect("its threads end");
        same(recording);
    }
}
