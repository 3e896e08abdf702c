// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fabric manager as a daemon: it stores the desired state of a pool, carries it out, and serves it as Redfish.
//!
//! The decisions are those of `aquifer_fabric`. `leadership.rs` leads, or stands by while another manager leads. One
//! thread, the writer (`writer.rs`), takes orders, reads reports, stores the desired state (`manager_store.rs`) and
//! sends steps to [`Peers`]: simulated ones, or those that have registered at its control port (`registered.rs`).
//! Requests of clients (`rest.rs`, `http.rs`) read snapshots and hand over orders; they never touch donors or agents.
//! Losing the daemon stops changes, never programs.
//!
//! `combined_peers.rs` joins CXL switches (`aquifer_cxl_peers`) with the other peers.
//!
//! `console.rs` serves a page for people, which uses the same interface. `accounts.rs` and `sessions.rs` say who may do
//! what; each change has a record in the audit log, which is stored in the same transaction. `config.rs` is the
//! configuration file.

#![forbid(unsafe_code)]

mod account_changes;
mod accounts;
mod adoption;
mod amendment;
mod audit_checks;
mod combined_peers;
mod config;
mod console;
mod crash;
mod daemon;
mod events;
mod exposition;
mod first_account;
mod hashing;
mod http;
mod issuance;
mod leadership;
mod login_attempts;
mod manager_store;
mod meters;
mod newest_reports;
mod order;
mod peers;
mod push;
mod registered;
mod rest;
mod scrape;
mod sessions;
mod simulated;
mod snapshot;
mod subscriptions;
mod tasks;
mod tenure;
mod term_claims;
mod tls;
mod writer;

pub use config::{
    CaConfig, Config, ControlConfig, EmbeddedConfig, EtcdConfig, EventsConfig, NotAConfig, PeersConfig,
    RegisteredConfig, SimulatedConfig, StateConfig, StoreConfig, reference,
};
pub use daemon::{Daemon, Failure, run};
pub use exposition::METRICS;
pub use peers::{Asked, Peers, Reports, SendFailure, Silent};
pub use rest::{openapi, take_body, take_request};
pub use simulated::{Held, read_directory};
