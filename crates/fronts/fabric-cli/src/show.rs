// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Prints what the manager answers: a whole answer as JSON, or text for people; the status, and the declaration.

use std::io::Write;
use std::time::{Duration, Instant};

use aquifer_fabric::Bytes;
use aquifer_fabric_args::Status;
use aquifer_manager_client::{Client, Failure, Request, failed, plain, unwritten};
use aquifer_terminal::{Output, Tone};
use serde_json::Value;

use crate::table::{columns, tone_of};

/// The summary of the state.
pub(crate) const STATUS: &str = "/redfish/v1/Oem/Aquifer";
/// How often `--until-settled` looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Rounds that a settled state must have outlived: the first of them may have begun before the last change.
const ROUNDS_MIN: u64 = 2;

/// A client, and where its answers are printed.
pub(crate) struct Session<'a> {
    pub(crate) client: Client,
    pub(crate) json: bool,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) output: Output,
}

impl Session<'_> {
    /// Prints a text at once.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(|error| unwritten(&error))
    }

    /// Prints an answer as one line of JSON, or as text.
    pub(crate) fn show(&mut self, answer: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        let text = if self.json { format!("{answer}\n") } else { text(answer) };
        self.print(&text)
    }

    /// Prints an answer as one line of JSON, or its rows as a table.
    pub(crate) fn show_table(
        &mut self,
        answer: &Value,
        titles: &[&str],
        rows: impl FnOnce(&Value) -> Vec<Vec<String>>,
    ) -> Result<(), Failure> {
        let output = self.output;
        self.show(answer, |answer| columns(titles, &rows(answer), &output))
    }
}

/// Returns a property as a person reads it; empty if it is missing.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn status_text(status: &Value, output: &Output) -> String {
    let answering = |name: &str| format!("{} of {} answer", status[name]["Answering"], status[name]["All"]);
    let volumes = &status["Volumes"];
    let bytes = |name: &str| serde_json::from_value::<Bytes>(status[name].clone()).unwrap_or_default();
    let state = if status["IsSettled"] == true { "settled" } else { "changing" };
    let mut text = String::new();
    for (name, value) in [
        ("state", output.toned(state, tone_of(state))),
        ("donors", answering("Donors")),
        ("hosts", answering("Hosts")),
        ("devices", answering("Devices")),
        ("volumes", format!("{}, {} bound, {} not settled", volumes["All"], volumes["Bound"], volumes["Unsettled"])),
        ("lent", format!("{} of {}", bytes("Lent"), bytes("Capacity"))),
        ("version", format!("{}, term {}, round {}", status["Version"], status["Term"], status["Rounds"])),
    ] {
        text += &format!("{name:<9}{value}\n");
    }
    for (title, name) in [("waits", "Waiting"), ("stray", "Strays"), ("broken", "Unrepaired")] {
        for line in status[name].as_array().into_iter().flatten() {
            text += &format!("{}{}\n", output.toned(&format!("{title:<9}"), Tone::Notable), plain(&cell(line)));
        }
    }
    text
}

/// Shows a summary of the state: as it is, or when everything is as desired.
pub(crate) fn status(session: &mut Session<'_>, args: &Status) -> Result<(), Failure> {
    let output = session.output;
    let look = |session: &Session<'_>| Ok::<_, Failure>(session.client.ask(&Request::get(STATUS))?.body);
    if args.until_settled {
        let found = wait_settled(|| look(session), Duration::from_secs(args.limit))?;
        return session.show(&found, |found| status_text(found, &output));
    }
    let found = look(session)?;
    session.show(&found, |found| status_text(found, &output))
}

fn wait_settled(look: impl Fn() -> Result<Value, Failure>, limit: Duration) -> Result<Value, Failure> {
    let (begun, mut first) = (Instant::now(), None);
    loop {
        let found = look()?;
        let rounds = found["Rounds"].as_u64().unwrap_or_default();
        // A manager that was started again counts from the beginning.
        let first = first.insert(first.unwrap_or(rounds).min(rounds));
        if found["IsSettled"] == true && rounds >= *first + ROUNDS_MIN {
            return Ok(found);
        }
        if begun.elapsed() >= limit {
            let why = found["Waiting"].as_array().and_then(|all| all.first()).map(cell).unwrap_or_default();
            let why = if why.is_empty() { "a change is under way".to_owned() } else { why };
            let seconds = limit.as_secs();
            return Err(failed(format!("not settled after {seconds} s: {why}; raise --limit, or see 'status'")));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Prints the declaration alone, so that it can be edited and applied.
pub(crate) fn export(session: &mut Session<'_>) -> Result<(), Failure> {
    let answer = session.client.ask(&Request::get(&format!("{STATUS}/Declaration")))?.body;
    session.show(&answer, |answer| format!("{:#}\n", answer["Declaration"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;

    #[test]
    fn settled_is_what_two_further_rounds_have_seen() {
        let (looks, limit) = (Cell::new(0), Duration::from_secs(600));
        let answers = [(7, true), (8, true), (3, true), (4, true), (5, false), (6, true)];
        let look = || {
            let (rounds, settled) = answers[looks.replace(looks.get() + 1)];
            Ok(json!({ "Rounds": rounds, "IsSettled": settled, "Waiting": ["volume db: it is full"] }))
        };
        assert_eq!(wait_settled(look, limit).expect("settled")["Rounds"], 6);
        looks.set(0);
        let line = wait_settled(look, Duration::ZERO).expect_err("at once").to_string();
        assert!(line.starts_with("not settled after 0 s: volume db: it is full; raise --limit"), "{line}");
    }
}
