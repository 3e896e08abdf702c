// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The stress suite, which `aquifer stress` starts: for the requested time, rounds of the torture program
//! (`crates/lab/e2e/src/stress.rs`), each in parallel with one of the rows (`stress_rows.rs`).
//!
//! Each round prints its seed; `--seed N --rounds 1` repeats it. With `--planted` the library has a bug, and the suite
//! checks that the bug is found.
//!
//! Exit status: 0 every byte was right (or the planted bug was found), 1 otherwise, 2 bad arguments or no C compiler.

#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aquifer_e2e::build::planted_library;
use aquifer_e2e::programs::trial;
use aquifer_e2e::stress::{Round, Verdict};
use aquifer_e2e::stress_rows::{ALL, Row};
use serde_json::json;

const USAGE: &str = "usage: stress [--minutes N] [--seed N] [--rounds N] [--seconds N] \
                     [--delivery any|auto|signal|listener] [--rows NAME,...] [--list] [--json] [--planted]";
/// The row that is part of every round.
const TORTURE: &str = "torture";
const TORTURE_TITLE: &str = "reads return the last write: threads, forks, mappings, transfers";
const DELIVERIES: [&str; 4] = ["any", "auto", "signal", "listener"];

/// The parsed command line.
struct Wanted {
    minutes: u64,
    seed: u64,
    rounds: u64,
    seconds: u64,
    delivery: &'static str,
    rows: Vec<Row>,
    list: bool,
    json: bool,
    planted: bool,
}

impl Wanted {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_secs());
        let mut wanted = Self {
            minutes: 30,
            seed,
            rounds: u64::MAX,
            seconds: 8,
            delivery: "any",
            rows: ALL.to_vec(),
            list: false,
            json: false,
            planted: false,
        };
        while let Some(flag) = words.next() {
            match flag.as_str() {
                "--planted" => wanted.planted = true,
                "--list" => wanted.list = true,
                "--json" => wanted.json = true,
                _ => wanted.set(&flag, &words.next().ok_or_else(|| format!("{flag} needs a value"))?)?,
            }
        }
        Ok(wanted)
    }

    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} {value} is not a number"));
        match flag {
            "--minutes" => self.minutes = number()?,
            "--seed" => self.seed = number()?,
            "--rounds" => self.rounds = number()?,
            "--seconds" => self.seconds = number()?,
            "--delivery" => {
                let known = DELIVERIES.into_iter().find(|one| *one == value);
                self.delivery = known.ok_or(format!("--delivery {value} is none of {}", DELIVERIES.join(", ")))?;
            }
            "--rows" => self.rows = rows(value)?,
            _ => return Err(format!("{flag} is not known")),
        }
        Ok(())
    }
}

fn rows(names: &str) -> Result<Vec<Row>, String> {
    let find = |name: &str| {
        let unknown = || format!("--rows: '{name}' is none of the rows; --list shows them");
        ALL.into_iter().find(|row| row.name == name).ok_or_else(unknown)
    };
    names.split(',').filter(|name| *name != TORTURE).map(find).collect()
}

/// The results of one row.
#[derive(Clone, Default)]
struct RowCounts {
    right: u64,
    reported: u64,
    killed: u64,
    wrong: u64,
    skipped: Option<String>,
}

fn main() -> ExitCode {
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("stress: {why}; {USAGE}");
            return ExitCode::from(2);
        }
    };
    if wanted.list {
        println!("{TORTURE:<12} {TORTURE_TITLE}");
        ALL.iter().for_each(|row| println!("{:<12} {}", row.name, row.title));
        return ExitCode::SUCCESS;
    }
    match suite(&wanted) {
        Some(all_counts) => ExitCode::from(u8::from((wrong(&all_counts) > 0) != wanted.planted)),
        None => ExitCode::from(2),
    }
}

fn wrong(all_counts: &[RowCounts]) -> u64 {
    all_counts.iter().map(|counts| counts.wrong).sum()
}

