// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks what no compiler checks: licence lines, file names, lengths, unfinished work, banned words.
//!
//! Reads files on disk, including uncommitted ones, but nothing below `target`, `node_modules` or a hidden directory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a line of Rust code, in characters. rustfmt enforces it except for comments and strings. Lines
/// with strings are exempt, because they cannot always be broken, and so are rows of tables.
const LINE_MAX: usize = 120;
/// Maximum number of lines of a Rust file. A longer file contains two ideas.
const FILE_LINES_MAX: usize = 800;
/// File names that do not say what the file holds.
const BANNED_STEMS: &[&str] = &["common", "helper", "helpers", "lib2", "manager", "misc", "shared", "util", "utils"];
/// Names from other projects that contain a banned word: QEMU's objects, a type of `plotters`, redb's storage.
const FOREIGN_NAMES: &[&str] = &["SVGBackend", "StorageBackend", "create_with_backend", "memory-backend"];
/// Meaningless endings of type names.
const BANNED_ENDINGS: &[&str] = &["Helper", "Info", "Manager", "Misc", "Util", "Utils"];
/// Banned words, each with the project's term; see docs/glossary.md. Only words that have no other meaning here. They
/// are also banned as parts of identifiers.
const BANNED_WORDS: &[(&str, &str)] = &[
    ("anew", "again"),
    ("backend", "tier"),
    ("blame", "report corruption"),
    ("cradle", "child setup"),
    ("dock", "bounce buffer"),
    ("farewell", "exit report"),
    ("fix up", "resolve"),
    ("foretold", "announced"),
    ("gift", "passed descriptors"),
    ("heir", "forked child"),
    ("hollow", "unbacked"),
    ("in-core", "resident"),
    ("knock", "connect or probe"),
    ("mend", "repair"),
    ("mended", "repaired"),
    ("paged in", "fetched"),
    ("paged out", "evicted or written back"),
    ("patience", "timeout"),
    ("quarry", "huge frames"),
    ("re-miss", "refault"),
    ("relatives", "related processes"),
    ("spill", "write back"),
    ("standing", "status, progress or availability"),
    ("tallies", "counters or counts"),
    ("tally", "counter or count"),
    ("thrash", "refault"),
    ("thrashing", "refaults"),
    ("whoever", "anyone who"),
];
/// Banned identifiers whose words are ordinary English elsewhere, each with this project's term.
const BANNED_IDENTIFIERS: &[(&str, &str)] = &[
    ("Bell", "Wakeup"),
    ("Books", "State"),
    ("Care", "Repair"),
    ("Holding", "CallPins"),
    ("LeftAlone", "AddressRanges"),
    ("Seat", "Permit"),
    ("Told", "Call, Notice or Notified"),
    ("is_distrusted", "is_quarantined"),
    ("is_heir", "is_forked_child"),
    ("members_distrusted", "members_quarantined"),
    ("mended_blocks", "repaired_blocks"),
    ("needs_tending", "needs_upkeep"),
    ("put_told", "put_call"),
    ("take_filled", "take_backed"),
    ("take_hollow", "take_unbacked"),
    ("worker_bell", "worker_wakeup"),
];
/// Ends of identifiers for a limit, each with the one that this project uses.
const BANNED_BOUNDS: &[(&str, &str)] = &[("_least", "_min"), ("_most", "_max"), ("_LEAST", "_MIN"), ("_MOST", "_MAX")];
/// Ends of identifiers that compare, which are allowed.
const COMPARISONS: &[&str] = &["at_least", "at_most"];
/// The two files that contain banned words in order to ban them.
const WORD_LISTS: &[&str] = &["crates/xtask/src/tidy.rs", "docs/glossary.md"];

/// Returns a complaint for each violation in the repository.
pub fn check(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in files(root, &["rs", "cpp", "hpp", "c", "h", "py", "sh", "md", "toml", "ts", "tsx", "css"]) {
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        match fs::read_to_string(&path) {
            Ok(text) => complaints.extend(complaints_about(&name, &text)),
            Err(error) => complaints.push(format!("tidy: {name}: cannot be read: {error}")),
        }
    }
    for script in ["Makefile", "bench/workloads/Makefile", ".ci/run", ".ci/setup"] {
        let text = fs::read_to_string(root.join(script)).unwrap_or_default();
        complaints.extend(licence(script, &text).map(|what| format!("tidy: {script}: {what}")));
    }
    complaints.sort();
    complaints
}

/// All files below `directory` with one of these extensions, in alphabetical order.
pub fn files(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && !["node_modules", "target"].contains(&name.as_ref()) {
                found.extend(files(&path, extensions));
            }
        } else if path.extension().and_then(OsStr::to_str).is_some_and(|extension| extensions.contains(&extension)) {
            found.push(path);
        }
    }
    found
}

