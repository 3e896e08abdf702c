// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Text for people: columns, and cells in which no control character reaches the terminal. Pure.

/// Spaces between two columns.
const GAP: usize = 2;

/// A text as one line, with what could steer a terminal escaped.
pub(crate) fn plain(text: &str) -> String {
    let is_plain = |one: char| {
        !one.is_control() && !matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut out = String::with_capacity(text.len());
    for one in text.chars() {
        if is_plain(one) {
            out.push(one);
        } else {
            out.extend(one.escape_default());
        }
    }
    out
}

/// Rows under their titles, in columns that are as wide as they must be.
pub(crate) fn columns(titles: &[&str], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = titles.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let all = || std::iter::once(&titles).chain(&rows);
    let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0) + GAP;
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for row in all() {
        let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let rows = [vec!["d0000".into(), String::new()], vec!["d1".into(), "x".into()]];
        assert_eq!(columns(&["DONOR", "NOTE"], &rows), "DONOR  NOTE\nd0000\nd1     x\n");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(plain("a\u{1b}[2J\n\u{202e}\u{9b}\u{e4}"), "a\\u{1b}[2J\\n\\u{202e}\\u{9b}\u{e4}");
    }
}
