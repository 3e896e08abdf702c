// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends the program if the pager cannot start or cannot continue: immediately, with a message, and without leaving a
//! thread parked.
//!
//! The exit codes are those of the manual, `ExitCode` in `crates/fronts/cli/src/exit.rs`.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_driver::Fatal;
use aquifer_sys::raw::Errno;
use aquifer_sys::{raw, signals};

use crate::recorder;

/// The exit code of a program whose pager could not continue.
const CANNOT_GO_ON: i32 = 113;
/// The exit code if the library could not start, so that the program never ran: the same as for a command that could
/// not be started.
const CANNOT_START: i32 = 125;

/// Whether messages are JSON objects. Set before the program's first instruction.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// Writes one line from its parts, closes the recording, and ends the process. Allocates nothing.
pub fn abort(parts: &[&str]) -> ! {
    say(parts);
    recorder::finish();
    signals::exit_now(CANNOT_GO_ON)
}

/// Ends the process because its memory can no longer be managed.
pub fn fail(fatal: Fatal) -> ! {
    match fatal.errno() {
        None => abort(&[fatal.text()]),
        Some(errno) => {
            let number = Number::new(errno.unsigned_abs().into());
            abort(&[fatal.text(), " (", Errno(errno).name(), ", errno ", number.text(), ")"])
        }
    }
}

/// Writes one line that says why the program was not started, and ends the process. Called before the program's `main`.
pub fn refuse_to_start(why: &str) -> ! {
    say(&["cannot start: ", why]);
    signals::exit_now(CANNOT_START)
}

/// Writes one line from its parts to standard error. Allocates nothing.
pub fn say(parts: &[&str]) {
    let mut line = Line::begin();
    parts.iter().for_each(|part| line.push(part));
    line.end();
}

/// From now on messages are JSON objects, one per line, as those of `aquifer --log-format json`.
pub fn say_in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

/// From now on a panic on any thread inside this library reports its location and ends the process immediately:
/// unwinding out of a fault would leave threads waiting for ever.
pub fn on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let mut line = Line::begin();
        line.push("a bug in the pager; please report it: ");
        let _ = write!(line, "{info}");
        line.end();
        recorder::finish();
        signals::exit_now(CANNOT_GO_ON)
    }));
}

/// A line of bounded length on the stack. Longer text is cut.
struct Line {
    bytes: [u8; 512],
    len: usize,
    in_json: bool,
}

/// Room for the end of a line.
const END_BYTES: usize = 3;

impl Line {
    /// A line that contains the common start of every message.
    fn begin() -> Self {
        let mut line = Self { bytes: [0; 512], len: 0, in_json: IN_JSON.load(Ordering::Relaxed) };
        if line.in_json {
            let pid = Number::new(u64::from(std::process::id()));
            ["{\"source\":\"aquifer\",\"pid\":", pid.text(), ",\"message\":\""]
                .iter()
                .for_each(|part| line.append(part));
        } else {
            line.append("aquifer: ");
        }
        line
    }

    /// One part of the message.
    fn push(&mut self, text: &str) {
        let mut buffer = [0; 4];
        for character in text.chars() {
            let room = self.bytes.len() - END_BYTES - self.len;
            let escape = if self.in_json && matches!(character, '"' | '\\') { "\\" } else { "" };
            let is_odd = self.in_json && character.is_control();
            let character: &str = if is_odd { " " } else { character.encode_utf8(&mut buffer) };
            if escape.len() + character.len() > room {
                return;
            }
            self.append(escape);
            self.append(character);
        }
    }

    /// Appends text unchanged. The caller knows that there is room.
    fn append(&mut self, text: &str) {
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text.as_bytes());
        self.len += text.len();
    }

    /// Writes the line to standard error.
    fn end(mut self) {
        self.append(if self.in_json { "\"}\n" } else { "\n" });
        raw::write_stderr(&self.bytes[..self.len]);
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

    /// The digits of the number.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.digits[self.start..]).expect("digits are ASCII")
    }
}
