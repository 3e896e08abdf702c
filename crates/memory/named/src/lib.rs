// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The files of named mappings: the contents of a mapping, kept on a file system from one process to the next.
//!
//! Pure: a [`Store`] reads and writes through a [`Medium`], which its owner supplies. So the tests of this crate cut
//! the power at every write.
//!
//! A file is a tree of pages of 4 KiB. The leaves are the mapping's pages; a node lists the place and the guard of up
//! to 256 pages below it; a superblock lists those of the root. A sync never overwrites a page of the tree that the
//! last sync made durable: it writes changed pages and the nodes above them to free places, waits for the medium, and
//! then writes the superblock of the next generation over the older of the two superblocks. Until that superblock is
//! durable, the file has the state of the sync before; from then on it has the new state, as a whole. A superblock that
//! can be read may not be durable; opening a file makes it so, before any sync overwrites what is older.
//!
//! Start with `format.rs`, which has the bytes; then `store.rs`, which opens a file, and `draft.rs`,
//! which changes it.

#![forbid(unsafe_code)]

mod draft;
mod failure;
pub mod format;
mod free_places;
mod medium;
mod store;
mod tree;

pub use draft::{Changed, Draft};
pub use failure::Failure;
pub use medium::{Activity, Medium, MediumFailure};
pub use store::Store;
pub use tree::Lookup;
