// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the manual pages of the C library from the comments of its header, one for each call.
//!
//! A call's comment is right above its declaration. Its first sentence is the heading; paragraphs that begin with the
//! name of an error are the list of errors. Structs that the declaration names are shown as the header defines them.

use std::fs;
use std::path::Path;

/// The header, from the root of the repository.
const HEADER: &str = "crates/fronts/c/include/aquifer.h";

/// One call of the header.
#[derive(Debug, PartialEq, Eq)]
struct Call<'h> {
    name: &'h str,
    declaration: &'h str,
    paragraphs: Vec<String>,
}

/// Writes the pages into `directory`. Returns what is wrong.
pub fn write(root: &Path, directory: &Path) -> Vec<String> {
    let header = match fs::read_to_string(root.join(HEADER)) {
        Ok(header) => header,
        Err(error) => return vec![format!("man3: {HEADER} cannot be read: {error}")],
    };
    if let Err(error) = fs::create_dir_all(directory) {
        return vec![format!("man3: {} cannot be made: {error}", directory.display())];
    }
    let pages = pages(&header);
    let written = pages.iter().map(|(name, page)| (name, fs::write(directory.join(format!("{name}.3")), page)));
    written
        .filter_map(|(name, written)| written.err().map(|error| format!("man3: {name}.3 cannot be written: {error}")))
        .collect()
}

/// The pages of a header, with their names: an overview, and one for each call.
fn pages(header: &str) -> Vec<(String, String)> {
    let calls = calls(header);
    let mut pages = vec![("aquifer".to_owned(), overview(header, &calls))];
    pages.extend(calls.iter().map(|call| (call.name.to_owned(), page(header, call))));
    pages
}

/// The calls that a header declares, in its order.
fn calls(header: &str) -> Vec<Call<'_>> {
    let mut found = Vec::new();
    let mut rest = header;
    while let Some((_, after)) = rest.split_once("/*") {
        let Some((comment, after)) = after.split_once("*/") else { break };
        rest = after;
        let declaration = after.split_once(';').map_or("", |(declaration, _)| declaration).trim();
        let is_next = after.trim_start().starts_with(|letter: char| letter.is_ascii_lowercase());
        if is_next && let Some(name) = name_of(declaration) {
            found.push(Call { name, declaration, paragraphs: paragraphs(comment) });
        }
    }
    found
}

/// The name of the declared function.
fn name_of(declaration: &str) -> Option<&str> {
    let before = declaration.split_once('(')?.0;
    let start = before.rfind([' ', '*'])? + 1;
    Some(&before[start..]).filter(|name| name.starts_with("aquifer_") && !declaration.contains('{'))
}