/// The violations in one file.
fn complaints_about(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: String| complaints.push(format!("tidy: {name}:{line}: {what}"));
    let path = Path::new(name);
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let is_rust = extension == "rs";
    let is_mod = name.contains("/src/") && name.ends_with("/mod.rs");
    if is_mod {
        complain(1, "a module with parts is 'name.rs' beside 'name/'; move this file there".into());
    }
    if extension != "md" && extension != "toml" {
        if BANNED_STEMS.contains(&stem) {
            complain(1, format!("'{stem}' does not say what the file holds; name the idea"));
        }
        if let Some(what) = licence(name, text) {
            complain(1, what);
        }
    }
    if is_rust && text.lines().count() > FILE_LINES_MAX {
        complain(FILE_LINES_MAX, format!("more than {FILE_LINES_MAX} lines; two ideas live here"));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        complain(text.lines().count(), "no newline at the end".into());
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if is_rust && line.chars().count() > LINE_MAX && !line.contains(['"', '|']) {
            complain(number, format!("longer than {LINE_MAX} characters"));
        }
        if WORD_LISTS.contains(&name) || extension == "toml" {
            continue;
        }
        if is_rust && let Some(what) = type_name(line) {
            complain(number, what);
        }
        unfinished(line)
            .into_iter()
            .chain(words(line))
            .chain(identifiers(line))
            .for_each(|what| complain(number, what));
    }
    complaints
}

/// Checks the two licence lines, which follow a `#!` line if there is one.
fn licence(name: &str, text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| line.starts_with("#!/"));
    let bare = |line: Option<&str>| line.unwrap_or_default().trim_matches(['/', '*', '#', ' ']).to_owned();
    let (first, second) = (bare(lines.next()), bare(lines.next()));
    let found = first == "SPDX-License-Identifier: Apache-2.0" && second == "Copyright the Aquifer authors";
    (!found).then(|| format!("{} does not begin with the two licence lines", name.rsplit('/').next().unwrap_or(name)))
}

/// Work postponed without an issue number.
fn unfinished(line: &str) -> Option<String> {
    if has_word(line, "FIXME") || has_word(line, "XXX") {
        return Some("fix it before it comes here".into());
    }
    let (_, after) = line.split_once("TODO").filter(|_| has_word(line, "TODO"))?;
    let after = after.trim_start_matches(['(', ':', ' ']);
    let numbered = after.strip_prefix('#').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    (!numbered).then(|| "TODO needs the number of an issue: TODO(#12)".into())
}

fn words(line: &str) -> Vec<String> {
    let line = &FOREIGN_NAMES.iter().fold(line.to_owned(), |line, name| line.replace(name, ""));
    let lower = line.to_lowercase();
    let parts: Vec<String> = line.split(|one: char| !one.is_alphanumeric() && one != '_').flat_map(parts).collect();
    let is_said = |word: &str| has_word(&lower, word) || parts.iter().any(|part| part == word);
    let said = BANNED_WORDS.iter().filter(|(word, _)| is_said(word));
    said.map(|(word, ours)| format!("we say '{ours}', not '{word}'")).collect()
}

