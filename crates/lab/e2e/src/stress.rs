// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The stress suite: the torture program with all of its parts, in rounds with changing settings.
//!
//! The number of a round is its seed: it determines the settings, the injected failures, and what the program does. A
//! round is wrong if a byte is not the last write, if a call fails although the tier does not, or if the program hangs.
//! A reported error is right if the tier fails. A round whose program is killed must leave no process behind.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::build::{PLANTED_VARIABLE, scratch, torture};
use crate::matrix::Setting;
use crate::run::{Ended, LIMIT, eventually, has_ended, managed, start};
use crate::tier_kinds::{TierKind, Tiers};

/// The parts of the torture program that a round runs. They exclude children by clone(2) that bypass the C library: if
/// no memory has signal delivery, calls do not trap, so the library cannot notice such a child.
pub const PARTS: &str = "lllltkvmapfscxnd";
/// The failures of a tier. Most are empty, because the tier does not fail in most rounds.
const FAILURES: [&str; 10] =
    ["", "", "", "", "", "", "every=50,on=write", "after=2000,on=read,times=5", "corrupt=700", "after=3000,on=write"];
/// Where a round's memory goes: a kind of tier by its name, or a device with a read latency of 30 us, the highest in
/// the stress tests of the vendors' reports that the rows follow.
const PLACES: [&str; 11] =
    ["dram", "flash", "flash", "chain", "donor", "tls", "mirror", "parity", SLOW_PLACE, "dram", "compressed"];
const SLOW_PLACE: &str = "30us";
/// The profile of that device, as in `crates/memory/tiers/profiles`.
const SLOW_PROFILE: &str = "description = \"a device that takes 30 us\"\n[media]\npage_bytes = 4096\nplanes = 64\n\
    read_ns = 30_000\n[read]\nlatency_ns = [[0.0, 0], [1.0, 0]]\nrequest_ns = 700\nbytes_per_second = 6_000_000_000\n\
    [write]\nlatency_ns = [[0.0, 0], [1.0, 0]]\nrequest_ns = 2_500\nbytes_per_second = 6_000_000_000\n";
/// Tiers with a single part, because a plan of failures applies to one part.
const CAN_FAIL: [&str; 4] = ["dram", "flash", "donor", SLOW_PLACE];
/// Capacity of each donor, in MiB: enough for all of a round's processes together.
const DONOR_MIB: u64 = 2048;
/// The program is killed in one of this many rounds.
const KILLED_EVERY: u64 = 9;

/// The parameters of one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Its number, and the program's seed.
    pub number: u64,
    /// The settings of `aquifer run`.
    pub setting: Setting,
    /// Where the program's memory goes.
    pub place: &'static str,
    /// Whether the stored memory is encrypted.
    pub is_encrypted: bool,
    /// The tier's failures.
    pub failures: &'static str,
    /// When the program is killed, if it is.
    pub killed_after: Option<Duration>,
    /// How long the program runs.
    pub seconds: u64,
}

/// How a round ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every byte was right.
    Right,
    /// An injected failure was reported.
    Loud,
    /// The program was killed, and no process remains.
    Killed,
    /// Its tier is not available here, with the reason.
    Skipped(String),
    /// A violation, with what was printed.
    Wrong(String),
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting { delivery, exchange, policy, block, prefetch, dram_mib, footprint_mib, .. } = &self.setting;
        let (tier, encrypted) = (self.place, if self.is_encrypted { " encrypted" } else { "" });
        let failures = if self.failures.is_empty() { "none" } else { self.failures };
        write!(
            f,
            "seed {}: delivery {delivery}, tier {tier}{encrypted} failures {failures}, block {block}, policy {policy}, exchange \
             {exchange}, prefetch {prefetch}, {dram_mib} of {footprint_mib} MiB{}",
            self.number,
            if self.killed_after.is_some() { ", killed" } else { "" }
        )
    }
}

impl Round {
    /// The round with this number. `delivery` is the same for all rounds, or `any`.
    pub fn new(number: u64, delivery: &str, seconds: u64) -> Self {
        let mut setting = Setting::random(number);
        // Rounds are short, and the final check reads everything, so the footprint must not exceed what a disk can read
        // in that time.
        setting.footprint_mib = setting.footprint_mib.min(140);
        let deliveries = ["auto", "signal", "listener"];
        let in_turn = deliveries[(number % 3) as usize];
        setting.delivery = deliveries.into_iter().find(|one| *one == delivery).unwrap_or(in_turn);
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let place = PLACES[(mixed / 16 % PLACES.len() as u64) as usize];
        let is_encrypted = (mixed / 256).is_multiple_of(3) && !["dram", SLOW_PLACE].contains(&place);
        let failures = FAILURES[(mixed % FAILURES.len() as u64) as usize];
        let failures = if CAN_FAIL.contains(&place) { failures } else { "" };
        let killed_after =
            number.is_multiple_of(KILLED_EVERY).then(|| Duration::from_millis(100 + mixed % (seconds.max(1) * 1000)));
        Self { number, setting, place, is_encrypted, failures, killed_after, seconds }
    }

