// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of the simulator: the response to bad input, and the guarantees for scripts.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_aquifer-sim")).args(words).output().expect("the simulator can be started")
}

#[test]
fn bad_input_gets_one_line_with_cause_and_remedy() {
    for (words, status, line) in [
        (
            &["--blocks", "100"][..],
            2,
            "aquifer-sim: 30 % of 100 blocks are 3.8MiB, and the pager takes at least 16MiB; \
             give more --blocks, or a larger --local",
        ),
        (
            &["replay", "x", "--dram", "1MiB"],
            2,
            "aquifer-sim: --dram 1MiB is below the pager's minimum; give at least 16MiB",
        ),
        (
            &["replay", "x", "--dram", "1TiB"],
            2,
            "aquifer-sim: --dram 1TiB is more than a budget can be; give at most 1023GiB",
        ),
        (
            &["replay", "/nowhere/x"],
            3,
            "aquifer-sim: /nowhere/x cannot be read: No such file or directory (os error 2); give a recording",
        ),
        (
            &["replay", "/proc/self/maps"],
            3,
            "aquifer-sim: /proc/self/maps: this is not a recording; give a file that 'aquifer run --record' has written",
        ),
        (
            &["--workload", "bc", "--scale", "20"],
            2,
            "aquifer-sim: a trace at --scale 20 may take 10 GiB of memory, and at most 4 are allowed; \
             give a smaller --scale",
        ),
        (
            &["bound", "--workload", "bc,bfs", "--read-us", "50", "--dram-us", "1000"],
            2,
            "aquifer-sim: --dram-us is the time of one program; name one --workload",
        ),
    ] {
        let output = sim(words);
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end(), line, "{words:?}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{words:?}");
    }
    for (words, says) in [
        (&["--policy", "arc"][..], "'arc' is not a policy; choose one of"),
        (&["--workload", "x"], "'x' is not a workload; choose one of"),
        (&["--block", "5KiB"], "5KiB cannot be a block; choose a power of two from 4KiB to 2MiB, or auto"),
        (&["--scale", "21"], "21 is not in 8..=20"),
        (&["bound", "--workload", "x"], "'x' has no bound; choose one of bc, bfs, pagerank, server, ycsb"),
        (&["bound", "--read-us", "50"], "--dram-us <US>"),
        (&["bound", "--scale", "21"], "21 is not in 8..=20"),
        (&["replay"], "required arguments were not provided"),
        (&["replay", "x", "--prefetch", "--no-prefetch"], "cannot be used with"),
    ] {
        let output = sim(words);
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{words:?}: {output:?}");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn the_table_is_json_for_scripts() {
    let words = ["--workload", "cyclic", "--local", "50", "--blocks", "600", "--json", "--prefetch", "--block", "auto"];
    let output = sim(&words);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 4, "a line for each policy");
    for line in &lines {
        for name in ["hit_ratio", "ready_ratio", "opt_hit_ratio"] {
            assert!(line[name].as_f64().is_some_and(|ratio| ratio <= 1.0), "{name}: {line}");
        }
        for name in ["visits", "faults", "fetched_pages", "read_ahead_pages", "written_back_pages", "prefetch_hits"] {
            assert!(line[name].is_u64(), "{name}: {line}");
        }
    }
    assert_eq!(lines[0]["policy"], "s3fifo");
}

#[test]
fn bounds_are_a_table_and_json_for_scripts() {
    let words = ["bound", "--workload", "bc", "--scale", "10", "--local", "30,50"];
    let table = String::from_utf8(sim(&words).stdout).expect("UTF-8");
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("bc           30%  source ")), "{table}");
    let times = ["--read-us", "50", "--dram-us", "1000", "--threads", "2", "--json"];
    let output = sim(&[&words[..], &times].concat());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    for (line, local) in lines.iter().zip([30, 50]) {
        let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert_eq!(number("least_us"), 1000.0 + number("misses_per_unit") * 50.0 / 2.0);
        assert_eq!((&line["workload"], &line["unit"]), (&Value::from("bc"), &Value::from("source")));
        assert_eq!((line["local_percent"].as_u64(), line["units"].as_u64()), (Some(local), Some(8)));
        assert!(number("misses_per_unit") > 0.0 && number("pages") > 0.0);
    }
}
