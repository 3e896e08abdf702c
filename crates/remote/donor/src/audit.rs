// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--audit`: who leased, renewed, released and was refused, one line of `key=value` words for each event.
//!
//! ```text
//! time=2026-01-31T12:00:00.123Z event=leased tenant=dns:batch.example peer=10.0.0.7 borrower=6f… slab=7 range=12
//! ```
//!
//! Lines are appended to the file, which is reopened when the donor reloads its files (SIGHUP), so that it can be
//! rotated. The number of refusals of peers without a tenant is bounded: [`STRANGERS_PER_S_MAX`].
//!
//! Threads: any connection's.

use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The maximum number of lines per second about peers without a tenant. The next line says how many were omitted.
const STRANGERS_PER_S_MAX: u64 = 100;

/// The file with one line for each lease that was granted, renewed, released or refused.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The current second, and the number of its lines about peers without a tenant.
    second: u64,
    strangers: u64,
    left_out: u64,
    has_failed: bool,
}

impl Audit {
    pub(crate) fn open(path: PathBuf) -> io::Result<Audit> {
        let state = State { file: open(&path)?, second: 0, strangers: 0, left_out: 0, has_failed: false };
        Ok(Audit { path, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues in a new file with the same name.
    pub(crate) fn reopen(&self) -> io::Result<()> {
        let file = open(&self.path)?;
        self.state().file = file;
        Ok(())
    }

    /// Writes one line about a tenant. If the line cannot be written, returns the reason, but only once until writing
    /// works again.
    pub(crate) fn note(&self, words: Arguments<'_>) -> Result<(), String> {
        let time = now();
        self.state().write(&format!("time={} {words}\n", stamp(time)))
    }

    /// The same about a peer without a tenant.
    pub(crate) fn note_stranger(&self, words: Arguments<'_>) -> Result<(), String> {
        let time = now();
        let mut state = self.state();
        if state.second != time.0 {
            (state.second, state.strangers) = (time.0, 0);
        }
        state.strangers += 1;
        if state.strangers > STRANGERS_PER_S_MAX {
            state.left_out += 1;
            return Ok(());
        }
        let left_out = std::mem::take(&mut state.left_out);
        let left_out = if left_out > 0 { format!(" left_out={left_out}") } else { String::new() };
        state.write(&format!("time={} {words}{left_out}\n", stamp(time)))
    }
}

impl State {
    fn write(&mut self, line: &str) -> Result<(), String> {
        // One call, so that lines of two threads do not mix.
        let written = self.file.write_all(line.as_bytes());
        let had_failed = std::mem::replace(&mut self.has_failed, written.is_err());
        match written {
            Err(error) if !had_failed => {
                Err(format!("audit lines are lost: {error}; free space, or name another file"))
            }
            _ => Ok(()),
        }
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Seconds since 1970, and milliseconds.
fn now() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_millis())
}

/// RFC 3339, in UTC.
fn stamp((seconds, millis): (u64, u32)) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day since 1970, by the Gregorian calendar: years begin in March, so that a leap day is the last day.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.005Z"),
            (951_782_399, "2000-02-28T23:59:59.005Z"),
            (951_782_400, "2000-02-29T00:00:00.005Z"),
            (1_735_689_600, "2025-01-01T00:00:00.005Z"),
            (4_107_542_399, "2100-02-28T23:59:59.005Z"),
            (4_107_542_400, "2100-03-01T00:00:00.005Z"),
        ] {
            assert_eq!(stamp((seconds, 5)), text);
        }
    }

    #[test]
    fn strangers_cannot_fill_the_disk() {
        let path = std::env::temp_dir().join(format!("aq-{}-audit", std::process::id()));
        let audit = Audit::open(path.clone()).unwrap();
        for _ in 0..10 * STRANGERS_PER_S_MAX {
            audit.note_stranger(format_args!("event=refused")).unwrap();
        }
        audit.note(format_args!("event=leased")).unwrap();
        let lines = std::fs::read_to_string(&path).unwrap();
        // Some seconds may have passed.
        assert!((lines.lines().count() as u64) < 5 * STRANGERS_PER_S_MAX && lines.contains("event=leased"));
        std::fs::remove_file(&path).unwrap();
    }
}
