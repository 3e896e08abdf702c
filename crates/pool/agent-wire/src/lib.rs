// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What programs and their host's agent say to each other about a volume of the pool. Pure.
//!
//! A program opens a volume by its name ([`Request::Open`]) and gets a [`View`] of it: where its members are, and what
//! to do with each. Whenever that changes, the agent sends the whole view again, so nothing depends on the messages
//! before. The program reports what it has done ([`Request::Progress`]). A client that hands out volumes instead of
//! using them asks for a list ([`Request::List`]). The launcher of a program shows the agent its statistics
//! ([`Request::Statistics`]). The agent is `crates/pool/agent`, and the program's side is
//! `crates/memory/tiers/src/pool.rs`.
//!
//! ```
//! use aquifer_agent_wire::{Decoder, Request, encode};
//!
//! let request = Request::Open { version: 1, volume: "db".into(), session: 7, holds: vec![] };
//! let mut decoder = Decoder::default();
//! decoder.push(&encode(&request)?);
//! assert_eq!(decoder.take::<Request>()?, Some(request));
//! # Ok::<(), aquifer_agent_wire::NotAFrame>(())
//! ```

#![forbid(unsafe_code)]

mod frame;
mod message;

pub use frame::{Decoder, FRAME_BYTES_MAX, HEAD_BYTES, NotAFrame, encode};
pub use message::{
    AMBIGUOUS_MAX, Answer, Denial, LISTED_MAX, ListedVolume, Listing, MEMBERS_MAX, MemberProgress, MemberView,
    NAME_BYTES_MAX, Order, Progress, Redundancy, Request, SESSION_MAX, SOCKET, STATE, TenantFiles, VERSION, View,
    is_name,
};
