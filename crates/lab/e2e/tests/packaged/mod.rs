// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A machine with the packages, and what its units are observed to do.

pub mod agent;
mod renewal;

use std::time::Duration;

use aquifer_e2e::machines::Machine;

/// Time limit of one query to the machine.
pub const QUESTION: Duration = Duration::from_secs(60);

/// The machine.
pub struct Site(pub Machine);

impl Site {
    /// The value of a property of a unit, from systemd.
    pub fn property(&self, unit: &str, property: &str) -> String {
        self.0.run(&format!("systemctl show --value --property={property} {unit}")).trim().to_owned()
    }

    pub fn process(&self, unit: &str) -> String {
        self.property(unit, "MainPID")
    }

    pub fn is_active(&self, unit: &str) -> bool {
        self.0.attempt(&format!("systemctl is-active --quiet {unit}"), QUESTION).status == Some(0)
    }
}

/// A test that fails prints what the units have said.
impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let journal = "journalctl --no-pager --output=short-precise --lines=200 --unit='aquifer*' --unit=third";
            let ended = self.0.attempt(journal, QUESTION);
            eprintln!("the journal of the units:\n{}{}", ended.stdout, ended.stderr);
        }
    }
}

pub fn lent_bytes(site: &Site) -> u64 {
    let status = site.0.run("aquifer donor status --control /run/aquifer-donor/control --json");
    let status: serde_json::Value = serde_json::from_str(&status).expect("one object");
    status["lent_bytes"].as_u64().unwrap_or_else(|| panic!("no lent_bytes: {status}"))
}
