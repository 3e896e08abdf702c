// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every store must do. A test calls [`check`] with a [`Rig`] for its store.
//!
//! The last part plays one history again and again, and lets operation n fail, for each n; then it reopens the store
//! and compares it with a plain map: every transaction is there as a whole or not at all, in order, and one that was
//! reported as committed is there.

use std::collections::BTreeMap;

use crate::failure::NotCommitted;
use crate::key::Key;
use crate::store::{Expectation, SCAN_MAX, StateStore, Transaction, Write};

/// Maximum number of operations that the history of [`check`] takes; more means that it never ends.
const OPERATIONS_MAX: u64 = 20_000;
/// Transactions of that history.
const TRANSACTIONS: u64 = 12;

/// A store under test.
pub trait Rig {
    /// Returns an empty store whose operation number `failing` fails, with all after it, if one is named.
    fn make(&mut self, failing: Option<u64>) -> Option<Box<dyn StateStore>>;

    /// Returns what a restart finds after the store of the last `make` was dropped.
    fn reopen(&mut self) -> Box<dyn StateStore>;
}

/// Panics where a store breaks the contract.
pub fn check(rig: &mut dyn Rig) {
    a_commit_is_read_back(rig);
    an_expectation_that_does_not_hold_changes_nothing(rig);
    versions_are_never_given_twice(rig);
    scans_are_ordered_and_come_in_parts(rig);
    every_operation_may_fail(rig);
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

fn a_commit_is_read_back(rig: &mut dyn Rig) {
    let mut store = rig.make(None).expect("no failure was asked for");
    let both = Transaction::new().put(key("a/1"), b"one".to_vec()).put(key("a/2"), Vec::new());
    let version = store.commit(&both).expect("committed");
    let found = store.read(&key("a/1")).expect("read").expect("present");
    assert_eq!((found.version, found.value.as_slice()), (version, &b"one"[..]));
    store.commit(&Transaction::new().delete(key("a/1")).delete(key("b"))).expect("committed");
    drop(store);
    let store = rig.reopen();
    assert_eq!(store.read(&key("a/1")).expect("read"), None);
    assert_eq!(store.read(&key("a/2")).expect("read").expect("an empty value is a value").value, b"");
}

fn an_expectation_that_does_not_hold_changes_nothing(rig: &mut dyn Rig) {
    let mut store = rig.make(None).expect("no failure was asked for");
    let version = store.commit(&Transaction::new().put(key("a"), vec![1])).expect("committed");
    for (wrong, expectation) in
        [("a", Expectation::Absent), ("a", Expectation::Version(version + 1)), ("b", Expectation::Version(version))]
    {
        let transaction = Transaction::new()
            .expect(key("a"), Expectation::Version(version))
            .expect(key(wrong), expectation)
            .put(key("a"), vec![2])
            .put(key("c"), vec![3]);
        let refused = store.commit(&transaction);
        assert!(matches!(&refused, Err(NotCommitted::Conflict { key }) if key.as_str() == wrong), "{refused:?}");
    }
    assert_eq!(store.read(&key("a")).expect("read").expect("present").value, [1]);
    assert_eq!(store.read(&key("c")).expect("read"), None);
    let right = Transaction::new().expect(key("a"), Expectation::Version(version)).put(key("a"), vec![2]);
    assert!(store.commit(&right).expect("committed") > version);
}

fn versions_are_never_given_twice(rig: &mut dyn Rig) {
    let mut store = rig.make(None).expect("no failure was asked for");
    let mut last = 0;
    for _ in 0..3 {
        let put = store.commit(&Transaction::new().put(key("a"), vec![1])).expect("committed");
        let deleted = store.commit(&Transaction::new().delete(key("a"))).expect("committed");
        assert!(last < put && put < deleted, "{last} {put} {deleted}");
        last = deleted;
        drop(store);
        store = rig.reopen();
    }
}

fn scans_are_ordered_and_come_in_parts(rig: &mut dyn Rig) {
    let mut store = rig.make(None).expect("no failure was asked for");
    let numbers = 0..SCAN_MAX + 5;
    let all =
        numbers.clone().rev().fold(Transaction::new().put(key("v"), vec![]).put(key("w/0"), vec![]), |all, one| {
            all.put(key(&format!("v/{one:05}")), vec![1])
        });
    store.commit(&all).expect("committed");
    assert_eq!(store.scan("v/", None).expect("scanned").len(), SCAN_MAX);
    let found: Vec<String> =
        store.scan_all("v/").expect("scanned").into_iter().map(|(key, _)| key.to_string()).collect();
    let expected: Vec<String> = numbers.map(|one| format!("v/{one:05}")).collect();
    assert_eq!(found, expected);
    assert_eq!(store.scan("x", None).expect("scanned"), []);
}

type Model = BTreeMap<Key, Vec<u8>>;

/// Returns transaction `number` of the history.
fn transaction(number: u64) -> Transaction {
    let value = |salt: u64| vec![number as u8; 1 + (number * 613 * salt % 5000) as usize];
    let transaction = Transaction::new()
        .put(key("head"), number.to_le_bytes().to_vec())
        .put(key(&format!("volume/{}", number % 5)), value(1))
        .put(key(&format!("audit/{number:03}")), value(2));
    if number % 3 == 2 { transaction.delete(key(&format!("volume/{}", (number + 2) % 5))) } else { transaction }
}

fn apply(model: &mut Model, transaction: &Transaction) {
    for write in &transaction.writes {
        match write {
            Write::Delete(key) => drop(model.remove(key)),
            Write::Put(key, value) => drop(model.insert(key.clone(), value.clone())),
        }
    }
}

fn content(store: &dyn StateStore) -> Model {
    store.scan_all("").expect("the store was opened again").into_iter().map(|(key, entry)| (key, entry.value)).collect()
}

/// Plays the history until something fails. Returns the model of what was reported as committed, and that with the
/// transaction that was under way.
fn play(store: &mut dyn StateStore) -> (Model, Option<Model>) {
    let mut model = Model::new();
    for number in 0..TRANSACTIONS {
        let mut next = model.clone();
        apply(&mut next, &transaction(number));
        match store.commit(&transaction(number)) {
            Ok(_) => model = next,
            Err(NotCommitted::Failed(_) | NotCommitted::Unknown(_)) => {
                assert!(store.commit(&transaction(number)).is_err(), "a store that has failed refuses what follows");
                return (model, Some(next));
            }
            Err(other) => panic!("{other}"),
        }
    }
    (model, None)
}

fn every_operation_may_fail(rig: &mut dyn Rig) {
    for failing in 0..OPERATIONS_MAX {
        let Some(mut store) = rig.make(Some(failing)) else {
            // It failed while it was made; the next start makes it again.
            assert!(content(&*rig.reopen()).is_empty(), "operation {failing}");
            continue;
        };
        let (before, after) = play(&mut *store);
        drop(store);
        let found = content(&*rig.reopen());
        let Some(after) = after else {
            assert!(found == before, "operation {failing}: a committed transaction is missing");
            return;
        };
        assert!(found == before || found == after, "operation {failing}: a transaction is stored in part");
        let mut store = rig.reopen();
        store.commit(&transaction(99)).expect("it works after it was opened again");
    }
    panic!("the history takes more than {OPERATIONS_MAX} operations");
}
