// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Text for people: columns, and cells in which no control character reaches the terminal. Pure.

use aquifer_manager_client::plain;
use aquifer_terminal::{Output, Tone, toned_columns};

/// The title of the column whose words have tones.
const STATE: &str = "STATE";

/// Returns rows under their titles, in aligned columns, no wider than the output.
pub(crate) fn columns(titles: &[&str], rows: &[Vec<String>], output: &Output) -> String {
    let titles: Vec<String> = titles.iter().map(ToString::to_string).collect();
    let state = titles.iter().position(|title| title == STATE);
    let cells = rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect());
    let all: Vec<Vec<String>> = std::iter::once(titles).chain(cells).collect();
    let tone = |row: usize, column: usize| match row {
        0 => Tone::Title,
        _ if Some(column) == state => tone_of(&all[row][column]),
        _ => Tone::Plain,
    };
    toned_columns(&all, output, tone)
}

/// Returns the tone of the state of a resource or of a task, in Redfish's words.
pub(crate) fn tone_of(state: &str) -> Tone {
    match state {
        "Enabled" | "Completed" | "settled" => Tone::Good,
        "Absent" | "Disabled" | "Exception" | "Killed" | "UnavailableOffline" => Tone::Bad,
        _ => Tone::Notable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let rows = [vec!["d0000".into(), String::new()], vec!["d1".into(), "x".into()]];
        assert_eq!(columns(&["DONOR", "NOTE"], &rows, &Output::default()), "DONOR  NOTE\nd0000\nd1     x\n");
    }

    #[test]
    fn a_terminal_gets_colours_and_lines_that_fit() {
        let rows = [vec!["d0".into(), "Absent".into(), "a note of several words, which goes on below".into()]];
        let output = Output { width: Some(40), has_colour: true };
        let text = columns(&["DONOR", "STATE", "NOTE"], &rows, &output);
        assert!(text.contains("\u{1b}[1mSTATE\u{1b}[0m") && text.contains("\u{1b}[31mAbsent\u{1b}[0m"), "{text}");
        let plain = columns(&["DONOR", "STATE", "NOTE"], &rows, &Output { has_colour: false, ..output });
        assert!(plain.lines().count() > 2 && plain.lines().all(|line| line.len() <= 40), "{plain}");
    }
}
