// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Each example runs at a small size, finds its result right, and prints its figures without hints and with them.
//!
//! `cargo test -p aquifer` builds the examples before the tests, and `cargo test -p aquifer --test examples` does not.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use common::can_run;

/// Returns an example, which Cargo has built beside this program.
fn built(example: &str) -> PathBuf {
    let itself = std::env::current_exe().expect("a test is a program");
    let directory = itself.ancestors().nth(2).expect("it is in `deps` of the target directory");
    let program = directory.join("examples").join(example);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(format!("{example}.rs"));
    let changed = |file: &Path| file.metadata().and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let is_fresh = changed(&program) > changed(&source);
    assert!(is_fresh, "{} is not built from its source: cargo build -p aquifer --examples", program.display());
    program
}

/// Runs an example. Each of `lines` begins a line of its output, which has a figure.
#[track_caller]
fn prints(example: &str, arguments: &[&str], lines: &[&str]) {
    if !can_run() {
        return;
    }
    let output = Command::new(built(example)).args(arguments).output().expect("it can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{example}: {}\n{out}{err}", output.status);
    for line in lines {
        let figures = out
            .lines()
            .filter_map(|printed| printed.strip_prefix(line))
            .any(|rest| rest.split_whitespace().any(|word| word.parse::<f64>().is_ok_and(f64::is_finite)));
        assert!(figures, "{example} has no figure for '{line}':\n{out}");
    }
}

#[test]
fn key_value() {
    let ways = ["loads ", "loads, pattern announced ", "prefetch ahead ", "contexts ", "reads in place "];
    prints("key_value", &["emulated:cmm-h,size=512MiB", "2"], &ways);
}

#[test]
fn hash_join() {
    prints("hash_join", &["emulated:nvme-gen4,size=256MiB", "1000"], &["loads ", "prefetch ahead "]);
}

#[test]
fn graph_lookahead() {
    prints("graph_lookahead", &["emulated:nvme-gen4,size=256MiB", "1000"], &["loads ", "lookahead "]);
}

#[test]
fn external_sort() {
    prints("external_sort", &["emulated:nvme-gen4,size=256MiB", "24"], &["loads ", "with hints "]);
}

#[test]
fn context_cost() {
    let costs = ["check of a page", "switch from one context", "lookup of a scattered word by a load:", "the same by"];
    prints("context_cost", &[], &costs);
}
