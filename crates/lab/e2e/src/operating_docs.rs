// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Parses the documents in docs/operating into the shell and file snippets that a reader types, each with the machines
//! to type it on.
//!
//! A fence says how its snippet is tested:
//!
//! | after the fence | the snippet is |
//! |---|---|
//! | `sh on donor, donor2` | typed by root on each of these machines, in this order |
//! | `sh on donor or here` | the same; also valid where one machine plays all roles |
//! | `sh skip: WHY` | not run by any test |
//! | `ini PATH on donor`, `nft PATH on donor` | a file on these machines |
//! | `text` | output, or something else that is not typed |
//!
//! Some renderers hide the text after a fence, so the last line above the snippet also names machines and file
//! (`label`).

/// The documents, in the order in which a reader follows them.
const DOCUMENTS: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../../docs/operating/README.md")),
    ("setup.md", include_str!("../../../../docs/operating/setup.md")),
    ("drills.md", include_str!("../../../../docs/operating/drills.md")),
];

/// The machines of the documents, and their addresses there.
pub const MACHINES: [(&str, &str); 5] = [
    ("borrower", "10.0.0.1"),
    ("donor", "10.0.0.2"),
    ("donor2", "10.0.0.3"),
    ("donor3", "10.0.0.4"),
    ("authority", "10.0.0.9"),
];

/// Sizes in the documents, each with the size that the tests use instead.
const SIZES: [(&str, &str); 4] = [("64GiB", "256MiB"), ("32GiB", "128MiB"), ("16GiB", "64MiB"), ("4GiB", "16MiB")];

/// The kind of a snippet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnippetKind {
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

/// One snippet.
#[derive(Clone, Debug)]
pub struct Snippet {
    /// Its document and line, for messages.
    pub place: String,
    /// The heading above it.
    pub section: String,
    /// Its kind.
    pub kind: SnippetKind,
    /// The machines that it is for.
    pub machines: Vec<String>,
    /// Its contents.
    pub text: String,
}

/// All snippets, in order. Panics if a fence does not say how its snippet is tested.
#[must_use]
pub fn snippets() -> Vec<Snippet> {
    let mut snippets = Vec::new();
    for (document, text) in DOCUMENTS {
        let mut open: Option<Snippet> = None;
        let (mut section, mut above) = (String::new(), "");
        for (number, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(words), None) => {
                    let place = format!("{document}:{}", number + 1);
                    let (kind, machines) = fence(words);
                    let Some(kind) = kind else { panic!("{place}: '{words}' says nothing of how it is tested") };
                    if let Some(label) = label(&kind, &machines) {
                        assert_eq!(above, label, "{place}: nobody sees for which machine this snippet is");
                    }
                    open = Some(Snippet { place, section: section.clone(), kind, machines, text: String::new() });
                }
                (Some(_), Some(_)) => snippets.extend(open.take()),
                (None, Some(snippet)) => snippet.text += &format!("{line}\n"),
                (None, None) => {
                    above = if line.is_empty() { above } else { line };
                    if let Some(heading) = line.strip_prefix("## ") {
                        section = heading.to_owned();
                    }
                }
            }
        }
        assert!(open.is_none(), "{document}: a snippet does not end");
    }
    snippets
}

/// Replaces the sizes of the documents by those of the tests.
#[must_use]
pub fn smaller(text: &str) -> String {
    SIZES.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// The line above a snippet that says on which machines it is typed, or which file it is.
fn label(kind: &SnippetKind, machines: &[String]) -> Option<String> {
    let machines = machines.join(", ");
    match kind {
        SnippetKind::File(path) => Some(format!("The file `{path}` on **{machines}**:")),
        SnippetKind::Script { or_here: false } => Some(format!("On **{machines}**:")),
        SnippetKind::Script { or_here: true } => {
            Some(format!("On **{machines}**, or on the one machine that is all of them:"))
        }
        SnippetKind::Skipped(_) | SnippetKind::Text => None,
    }
}

/// Parses the text after a fence. Other texts have no kind.
fn fence(words: &str) -> (Option<SnippetKind>, Vec<String>) {
    if words == "text" {
        return (Some(SnippetKind::Text), Vec::new());
    }
    if let Some(why) = words.strip_prefix("sh skip: ") {
        return (Some(SnippetKind::Skipped(why.to_owned())), Vec::new());
    }
    let Some((what, place)) = words.split_once(" on ") else { return (None, Vec::new()) };
    let (names, or_here) = place.strip_suffix(" or here").map_or((place, false), |names| (names, true));
    let machines: Vec<String> = names.split(", ").map(str::to_owned).collect();
    let are_known = machines.iter().all(|name| MACHINES.iter().any(|(known, _)| known == name));
    let kind = match what.split_once(' ') {
        None if what == "sh" => Some(SnippetKind::Script { or_here }),
        Some(("ini" | "nft", path)) => Some(SnippetKind::File(path.to_owned())),
        _ => None,
    };
    (kind.filter(|_| are_known), machines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snippet_names_its_machines_and_file_where_a_renderer_shows_it() {
        assert!(snippets().len() > 20);
    }

    #[test]
    fn a_fence_says_what_where_and_by_whom() {
        let on = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            fence("sh on donor, donor2"),
            (Some(SnippetKind::Script { or_here: false }), on(&["donor", "donor2"]))
        );
        assert_eq!(fence("sh on borrower or here"), (Some(SnippetKind::Script { or_here: true }), on(&["borrower"])));
        assert_eq!(fence("ini /etc/x on donor"), (Some(SnippetKind::File("/etc/x".into())), on(&["donor"])));
        assert_eq!(fence("sh skip: a card"), (Some(SnippetKind::Skipped("a card".into())), Vec::new()));
        for nothing in ["sh", "sh run", "sh on moon", "c on donor", ""] {
            assert_eq!(fence(nothing).0, None, "{nothing}");
        }
    }
}
