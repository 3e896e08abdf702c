// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Durable state of a fabric manager: keys with values and versions, changed by compare-and-swap over several keys.
//!
//! [`StateStore`] is the trait; [`EmbeddedStore`] keeps one file with redb, [`EtcdStore`] a part of a cluster of etcd,
//! [`MemoryStore`] keeps nothing. All pass [`conformance`], including a part in which operation n fails, for each n. A
//! [`Transaction`] is committed as a whole or not at all, whatever crashes: when `commit` returns, it is durable.
//!
//! ```
//! use aquifer_state_store::{Expectation, Key, MemoryStore, StateStore, Transaction};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut store = MemoryStore::default();
//! let head = Key::new("desired/head")?;
//! let first = Transaction::new().expect(head.clone(), Expectation::Absent).put(head.clone(), b"{}".to_vec());
//! let version = store.commit(&first)?;
//! assert_eq!(store.read(&head)?.map(|entry| entry.version), Some(version));
//! assert!(store.commit(&first).is_err(), "the key is no longer absent");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod conformance;
mod embedded;
mod etcd;
mod failure;
mod key;
mod memory;
mod store;

pub use embedded::{EmbeddedStore, FORMAT};
pub use etcd::messages::take_answer;
pub use etcd::{
    Bounds, Campaign, ENDPOINTS_MAX, ETCD_FORMAT, Election, EtcdSettings, EtcdStore, EtcdTls, LEASE_SECONDS_MIN,
    Leadership, NotSettings, PREFIX_BYTES_MAX,
};
pub use failure::{NotCommitted, Refusal, StoreFailure};
pub use key::{KEY_BYTES_MAX, Key, NotAKey};
pub use memory::MemoryStore;
pub use store::{Entry, Expectation, SCAN_MAX, StateStore, Transaction, VALUE_BYTES_MAX, WRITES_MAX, Write};
