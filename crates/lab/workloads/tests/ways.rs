// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every workload in every way, at a small size: it verifies what it reads, prints what the bench needs, and has read
//! far memory unless it ran in DRAM. Figures are not judged.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aquifer_test_support::skip;
use serde_json::Value;

/// The last is how the bench asks for its contender `own-faults`.
const WAYS: [&str; 6] = ["dram", "blocking", "hints", "contexts", "in-place", "blocking --without-system-calls"];

fn workload(words: &str) -> Output {
    let words = words.split(' ');
    Command::new(env!("CARGO_BIN_EXE_aquifer-workloads")).args(words).output().expect("it was built")
}

fn result(words: &str) -> Value {
    let output = workload(words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
}

fn can_run() -> bool {
    let probed = aquifer::probe();
    probed.inspect_err(|why| skip(why.to_string())).is_ok()
}

/// Runs a workload in each way, over as much DRAM as the smallest budget and the workload's own memory need.
fn every_way(words: &str, dram_bytes: u64, tier: &str) {
    for way in WAYS {
        let memory = if way == "dram" { String::new() } else { format!(" --dram {dram_bytes} --tier {tier}") };
        let line = result(&format!("{words} --way {way}{memory}"));
        assert_eq!(line["verified"], true, "{way}: {line}");
        assert!(line["figure"]["value"].as_f64().is_some_and(|value| value > 0.0), "{line}");
        assert!(line["reads"].as_u64() > Some(0) && line["cpu_us_per_read"].as_f64() > Some(0.0), "{line}");
        let is_far = line["far_reads"].as_u64() > Some(0);
        assert_eq!(is_far, way != "dram", "{way}: {line}");
        // A page that is read in place is fetched only when it is read again.
        let fetches = !matches!(way, "dram" | "contexts" | "in-place");
        assert!(line["fetched_bytes"].as_u64() > Some(0) || !fetches, "{way}: {line}");
        assert_eq!(line["cpu_us_per_far_read"].is_number(), is_far, "{line}");
    }
}

#[test]
fn items_are_read_and_verified_in_every_way() {
    if !can_run() {
        return;
    }
    for workload in ["kv", "lookup", "gather"] {
        let words = format!("{workload} --bytes 40MiB --seconds 0.1 --warmup 0.1");
        every_way(&words, 20 << 20, "emulated:xl-flash-slc,size=64MiB");
        let output = workload_output(&format!("{workload} --bytes 40MiB --footprint"));
        let footprint: u64 = output.trim().parse().expect("a number");
        assert!((40 << 20..44 << 20).contains(&footprint), "{footprint}");
    }
}

#[test]
fn a_hot_set_beside_a_scan_is_read_with_hints_and_without() {
    if !can_run() {
        return;
    }
    for way in ["blocking", "hints"] {
        let words = format!("hints --bytes 64MiB --seconds 0.3 --warmup 0.1 --way {way} --dram 16MiB");
        let line = result(&format!("{words} --tier emulated:xl-flash-slc,size=96MiB"));
        assert_eq!(line["verified"], true, "{line}");
        assert!(line["figure"]["value"].as_f64() > Some(0.0), "{line}");
        let kinds: Vec<&Value> =
            line["figure"]["beside"].as_array().expect("a list").iter().map(|kind| &kind["hints"]).collect();
        let expected = if way == "hints" { &["stream", "evict"][..] } else { &["nothing"] };
        assert_eq!(kinds, expected, "{line}");
        assert!(line["far_reads"].as_u64() > Some(0) && line["fetched_bytes"].as_u64() > Some(0), "{line}");
    }
}

#[test]
fn items_of_a_file_are_read_and_verified() {
    let directory = directory("file");
    for workload in ["kv", "lookup", "gather"] {
        let file = directory.join(workload);
        let words = format!("{workload} --bytes 4MiB --seconds 0.1 --warmup 0.1 --file {}", file.display());
        let line = result(&words);
        assert_eq!((&line["verified"], &line["way"]), (&true.into(), &"mmap-file".into()), "{line}");
        assert!(line["figure"]["value"].as_f64() > Some(0.0), "{line}");
        assert_eq!(std::fs::metadata(&file).expect("it was made").len(), 4 << 20);
    }
    std::fs::remove_dir_all(directory).expect("it is there");
}

#[test]
fn reads_with_touches_sampled_are_compared_with_those_without() {
    if !can_run() {
        return;
    }
    let line =
        result("kv --bytes 40MiB --seconds 1 --warmup 0.1 --curve --way blocking --dram 30MiB --tier dram:size=64MiB");
    assert_eq!((&line["verified"], &line["figure"]["name"]), (&true.into(), &"sampled over not".into()), "{line}");
    assert!(line["figure"]["value"].as_f64() > Some(0.0) && line["figure"]["samples"].is_u64(), "{line}");
}

fn workload_output(words: &str) -> String {
    String::from_utf8(workload(words).stdout).expect("text")
}

/// A torus of this many rows and columns, each vertex with its neighbours in four directions, as a graph file.
fn torus(path: &Path, side: u64) {
    let (vertices, degree) = (side * side, 16);
    let mut bytes = vec![0; 4096];
    bytes[..8].copy_from_slice(b"CSRGRAPH");
    for (index, number) in [1, vertices, vertices * degree].into_iter().enumerate() {
        bytes[8 + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
    }
    (0..=vertices).for_each(|vertex| bytes.extend_from_slice(&(vertex * degree).to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    for vertex in 0..vertices {
        let (row, column) = (vertex / side, vertex % side);
        for step in 1..=degree / 4 {
            for (row, column) in [
                ((row + step) % side, column),
                ((row + side - step) % side, column),
                (row, (column + step) % side),
                (row, (column + side - step) % side),
            ] {
                bytes.extend_from_slice(&((row * side + column) as u32).to_le_bytes());
            }
        }
    }
    std::fs::write(path, bytes).expect("it can be written");
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("aquifer-workloads-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("it can be made");
    directory
}

#[test]
fn a_graph_is_searched_and_verified_in_every_way() {
    if !can_run() {
        return;
    }
    let directory = directory("bfs");
    let path = directory.join("torus.graph");
    torus(&path, 700);
    let words = format!("bfs-hints --graph {} --trials 1", path.display());
    // 31 MB of neighbours, and 10 MB of ordinary memory.
    every_way(&words, 27 << 20, "emulated:xl-flash-slc,size=64MiB");
    std::fs::remove_dir_all(directory).expect("it is there");
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let directory = directory("refused");
    let (not_a_graph, damaged) = (directory.join("not"), directory.join("damaged"));
    std::fs::write(&not_a_graph, vec![7; 8192]).expect("it can be written");
    torus(&damaged, 20);
    let mut bytes = std::fs::read(&damaged).expect("it was written");
    let last = bytes.len() - 1;
    bytes[last] = 0xff;
    std::fs::write(&damaged, bytes).expect("it can be written");
    for (words, why) in [
        ("kv --curve".to_owned(), "memory in DRAM or in a file has no hints"),
        ("lookup --file /nowhere/items".to_owned(), "the file /nowhere/items cannot be written"),
        ("kv --way contexts".to_owned(), "--way contexts needs --dram SIZE"),
        ("hints --way dram".to_owned(), "use --way hints or --way blocking"),
        ("hints --bytes 4096 --way hints".to_owned(), "use 100 pages or more"),
        ("kv --way contexts --dram 64MiB".to_owned(), "--way contexts needs --tier SPEC"),
        ("lookup --bytes 100".to_owned(), "--bytes 100 does not fit"),
        ("kv --bytes 32MiB --way hints --dram 4MiB --tier dram:".to_owned(), "below 16 MiB"),
        (format!("bfs-hints --graph {}", not_a_graph.display()), "is not a graph; make one"),
        (format!("bfs-hints --graph {}", damaged.display()), "is damaged; make it again"),
        ("bfs-hints --graph /nowhere/graph".to_owned(), "cannot be read"),
    ] {
        let output = workload(&words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(why) && error.lines().count() == 1, "{words}: {error}");
    }
    std::fs::remove_dir_all(directory).expect("it is there");
}
