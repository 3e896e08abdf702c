// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! RDMA by way of libibverbs, which is looked for when somebody asks for it and linked to by nobody.
//!
//! What is here is what one-sided access takes: a device and a port of it ([`choose`]), a protection domain
//! ([`Domain`]), memory that the device may reach ([`Window`], of which a peer reads and writes, and [`Dock`], of which
//! a queue pair takes and to which it brings), and a reliable connection ([`QueuePair`]). `abi.rs` has the structures,
//! `library.rs` the functions.
//!
//! After fork(2) all of it is the parent's: its memory is not in the child, each call is refused there
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
pub use memory::{Dock, Window};
pub use pair::{Completion, End, PSN_BITS, QueuePair, Work};
pub use ports::{Port, choose, ports};
