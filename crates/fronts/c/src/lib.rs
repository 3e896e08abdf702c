// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The C library: the crate `aquifer` behind a stable binary interface. `include/aquifer.h` is its documentation.
//!
//! What holds for every call, whatever its arguments are:
//!
//! - Handles are numbers, looked up in a table that checks their generation (`handles.rs`). No pointer of ours is given
//!   to a program, so none comes back stale.
//! - Pointers are checked for NULL and alignment, and lengths for overflow, before they are used (`arguments.rs`). That
//!   they point to what the header says is the caller's promise.
//! - No panic crosses the boundary: `guard.rs` turns one into `AQUIFER_ERR_INTERNAL`.
//!
//! Structs begin with their size, so that they can grow: `sized.rs`. The symbols' versions are in `libaquifer.map`.
//!
//! ```
//! use aquifer_c::space::{Options, Space, aquifer_open};
//!
//! // A program in Rust uses the crate `aquifer`; here, only what C would do.
//! let mut space = Space::default();
//! let refused = unsafe { aquifer_open(std::ptr::null(), &raw mut space) };
//! assert_eq!(refused, -1);
//! # let _ = size_of::<Options>();
//! ```

pub mod arguments;
pub mod code;
pub mod contexts;
pub mod curve;
pub mod fetches;
pub mod gathers;
pub mod guard;
pub mod handles;
pub mod hints;
pub mod mapping;
mod ordinary;
pub mod queries;
pub mod sized;
pub mod space;
