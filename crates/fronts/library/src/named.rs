// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Mappings with a name, whose contents stay in a file when the process has ended.
//!
//! A named mapping is a [`Mapping`](crate::Mapping): it is read, written to, viewed, pinned and hinted at like any
//! other. Its file is in the directory that [`Builder::named_in`](crate::Builder::named_in) names, and is read when its
//! memory is touched, so that opening a mapping costs little, whatever its size. Changes stay in DRAM and in
//! the tiers until a sync.
//!
//! ```
//! # if aquifer::probe().is_err() { return Ok(()) }
//! # let directory = std::env::temp_dir().join(format!("aquifer-doc-named-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! use aquifer::Space;
//!
//! let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").named_in(&directory).open()?;
//! let mut words = space.map_named("words", 32 << 20)?;
//! words.view_mut::<u64>(..)?[1000] = 7;
//! words.sync(..)?;
//! drop(words);
//!
//! // In this process or in another one, at any time later.
//! let words = space.open_named("words")?;
//! assert_eq!(words.view::<u64>(..)?[1000], 7);
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! - **A sync is durable** when it returns: its bytes survive the end of the process and of the machine, as far as the
//!   file system and the disk keep what they report to be durable (fdatasync(2)).
//! - **A sync is atomic**, for all of its range. After a crash at any moment, the file has all of the last sync that
//!   returned, or all of the next one, which was under way, and nothing of what was written since. So
//!   [`snapshot`](crate::Mapping::snapshot) is the state of the whole mapping at one moment.
//! - **What a mapping has when it is opened is durable**, also if it comes from a sync that did not return.
//! - **Every page is checked** when it is read from the file. A page that is not what was synced is lost: reads of its
//!   block return [`Error::Lost`](crate::Error::Lost), and a load of it gets SIGBUS. It never has other bytes.
//! - **Changes that are not synced** when the mapping is dropped, or its process ends, are lost.
//! - **The bytes are those of the machine.** A view of `u64` is little-endian on every machine that this crate runs on.
//!
//! # What it costs
//!
//! A sync writes the pages that have changed, found by their guards, and one page of 4 KiB for each 256 pages around
//! them. While it runs, the file has the old and the new pages: at worst twice the mapping. Room that becomes free is
//! used again by later syncs; the file does not become shorter. Opening a mapping writes one page of 4 KiB and waits
//! until it is durable. An open named mapping takes about 24 bytes of DRAM for each page that has contents, beside what
//! every mapping takes. The file is not encrypted.
//!
//! # Errors
//!
//! One process can have a mapping open, once, in one space. [`NamedError`] has a variant for everything that can be
//! wrong with a file; nothing is ever repaired silently.

mod failure;
mod file;
mod name;
mod synced;

pub use self::failure::NamedError;
pub(crate) use self::synced::NamedFile;
