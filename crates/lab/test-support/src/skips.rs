// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Records which tests were skipped, and why, in the file that `AQUIFER_TEST_SKIPS` names, one line each.
//!
//! | column | what |
//! |---|---|
//! | 1 | `whole`, or `part` where the rest of the test ran |
//! | 2 | the test binary |
//! | 3 | the test |
//! | 4 | the reason |
//!
//! Columns are separated by tabs. `crates/xtask/src/skips.rs` parses the file.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file.
pub const SKIPS_VARIABLE: &str = "AQUIFER_TEST_SKIPS";

/// Reports that this test cannot run here. The caller then returns.
pub fn skip(why: impl Display) {
    record("whole", &test(), &why.to_string());
}

/// Reports that a part of this test cannot run here. The caller continues with the rest.
pub fn skip_part(part: impl Display, why: impl Display) {
    record("part", &format!("{} ({part})", test()), &why.to_string());
}

/// The name of the current test: the test harness names each test's thread after it.
fn test() -> String {
    std::thread::current().name().unwrap_or("a thread without a name").to_owned()
}

fn record(kind: &str, test: &str, why: &str) {
    let why = why.replace(['\n', '\t'], " ");
    println!("skipped: {test}: {why}");
    let Some(file) = std::env::var_os(SKIPS_VARIABLE) else { return };
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_stem()?.to_str()).unwrap_or("?");
    // Removes the hash that Cargo appends.
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    let line = format!("{kind}\t{program}\t{test}\t{why}\n");
    let written = OpenOptions::new().create(true).append(true).open(&file);
    // A skip that is missing from the list would go unnoticed, which this list is there to prevent.
    written.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests can be written");
}
