// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs every test of the workspace, and lists at the end how many passed, failed and were skipped, and why.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::skips::{self, Allowed, Skip};
use crate::test_counts::TestCounts;

/// Names the file to which tests write that they were skipped; as in `crates/lab/test-support/src/skips.rs`.
const SKIPS_VARIABLE: &str = "AQUIFER_TEST_SKIPS";

/// The results to print at the end.
pub struct Summary {
    counts: TestCounts,
    skips: BTreeSet<Skip>,
}

/// Runs `command`, which is `cargo test`, and passes its output through. Returns the summary and the complaints,
/// including skips that the list `allowed` does not allow, if there is a list.
pub fn run(mut command: Command, file: &Path, allowed: Option<&str>) -> (Summary, Vec<String>) {
    let _ = fs::remove_file(file);
    let mut counts = TestCounts::default();
    let ended = (|| {
        // Cargo names a binary on standard error and the binary prints to standard output: one pipe for both keeps the
        // order.
        let (output, input) = io::pipe()?;
        command.env(SKIPS_VARIABLE, file).stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
        let mut child = command.spawn()?;
        drop(command);
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            counts.take(&line);
        }
        child.wait()
    })();
    let mut complaints = match ended {
        Ok(status) if status.success() => Vec::new(),
        Ok(status) => vec![format!("cargo test: {status}")],
        Err(error) => vec![format!("cargo test cannot be run: {error}")],
    };
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut found = skips::read(&text).unwrap_or_else(|complaint| {
        complaints.push(complaint);
        BTreeSet::new()
    });
    counts.passed = counts.passed.saturating_sub(skips::whole(&found));
    found.extend(counts.ignored.drain(..));
    if let Some(list) = allowed {
        match Allowed::read(list) {
            Ok(allowed) => complaints.extend(allowed.complaints(&found)),
            Err(complaint) => complaints.push(complaint),
        }
    }
    (Summary { counts, skips: found }, complaints)
}

impl Summary {
    /// The slowest binaries, every skipped test with its reason, and the counts.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec!["slowest test binaries:".to_owned()];
        lines.extend(self.counts.slowest());
        if !self.skips.is_empty() {
            lines.push("skipped:".to_owned());
        }
        let name = |skip: &Skip| format!("  {} {}: {}", skip.binary, skip.test, skip.reason);
        lines.extend(self.skips.iter().filter(|skip| !skip.is_partial).map(name));
        if self.skips.iter().any(|skip| skip.is_partial) {
            lines.push("skipped in part, and counted as passed:".to_owned());
        }
        lines.extend(self.skips.iter().filter(|skip| skip.is_partial).map(name));
        let TestCounts { passed, failed, .. } = self.counts;
        lines.push(format!("{passed} passed, {failed} failed, {} skipped", skips::whole(&self.skips)));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script in place of cargo.
    fn summary(name: &str, script: &str, allowed: Option<&str>) -> (Vec<String>, Vec<String>) {
        let file = std::env::temp_dir().join(format!("aquifer-xtask-{name}-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (summary, complaints) = run(command, &file, allowed);
        let _ = fs::remove_file(file);
        (summary.lines(), complaints)
    }

    #[test]
    fn a_skipped_test_is_listed_with_its_reason_and_not_counted_as_passed() {
        let script = "echo '     Running tests/pins.rs (target/debug/deps/pins-00)' >&2
            printf 'whole\\tpins\\ta\\tno io_uring\\npart\\tpins\\tb (one)\\tno huge pages\\n' >> \"$AQUIFER_TEST_SKIPS\"
            echo 'test c ... ignored, slow'
            echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.00s'";
        let (lines, complaints) = summary("listed", script, Some("no * -- not here\n"));
        let expected = [
            "slowest test binaries:",
            "     2.0 s  pins",
            "skipped:",
            "  pins a: no io_uring",
            "  pins c: ignored: slow",
            "skipped in part, and counted as passed:",
            "  pins b (one): no huge pages",
            "4 passed, 0 failed, 2 skipped",
        ];
        assert_eq!(lines, expected);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("pins c is skipped: ignored: slow"), "{complaints:?}");
    }

    #[test]
    fn a_binary_that_fails_without_a_result_is_a_complaint() {
        let (lines, complaints) = summary("failed", "exit 101", None);
        assert_eq!(lines.last().map(String::as_str), Some("0 passed, 0 failed, 0 skipped"));
        assert!(complaints[0].starts_with("cargo test: exit status: 101"), "{complaints:?}");
    }
}
