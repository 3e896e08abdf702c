// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs the stress suite for as long as it is told: `crates/e2e/src/stress.rs`.
//!
//! Usage: `stress [--minutes N] [--seed N] [--rounds N] [--seconds N] [--delivery any|auto|signal|listener] [--planted]`.
//! Each round prints its seed; `--seed N --rounds 1` runs one again. With `--planted` the library has a bug,
//! and what is
//! asked is whether it is found.
//!
//! Exit status: 0 every byte was right (or the planted bug was found), 1 otherwise, 2 bad arguments or no C compiler.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aquifer_e2e::build::planted_library;
use aquifer_e2e::stress::{Round, Verdict};

const USAGE: &str = "usage: stress [--minutes N] [--seed N] [--rounds N] [--seconds N] \
                     [--delivery any|auto|signal|listener] [--planted]";

/// What the command line says.
struct Wanted {
    minutes: u64,
    seed: u64,
    rounds: u64,
    seconds: u64,
    delivery: String,
    planted: bool,
}

impl Wanted {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_secs());
        let mut wanted =
            Self { minutes: 30, seed: now, rounds: u64::MAX, seconds: 8, delivery: "any".to_owned(), planted: false };
        while let Some(flag) = words.next() {
            if flag == "--planted" {
                wanted.planted = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{flag} {value} is no number"));
            match flag.as_str() {
                "--minutes" => wanted.minutes = number()?,
                "--seed" => wanted.seed = number()?,
                "--rounds" => wanted.rounds = number()?,
                "--seconds" => wanted.seconds = number()?,
                "--delivery" if ["any", "auto", "signal", "listener"].contains(&&*value) => wanted.delivery = value,
                _ => return Err(format!("{flag} {value} is not known")),
            }
        }
        Ok(wanted)
    }
}

fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("stress: {why}; {USAGE}");
            return ExitCode::from(2);
        }
    };
    let library = wanted.planted.then(planted_library);
    let began = Instant::now();
    let limit = Duration::from_secs(wanted.minutes * 60);
    let (mut right, mut loud, mut killed, mut wrong) = (0, 0, 0, 0);
    for number in (wanted.seed..).take(usize::try_from(wanted.rounds).unwrap_or(usize::MAX)) {
        if began.elapsed() >= limit {
            break;
        }
        let round = Round::new(number, &wanted.delivery, wanted.seconds);
        let Some(verdict) = round.run(library.as_deref()) else { return ExitCode::from(2) };
        let word = match &verdict {
            Verdict::Right => (&mut right, "right"),
            Verdict::Loud => (&mut loud, "told"),
            Verdict::Killed => (&mut killed, "killed"),
            Verdict::Wrong(_) => (&mut wrong, "WRONG"),
        };
        *word.0 += 1;
        println!("{:6.0} s  {}  {round}", began.elapsed().as_secs_f64(), word.1);
        if let Verdict::Wrong(why) = verdict {
            println!("{why}");
            let Wanted { delivery, seconds, .. } = &wanted;
            println!("reproduce: stress --seed {number} --rounds 1 --seconds {seconds} --delivery {delivery}");
            if wanted.planted {
                break;
            }
        }
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    println!("{minutes:.1} minutes: {right} rounds right, {loud} told of a failure, {killed} killed, {wrong} wrong");
    ExitCode::from(u8::from((wrong > 0) != wanted.planted))
}