/// The words of an identifier in snake_case or CamelCase, in lower case and without digits: 'HTTPBackend2' is 'http'
/// and 'backend'.
fn parts(identifier: &str) -> Vec<String> {
    let characters: Vec<char> = identifier.chars().collect();
    let mut parts = vec![String::new()];
    for (at, one) in characters.iter().enumerate() {
        let is_after_small = at > 0 && !characters[at - 1].is_uppercase();
        let is_before_small = characters.get(at + 1).is_some_and(|next| next.is_lowercase());
        if !one.is_alphabetic() || one.is_uppercase() && (is_after_small || is_before_small) {
            parts.push(String::new());
        }
        if one.is_alphabetic() {
            parts.last_mut().expect("there is always a part").extend(one.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Banned identifiers, and names of limits that end as this project's do not.
fn identifiers(line: &str) -> Vec<String> {
    let tokens = line.split(|character: char| !character.is_alphanumeric() && character != '_');
    let term = |token: &str| {
        let exact = BANNED_IDENTIFIERS.iter().find(|(name, _)| *name == token).map(|(_, term)| (*term).to_owned());
        let is_bound = !COMPARISONS.iter().any(|end| token.ends_with(end));
        let mut ends = BANNED_BOUNDS.iter().filter(|_| is_bound);
        exact.or_else(|| ends.find_map(|(end, ours)| Some(format!("{}{ours}", token.strip_suffix(end)?))))
    };
    tokens.filter_map(|token| Some(format!("we call it '{}', not '{token}'", term(token)?))).collect()
}

/// Whether `word` is in `line` with no letter, digit or underscore next to it.
fn has_word(line: &str, word: &str) -> bool {
    let joins = |character: Option<char>| character.is_some_and(|one| one.is_alphanumeric() || one == '_');
    line.match_indices(word)
        .any(|(at, _)| !joins(line[..at].chars().next_back()) && !joins(line[at + word.len()..].chars().next()))
}

fn type_name(line: &str) -> Option<String> {
    let mut tokens = line.split(|character: char| !character.is_alphanumeric() && character != '_');
    tokens.by_ref().find(|token| matches!(*token, "struct" | "enum" | "trait" | "fn"))?;
    let name = tokens.find(|token| !token.is_empty())?;
    if name.starts_with("get_") && !line.contains("extern") {
        return Some(format!("{name}: leave out 'get_'"));
    }
    let ending = BANNED_ENDINGS.iter().find(|ending| name.ends_with(**ending))?;
    Some(format!("{name}: '{ending}' does not say what it is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "// SPDX-License-Identifier: Apache-2.0\n// Copyright the Aquifer authors\n";

    fn about(name: &str, code: &str) -> Vec<String> {
        complaints_about(name, &format!("{HEAD}{code}\n"))
    }

    #[test]
    fn a_tidy_file_has_nothing_to_complain_about() {
        assert!(
            about("crates/x/src/ring.rs", "//! This file is fine.\nfn fetch() {} // TODO(#12): the rest").is_empty()
        );
    }

    #[test]
    fn licence_lines_are_the_first_two() {
        assert_eq!(complaints_about("a/ring.rs", "fn f() {}\n").len(), 1);
        let script = "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n# Copyright the Aquifer authors\n";
        assert!(complaints_about("a/run.sh", script).is_empty());
        let style = "/* SPDX-License-Identifier: Apache-2.0 */\n/* Copyright the Aquifer authors */\n";
        assert!(complaints_about("a/page.css", style).is_empty());
    }

    #[test]
    fn names_that_say_nothing_are_reported() {
        assert_eq!(about("crates/x/src/utils.rs", "").len(), 1);
        assert_eq!(about("crates/x/src/ring/mod.rs", "").len(), 1);
        assert!(about("crates/x/tests/ring/mod.rs", "").is_empty());
        assert_eq!(about("crates/x/src/a.rs", "pub struct PageManager;").len(), 1);
        assert_eq!(about("crates/x/src/a.rs", "    pub fn get_page() {}").len(), 1);
        assert!(about("crates/x/src/a.rs", "pub struct Lease; // Helper").is_empty());
    }

    #[test]
    fn lengths_are_reported_for_rust_alone() {
        let long = format!("// {}", "x".repeat(120));
        assert_eq!(about("a/ring.rs", &long).len(), 1);
        assert!(about("a/ring.hpp", &long).is_empty());
        assert_eq!(about("a/ring.rs", &"// x\n".repeat(800)).len(), 1);
    }

    #[test]
    fn unfinished_work_carries_a_number() {
        assert_eq!(about("a/ring.rs", "// TODO: the rest").len(), 1);
        assert_eq!(about("a/ring.rs", "// FIXME").len(), 1);
        assert!(about("a/ring.rs", "// TODO #7").is_empty());
    }

    #[test]
    fn bounds_and_identifiers_have_one_name() {
        assert_eq!(about("a/ring.rs", "const WAIT_MOST: u32 = 1; let count_least = 2;").len(), 2);
        assert_eq!(about("a/ring.hpp", "static const int WAIT_MOST = 1;").len(), 1);
        assert_eq!(
            about("a/ring.rs", "struct Told; // Quarry")[1],
            "tidy: a/ring.rs:3: we call it 'Call, Notice or Notified', not 'Told'"
        );
        assert!(
            about("a/ring.rs", "fn at_most() {} fn is_at_least() {} // The most is told, and the least.").is_empty()
        );
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(about("a/ring.rs", "// Each backend, and thrash.").len(), 2);
        assert!(about("a/ring.rs", "// -object memory-backend-ram,share=off").is_empty());
        assert_eq!(about("a/ring.rs", "// -object memory-backend-ram is a backend").len(), 1);
        assert!(about("a/ring.rs", "// Amended spillways.").is_empty());
    }

    #[test]
    fn parts_of_identifiers_are_words() {
        for name in
            ["my_backend", "MyBackend", "BackendOfMine", "BACKEND_MAX", "HTTPBackend", "backend2_of", "_backend"]
        {
            assert_eq!(about("a/ring.rs", &format!("let {name} = 1;")).len(), 1, "{name}");
        }
        for name in ["SVGBackend", "heirloom_of", "docked", "Mendable", "re_mission"] {
            assert!(about("a/ring.rs", &format!("let {name} = 1;")).is_empty(), "{name}");
        }
    }
}
