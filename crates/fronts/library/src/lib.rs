// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Far memory for Rust programs: more memory than a budget of DRAM allows, over flash, the memory of other machines,
//! or compressed memory.
//!
//! A [`Space`] is a budget of DRAM with one or more *tiers*, which store what does not fit. A [`Mapping`] is memory of
//! the space: it is used like any other memory, and the space moves its blocks between DRAM and the tiers. What a
//! program knows better than the space does, it says with hints, on a [`Mapping`] or its [`Hints`].
//!
//! ```
//! # if aquifer::probe().is_err() { return Ok(()) }
//! use aquifer::{Intent, Space};
//!
//! // 16 MiB of DRAM for 48 MiB of memory. Tiers are written as after `aquifer run --tier`.
//! let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
//! let mut mapping = space.map(48 << 20)?;
//!
//! // A slice of any plain type.
//! let numbers = mapping.view_mut::<u64>(..)?;
//! numbers.iter_mut().enumerate().for_each(|(index, number)| *number = index as u64);
//!
//! // The numbers that are needed next are fetched while this thread does something else.
//! mapping.prefetch(0..1 << 20, Intent::Read)?;
//! assert_eq!(mapping.view::<u64>(..)?[1000], 1000);
//! assert!(space.statistics().evicted_blocks > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What can go wrong
//!
//! Every call returns a typed [`Error`] that names the cause and the remedy. A load or store cannot return anything:
//! one of memory that a tier has lost gets SIGBUS, which by default ends the process. It never reads other bytes than
//! were written. [`Mapping::read`] and [`Mapping::write`] return [`Error::Lost`] instead.
//!
//! A space fails alone: other spaces of the process go on.
//!
//! # System calls
//!
//! If [`Space::serves_system_calls`], memory of the space can be passed to system calls like any other. Otherwise a
//! call that touches an evicted page fails with EFAULT: [pin] the range first, or copy. Either this process may not
//! receive the kernel's own faults, or the space was opened [without](Builder::without_system_calls), for faster
//! touches.
//!
//! [pin]: Mapping::pin
//!
//! # Forks
//!
//! A forked child has none of its parent's spaces. Their memory is not mapped there, and calls on them return
//! [`Error::Forked`].
//!
//! # Named mappings
//!
//! A mapping with a name keeps its contents in a file, from which the next process goes on. See [`named`].
//!
//! # Contexts
//!
//! A touch of evicted memory stops its thread for as long as the tier takes. A program that has other work
//! [asks first](Mapping::ready), which takes a few nanoseconds, and [fetches](Mapping::fetch) without waiting. See
//! [`contexts`].

/// Compiles the example of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod builder;
pub mod contexts;
mod curve;
mod error;
mod executor_reads;
mod fetch;
mod fetches;
mod gather;
mod hints;
mod in_place;
mod mapping;
pub mod named;
mod pin;
mod range;
mod space;
mod statistics;
mod status;
mod unborrowed;

pub use builder::Builder;
pub use curve::{CurvePoint, MissRatioCurve};
pub use error::{CloseError, EndReason, Error, OpenError};
pub use fetch::Fetch;
pub use gather::{Gather, Piece};
pub use hints::{Hints, Intent, Pattern, Priority};
pub use in_place::Copying;
pub use mapping::Mapping;
pub use named::NamedError;
pub use pin::Pin;
pub use space::{Space, Unsupported, probe};
pub use statistics::Statistics;
pub use status::{CLASS_NAMES, CLASSES, Histogram, Status, StatusRun, TemperatureRun};
/// The crate whose traits say which types can be [viewed](Mapping::view).
pub use zerocopy;
