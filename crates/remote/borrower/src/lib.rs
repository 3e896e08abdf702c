// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Borrows memory of other hosts: a donor's memory as a tier ([`Donor`]), and several donors as one tier ([`Array`]),
//! which may change while programs use them ([`VolumeTierSpec`]).
//!
//! The donor's side is `aquifer-donor`; the messages between the two are in `aquifer-wire`. A description
//! ([`DonorSpec`], [`ArraySpec`]) comes from `aquifer-tiers`, which parses it and opens the tier. [`keep_alive`] renews
//! the leases at all donors of a tier, and a thread of the pager calls it.
//!
//! ```
//! use aquifer_borrower::{DonorSecurity, DonorSpec};
//!
//! let spec = DonorSpec {
//!     address: "unix:/run/aquifer/donor.sock".into(),
//!     size: None,
//!     security: DonorSecurity::Local,
//!     rdma: None,
//!     tree: None,
//!     reservation: 0,
//! };
//! assert_eq!(spec.socket_path(), Some("/run/aquifer/donor.sock"));
//! ```

#![forbid(unsafe_code)]

mod access_failure;
mod array;
mod borrow_failure;
mod donor;
mod keep_alive;
mod spec;

pub use array::memory_members;
pub use array::{Array, DATA_SHARDS, MEMBERS_MAX, POSITIONS, WEIGHT_MAX};
pub use borrow_failure::BorrowFailure;
pub use donor::Donor;
pub use keep_alive::keep_alive;
pub use spec::{ArraySpec, DonorSecurity, DonorSpec, MemberSpec, RdmaSpec, Redundancy, VolumeTierSpec};
