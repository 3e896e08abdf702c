// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The store in memory keeps the contract, and the suite notices a store that does not.

use aquifer_state_store::conformance::{Rig, check};
use aquifer_state_store::{Entry, Key, MemoryStore, NotCommitted, StateStore, StoreFailure, Transaction};

#[derive(Default)]
struct InMemory {
    last: MemoryStore,
    /// Wraps the store, if it is to break its contract.
    breaks: bool,
}

impl Rig for InMemory {
    fn make(&mut self, failing: Option<u64>) -> Option<Box<dyn StateStore>> {
        self.last = MemoryStore::default();
        self.last.fail_after(failing);
        Some(self.boxed(self.last.clone()))
    }

    fn reopen(&mut self) -> Box<dyn StateStore> {
        self.boxed(self.last.reopen())
    }
}

impl InMemory {
    fn boxed(&self, store: MemoryStore) -> Box<dyn StateStore> {
        if self.breaks { Box::new(Torn(store)) } else { Box::new(store) }
    }
}

/// A store that writes one key at a time.
struct Torn(MemoryStore);

impl StateStore for Torn {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        self.0.read(key)
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        self.0.scan(prefix, after)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        let mut one = Transaction { expectations: transaction.expectations.clone(), writes: Vec::new() };
        let mut version = 0;
        for write in &transaction.writes {
            one.writes = vec![write.clone()];
            version = self.0.commit(&one)?;
            one.expectations.clear();
        }
        Ok(version)
    }
}

#[test]
fn the_store_in_memory_keeps_the_contract() {
    check(&mut InMemory::default());
}

#[test]
fn a_store_that_writes_key_by_key_is_found() {
    let found = std::panic::catch_unwind(|| check(&mut InMemory { breaks: true, ..InMemory::default() }));
    assert!(found.is_err(), "a store that is not atomic passes");
}
