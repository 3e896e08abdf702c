// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program `aquifer-cache`: a key-value cache for Redis clients whose values are in far memory.
//!
//! The path of a request, in files of this crate:
//!
//! 1. `server.rs` waits for sockets (`net.rs`, `net/connection.rs`), and gives each batch of requests that has arrived
//!    on a connection a context of the library's executor.
//! 2. `request.rs` decodes bytes to words, and `command.rs` words to a command. Both are pure.
//! 3. `session.rs` carries out the batch in order. First it starts the fetches of all values that the batch will read;
//!    while they are on their way, the contexts of other connections run.
//! 4. `store.rs` finds the record of a key by the index in DRAM (`index.rs`, pure) and reads it from the log in far
//!    memory; `store/cleaner.rs` makes room in the log, where `spans.rs` (pure) decides.
//! 5. `reply.rs` encodes the reply.
//!
//! A tier that fails makes requests fail, and nothing else.
//!
//! ```
//! # if aquifer::probe().is_err() { return Ok(()) }
//! use aquifer::Space;
//! use aquifer_cache::Store;
//!
//! let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
//! let mut store = Store::open(&space, 48 << 20, 1000)?;
//! store.set(b"key", b"value", 0)?;
//! assert_eq!(store.value(b"key", 1)?, Some(&b"value"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod command;
mod figures;
pub mod index;
mod net;
mod record;
pub mod reply;
pub mod request;
mod server;
mod session;
mod settings;
mod spans;
mod store;

pub use server::{Server, ServerFailure, end};
pub use settings::{Settings, SettingsFailure};
pub use spans::{SPAN_BYTES, SPANS_MIN};
pub use store::{Store, StoreCounts, StoreFailure};