/// The paragraphs of a comment, each in one line. The name of an error begins a paragraph.
fn paragraphs(comment: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_list = false;
    for line in comment.lines() {
        let line = line.trim().trim_start_matches('*').trim();
        let begins_error = line.starts_with("AQUIFER_ERR_") && !is_list;
        let last = paragraphs.last_mut().expect("there is one");
        if line.is_empty() || (begins_error && !last.is_empty()) {
            paragraphs.push(line.to_owned());
        } else {
            *last = format!("{last} {line}").trim().to_owned();
        }
        // A list of errors before the colon may go on in the next line.
        is_list = paragraphs.last().is_some_and(|last| last.starts_with("AQUIFER_ERR_") && !last.contains(':'));
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

fn overview(header: &str, calls: &[Call<'_>]) -> String {
    let mut page = head("aquifer", "far memory for C and C++ programs");
    page += ".SH SYNOPSIS\n.nf\n.B #include <aquifer.h>\n.fi\n.PP\nLink with \\fI\\-laquifer\\fR, or ask pkg\\-config(1).\n";
    page += ".SH DESCRIPTION\n";
    let about = header.split("/*").nth(1).and_then(|after| after.split_once("*/")).map_or("", |(about, _)| about);
    let about = paragraphs(about).into_iter().filter(|paragraph| !paragraph.contains("cargo xtask"));
    page += &about.map(|paragraph| format!(".PP\n{}\n", text(&paragraph))).collect::<String>();
    page += ".SH CALLS\n";
    for call in calls {
        page += &format!(".TP\n.BR {} (3)\n{}\n", call.name, text(&call.paragraphs[0]));
    }
    page += ".SH ERRORS\n";
    page += &definition(header, "enum aquifer_error").map(verbatim).unwrap_or_default();
    page
}

fn page(header: &str, call: &Call<'_>) -> String {
    let first = &call.paragraphs[0];
    let (heading, _) = first.split_once(". ").unwrap_or((first.trim_end_matches('.'), ""));
    let mut page = head(call.name, &lower_first(heading));
    page += ".SH SYNOPSIS\n.nf\n.B #include <aquifer.h>\n.PP\n";
    page += &call.declaration.lines().map(|line| format!(".B \"{}\"\n", escaped(line))).collect::<String>();
    page = page.trim_end_matches("\"\n").to_owned() + ";\"\n.fi\n";
    let is_error = |paragraph: &&String| paragraph.starts_with("AQUIFER_ERR_");
    page += ".SH DESCRIPTION\n";
    for paragraph in call.paragraphs.iter().filter(|paragraph| !is_error(paragraph)) {
        page += &format!(".PP\n{}\n", text(paragraph));
    }
    for kind in [
        "aquifer_options",
        "aquifer_limits",
        "aquifer_statistics",
        "aquifer_status_run",
        "aquifer_temperature_run",
        "aquifer_histogram",
        "aquifer_range",
        "aquifer_piece",
        "aquifer_context_options",
        "aquifer_contexts_report",
    ] {
        let named = format!("struct {kind}");
        if call.declaration.contains(&format!("{named} ")) {
            page += &definition(header, &named).map(verbatim).unwrap_or_default();
        }
    }
    if call.declaration.starts_with("int ") && call.name != "aquifer_error_errno" {
        page += ".SH RETURN VALUE\n0, or a positive number that is described above; on error, a negative number of enum \
                 aquifer_error, and \\fBaquifer_error_message\\fR(3) says the cause and the remedy.\n";
        page += &errors(call);
    }
    page + ".SH SEE ALSO\n.BR aquifer (3)\n"
}

/// The list of errors: those of the comment, and those of every call with a handle.
fn errors(call: &Call<'_>) -> String {
    let mut list: Vec<(&str, &str)> = call
        .paragraphs
        .iter()
        .filter(|one| one.starts_with("AQUIFER_ERR_"))
        .filter_map(|one| one.split_once(": "))
        .collect();
    let takes_handle = call.declaration.split_once('(').is_some_and(|(_, arguments)| {
        arguments.split_once(' ').is_some_and(|(first, _)| first.ends_with("_t") && first.starts_with("aquifer_"))
    });
    if takes_handle {
        list.push(("AQUIFER_ERR_HANDLE", "the handle is closed, or never was one."));
        if !list.iter().any(|(names, _)| names.contains("AQUIFER_ERR_FORKED")) {
            list.push(("AQUIFER_ERR_FORKED", "the handle belongs to the process that forked this one."));
        }
    }
    if list.is_empty() {
        return String::new();
    }
    let listed = list.iter().map(|(names, why)| format!(".TP\n.B {}\n{}\n", escaped(names), text(why)));
    ".SH ERRORS\n".to_owned() + &listed.collect::<String>()
}

/// The text of a definition in the header, from its keyword to its end.
fn definition<'h>(header: &'h str, what: &str) -> Option<&'h str> {
    let start = header.find(&format!("\n{what} {{"))? + 1;
    let len = header[start..].find("\n};")? + 3;
    Some(&header[start..start + len])
}

fn head(name: &str, heading: &str) -> String {
    let licence = ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Copyright the Aquifer authors\n";
    let title = format!(".TH {name} 3 \"\" \"Aquifer\" \"Library Functions Manual\"\n");
    format!("{licence}{title}.SH NAME\n{name} \\- {}\n.SH LIBRARY\nlibaquifer (\\fI\\-laquifer\\fR)\n", text(heading))
}

fn verbatim(code: &str) -> String {
    format!(".PP\n.nf\n{}\n.fi\n", code.lines().map(escaped).collect::<Vec<_>>().join("\n"))
}

/// Characters that mean something to roff, as themselves.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('"', "\\(dq");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

/// Running text: what is between backquotes is bold.
fn text(prose: &str) -> String {
    let parts = prose.split('`').enumerate();
    let marked =
        parts.map(|(index, part)| if index % 2 == 1 { format!("\\fB{part}\\fR") } else { escaped_prose(part) });
    let text: String = marked.collect();
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn escaped_prose(part: &str) -> String {
    part.replace('\\', "\\e")
}

fn lower_first(heading: &str) -> String {
    let mut letters = heading.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const OURS: &str = include_str!("../../fronts/c/include/aquifer.h");
    const VERSIONS: &str = include_str!("../../fronts/c/libaquifer.map");

    #[test]
    fn a_comment_becomes_a_page() {
        let header = "/*\n * Cuts -- things. More of it.\n *\n * AQUIFER_ERR_LOST,\n * AQUIFER_ERR_ENDED: gone.\n */\n\
                      int aquifer_cut(aquifer_space_t space,\n                char *into);\n";
        let calls = calls(header);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].paragraphs, ["Cuts -- things. More of it.", "AQUIFER_ERR_LOST, AQUIFER_ERR_ENDED: gone."]);
        let page = page(header, &calls[0]);
        for part in [
            "aquifer_cut \\- cuts -- things\n",
            ".B \"int aquifer_cut(aquifer_space_t space,\"\n",
            "char *into);\"\n",
            ".B AQUIFER_ERR_LOST, AQUIFER_ERR_ENDED\ngone.\n",
            ".B AQUIFER_ERR_HANDLE\n",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    /// With `tests/abi/symbols.rs` of the C library, which compares the versions with what the library exports.
    #[test]
    fn every_call_has_a_declaration_a_version_and_a_page_and_the_other_way_round() {
        let declared: BTreeSet<String> = calls(OURS).iter().map(|call| call.name.to_owned()).collect();
        let versioned = VERSIONS.lines().filter_map(|line| line.trim().strip_suffix(';'));
        let versioned: BTreeSet<String> =
            versioned.filter(|name| name.starts_with("aquifer_")).map(str::to_owned).collect();
        assert_eq!(declared, versioned);
        // Every name that is followed by a parenthesis is declared once.
        let mentioned = OURS.lines().filter(|line| !line.starts_with([' ', '#', '/']));
        let mentioned: BTreeSet<String> = mentioned.filter_map(name_of).map(str::to_owned).collect();
        assert_eq!(declared, mentioned, "a declaration has no comment");
        let pages: BTreeSet<String> = pages(OURS).into_iter().map(|(name, _)| name).collect();
        assert_eq!(pages, declared.into_iter().chain(["aquifer".to_owned()]).collect());
    }

    #[test]
    fn pages_name_errors_that_there_are_and_have_short_headings() {
        let errors = definition(OURS, "enum aquifer_error").unwrap();
        for call in calls(OURS) {
            for word in call
                .paragraphs
                .iter()
                .flat_map(|one| one.split(|letter: char| !letter.is_alphanumeric() && letter != '_'))
            {
                let is_known = !word.starts_with("AQUIFER_ERR_") || errors.contains(&format!("{word} ="));
                assert!(is_known, "{}: {word} is not an error", call.name);
            }
            let heading = call.paragraphs[0].split(". ").next().unwrap_or_default();
            assert!(heading.len() < 120, "{}: '{heading}' is long for a heading", call.name);
        }
    }

    #[test]
    fn structs_of_a_call_are_on_its_page() {
        let pages = pages(OURS);
        let page = &pages.iter().find(|(name, _)| name == "aquifer_open").unwrap().1;
        assert!(page.contains("struct aquifer_options {") && page.contains("tiers_count;"), "{page}");
        assert!(page.contains("\\fBwithout_system_calls\\fR, the thread") && page.contains("EFAULT"), "{page}");
        let overview = &pages[0].1;
        assert!(overview.contains(".BR aquifer_gather_poll (3)") && overview.contains("AQUIFER_ERR_NO_ANSWER"));
        assert!(overview.contains("Handles are numbers"), "{overview}");
    }
}
