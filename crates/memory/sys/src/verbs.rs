// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! RDMA through libibverbs, which is loaded when first needed; nothing is linked against it.
//!
//! This module contains what one-sided access requires: a device and one of its ports ([`choose`]), a protection domain
//! ([`Domain`]), memory that the device may access ([`Window`], which a peer reads and writes, and [`BounceBuffer`],
//! the local buffer of a queue pair), and a reliable connection ([`QueuePair`]). `abi.rs` has the structures,
//! `library.rs` the functions.
//!
//! After fork(2) all of it belongs to the parent: its memory is not mapped in the child, each call is refused there
//! (`EOWNERDEAD`), and dropping it does nothing.

mod abi;
mod device;
mod failure;
mod library;
mod memory;
mod pair;
mod ports;

pub use device::{Device, Domain};
pub use failure::VerbsFailure;
pub use memory::{BounceBuffer, Window};
pub use pair::{Completion, End, PSN_BITS, QueuePair, Work};
pub use ports::{Port, choose, ports};
