// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program `aquifer-pool-switchd`: shows a pool as a CXL switch, so that any client of the FM API manages donors as
//! devices.
//!
//! Each host of the pool is a virtual CXL switch with an upstream port; each donor is a multi-logical device at a
//! downstream port. A logical device with memory is a volume on its donor, and a binding of a vPPB is the volume's
//! binding to the host. The fabric manager holds all of it; the program keeps nothing, and starts from what the manager
//! has (docs/decisions/0070).
//!
//! Pure are `config.rs` (the file), `places.rs` (who is at which port), `view.rs` (what the manager's answers say),
//! `adoption.rs` (a view as the state of a switch), `labels.rs` (which vPPB the manager keeps for a volume),
//! `amendment.rs` (an order as a request to the manager), `settling.rs` (when that is carried out), `logins.rs` (when
//! to log in again) and `trouble.rs` (whether a repetition helps). `pool.rs` speaks to the manager, and `session.rs`
//! logs out; `driver.rs` carries out orders and looks for changes, on one thread. The switch and its sockets are
//! `aquifer-cxl-switch` and `aquifer-cxl-switchd`.

#![forbid(unsafe_code)]

mod adoption;
mod amendment;
mod args;
mod config;
mod driver;
mod labels;
mod logins;
mod places;
mod pool;
mod session;
mod settling;
mod trouble;
mod view;

pub use aquifer_cxl_switchd::Ended;
pub use args::{Args, run};
pub use config::Config;
