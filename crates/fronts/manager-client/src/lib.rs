// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A blocking client of the fabric manager's REST interface, for the programs that steer a pool.
//!
//! `client.rs` sends a request and reads its answer, within limits of time and size; `address.rs` parses the manager's
//! address; `connection.rs` connects, with TLS 1.3; `leader.rs` follows standbys to the leader; `collection.rs` reads
//! all pages of a collection; `failure.rs` describes a failure in one line, and `plain.rs` makes what others have named
//! fit to print. serde_json decodes the manager's answers.

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
