// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Formats plain text in columns, no wider than the terminal.

use std::io::IsTerminal;

use crate::output::{Output, Tone};

/// The width when there is no terminal to ask.
const WIDTH_USUAL: usize = 80;
/// The least width; on a narrower terminal, the terminal itself wraps the lines.
const WIDTH_MIN: usize = 40;
/// A column is not narrowed below this width.
const COLUMN_MIN: usize = 8;
const GAP: usize = 2;

/// Returns the maximum width of a line on standard output.
pub fn width() -> usize {
    terminal_width().unwrap_or(WIDTH_USUAL)
}

/// Returns the width of the terminal in columns, if standard output is a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = std::io::stdout().is_terminal().then(|| crossterm::terminal::size().ok()).flatten();
    size.map(|(columns, _)| usize::from(columns).max(WIDTH_MIN))
}

/// Formats rows as aligned columns. If they are wider than `width`, narrows the widest columns and wraps their cells
/// between words.
pub fn columns(rows: &[Vec<String>], width: usize) -> String {
    let output = Output { width: Some(width), has_colour: false };
    toned_columns(rows, &output, |_, _| Tone::Plain)
}

/// Works like [`columns`], for this output. `tone` says how the cell of a row and a column is emphasised.
pub fn toned_columns(rows: &[Vec<String>], output: &Output, tone: impl Fn(usize, usize) -> Tone) -> String {
    let widths = widths(rows, output.width.unwrap_or(usize::MAX));
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let lines = |(cell, width): (&String, &usize)| match cell.chars().count() <= *width {
            true => vec![cell.clone()],
            false => broken(cell, *width),
        };
        let cells: Vec<Vec<String>> = row.iter().zip(&widths).map(lines).collect();
        for line in 0..cells.iter().map(Vec::len).max().unwrap_or(1) {
            let mut whole = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let part = cell.get(line).map_or("", String::as_str);
                let padding = width.saturating_sub(part.chars().count()) + GAP;
                whole.push_str(&format!("{}{:padding$}", output.toned(part, tone(index, column)), ""));
            }
            text.push_str(whole.trim_end());
            text.push('\n');
        }
    }
    text
}

fn widths(rows: &[Vec<String>], width: usize) -> Vec<usize> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..count).map(widest).collect();
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * count.saturating_sub(1);
    while total(&widths) > width {
        let Some(widest) = widths.iter_mut().max() else { break };
        if *widest <= COLUMN_MIN {
            break;
        }
        *widest -= 1;
    }
    widths
}

/// Wraps `text` into lines of at most `width` characters, between words; splits words that are longer than a line.
pub fn broken(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = text.chars().take_while(|c| *c == ' ').count().min(width - 1);
    let (mut lines, mut line) = (Vec::new(), " ".repeat(indent));
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        loop {
            let begun = line.trim_start().is_empty();
            let used = line.chars().count();
            let room = width.saturating_sub(used + usize::from(!begun));
            if rest.len() <= room {
                line.push_str(if begun { "" } else { " " });
                line.extend(rest);
                break;
            }
            if begun {
                line.extend(rest.drain(..room.max(1)));
            }
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
    }
    lines.push(line);
    lines
}

/// Returns at most `width` characters of `text`; cut text ends with `~`.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}~")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let rows = [vec!["a".into(), "b".into()], vec!["long".into(), "c".into()], vec!["x".into()]];
        assert_eq!(columns(&rows, 80), "a     b\nlong  c\nx\n");
    }

    #[test]
    fn wide_columns_give_way_and_go_on_below() {
        let rows = [vec!["move".into(), "yes".into(), "one two three four five six".into()]];
        assert_eq!(columns(&rows, 26), "move  yes  one two three\n           four five six\n");
        for width in 20..60 {
            assert!(columns(&rows, width).lines().all(|line| line.chars().count() <= width.max(23)), "{width}");
        }
    }

    #[test]
    fn colours_take_no_room() {
        let rows = [vec!["a".into(), "bad".into(), "c".into()], vec!["long".into(), "x".into(), "d".into()]];
        let output = Output { width: Some(80), has_colour: true };
        let tone = |row, column| if (row, column) == (0, 1) { Tone::Bad } else { Tone::Plain };
        assert_eq!(toned_columns(&rows, &output, tone), "a     \x1b[31mbad\x1b[0m  c\nlong  x    d\n");
        let wide = [vec!["x".repeat(500)]];
        assert_eq!(toned_columns(&wide, &Output::default(), tone).lines().count(), 1, "a file has no width");
    }

    #[test]
    fn words_are_broken_where_they_must_be() {
        assert_eq!(broken("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(broken("  a b", 4), ["  a", "  b"]);
        assert_eq!(broken("", 4), [""]);
        assert_eq!((cut("abcdef", 4), cut("abc", 4)), ("abc~".into(), "abc".into()));
    }
}
