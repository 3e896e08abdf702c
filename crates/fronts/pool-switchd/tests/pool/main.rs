// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program in front of a manager with simulated donors and hosts, and `aquifer fmapi` as its client.
//!
//! `shown.rs`: what it shows, takes and gives back, and what others change. `logins.rs`: sessions, passwords, and
//! configurations that do not fit the manager. `looks.rs`: what it asks of the manager. `clients.rs`: several clients,
//! several fronts, and strangers. `crashes.rs`: the front or the manager is killed or stopped in an order. `site.rs`
//! starts managers and fronts, and `fake.rs` is a manager that answers as a test says.

#[allow(dead_code, reason = "these tests use a part")]
#[path = "../../../fabric-cli/tests/site/daemon.rs"]
mod daemon;

mod clients;
mod crashes;
mod fake;
mod logins;
mod looks;
mod shown;
mod site;

/// Not a test: the program of the managers that the others start.
#[test]
fn manager_program() {
    daemon::serve_if_asked();
}
