// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! CXL memory on a host: what a fabric manager has bound to it, turned into memory that programs use.
//!
//! ```text
//! memdev  ->  endpoint decoder  ->  region  ->  memory device (dax0.0)  ->  memory blocks  ->  NUMA node
//!             a range of its         a range of the host's
//!             own addresses          addresses (a window)
//! ```
//!
//! [`Listing`] reads all of it, and [`check`] compares sizes. [`create`] makes a region, or changes nothing;
//! [`destroy`] destroys one. [`attach`] and [`detach`] carry out all steps for a device that was bound, or is about to
//! be unbound. [`online`] gives a memory device to the kernel, as a node, and [`offline`] gives it to programs; memory
//! in use is migrated, or its holders are named. A memory device that a program has open is left alone. Everything
//! works on a [`Tree`](aquifer_nodes::Tree): the tests have a model of the kernel's files ([`model`]), which fails at
//! every write in turn.
//!
//! Next: `listing.rs`. See the kernel's `Documentation/ABI/testing/sysfs-bus-cxl`.

#![forbid(unsafe_code)]

mod attach;
mod check;
mod create;
mod destroy;
mod dvsec;
mod failure;
mod holders;
mod listing;
mod memory;
pub mod model;

pub use attach::{Attached, Bound, Identity, Nodes, Purpose, attach, detach};
pub use check::{Finding, check};
pub use create::{Request, create};
pub use destroy::destroy;
pub use failure::CxlFailure;
pub use holders::{Holder, holders, users};
pub use listing::{Decoder, Listing, Memdev, Region, Window};
pub use memory::{BLOCK_TIME_MAX, Blocks, Progress, Zone, blocks, offline, online};
