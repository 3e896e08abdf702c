// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lines for standard error: what the program reports and, with `--trace`, the trace. Any thread adds lines without
//! waiting, also while it has the switch locked; one thread writes them. If nobody reads that, further lines are lost,
//! and their number is written later.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, PoisonError};

/// Lines that wait to be written.
const LINES_MAX: usize = 1024;

#[derive(Default)]
struct Lines {
    waiting: VecDeque<String>,
    lost: u64,
}

/// The lines for standard error.
#[derive(Default)]
pub struct Stderr {
    lines: Mutex<Lines>,
    added: Condvar,
}

impl Stderr {
    /// Adds a line, unless too many wait.
    pub fn say(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.waiting.len() >= LINES_MAX {
            lines.lost += 1;
            return;
        }
        lines.waiting.push_back(line);
        self.added.notify_one();
    }

    /// Writes lines as they come. Never returns.
    pub fn write(&self) {
        loop {
            // Lines that cannot be written do not end the switch.
            let _ = io::stderr().write_all(self.next().as_bytes());
        }
    }

    /// Waits for lines, and returns all that wait.
    fn next(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.added.wait_while(lines, |lines| lines.waiting.is_empty());
        let Lines { waiting, lost } = std::mem::take(&mut *waited.unwrap_or_else(PoisonError::into_inner));
        let mut text: String = waiting.into_iter().map(|line| line + "\n").collect();
        if lost > 0 {
            text += &format!("{lost} lines were lost; the reader of standard error is too slow\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted() {
        let stderr = Stderr::default();
        for number in 0..LINES_MAX + 3 {
            stderr.say(number.to_string());
        }
        let text = stderr.next();
        let lost = "\n1023\n3 lines were lost; the reader of standard error is too slow\n";
        assert!(text.starts_with("0\n1\n") && text.ends_with(lost), "{text}");
        stderr.say("later".into());
        assert_eq!(stderr.next(), "later\n");
    }
}
