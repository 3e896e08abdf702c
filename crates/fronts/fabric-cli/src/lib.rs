// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program `aquifer-fabric`: steers a pool of far memory through the fabric manager's REST interface.
//!
//! `program.rs` carries out the command line, and `watch.rs` repeats what lists a state. `show.rs` prints what the
//! manager answers, `audit.rs` the audit log, `lists.rs` collections, `change.rs` asks for changes, `follow.rs` follows
//! the events, `accounts.rs` has sessions and accounts; `session.rs` keeps the token. `aquifer-manager-client` speaks
//! HTTP over sockets and TLS. Bytes of the manager are decoded by [`Decoder`] and serde_json, and printed by
//! `table.rs`, which lets no control character through.

#![forbid(unsafe_code)]

mod accounts;
mod audit;
mod change;
mod follow;
mod joining;
mod lists;
mod program;
mod serve;
mod session;
mod show;
mod sse;
mod table;
mod watch;

pub use aquifer_manager_client::Failure;
pub use program::run;
pub use sse::{Decoder, EVENT_BYTES_MAX, Sent, TooLong};
