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
    ] {
        let output = sim(words);
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end(), line, "{words:?}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{words:?}");
    }
    for (words, says) in [
        (&["--policy", "arc"][..], "'arc' is not a policy; choose one of"),
        (&["--workload", "x"], "'x' is not a workload; choose one of"),
        (&["--block", "5KiB"], "5KiB cannot be a block; choose a power of two from 4KiB to 2MiB, or auto"),
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