    /// The command; the program writes its files to the round's own directory.
    fn command(&self, program: &Path, directory: &Path, tiers: &[String]) -> Command {
        let mut words = self.setting.words(directory);
        let tier = words.iter().position(|word| word == "--tier").expect("a setting names its tier");
        words.splice(tier..tier + 2, tiers.iter().cloned());
        let last = tier + tiers.len() - 1;
        if self.is_encrypted {
            let separator = if words[last].contains(',') || !words[last].ends_with(':') { "," } else { "" };
            words[last] += &format!("{separator}encrypt=ephemeral");
        }
        if !self.failures.is_empty() {
            words[last] = format!("failing:{}:{}", self.failures, words[last]);
        }
        let state = directory.to_str().expect("the target directory is UTF-8").to_owned();
        words.extend(["--state-dir".to_owned(), state.clone()]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let setting = &self.setting;
        let numbers = [self.number, self.seconds, setting.footprint_mib].map(|number| number.to_string());
        let [seed, seconds, footprint] = &numbers;
        managed(&words, program, &[seed, seconds, footprint, "3", PARTS, &state])
    }

    /// The tier as arguments for `aquifer run`, and what it needs. `Err` says why it is not available.
    fn tiers(&self, name: &str, directory: &Path) -> Result<(Vec<String>, Option<Tiers>), String> {
        if self.place == SLOW_PLACE {
            let profile = directory.join("30us.toml");
            std::fs::write(&profile, SLOW_PROFILE).map_err(|error| error.to_string())?;
            return Ok((vec!["--tier".to_owned(), format!("emulated:{}", profile.display())], None));
        }
        let tiers = TierKind::parse(self.place)?.make(name, DONOR_MIB)?;
        Ok((tiers.words.clone(), Some(tiers)))
    }

    /// Runs the round with this preload library and its planted bug, or with the library that ships. Returns `None` if
    /// the program cannot be compiled.
    pub fn run(&self, library: Option<&Path>) -> Option<Verdict> {
        let program = torture()?;
        // The same round can run with both libraries at the same time.
        let name = format!("{}-{}", if library.is_some() { "planted" } else { "stress" }, self.number);
        let directory = scratch(&name);
        let (words, _tiers) = match self.tiers(&name, &directory) {
            Ok(tiers) => tiers,
            Err(why) => return Some(Verdict::Skipped(why)),
        };
        let mut command = self.command(program, &directory, &words);
        if let Some(library) = library {
            command.env("AQUIFER_PRELOAD", library).env(PLANTED_VARIABLE, "1");
        }
        let mut running = start(command);
        let verdict = if let Some(after) = self.killed_after {
            std::thread::sleep(after);
            let program = running.program_if_there();
            let _ = running.child.kill();
            running.wait(LIMIT);
            if let Some(program) = program {
                eventually("the program's death with its launcher", || has_ended(program));
            }
            Verdict::Killed
        } else {
            // The final check reads everything once more, and an emulated disk on a busy machine is slow.
            self.judge(&running.wait(Duration::from_secs(self.seconds * 4) + LIMIT))
        };
        let _ = std::fs::remove_dir_all(&directory);
        Some(verdict)
    }

    /// The verdict on a round that was not killed.
    fn judge(&self, ended: &Ended) -> Verdict {
        let wrong = |why: &str| Verdict::Wrong(format!("{why}\n{}", ended.stderr.trim_end()));
        // Parts of the torture program's messages about a byte that is not the last write.
        let mismatches = ["holds 0x", "differs from", "must be zero", "counted"];
        if mismatches.iter().any(|words| ended.stderr.contains(words)) {
            return wrong("a byte is wrong");
        }
        let reported = !ended.said().is_empty();
        match ended.status {
            None => wrong("it hangs"),
            Some(0) => Verdict::Right,
            // 1: a call failed, or a signal ended a child; 3: a call failed that must not; 113: the pager could not
            // continue; 135: SIGBUS.
            Some(1 | 3 | 113 | 135) if reported && !self.failures.is_empty() => Verdict::Loud,
            Some(status) => wrong(&format!("it ends with status {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: i32, stderr: &str) -> Ended {
        Ended { status: Some(status), stdout: String::new(), stderr: stderr.to_owned() }
    }

    #[test]
    fn a_wrong_byte_is_wrong_whatever_fails_and_an_error_only_where_nothing_does() {
        let plain = Round { failures: "", ..Round::new(1, "signal", 1) };
        let failing = Round { failures: "corrupt=700", ..plain.clone() };
        let mismatch = ended(1, "aquifer: lost\ntorture: load: 0x1 + 2 holds 0x00, must be 0x10");
        assert!(matches!(failing.judge(&mismatch), Verdict::Wrong(_)));
        let loud = ended(135, "aquifer: the program was ended by SIGBUS");
        assert!(matches!(plain.judge(&loud), Verdict::Wrong(_)));
        assert_eq!(failing.judge(&loud), Verdict::Loud);
        assert!(matches!(failing.judge(&ended(135, "")), Verdict::Wrong(_)), "nobody said why");
        assert_eq!(plain.judge(&ended(0, "")), Verdict::Right);
        assert!(matches!(plain.judge(&Ended { status: None, ..ended(0, "") }), Verdict::Wrong(_)));
    }

    #[test]
    fn rounds_cover_every_delivery_tier_and_failure_and_are_the_same_again() {
        let rounds: Vec<Round> = (0..200).map(|number| Round::new(number, "any", 10)).collect();
        for delivery in ["auto", "signal", "listener"] {
            for place in PLACES {
                assert!(rounds.iter().any(|it| it.setting.delivery == delivery && it.place == place), "{place}");
            }
        }
        assert!(FAILURES.iter().all(|failures| rounds.iter().any(|round| round.failures == *failures)));
        assert!(rounds.iter().any(|round| round.killed_after.is_some()));
        assert_eq!(rounds[7].to_string(), Round::new(7, "any", 10).to_string());
    }
}
