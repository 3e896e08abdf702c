// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the walks in ARCHITECTURE.md, which list the files that a fault, an eviction and so on pass through, in
//! order. A step names a file below `crates/` and a function. The file must define the function, and an earlier file of
//! the walk must contain its name, as a call does.

use std::fs;
use std::path::Path;

const DOCUMENT: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Walks";

/// One walk: its title, and its steps.
#[derive(Debug, PartialEq, Eq)]
struct Walk {
    title: String,
    steps: Vec<Step>,
}

#[derive(Debug, PartialEq, Eq)]
struct Step {
    file: String,
    function: String,
}

/// Returns the steps that do not match the code.
pub fn check(root: &Path) -> Vec<String> {
    let document = fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    let walks = parse(&document);
    if walks.is_empty() {
        return vec![format!("arch: {DOCUMENT} has no walks below `{HEADING}`")];
    }
    let read = |file: &str| fs::read_to_string(root.join("crates").join(file)).ok();
    walks.iter().flat_map(|walk| compare(walk, &read)).collect()
}

/// Reads the walks: a line that begins with `**` is a title, and a numbered line a step.
fn parse(document: &str) -> Vec<Walk> {
    let mut walks: Vec<Walk> = Vec::new();
    let lines = document.lines().skip_while(|line| *line != HEADING).skip(1);
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        if line.starts_with("**") {
            walks.push(Walk { title: line.trim_matches('*').to_owned(), steps: Vec::new() });
            continue;
        }
        let is_step = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let mut quoted = line.split('`').skip(1).step_by(2);
        if let (true, Some(walk), Some(file), Some(function)) =
            (is_step, walks.last_mut(), quoted.next(), quoted.next())
        {
            walk.steps.push(Step { file: file.to_owned(), function: function.to_owned() });
        }
    }
    walks
}

fn compare(walk: &Walk, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let (mut complaints, mut above) = (Vec::new(), String::new());
    for (index, Step { file, function }) in walk.steps.iter().enumerate() {
        let place = format!("arch: {DOCUMENT}, walk {:?}, step {}", walk.title, index + 1);
        let Some(source) = read(file) else {
            complaints.push(format!("{place}: there is no crates/{file}; correct the walk"));
            continue;
        };
        if !defines(&source, function) {
            complaints.push(format!("{place}: {file} has no function {function}; correct the walk"));
        }
        if index > 0 && !calls(&above, function) {
            complaints.push(format!("{place}: no earlier file of the walk calls {function}; correct the walk"));
        }
        above.push_str(&source);
    }
    complaints
}

fn defines(source: &str, function: &str) -> bool {
    let followed = |rest: &str| rest.starts_with(['(', '<']);
    source.split(&format!("fn {function}")).skip(1).any(followed)
}

/// Whether the source has the function's name as a word, other than where it is defined.
fn calls(source: &str, function: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    source.match_indices(function).any(|(at, _)| {
        let (before, after) = (&source[..at], &source[at + function.len()..]);
        !before.ends_with(is_word) && !before.ends_with("fn ") && !after.starts_with(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# A\n## Walks\nText.\n\n**A fault**\n\n1. `a.rs`: `take`\n2. `b.rs`: `fetch`, from flash\n\n## B\n1. `c.rs`: `x`\n";

    fn complaints(first: &str, second: &str) -> Vec<String> {
        let walks = parse(DOCUMENT);
        assert_eq!(walks.len(), 1);
        compare(&walks[0], &|file| match file {
            "a.rs" => Some(first.to_owned()),
            "b.rs" => Some(second.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_walk_that_matches_the_code_passes() {
        assert_eq!(complaints("fn take() { fetch(1) }", "pub fn fetch(what: u32) {}"), [""; 0]);
        assert_eq!(complaints("fn take<T>() { it.fetch(1) }", "fn fetch<T>(what: T) {}"), [""; 0]);
    }

    #[test]
    fn a_step_that_is_undefined_or_never_called_is_reported() {
        for (first, second, what) in [
            ("fn take() { prefetch(1) }", "fn fetch() {}", "step 2: no earlier file of the walk calls fetch"),
            ("fn take() { fetch(1) }", "fn fetch_all() {}", "step 2: b.rs has no function fetch"),
            ("fn took() { fetch(1) }", "fn fetch() {}", "step 1: a.rs has no function take"),
        ] {
            let found = complaints(first, second);
            assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
        }
        let gone = compare(&parse(DOCUMENT)[0], &|_| None);
        assert!(gone[0].contains("there is no crates/a.rs"), "{gone:?}");
    }
}
