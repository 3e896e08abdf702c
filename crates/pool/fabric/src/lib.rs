// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The model of the pool: its parts, its desired state, its observed state, and the steps from one to the other.
//!
//! Pure: no I/O, no clock, no threads. Time, randomness and order are arguments, so that a fabric manager, its
//! simulator and its tests make the same decisions. A fabric manager repeats one round: it reads the reports of
//! donors, agents and switches ([`Observed`]); drops what has ended ([`settle`]) and replaces failing members
//! ([`Edit::repair`]); stores the [`Desired`] state; and sends the steps of [`reconcile`]. Donors and agents refuse
//! stale steps ([`Gate`]).
//!
//! Donors keep the authority over their memory: they mint the fencing tokens. Losing a fabric manager stops changes
//! but no program; a fabric manager that has lost its state adopts what is in use ([`Edit::adopt`]).
//!
//! ```
//! use aquifer_fabric::{Bytes, Capacity, Desired, Edit, Observed, Parts, Step, Topology, VolumeId, reconcile};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let parts: Parts = serde_json::from_str(
//!     r#"{"enclosures": {"e0": {"rack": "r0"}}, "hosts": {"h0": {"enclosure": "e0"}},
//!         "donors": {"d0": {"enclosure": "e0", "class": "tcp", "capacity": "64GiB"}}}"#,
//! )?;
//! let topology = Topology::new(parts)?;
//! let mut desired: Desired = serde_json::from_str(
//!     r#"{"format": 1, "version": 0, "pools": {"main": {"donors": ["d0"]}},
//!         "zones": {"lab": {"quota": "32GiB", "hosts": ["h0"]}}}"#,
//! )?;
//! let observed: Observed = serde_json::from_str(
//!     r#"{"donors": {"d0": {"incarnation": 1, "availability": "up", "term": 1, "capacity": "64GiB", "leases": {}}},
//!         "hosts": {"h0": {"incarnation": 1, "availability": "up", "term": 1, "volumes": {}, "left": {}}}}"#,
//! )?;
//!
//! let mut capacity = Capacity::new(&topology, &desired, &observed);
//! let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
//! let spec = serde_json::from_str(r#"{"size": "8GiB", "pool": "main", "zone": "lab", "class": "tcp"}"#)?;
//! edit.create(VolumeId(7), "scratch".parse()?, spec)?;
//! edit.bind(VolumeId(7), &"h0".parse()?)?;
//!
//! let round = reconcile(&desired, &observed);
//! assert!(matches!(&round.steps[..], [Step::Grant { bytes, .. }] if *bytes == Bytes::gib(8)));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod adopt;
mod at_hosts;
mod audit;
mod bytes;
mod cause;
mod counted;
mod date;
mod declaration;
mod desired;
mod expiry_clock;
mod fencing;
mod id;
mod ids_in_use;
mod observed;
mod placement;
mod plain_json;
mod plan;
mod presented;
mod reconcile;
mod repair;
mod settle;
mod shared_map;
mod topology;
mod unlisted;
mod volume;
mod volumes;

#[cfg(test)]
mod example;

pub use adopt::NotAdopted;
pub use at_hosts::{is_at_host, leaving_hosts};
pub use audit::{Broken, Link, NotALink, Record, Tail, Verifier, verify};
pub use bytes::{Bytes, NotBytes, SLAB};
pub use cause::{Cause, NotAnId, REQUEST_ID_BYTES_MAX, RequestId};
pub use date::date;
pub use declaration::{Declaration, DeclaredVolume};
pub use desired::{Corrupt, Desired, Edit, FORMAT, Leaving, OverQuota, Pool, Volume, Why, Zone};
pub use expiry_clock::{ExpiryClock, Jump};
pub use fencing::{Command, Gate, Stale};
pub use id::*;
pub use ids_in_use::pass_over_ids_in_use;
pub use observed::*;
pub use placement::{Capacity, Choice, Placement, Reach, Refusal, Request, RunningCapacity};
pub use plain_json::{PLAIN_VALUES_MAX, PlainJson};
pub use plan::{Change, NotApplied, apply, diff};
pub use presented::Presented;
pub use reconcile::{Backlog, End, MemberLease, Reason, Round, Step, Stray, Waiting, reconcile};
pub use repair::Unrepaired;
pub use settle::{settle, settle_some};
pub use shared_map::SharedMap;
pub use topology::*;
pub use volume::*;
pub use volumes::Volumes;
