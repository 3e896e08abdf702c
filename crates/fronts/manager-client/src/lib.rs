// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A blocking client of the fabric manager's REST interface, for the programs that steer a pool.
//!
//! `client.rs` sends a request and reads its answer, within limits of time and size; `address.rs` parses the manager's
//! address; `connection.rs` connects, with TLS 1.3; `leader.rs` follows standbys to the leader; `failure.rs` is why
//! something could not be done, in one line. Bytes of the manager are decoded by serde_json.

#![forbid(unsafe_code)]

mod address;
mod client;
mod collection;
mod connection;
mod failure;
mod leader;
mod plain;

pub use address::Address;
pub use client::{Answer, Client, Request};
pub use collection::collection;
pub use failure::{Failure, failed, refused, unwritten, usage};
pub use plain::plain;
