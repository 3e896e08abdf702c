// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks that every `aquifer` command line in the documentation parses: those in code fences of README.md,
//! SECURITY.md, CONTRIBUTING.md and docs/**/*.md.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use crate::args::Cli;

/// The minimum number of command lines that must be found. Fewer would mean that the search is broken.
const COMMANDS_MIN: usize = 30;

fn pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

/// Splits a line into words, up to the first shell syntax: a pipe, a redirection, a comment, or the next command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '<' | '>' | '&' | ';' | ')') => break,
            (None, '#') if word.is_none() => break,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// Returns the command lines in a page's shell fences, with their line numbers.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let (mut found, mut is_shell, mut whole) = (Vec::new(), false, String::new());
    for (number, line) in text.lines().enumerate() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            let language = fence.split_whitespace().next().unwrap_or("");
            is_shell = !is_shell && ["sh", "console", "bash"].contains(&language);
            continue;
        }
        if !is_shell {
            continue;
        }
        let line = line.trim_start_matches("$ ");
        if let Some(begun) = line.strip_suffix('\\') {
            whole += begun;
            continue;
        }
        whole += line;
        let words = words(&std::mem::take(&mut whole));
        // Skips variable assignments and commands such as `sudo` before the command itself.
        let before = |word: &&String| word.contains('=') || ["sudo", "exec", "time"].contains(&word.as_str());
        let skipped = words.iter().take_while(before).count();
        if words.get(skipped).is_some_and(|word| word == "aquifer" || word.ends_with("/aquifer")) {
            found.push((number + 1, words[skipped..].to_vec()));
        }
    }
    found
}

#[test]
fn every_command_line_of_the_documents_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut files = vec![root.join("README.md"), root.join("SECURITY.md"), root.join("CONTRIBUTING.md")];
    pages(&root.join("docs"), &mut files);
    let (mut checked, mut complaints) = (0, Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (line, words) in commands(&text) {
            checked += 1;
            match Cli::command().try_get_matches_from(&words) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
                Err(error) => {
                    let said = error.to_string();
                    let why = said.lines().next().unwrap_or("");
                    complaints.push(format!("{}:{line}: {}: {why}", file.display(), words.join(" ")));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(checked >= COMMANDS_MIN, "only {checked} were found");
}

/// Reads the golden file of `crates/pool/console/tests/acts.test.ts`: each command that the console offers to copy.
#[test]
fn every_command_that_the_console_offers_parses() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pool/console/tests/golden/commands.txt");
    let text = fs::read_to_string(&file).unwrap();
    for line in text.lines() {
        let parsed = Cli::command().try_get_matches_from(words(line));
        assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
    }
    assert!(text.lines().count() >= COMMANDS_MIN / 2, "only {} were found", text.lines().count());
}

#[test]
fn commands_are_found_in_fences_of_shell_alone() {
    let text = "```sh\nA=1 sudo aquifer run --dram '1 GiB' \\\n  -- ls | aquifer\nls\n```\naquifer no\n```text\naquifer no\n```\n";
    assert_eq!(commands(text), [(3, ["aquifer", "run", "--dram", "1 GiB", "--", "ls"].map(String::from).to_vec())]);
}
