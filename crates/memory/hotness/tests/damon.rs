// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! DAMON as a source of hotness, from its files.

use aquifer_hotness::{Addresses, DamonSource, HotRange, HotnessFailure, HotnessSource};
use aquifer_nodes::Fixture;

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Two threads: one that moves cold pages, and one that counts, with these regions: start, end, accesses.
fn machine(regions: &[(&str, &str, &str)]) -> Fixture {
    let mut tree = Fixture::new().with(&format!("{DAMON}/nr_kdamonds"), "2");
    for (number, action) in [(0, "migrate_cold"), (1, "stat")] {
        let schemes = format!("{DAMON}/{number}/contexts/0/schemes");
        tree = tree
            .with(&format!("{DAMON}/{number}/state"), "on")
            .with(&format!("{schemes}/nr_schemes"), "1")
            .with(&format!("{schemes}/0/action"), action)
            .with(&format!("{schemes}/0/tried_regions/total_bytes"), "0");
    }
    for (index, (start, end, accesses)) in regions.iter().enumerate() {
        let region = format!("{DAMON}/1/contexts/0/schemes/0/tried_regions/{index}");
        tree = tree
            .with(&format!("{region}/start"), start)
            .with(&format!("{region}/end"), end)
            .with(&format!("{region}/nr_accesses"), accesses);
    }
    tree
}

#[test]
fn the_regions_of_the_scheme_that_counts_are_read_the_hottest_first() {
    let tree = machine(&[("4096", "8192", "3"), ("1048576", "2097152", "20"), ("8192", "12288", "0")]);
    let mut source = DamonSource::new(&tree);
    source.start().unwrap();
    let hot = source.collect().unwrap();
    let range = |start, bytes, accesses| HotRange { start, bytes, accesses, is_saturated: false };
    assert_eq!(hot.ranges, [range(1 << 20, 1 << 20, 20), range(4096, 4096, 3)]);
    assert_eq!((hot.has_lost, source.addresses()), (false, Addresses::Host));
    source.stop().unwrap();
    let written: Vec<String> = tree.written().iter().map(ToString::to_string).collect();
    assert_eq!(
        written,
        ["update_schemes_tried_regions", "clear_schemes_tried_regions"]
            .map(|command| format!("echo {command} > {DAMON}/1/state")),
        "the thread itself goes on"
    );
}

#[test]
fn without_a_scheme_that_counts_the_command_that_makes_one_is_named() {
    for tree in [
        Fixture::new(),
        machine(&[]).with(&format!("{DAMON}/1/state"), "off"),
        machine(&[]).with(&format!("{DAMON}/1/contexts/0/schemes/0/action"), "pageout"),
    ] {
        let failure = DamonSource::new(&tree).start().unwrap_err();
        assert!(matches!(failure, HotnessFailure::DamonOff), "{failure}");
        assert!(failure.to_string().contains("tiering apply --damon on"));
        assert!(DamonSource::new(&tree).collect().is_err());
    }
    let tree = machine(&[]).failing_after(0);
    let mut source = DamonSource::new(&tree);
    source.start().unwrap();
    assert!(matches!(source.collect(), Err(HotnessFailure::DamonCommand(_))));
}

#[test]
fn regions_that_no_kernel_writes_are_left_out() {
    let tree = machine(&[
        ("8192", "4096", "1"),
        ("4096", "4096", "1"),
        ("x", "8192", "1"),
        ("0", "18446744073709551615", "18446744073709551615"),
        ("0", "4096", "-1"),
        ("0", "4096", ""),
    ]);
    let mut source = DamonSource::new(&tree);
    source.start().unwrap();
    assert_eq!(source.collect().unwrap().ranges.len(), 1);
}
