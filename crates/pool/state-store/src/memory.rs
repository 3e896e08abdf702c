// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A store in memory, for tests and for trying things out. Clones share what is stored.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::failure::{NotCommitted, StoreFailure};
use crate::key::Key;
use crate::store::{Entry, SCAN_MAX, StateStore, Transaction, Write, holds};

#[derive(Debug, Default)]
struct Content {
    commits: u64,
    entries: BTreeMap<Key, Entry>,
    /// Operations until one fails, if one is to fail.
    countdown: Option<u64>,
}

/// A store whose content is in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    content: Arc<Mutex<Content>>,
    /// Set by the failure that this handle has seen.
    is_latched: bool,
}

impl MemoryStore {
    /// Lets every operation after `operations` more fail, until [`MemoryStore::reopen`].
    pub fn fail_after(&self, operations: Option<u64>) {
        self.lock().countdown = operations;
    }

    /// Returns what a restart finds: the same content, and no failure ahead.
    #[must_use]
    pub fn reopen(&self) -> MemoryStore {
        self.fail_after(None);
        MemoryStore { content: Arc::clone(&self.content), is_latched: false }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().expect("no holder of this lock panics")
    }
}

impl Content {
    /// Counts one operation. Returns `Err` for the one that is to fail.
    fn count(&mut self) -> Result<(), StoreFailure> {
        let failed = || StoreFailure::Io { what: "written", source: "a failure that a test asked for".into() };
        match &mut self.countdown {
            Some(0) => Err(failed()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StateStore for MemoryStore {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        if self.is_latched {
            return Err(StoreFailure::Latched);
        }
        let mut content = self.lock();
        content.count()?;
        Ok(content.entries.get(key).cloned())
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        if self.is_latched {
            return Err(StoreFailure::Latched);
        }
        let mut content = self.lock();
        content.count()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = content.entries.range::<Key, _>((start, Bound::Unbounded));
        let all = all.filter(|(key, _)| key.as_str().starts_with(prefix));
        Ok(all.take(SCAN_MAX).map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        if self.is_latched {
            return Err(NotCommitted::Failed(StoreFailure::Latched));
        }
        transaction.check()?;
        let mut content = self.content.lock().expect("no holder of this lock panics");
        if let Err(failure) = content.count() {
            self.is_latched = true;
            return Err(NotCommitted::Failed(failure));
        }
        for (key, expectation) in &transaction.expectations {
            if !holds(*expectation, content.entries.get(key).map(|entry| entry.version)) {
                return Err(NotCommitted::Conflict { key: key.clone() });
            }
        }
        content.commits += 1;
        let version = content.commits;
        for write in &transaction.writes {
            match write {
                Write::Delete(key) => drop(content.entries.remove(key)),
                Write::Put(key, value) => {
                    content.entries.insert(key.clone(), Entry { version, value: value.clone() });
                }
            }
        }
        // A second operation of the commit: a failure here leaves the caller without an answer.
        if let Err(failure) = content.count() {
            self.is_latched = true;
            return Err(NotCommitted::Unknown(failure));
        }
        Ok(version)
    }
}
