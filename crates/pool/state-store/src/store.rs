// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The trait, and what is committed.
//!
//! The version of an entry is the number of the commit that wrote it last. So a key that was deleted and written again
//! never has the version that it had before, and a caller that expects a version notices every change.

use crate::failure::{NotCommitted, StoreFailure};
use crate::key::Key;

/// Largest value: a volume of 256 spans with 20 members each, written as JSON, several times over.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of writes in one transaction: more than the volumes of the largest pool that is tested.
pub const WRITES_MAX: usize = 1 << 16;
/// Maximum number of entries that one scan returns.
pub const SCAN_MAX: usize = 1024;

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the commit that wrote it.
    pub version: u64,
    /// The value's bytes.
    pub value: Vec<u8>,
}

/// What a transaction relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The key has no value.
    Absent,
    /// The key has a value with this version.
    Version(u64),
}

/// One write of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key loses its value. A key without a value stays so.
    Delete(Key),
    /// The key gets a value.
    Put(Key, Vec<u8>),
}

/// Expectations, and what is written if all of them hold. Of several writes to one key the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold for the writes to take place.
    pub expectations: Vec<(Key, Expectation)>,
    /// What is written then.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// Creates a transaction that changes nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Adds an expectation.
    #[must_use]
    pub fn expect(mut self, key: Key, expectation: Expectation) -> Transaction {
        self.expectations.push((key, expectation));
        self
    }

    /// Adds a value.
    #[must_use]
    pub fn put(mut self, key: Key, value: Vec<u8>) -> Transaction {
        self.writes.push(Write::Put(key, value));
        self
    }

    /// Adds a deletion.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Transaction {
        self.writes.push(Write::Delete(key));
        self
    }

    /// Refuses what is larger than any store takes.
    pub(crate) fn check(&self) -> Result<(), NotCommitted> {
        if self.writes.len() > WRITES_MAX {
            return Err(NotCommitted::TooLarge { what: "writes", found: self.writes.len(), max: WRITES_MAX });
        }
        for write in &self.writes {
            if let Write::Put(_, value) = write
                && value.len() > VALUE_BYTES_MAX
            {
                return Err(NotCommitted::TooLarge { what: "bytes", found: value.len(), max: VALUE_BYTES_MAX });
            }
        }
        Ok(())
    }
}

/// Returns whether an expectation holds for what a key has.
pub(crate) fn holds(expectation: Expectation, found: Option<u64>) -> bool {
    match expectation {
        Expectation::Absent => found.is_none(),
        Expectation::Version(version) => found == Some(version),
    }
}

/// Durable state. It has one writer at a time, and readers see whole transactions.
pub trait StateStore: Send {
    /// Returns the value of a key.
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure>;

    /// Returns up to [`SCAN_MAX`] entries whose keys begin with `prefix`, in the order of their keys, after the key
    /// `after`. Fewer than [`SCAN_MAX`] means that there are no more.
    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure>;

    /// Writes a transaction as a whole, if its expectations hold, and returns its number, which is greater than all
    /// before it. After [`NotCommitted::Unknown`] the store refuses everything until it is opened again.
    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted>;

    /// Returns all entries whose keys begin with `prefix`.
    fn scan_all(&self, prefix: &str) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        let mut found = self.scan(prefix, None)?;
        let mut last = found.len();
        while last == SCAN_MAX {
            let more = self.scan(prefix, found.last().map(|(key, _)| key))?;
            last = more.len();
            found.extend(more);
        }
        Ok(found)
    }
}
