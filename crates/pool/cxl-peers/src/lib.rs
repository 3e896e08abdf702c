// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! CXL switches as peers of the fabric manager: which devices are behind them, which host has their memory, and how it
//! is handed out.
//!
//! The fabric manager's decisions are those of `aquifer_fabric`. Here they meet switches that speak the FM API:
//! [`Switches`] reads them round by round, adds what they have to the topology, reports their devices, and carries out
//! the steps for these. A step is carried out only after its guard has read the state that it is about: a vPPB is
//! unbound only if the LD of the step is bound to it, an LD is wiped or bound only while nobody has it, and bound only
//! if nobody has had it since it was wiped. The same holds for blocks of dynamic capacity.
//!
//! The way of a round: `switches.rs` (all switches, each on a thread), `one_switch.rs` (its connection), `discover.rs`
//! (reads an [`Inventory`]), `events.rs` and `device_logs.rs` (the records of its logs and its devices'), then
//! `report.rs`, `twice.rs` and `parts.rs` (pure: reports and topology). The way of a step: `step.rs` (bind, unbind,
//! wipe), `capacity.rs` (dynamic capacity; `wiped_blocks.rs` wipes it, `capacity_hosts.rs` connects its hosts,
//! `choice.rs` decides what is offered, `pending.rs` takes back what hosts have not answered, `unlisted.rs` keeps what
//! devices do not list of it, `release_requests.rs` decides when a release is requested again), `direct_orders.rs`
//! (what operators order directly). `contents.rs` keeps what is wiped; `config.rs` is a switch's part of the
//! configuration.

#![forbid(unsafe_code)]

mod capacity;
mod capacity_hosts;
mod choice;
mod config;
mod contents;
mod device_logs;
mod direct_orders;
mod discover;
mod event_log;
mod events;
mod inventory;
mod one_switch;
mod parts;
mod pending;
mod release_requests;
mod report;
mod step;
mod step_failure;
mod switches;
mod tag;
mod twice;
mod unlisted;
mod view;
mod wiped_blocks;

pub use config::{NotASwitch, SwitchConfig, Wipe};
pub use direct_orders::{Act, PortAct};
pub use events::{Notice, Severity};
pub use inventory::{CapacityView, DeviceView, Inventory, Memory, Offer};
pub use one_switch::{Connect, Peer};
pub use step_failure::NotDone;
pub use switches::{Reached, Switches};
pub use tag::{Tag, member_of, tag_of};
pub use view::{PortView, VppbView};
