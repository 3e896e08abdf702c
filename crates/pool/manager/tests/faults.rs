// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A real daemon asks agents for the faults of programs: its status and its metrics have the figures, also beside an
//! agent that lies; and `null` while no agent has any.

mod daemon;
mod pool;

use std::sync::{Arc, Mutex};

use aquifer_control::{Deposed, End, Faults, Kind, Query, Refused, Report};
use aquifer_fabric::{Bytes, Command, Gate, HostReport, Incarnation, Term};
use daemon::{Daemon, request};
use pool::{keep, wait_until, wait_until_registered};
use serde_json::Value;

const STATUS: &str = "/redfish/v1/Oem/Aquifer";
/// The faults of the honest agent's programs between two questions: 9 us each.
const BETWEEN: u64 = 1000;

/// An agent without volumes whose programs have new faults at each question.
struct Faulting {
    gate: Gate,
    faults: Faults,
    is_liar: bool,
    has_lied: bool,
}

impl End for Faulting {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        let (incarnation, term) = (Incarnation(1), self.gate.term());
        Ok(Report::Host(HostReport { incarnation, term, ..HostReport::default() }))
    }

    fn measure(&mut self) -> Option<Faults> {
        if self.is_liar {
            self.has_lied = !self.has_lied;
            let count = if self.has_lied { u64::MAX } else { 0 };
            return Some(Faults { sum_ns: count, buckets: (0..=255).map(|bucket| (bucket, count)).collect() });
        }
        self.faults.add(&Faults { sum_ns: BETWEEN * 9000, buckets: [(40, BETWEEN)].into() });
        Some(self.faults.clone())
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Err(Refused::new("this host has no memory for volumes; give it some"))
    }
}

fn agent(is_liar: bool) -> Arc<Mutex<dyn End>> {
    let gate = Gate::new(Incarnation(1), Term(0));
    Arc::new(Mutex::new(Faulting { gate, faults: Faults::default(), is_liar, has_lied: false }))
}

#[test]
fn the_faults_of_programs_are_in_the_status_and_a_liar_changes_nothing() {
    let directory = daemon::directory("faults");
    let (state, listen) = (directory.join("state"), format!("{}:0", daemon::address()));
    let config = format!(
        "state = {state:?}\nlisten = {listen:?}\nmetrics = {listen:?}\n[control]\nlisten = {listen:?}\n\
         [peers]\nkind = \"registered\"\n[rounds]\nidle-ms = 50\nbusy-ms = 5\n"
    );
    let daemon = Daemon::launch(&directory, &config, &[]);
    let token = daemon.login("admin", &daemon.password());
    let faults = || daemon.ask("GET", STATUS, &token, "").expect("an answer").body["Faults"].clone();
    assert_eq!(faults(), Value::Null, "there is no agent");
    let control = daemon.control.expect("it says where");
    let _kept = [("h1", false), ("liar", true)]
        .map(|(id, is_liar)| keep(Kind::Host, id, Bytes::ZERO, &[control], &agent(is_liar)));
    wait_until_registered(&daemon, &token, &["Host.h1", "Host.liar"]);
    wait_until("there are faults", || faults()["PerSecond"].as_f64().is_some_and(|rate| rate > 0.0));
    let found = faults();
    // They are from 5 to 10 seconds, and a busy machine makes that longer.
    let rate = found["PerSecond"].as_f64().expect("a number");
    assert!((BETWEEN as f64 / 20.0..=BETWEEN as f64 / 4.0).contains(&rate), "{found}");
    assert_eq!(found["MeanMicroseconds"], 9.0, "{found}");
    assert_eq!(found["P99Microseconds"], 9.216, "the middle of its bucket: {found}");
    assert!(found["Hosts"].as_u64().is_some_and(|hosts| (1..=2).contains(&hosts)), "{found}");
    let metrics = daemon.raw_at(&daemon.metrics, request("GET", "/metrics", "", "").as_bytes()).expect("an answer");
    let count = |le: &str| {
        let name = format!("aquifer_fabric_fault_latency_seconds_bucket{{le=\"{le}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
    };
    assert_eq!(count("0.000004096"), Some(0), "{metrics}");
    assert!(count("0.000016384").is_some_and(|count| count >= BETWEEN && count.is_multiple_of(BETWEEN)), "{metrics}");
    assert_eq!(count("0.000016384"), count("+Inf"));
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}