/// Runs rounds until the time is over. Returns `None` if the torture program cannot be compiled.
fn suite(wanted: &Wanted) -> Option<Vec<RowCounts>> {
    let library = wanted.planted.then(planted_library);
    // The rows test the library that ships.
    let rows = if wanted.planted { &[][..] } else { &wanted.rows };
    let mut all_counts = vec![RowCounts::default(); rows.len() + 1];
    let (began, limit) = (Instant::now(), Duration::from_secs(wanted.minutes * 60));
    let (mut rounds, mut cut_off) = (0, false);
    while rounds < wanted.rounds && began.elapsed() < limit && !cut_off {
        let number = wanted.seed.wrapping_add(rounds);
        let round = Round::new(number, wanted.delivery, wanted.seconds);
        let chosen = (!rows.is_empty()).then(|| (number % rows.len() as u64) as usize);
        let (verdict, beside) = std::thread::scope(|scope| {
            let beside = chosen.map(|at| {
                let turn = rows[at].turn(number, round.setting.delivery, wanted.seconds);
                scope.spawn(move || rows[at].run(&turn).map(|verdict| (verdict, turn)))
            });
            let verdict = round.run(library.as_deref());
            // A panic in a row is a failure of that row.
            (verdict, beside.map(|row| row.join().unwrap_or_else(|_| Err("it panicked".to_owned()))))
        });
        let seconds = began.elapsed().as_secs_f64();
        cut_off = wanted.planted && matches!(verdict, Some(Verdict::Wrong(_)));
        let failed = add(&mut all_counts[0], verdict?, &format!("{seconds:6.0} s  {TORTURE}: {round}"));
        let failed_beside = chosen.zip(beside).is_some_and(|(at, ended)| {
            let name = rows[at].name;
            add_row(&mut all_counts[at + 1], ended, &format!("{seconds:6.0} s  {name} beside it"))
        });
        if failed || failed_beside {
            let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
            let Wanted { delivery, seconds, .. } = wanted;
            let rows = if names.is_empty() { TORTURE.to_owned() } else { names.join(",") };
            println!("reproduce: --seed {number} --rounds 1 --seconds {seconds} --delivery {delivery} --rows {rows}");
        }
        rounds += 1;
    }
    report(wanted, rows, &all_counts, rounds, began.elapsed());
    Some(all_counts)
}

/// Counts and prints a verdict. Returns whether the round was wrong.
fn add(counts: &mut RowCounts, verdict: Verdict, line: &str) -> bool {
    let (count, word) = match &verdict {
        Verdict::Right => (&mut counts.right, "right"),
        Verdict::Loud => (&mut counts.reported, "reported"),
        Verdict::Killed => (&mut counts.killed, "killed"),
        Verdict::Wrong(why) => (&mut counts.wrong, why.as_str()),
        Verdict::Skipped(why) => {
            eprintln!("{line}: skipped: {why}");
            counts.skipped = Some(why.clone());
            return false;
        }
    };
    *count += 1;
    let is_wrong = matches!(verdict, Verdict::Wrong(_));
    eprintln!("{line}: {}{word}", if is_wrong { "WRONG: " } else { "" });
    is_wrong
}

fn add_row(
    counts: &mut RowCounts,
    ended: Result<(trial::Verdict, aquifer_e2e::stress_rows::Turn), String>,
    line: &str,
) -> bool {
    match ended {
        Ok((trial::Verdict::Works(how), turn)) => {
            counts.right += 1;
            eprintln!("{line}, over {}: right{}{how}", turn.kind.name(), if how.is_empty() { "" } else { ", " });
            false
        }
        Ok((trial::Verdict::Skipped(why), _)) => {
            eprintln!("{line}: skipped: {why}");
            counts.skipped = Some(why);
            false
        }
        Err(why) => {
            counts.wrong += 1;
            eprintln!("{line}: WRONG: {why}");
            true
        }
    }
}

/// Prints the results to standard output, as a table or as a JSON object.
fn report(wanted: &Wanted, rows: &[Row], all_counts: &[RowCounts], rounds: u64, took: Duration) {
    let names = std::iter::once((TORTURE, TORTURE_TITLE)).chain(rows.iter().map(|row| (row.name, row.title)));
    let lines: Vec<_> = names.zip(all_counts).collect();
    if wanted.json {
        let rows: Vec<_> = lines
            .iter()
            .map(|((name, title), counts)| {
                let RowCounts { right, reported, killed, wrong, skipped } = counts;
                json!({"name": name, "title": title, "right": right, "reported": reported, "killed": killed, "wrong": wrong,
                       "skipped": skipped})
            })
            .collect();
        let (seed, delivery) = (wanted.seed, wanted.delivery);
        let object = json!({"seed": seed, "delivery": delivery, "rounds": rounds, "seconds": took.as_secs(),
                            "wrong": wrong(all_counts), "rows": rows});
        println!("{object}");
        return;
    }
    if std::io::stdout().is_terminal() {
        println!();
    }
    println!("{:<12} {:>6} {:>8} {:>6} {:>6}  what", "row", "right", "reported", "killed", "wrong");
    for ((name, title), counts) in lines {
        let RowCounts { right, reported, killed, wrong, skipped } = counts;
        let what = match skipped {
            Some(why) if right + wrong == 0 => format!("skipped: {why}"),
            _ if right + reported + killed + wrong == 0 => "not reached: more rounds, or --rows".to_owned(),
            _ => title.to_owned(),
        };
        println!("{name:<12} {right:>6} {reported:>8} {killed:>6} {wrong:>6}  {what}");
    }
    let minutes = took.as_secs_f64() / 60.0;
    println!("{rounds} rounds in {minutes:.1} minutes from seed {}: {} wrong", wanted.seed, wrong(all_counts));
}
