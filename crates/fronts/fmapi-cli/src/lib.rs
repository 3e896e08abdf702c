// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program `aquifer-fmapi`: shows and changes a CXL switch over the fabric-manager API, and checks and
//! times peers.
//!
//! `program.rs` carries out the command line, `show.rs` prints what a switch reports. [`check`] is the suite for peers:
//! `check/cases.rs` has its table, `check/departures.rs` what is known of some peers, `report.rs` and `html.rs` the
//! report. `bench.rs` times commands.

#![forbid(unsafe_code)]

mod bench;
pub mod check;
mod event;
mod html;
mod program;
mod report;
mod show;

pub use html::page;
pub use program::{Failure, Outcome, run};
pub use report::{json, text};
