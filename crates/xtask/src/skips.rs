// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses which tests were skipped, and which reasons `.ci/skips` allows if the variable `CI` is set. Pure.
//!
//! Tests write the list of skips (`crates/lab/test-support/src/skips.rs`). `.ci/skips` has one reason per line, as the
//! tests give it (`*` stands for any text), followed by ` -- ` and why a CI machine may skip it.

use std::collections::BTreeSet;

/// A test that did not run, or ran only in part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    /// The test binary.
    pub binary: String,
    /// The test, with the skipped part in parentheses.
    pub test: String,
    /// The reason, as the test gave it.
    pub reason: String,
    /// Whether the rest of the test ran; the test then counts as passed.
    pub is_partial: bool,
}

/// Parses the list that the tests wrote, without duplicates.
pub fn read(text: &str) -> Result<BTreeSet<Skip>, String> {
    let skip = |line: &str| {
        let mut columns = line.split('\t').map(str::to_owned);
        let kind = columns.next()?;
        let skip = Skip {
            binary: columns.next()?,
            test: columns.next()?,
            reason: columns.next()?,
            is_partial: kind == "part",
        };
        (["whole", "part"].contains(&kind.as_str()) && columns.next().is_none()).then_some(skip)
    };
    text.lines().map(|line| skip(line).ok_or(format!("ci: '{line}' is not a skipped test"))).collect()
}

/// How many tests were skipped entirely. A test with two reasons counts once.
pub fn whole(skips: &BTreeSet<Skip>) -> usize {
    let tests: BTreeSet<_> =
        skips.iter().filter(|skip| !skip.is_partial).map(|skip| (&skip.binary, &skip.test)).collect();
    tests.len()
}

/// The allowed reasons.
pub struct Allowed(Vec<String>);

impl Allowed {
    /// Parses the list. An entry without a justification is an error.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entry = |line: &str| {
            let (reason, why) = line.split_once(" -- ").unwrap_or((line, ""));
            let is_complete = !reason.trim().is_empty() && !why.trim().is_empty();
            is_complete.then(|| reason.trim().to_owned()).ok_or(format!("ci: .ci/skips: '{line}' says no ' -- why'"))
        };
        lines.map(entry).collect::<Result<_, _>>().map(Self)
    }

    /// One complaint for each skip whose reason is not allowed.
    pub fn complaints(&self, skips: &BTreeSet<Skip>) -> Vec<String> {
        let is_allowed = |skip: &&Skip| self.0.iter().any(|pattern| matches(pattern, &skip.reason));
        let complaint = |skip: &Skip| {
            let Skip { binary, test, reason, .. } = skip;
            format!(
                "ci: {binary} {test} is skipped: {reason}; install what is missing in .ci/setup, or allow it in .ci/skips"
            )
        };
        skips.iter().filter(|skip| !is_allowed(skip)).map(complaint).collect()
    }
}

/// Whether a text matches the pattern, where `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((before, pattern)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(before) else { return false };
    (0..=text.len()).filter(|at| text.is_char_boundary(*at)).any(|at| matches(pattern, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips(reasons: &[&str]) -> BTreeSet<Skip> {
        let text: String =
            reasons.iter().enumerate().map(|(at, reason)| format!("whole\tpins\tt{at}\t{reason}\n")).collect();
        read(&text).expect("four columns")
    }

    #[test]
    fn skips_that_tests_write_are_read_once_each() {
        let text =
            "whole\tkernel\ta\tno root\nwhole\tkernel\ta\tno root\nwhole\tkernel\ta\tno cc\npart\tpins\tb (x)\tno x\n";
        let skips = read(text).expect("four columns");
        assert_eq!((skips.len(), whole(&skips)), (3, 1));
        for wrong in ["whole\tkernel\ta", "half\tkernel\ta\tb", "whole\ta\tb\tc\td"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reason_that_is_not_on_the_list_is_a_complaint() {
        let text = "# why\n\nthere is no * device -- CI has no hardware\nno root -- by hand\n";
        let allowed = Allowed::read(text).expect("each has a why");
        assert!(allowed.complaints(&skips(&["there is no RDMA device", "no root"])).is_empty());
        let complaints = allowed.complaints(&skips(&["no roots", "no root", "there is no device"]));
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[1].starts_with("ci: pins t2 is skipped: there is no device; "), "{complaints:?}");
    }

    #[test]
    fn an_entry_without_a_why_is_refused() {
        assert!(Allowed::read("no root\n").is_err());
        assert!(Allowed::read("no root -- \n").is_err());
    }

    #[test]
    fn a_star_is_any_text() {
        assert!(matches("a*b*", "a middle b end") && matches("*", "") && matches("über*", "überall"));
        assert!(!matches("a*b", "a b c") && !matches("a", "ab"));
    }
}
