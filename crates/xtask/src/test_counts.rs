// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the output of test programs: counts tests that passed, failed and were ignored, names those that failed, and
//! adds up how long each program took. Pure.

use crate::skips::Skip;

/// Number of slowest binaries to show.
const SLOWEST: usize = 10;

/// The counts so far.
#[derive(Debug, Default)]
pub struct TestCounts {
    /// Tests that passed according to the harness, including those that skipped themselves.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests with `#[ignore]`.
    pub ignored: Vec<Skip>,
    binary: String,
    seconds: Vec<(f64, String)>,
}

/// The tests that failed, from the list at the end of a test program's output.
pub fn failed_tests(output: &str) -> Vec<String> {
    let list = output.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

/// The tests that had run for over a minute and had not ended when the program was killed.
pub fn unfinished_tests(output: &str) -> Vec<&str> {
    let slow = |line| str::strip_prefix(line, "test ")?.split_once(" has been running for over ");
    let is_open = |name: &&str| !output.lines().any(|line| line.starts_with(&format!("test {name} ... ")));
    output.lines().filter_map(slow).map(|(name, _)| name).filter(is_open).collect()
}

/// What a failed test printed.
pub fn printed_by<'a>(output: &'a str, test: &str) -> &'a str {
    let head = format!("\n---- {test} stdout ----\n");
    let text = output.split_once(&head).map_or("", |(_, text)| text);
    text.split("\n---- ").next().unwrap_or(text)
}

impl TestCounts {
    /// Parses one line of output.
    pub fn take(&mut self, line: &str) {
        let trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("Running ").filter(|rest| rest.ends_with(')')) {
            // `Running tests/pins.rs (target/debug/deps/pins-0123456789abcdef)`
            let path = rest.rsplit_once('(').map_or("", |(_, path)| path.trim_end_matches(')'));
            let name = path.rsplit('/').next().unwrap_or(path);
            self.binary = name.rsplit_once('-').map_or(name, |(name, _)| name).to_owned();
        } else if let Some(name) = trimmed.strip_prefix("Doc-tests ") {
            self.binary = format!("{name} (documentation)");
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.end(result);
        } else if let Some((test, why)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ignored")) {
            let why = why.trim_start_matches(", ");
            let reason = if why.is_empty() { "ignored".to_owned() } else { format!("ignored: {why}") };
            let (binary, test) = (self.binary.clone(), test.to_owned());
            self.ignored.push(Skip { binary, test, reason, is_partial: false });
        }
    }

    /// `ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s`
    fn end(&mut self, result: &str) {
        let before = |word: &str| {
            let (left, _) = result.split_once(word)?;
            left.trim_end().rsplit(' ').next()?.parse::<usize>().ok()
        };
        self.passed += before(" passed").unwrap_or(0);
        self.failed += before(" failed").unwrap_or(0);
        let seconds = result.rsplit_once("finished in ").and_then(|(_, text)| text.trim_end_matches('s').parse().ok());
        self.seconds.push((seconds.unwrap_or(0.0), self.binary.clone()));
    }

    /// The slowest binaries, slowest first.
    pub fn slowest(&self) -> Vec<String> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(|(left, _), (right, _)| right.total_cmp(left));
        seconds.iter().take(SLOWEST).map(|(seconds, name)| format!("{seconds:8.1} s  {name}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "     Running unittests src/lib.rs (target/debug/deps/aquifer_core-0123456789abcdef)

running 3 tests
test a ... ok
test slow ... ignored, takes an hour
test b ... FAILED

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.25s

     Running tests/pins.rs (target/debug/deps/pins-fedcba9876543210)
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.50s
   Doc-tests aquifer_core
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn a_hung_program_names_its_unfinished_tests() {
        let output = "test a has been running for over 60 seconds\ntest a ... ok\n\
            test b has been running for over 60 seconds\ntest c ... ok\n";
        assert_eq!(unfinished_tests(output), ["b"]);
        assert!(unfinished_tests("test c ... ok\n").is_empty());
    }

    #[test]
    fn failed_tests_are_named_with_what_they_printed() {
        let output = "failures:\n\n---- a stdout ----\nno a\n\n---- b::c stdout ----\nno c\n\nfailures:\n    a\n    b::c\n\n\
                      test result: FAILED. 0 passed; 2 failed";
        assert_eq!(failed_tests(output), ["a", "b::c"]);
        assert_eq!(printed_by(output, "a").trim(), "no a");
        assert!(printed_by(output, "b::c").starts_with("no c"));
        assert!(failed_tests("test result: ok. 1 passed; 0 failed").is_empty());
    }

    #[test]
    fn results_of_all_binaries_are_added_and_the_slowest_named() {
        let mut counts = TestCounts::default();
        OUTPUT.lines().for_each(|line| counts.take(line));
        assert_eq!((counts.passed, counts.failed), (8, 1));
        let ignored = &counts.ignored[0];
        assert_eq!((ignored.binary.as_str(), ignored.test.as_str()), ("aquifer_core", "slow"));
        assert_eq!(ignored.reason, "ignored: takes an hour");
        assert_eq!(counts.slowest()[0], "    12.5 s  pins");
        assert_eq!(counts.slowest().len(), 3);
    }
}
