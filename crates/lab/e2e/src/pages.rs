// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the documents in docs/operating into the code blocks that a reader types, each with the machines to type it
//! on.
//!
//! A fence says how its block is tested:
//!
//! | after the fence | the block is |
//! |---|---|
//! | `sh on donor, donor2` | typed by root on each of these machines, in this order |
//! | `sh on donor or here` | the same; also valid where one machine plays all roles |
//! | `sh skip: WHY` | not run by any test |
//! | `ini PATH on donor`, `nft PATH on donor` | a file on these machines |
//! | `text` | output, or something else that is not typed |
//!
//! Some renderers hide the text after a fence, so the last line above the block also names machines and file
//! (`label`).

/// The pages, in the order in which a reader follows them.
const PAGES: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../../docs/operating/README.md")),
    ("setup.md", include_str!("../../../../docs/operating/setup.md")),
    ("drills.md", include_str!("../../../../docs/operating/drills.md")),
];

/// The machines of the pages, and their addresses there.
pub const MACHINES: [(&str, &str); 5] = [
    ("borrower", "10.0.0.1"),
    ("donor", "10.0.0.2"),
    ("donor2", "10.0.0.3"),
    ("donor3", "10.0.0.4"),
    ("authority", "10.0.0.9"),
];

/// Sizes in the pages, each with the size that the tests use instead.
const SIZES: [(&str, &str); 4] = [("64GiB", "256MiB"), ("32GiB", "128MiB"), ("16GiB", "64MiB"), ("4GiB", "16MiB")];

/// The kind of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, with its path.
    File(String),
    /// Commands.
    Script {
        /// Whether they are also valid on one machine that plays all roles.
        or_here: bool,
    },
    /// Commands that no test runs, and why.
    Skipped(String),
    /// Text that is not typed.
    Text,
}

/// One block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its page and line, for messages.
    pub place: String,
    /// The heading above it.
    pub section: String,
    /// Its kind.
    pub kind: Kind,
    /// The machines that it is for.
    pub machines: Vec<String>,
    /// Its contents.
    pub text: String,
}

/// All blocks, in order. Panics if a fence does not say how its block is tested.
#[must_use]
pub fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (page, text) in PAGES {
        let mut open: Option<Block> = None;
        let (mut section, mut above) = (String::new(), "");
        for (number, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(words), None) => {
                    let place = format!("{page}:{}", number + 1);
                    let (kind, machines) = fence(words);
                    let Some(kind) = kind else { panic!("{place}: '{words}' says nothing of how it is tested") };
                    if let Some(label) = label(&kind, &machines) {
                        assert_eq!(above, label, "{place}: nobody sees for which machine this block is");
                    }
                    open = Some(Block { place, section: section.clone(), kind, machines, text: String::new() });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => {
                    above = if line.is_empty() { above } else { line };
                    if let Some(heading) = line.strip_prefix("## ") {
                        section = heading.to_owned();
                    }
                }
            }
        }
        assert!(open.is_none(), "{page}: a block does not end");
    }
    blocks
}

/// Replaces the sizes of the pages by those of the tests.
#[must_use]
pub fn smaller(text: &str) -> String {
    SIZES.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// The line above a block that says on which machines it is typed, or which file it is.
fn label(kind: &Kind, machines: &[String]) -> Option<String> {
    let machines = machines.join(", ");
    match kind {
        Kind::File(path) => Some(format!("The file `{path}` on **{machines}**:")),
        Kind::Script { or_here: false } => Some(format!("On **{machines}**:")),
        Kind::Script { or_here: true } => {
            Some(format!("On **{machines}**, or on the one machine that is all of them:"))
        }
        Kind::Skipped(_) | Kind::Text => None,
    }
}

/// Parses the text after a fence. No kind if it is none of those above.
fn fence(words: &str) -> (Option<Kind>, Vec<String>) {
    if words == "text" {
        return (Some(Kind::Text), Vec::new());
    }
    if let Some(why) = words.strip_prefix("sh skip: ") {
        return (Some(Kind::Skipped(why.to_owned())), Vec::new());
    }
    let Some((what, place)) = words.split_once(" on ") else { return (None, Vec::new()) };
    let (names, or_here) = place.strip_suffix(" or here").map_or((place, false), |names| (names, true));
    let machines: Vec<String> = names.split(", ").map(str::to_owned).collect();
    let are_known = machines.iter().all(|name| MACHINES.iter().any(|(known, _)| known == name));
    let kind = match what.split_once(' ') {
        None if what == "sh" => Some(Kind::Script { or_here }),
        Some(("ini" | "nft", path)) => Some(Kind::File(path.to_owned())),
        _ => None,
    };
    (kind.filter(|_| are_known), machines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_names_its_machines_and_file_where_a_renderer_shows_it() {
        assert!(blocks().len() > 20);
    }

    #[test]
    fn a_fence_says_what_where_and_by_whom() {
        let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(fence("sh on donor, donor2"), (Some(Kind::Script { or_here: false }), on(&["donor", "donor2"])));
        assert_eq!(fence("sh on borrower or here"), (Some(Kind::Script { or_here: true }), on(&["borrower"])));
        assert_eq!(fence("ini /etc/x on donor"), (Some(Kind::File("/etc/x".into())), on(&["donor"])));
        assert_eq!(fence("sh skip: a card"), (Some(Kind::Skipped("a card".into())), Vec::new()));
        for nothing in ["sh", "sh run", "sh on moon", "c on donor", ""] {
            assert_eq!(fence(nothing).0, None, "{nothing}");
        }
    }
}
