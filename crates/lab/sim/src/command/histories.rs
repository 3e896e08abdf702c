// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer-sim histories`: runs the shipped driver on a modelled kernel and tier, for as long as one likes.

use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use aquifer_sim::model::history;
use serde_json::json;

use super::Failure;
use super::args::Histories;

/// How often the progress is shown on a terminal.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Runs the histories. Returns 0 if none goes wrong. If one does, prints its seed and returns 1.
pub fn run(arguments: &Histories, out: &mut impl Write) -> Result<u8, Failure> {
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    let (mut count, mut steps, mut failures, mut shown) = (0, 0, 0, Instant::now());
    while count < arguments.count && limit.is_none_or(|limit| began.elapsed() < limit) {
        let seed = arguments.seed.wrapping_add(count);
        match catch_unwind(AssertUnwindSafe(|| history::run(seed, None))) {
            Ok(end) => (count, steps, failures) = (count + 1, steps + end.steps, failures + end.failures),
            Err(why) => {
                let text = why.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
                match arguments.json {
                    true => writeln!(out, "{}", json!({ "seed": seed, "histories": count, "violation": text }))?,
                    false => writeln!(
                        out,
                        "seed {seed}: {text}\nrepeat it with: aquifer-sim histories --seed {seed} --count 1"
                    )?,
                }
                return Ok(1);
            }
        }
        if shown.elapsed() > PROGRESS_EVERY && std::io::stderr().is_terminal() {
            eprint!("\r{count} histories, {steps} steps ");
            shown = Instant::now();
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let seconds = began.elapsed().as_secs_f64();
    match arguments.json {
        true => writeln!(
            out,
            "{}",
            json!({ "histories": count, "steps": steps, "failures": failures, "seconds": seconds })
        )?,
        false => writeln!(
            out,
            "{count} histories of {steps} steps and {failures} failures in {seconds:.1} s: every read returned the last \
             write, or an error"
        )?,
    }
    Ok(0)
}
