// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends the program when the pager cannot start or cannot go on: with a message, at once, never with a parked thread.
//!
//! The exit codes are those of the manual, `ExitCode` in `crates/cli/src/exit.rs`.

use std::fmt::{self, Write};

use aquifer_sys::{raw, signals};

use crate::recorder;

/// The exit code of a program whose pager could not go on.
const CANNOT_GO_ON: i32 = 113;
/// The exit code where the library could not start, so that the program never ran: as when the command could not.
const CANNOT_START: i32 = 125;

/// Writes one line from its parts, and ends the process, a recording first. Allocates nothing.
pub fn abort(parts: &[&str]) -> ! {
    say(parts);
    recorder::finish();
    signals::exit_now(CANNOT_GO_ON)
}

/// Writes one line that says why the program was not started, and ends the process. Before the program's `main`.
pub fn refuse_to_start(why: &str) -> ! {
    say(&["cannot start: ", why]);
    signals::exit_now(CANNOT_START)
}

/// Writes one line from its parts to standard error. Allocates nothing.
pub fn say(parts: &[&str]) {
    let mut line = Line::new();
    line.push("aquifer: ");
    parts.iter().for_each(|part| line.push(part));
    line.push("\n");
    raw::write_stderr(line.bytes());
}

/// From now on a panic on any thread inside this library says where it was, and ends the process at once:
/// unwinding out of a fault would leave threads waiting for ever.
pub fn on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let mut line = Line::new();
        line.push("aquifer: a bug in the pager; please report it: ");
        let _ = write!(line, "{info}");
        line.push("\n");
        raw::write_stderr(line.bytes());
        recorder::finish();
        signals::exit_now(CANNOT_GO_ON)
    }));
}

/// A line of bounded length on the stack.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 512], len: 0 }
    }

    fn push(&mut self, text: &str) {
        let room = self.bytes.len() - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

/// A number as text, without allocating.
pub struct Number {
    digits: [u8; 20],
    start: usize,
}

impl Number {
    /// `value` in decimal.
    pub fn new(mut value: u64) -> Self {
        let mut number = Self { digits: [0; 20], start: 20 };
        loop {
            number.start -= 1;
            number.digits[number.start] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return number;
            }
        }
    }

    /// Its digits.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.digits[self.start..]).expect("digits are ASCII")
    }
}
