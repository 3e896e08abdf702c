// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compares the licences of all dependencies with the list in deny.toml.
//!
//! `cargo deny check` does this and more, but takes longer to build than this whole workspace. This check reads the
//! same list, so that CI notices a new licence wherever it runs.

use std::fs;
use std::path::Path;

use crate::crate_graph::{self, Outsider};

/// Returns a complaint for each crate that may not be used.
pub fn check(root: &Path) -> Vec<String> {
    let list = match fs::read_to_string(root.join("deny.toml")) {
        Ok(list) => list,
        Err(error) => return vec![format!("licences: deny.toml cannot be read: {error}")],
    };
    let allowed = allowed(&list);
    match crate_graph::metadata(root, true) {
        Ok(metadata) => crate_graph::outsiders(&metadata).iter().filter_map(|one| complaint(one, &allowed)).collect(),
        Err(error) => vec![format!("licences: {error}")],
    }
}

/// The strings of `allow = [ ... ]` in the section `[licenses]`.
fn allowed(list: &str) -> Vec<&str> {
    let section = list.split_once("[licenses]").map_or("", |(_, rest)| rest);
    let array =
        section.split_once("allow = [").and_then(|(_, rest)| rest.split_once("\n]")).map_or("", |(array, _)| array);
    let code = array.lines().map(|line| line.split('#').next().unwrap_or_default());
    code.flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

fn complaint(outsider: &Outsider, allowed: &[&str]) -> Option<String> {
    let Outsider { name, version, licence } = outsider;
    match licence {
        None => Some(format!("licences: {name} {version} does not say its licence")),
        Some(expression) if satisfied(expression, allowed) => None,
        Some(expression) => {
            Some(format!("licences: {name} {version} is under {expression}, which deny.toml does not allow"))
        }
    }
}

/// Whether an SPDX expression can be met with the licences `allowed`. AND binds tighter than OR; an old
/// `/` between names means OR.
fn satisfied(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    either(&words, &mut at, allowed) && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = either(words, at, allowed);
        *at += 1;
        return met;
    }
    let mut licence = (*word).to_owned();
    if words.get(*at) == Some(&"WITH") {
        licence = format!("{licence} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&licence.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_as_spdx_means_them() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        for met in
            ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Unicode-3.0", "GPL-3.0 AND X OR MIT"]
        {
            assert!(satisfied(met, &allowed), "{met}");
        }
        for unmet in
            ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 WITH LLVM-exception", "", "MIT MIT", "(MIT OR X) AND GPL-3.0"]
        {
            assert!(!satisfied(unmet, &allowed), "{unmet}");
        }
        assert!(satisfied("Apache-2.0 WITH LLVM-exception", &["Apache-2.0 WITH LLVM-exception"]));
    }

    #[test]
    fn the_list_is_found_among_comments_and_other_sections() {
        let list =
            "[bans]\nallow = [\"no\"]\n[licenses]\n# why\nallow = [\n    \"MIT\", # short\n    \"Apache-2.0\",\n]\n";
        assert_eq!(allowed(list), ["MIT", "Apache-2.0"]);
    }

    #[test]
    fn a_crate_without_a_licence_is_reported() {
        let silent = Outsider { name: "x".into(), version: "1.0.0".into(), licence: None };
        assert!(complaint(&silent, &["MIT"]).is_some());
    }
}
