// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric manager as a daemon: it stores the desired state of a pool, carries it out, and serves it as Redfish.
//!
//! The decisions are those of `aquifer_fabric`. One thread, the writer (`writer.rs`), takes orders, reads reports,
//! stores what is desired and sends steps; `ledger.rs` is what it stores, [`Peers`] is what it sends them to. Requests
//! of clients (`rest.rs`, `http.rs`) read snapshots and hand over orders; they never touch donors or agents. Losing the
//! daemon stops changes, never programs.
//!
//! `combined.rs` joins CXL switches (`aquifer_cxl_peers`) with the other peers.
//!
//! `accounts.rs` and `sessions.rs` say who may do what; each change has a record in the audit log, which is stored in
//! the same transaction. `config.rs` is the configuration file.

#![forbid(unsafe_code)]

mod accounts;
mod attempts;
mod combined;
mod config;
mod crash;
mod daemon;
mod events;
mod http;
mod initial;
mod ledger;
mod merge;
mod order;
mod peers;
mod rest;
mod sessions;
mod simulated;
mod snapshot;
mod tasks;
mod tls;
mod writer;

pub use config::{Config, NotAConfig, PeersConfig, SimulatedConfig, reference};
pub use daemon::{Daemon, Failure, run};
pub use peers::{Peers, Reports, SendFailure, Silent};
pub use rest::{openapi, take_body};
pub use simulated::{Held, read_directory};
