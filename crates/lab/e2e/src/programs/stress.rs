// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! stress-ng: its memory stressors verify what they wrote. Each runs in its own process, forked before it allocates.

use std::path::Path;

use super::trial::{Trial, Verdict, installed, succeeded};
use crate::run::start;

/// The stressors. Left out: userfaultfd, which registers memory that is already registered, and vm-rw, which sometimes
/// ends with SIGSEGV (both: docs/programs.md); and bigheap, which grows until no memory is left.
const STRESSORS: [&[&str]; 10] = [
    &["--vm", "2", "--vm-bytes", "BYTES", "--vm-method", "all"],
    &["--mmap", "1", "--mmap-bytes", "BYTES"],
    &["--mremap", "1", "--mremap-bytes", "BYTES"],
    &["--memrate", "1", "--memrate-bytes", "BYTES"],
    &["--malloc", "1", "--malloc-bytes", "BYTES", "--malloc-max", "1000"],
    &["--stream", "1", "--stream-l3-size", "16M"],
    &["--remap", "1"],
    &["--madvise", "1"],
    &["--mlock", "1"],
    &["--brk", "1"],
];

/// Runs each stressor by itself, with a budget of 40 % of the size that it is given.
pub fn judge(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["stress-ng"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let bytes = trial.size(80 << 20, 1 << 30);
    let mut verdict = Verdict::Skipped("there are no stressors".to_owned());
    // The first one runs last and is reported: its memory is certain not to fit.
    for stressor in STRESSORS.iter().rev() {
        verdict = one(trial, &program, stressor, bytes)?;
    }
    Ok(verdict)
}

fn one(trial: &Trial, program: &Path, stressor: &[&str], bytes: u64) -> Result<Verdict, String> {
    let size = bytes.to_string();
    let mut words: Vec<&str> = stressor.iter().map(|word| if *word == "BYTES" { &size } else { *word }).collect();
    let seconds = trial.size(1, 30).to_string();
    words.extend(["--verify", "--timeout", &seconds]);
    let ended = start(trial.managed(bytes, program, &words)).wait(trial.limit());
    succeeded(&ended).map_err(|error| format!("{}: {error}", words.join(" ")))?;
    if let Some(line) = ended.stderr.lines().find(|line| line.contains("fail:")) {
        return Err(format!("{}: {line}", words.join(" ")));
    }
    if stressor[0] == "--vm" { trial.works(bytes) } else { Ok(Verdict::Works(String::new())) }
}
