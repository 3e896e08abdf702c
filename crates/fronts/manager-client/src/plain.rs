// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes text from outside safe to print: one line that cannot control a terminal. Pure.

/// Returns a text as one line, with every character that could control a terminal escaped.
pub fn plain(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(plain("a\u{1b}[2J\n\u{202e}\u{9b}\u{e4}"), "a\\u{1b}[2J\\n\\u{202e}\\u{9b}\u{e4}");
    }
}
