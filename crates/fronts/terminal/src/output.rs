// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The width of standard output, and whether it shows colours.

use std::env;
use std::ffi::OsStr;
use std::io::IsTerminal;

use crate::table::terminal_width;

/// The output that a table goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The columns of the terminal. `None` for a file or a pipe, whose lines are as long as they must be.
    pub width: Option<usize>,
    /// Whether to colour text.
    pub has_colour: bool,
}

impl Output {
    /// Describes standard output. It has no colours if `NO_COLOR` is set (no-color.org), or if the terminal has none.
    pub fn of_stdout() -> Output {
        let set = |name: &str| env::var_os(name);
        let wants_colour = is_wanted(set("NO_COLOR").as_deref(), set("TERM").as_deref());
        Output { width: terminal_width(), has_colour: std::io::stdout().is_terminal() && wants_colour }
    }

    /// Returns the text in this tone, if the output shows colours.
    pub fn toned(&self, text: &str, tone: Tone) -> String {
        match tone.code().filter(|_| self.has_colour && !text.is_empty()) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }
}

fn is_wanted(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_some_and(|term| term != "dumb")
}

/// How a cell is emphasised. The cell's text says the same without emphasis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// The cell is not emphasised.
    #[default]
    Plain,
    /// The cell is the title of a column.
    Title,
    /// The cell says that something is healthy, or complete.
    Good,
    /// The cell says that something is in progress, or needs attention.
    Notable,
    /// The cell says that something has failed, or is missing.
    Bad,
}

impl Tone {
    /// Returns the parameter of SGR, ECMA-48 8.3.117.
    fn code(self) -> Option<u8> {
        match self {
            Tone::Plain => None,
            Tone::Title => Some(1),
            Tone::Good => Some(32),
            Tone::Notable => Some(33),
            Tone::Bad => Some(31),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_wanted_unless_somebody_says_no() {
        let wanted =
            |no_color: Option<&str>, term: Option<&str>| is_wanted(no_color.map(OsStr::new), term.map(OsStr::new));
        assert!(wanted(None, Some("xterm")) && wanted(Some(""), Some("xterm")));
        assert!(!wanted(Some("1"), Some("xterm")) && !wanted(None, Some("dumb")) && !wanted(None, None));
    }

    #[test]
    fn a_tone_is_put_around_text_only_where_it_shows() {
        let colour = Output { has_colour: true, width: None };
        assert_eq!(colour.toned("x", Tone::Bad), "\x1b[31mx\x1b[0m");
        assert_eq!(colour.toned("", Tone::Bad) + &colour.toned("x", Tone::Plain), "x");
        assert_eq!(Output::default().toned("x", Tone::Bad), "x");
    }
}
