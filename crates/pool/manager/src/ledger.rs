// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the manager stores, and how a change of it becomes one transaction.
//!
//! | key | value, as JSON |
//! |---|---|
//! | `term` | the term of the last manager that started |
//! | `desired/head` | the desired state without its volumes |
//! | `desired/volume/ID` | a volume |
//! | `audit/NUMBER` | a record of the audit log, its number in 16 digits |
//! | `audit/tail` | the end of the audit log |
//! | `account/NAME`, `session/ID` | see `accounts.rs` and `sessions.rs` |
//!
//! A change is stored with its audit records, under the expectation that `term` and `desired/head` are as this manager
//! wrote them last: a manager that was deposed stores nothing.

use std::fmt;

use aquifer_fabric::{Corrupt, Desired, Millis, Record, Tail, Term, Volume, VolumeId};
use aquifer_state_store::{Expectation, Key, NotCommitted, StateStore, StoreFailure, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::crash::CrashPoint;

/// Longest text of an audit record; what is longer is cut, and says so.
const AUDIT_TEXT_MAX: usize = 2000;

/// Why the ledger cannot be opened or written.
#[derive(Debug)]
pub(crate) enum LedgerFailure {
    /// The desired state contradicts itself.
    Corrupt(Corrupt),
    /// A value cannot be read.
    Damaged { key: String, error: serde_json::Error },
    /// A transaction was not committed.
    NotCommitted(NotCommitted),
    /// The store cannot be read.
    Store(StoreFailure),
}

impl fmt::Display for LedgerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(corrupt) => corrupt.fmt(f),
            Self::Damaged { key, error } => write!(f, "{key} of the state is damaged ({error}); restore a backup"),
            Self::NotCommitted(not) => not.fmt(f),
            Self::Store(failure) => failure.fmt(f),
        }
    }
}

impl From<StoreFailure> for LedgerFailure {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

impl From<NotCommitted> for LedgerFailure {
    fn from(not: NotCommitted) -> Self {
        Self::NotCommitted(not)
    }
}

/// One line for the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) who: String,
    pub(crate) what: String,
}

impl Entry {
    pub(crate) fn new(who: impl Into<String>, what: impl Into<String>) -> Entry {
        Entry { who: who.into(), what: what.into() }
    }
}

/// The store, and what this manager knows to be in it.
pub(crate) struct Ledger {
    store: Box<dyn StateStore>,
    crash: CrashPoint,
    term: Term,
    term_version: Option<u64>,
    head_version: Option<u64>,
    tail: Tail,
    tail_version: Option<u64>,
}

fn key(text: impl Into<String>) -> Key {
    Key::new(text).expect("names and numbers are plain")
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what is stored can be written as JSON")
}

fn parse<T: DeserializeOwned>(key: &Key, value: &[u8]) -> Result<T, LedgerFailure> {
    serde_json::from_slice(value).map_err(|error| LedgerFailure::Damaged { key: key.to_string(), error })
}

fn expected(version: Option<u64>) -> Expectation {
    version.map_or(Expectation::Absent, Expectation::Version)
}

fn volume_key(id: VolumeId) -> Key {
    key(format!("desired/volume/{id}"))
}

impl Ledger {
    /// Reads the state. An empty store has the empty state.
    pub(crate) fn open(store: Box<dyn StateStore>, crash: CrashPoint) -> Result<(Ledger, Desired), LedgerFailure> {
        let mut ledger = Ledger {
            store,
            crash,
            term: Term(0),
            term_version: None,
            head_version: None,
            tail: Tail::default(),
            tail_version: None,
        };
        let (term, tail) = (ledger.load::<Term>("term")?, ledger.load::<Tail>("audit/tail")?);
        if let Some((version, term)) = term {
            (ledger.term, ledger.term_version) = (term, Some(version));
        }
        if let Some((version, tail)) = tail {
            (ledger.tail, ledger.tail_version) = (tail, Some(version));
        }
        let mut desired = Desired::default();
        if let Some((version, head)) = ledger.load::<Desired>("desired/head")? {
            (desired, ledger.head_version) = (head, Some(version));
        }
        for (found, entry) in ledger.store.scan_all("desired/volume/")? {
            let id = found.as_str().rsplit('/').next().unwrap_or_default().to_owned();
            let id = serde_json::from_value::<VolumeId>(id.into());
            let id = id.map_err(|error| LedgerFailure::Damaged { key: found.to_string(), error })?;
            desired.volumes.insert(id, parse::<Volume>(&found, &entry.value)?);
        }
        desired.check().map_err(LedgerFailure::Corrupt)?;
        Ok((ledger, desired))
    }

    fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<(u64, T)>, LedgerFailure> {
        let key = key(name);
        let Some(entry) = self.store.read(&key)? else { return Ok(None) };
        Ok(Some((entry.version, parse(&key, &entry.value)?)))
    }

    /// The end of the audit log.
    pub(crate) fn tail(&self) -> Tail {
        self.tail
    }

    /// Stores a term greater than all before it, and greater than `seen`.
    pub(crate) fn take_term(&mut self, seen: Term) -> Result<Term, LedgerFailure> {
        let term = Term(self.term.0.max(seen.0) + 1);
        let transaction =
            Transaction::new().expect(key("term"), expected(self.term_version)).put(key("term"), json(&term));
        let version = self.write(&transaction)?;
        (self.term, self.term_version) = (term, Some(version));
        Ok(term)
    }

    /// Stores the difference between two desired states, with the records of why.
    pub(crate) fn change(
        &mut self,
        old: &Desired,
        new: &Desired,
        entries: &[Entry],
        now: Millis,
    ) -> Result<(), LedgerFailure> {
        let mut transaction = Transaction::new().expect(key("desired/head"), expected(self.head_version));
        let head = Desired { volumes: Default::default(), ..new.clone() };
        transaction = transaction.put(key("desired/head"), json(&head));
        for (id, volume) in new.volumes.iter().filter(|(id, volume)| old.volumes.get(*id) != Some(*volume)) {
            transaction = transaction.put(volume_key(*id), json(volume));
        }
        for id in old.volumes.keys().filter(|id| !new.volumes.contains_key(*id)) {
            transaction = transaction.delete(volume_key(*id));
        }
        let version = self.with_entries(transaction, entries, now)?;
        self.head_version = Some(version);
        Ok(())
    }

    /// Stores a value for `accounts.rs` or `sessions.rs`, or deletes it, with the record of why.
    pub(crate) fn set(
        &mut self,
        name: &str,
        value: Option<&impl Serialize>,
        entries: &[Entry],
        now: Millis,
    ) -> Result<(), LedgerFailure> {
        let transaction = match value {
            Some(value) => Transaction::new().put(key(name), json(value)),
            None => Transaction::new().delete(key(name)),
        };
        self.with_entries(transaction, entries, now).map(drop)
    }

    /// All values whose keys begin with `prefix`, with the rest of their keys.
    pub(crate) fn all<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>, LedgerFailure> {
        let found = self.store.scan_all(prefix)?;
        let one = |(key, entry): (Key, aquifer_state_store::Entry)| {
            Ok((key.as_str()[prefix.len()..].to_owned(), parse(&key, &entry.value)?))
        };
        found.into_iter().map(one).collect()
    }

    /// Up to `count` records after number `after`.
    pub(crate) fn records(&self, after: u64, count: usize) -> Result<Vec<Record>, LedgerFailure> {
        let after = key(format!("audit/{after:016}"));
        let found = self.store.scan("audit/0", Some(&after))?;
        found.iter().take(count).map(|(key, entry)| parse(key, &entry.value)).collect()
    }

    fn with_entries(&mut self, transaction: Transaction, entries: &[Entry], now: Millis) -> Result<u64, LedgerFailure> {
        let mut tail = self.tail;
        let mut transaction = transaction.expect(key("term"), expected(self.term_version));
        for Entry { who, what } in entries {
            let mut what = what.replace('\n', " ");
            if what.len() > AUDIT_TEXT_MAX {
                let end = (0..=AUDIT_TEXT_MAX).rev().find(|end| what.is_char_boundary(*end)).unwrap_or(0);
                what.truncate(end);
                what.push_str(" ... (cut)");
            }
            let record = tail.append(now, who, &what);
            transaction = transaction.put(key(format!("audit/{:016}", record.sequence)), json(&record));
        }
        if !entries.is_empty() {
            transaction = transaction.expect(key("audit/tail"), expected(self.tail_version));
            transaction = transaction.put(key("audit/tail"), json(&tail));
        }
        let version = self.write(&transaction)?;
        if !entries.is_empty() {
            (self.tail, self.tail_version) = (tail, Some(version));
        }
        Ok(version)
    }

    fn write(&mut self, transaction: &Transaction) -> Result<u64, LedgerFailure> {
        self.crash.pass();
        let version = self.store.commit(transaction)?;
        self.crash.pass();
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{Broken, verify};
    use aquifer_state_store::MemoryStore;

    use super::*;

    fn open(store: &MemoryStore) -> (Ledger, Desired) {
        Ledger::open(Box::new(store.reopen()), CrashPoint::default()).expect("opened")
    }

    fn with_zone(desired: &Desired, name: &str) -> Desired {
        let mut new = desired.clone();
        new.zones.insert(name.parse().expect("a name"), Default::default());
        new.version += 1;
        new
    }

    #[test]
    fn what_was_stored_is_read_again_with_its_records() {
        let store = MemoryStore::default();
        let (mut ledger, old) = open(&store);
        assert_eq!(ledger.take_term(Term(4)).expect("taken"), Term(5));
        let new = with_zone(&old, "lab");
        ledger
            .change(&old, &new, &[Entry::new("amy", "a\nzone"), Entry::new("bob", "x".repeat(9000))], Millis(7))
            .expect("stored");
        let (again, desired) = open(&store);
        assert_eq!((desired, again.term), (new, Term(5)));
        let records = again.records(0, 10).expect("read");
        assert_eq!(records[0].what, "a zone");
        assert!(records[1].what.ends_with("(cut)") && records[1].what.len() < 2100);
        assert_eq!(verify(&records, ledger.tail()), Ok(again.tail()));
        assert_eq!(again.records(1, 10).expect("read").len(), 1);
    }

    #[test]
    fn the_audit_log_is_one_chain_over_restarts() {
        let store = MemoryStore::default();
        for start in 1..=3_u64 {
            let (mut ledger, old) = open(&store);
            ledger.take_term(Term(0)).expect("taken");
            ledger.set("account/amy", Some(&start), &[Entry::new("amy", "one")], Millis(start)).expect("stored");
            let new = with_zone(&old, &format!("z{start}"));
            ledger.change(&old, &new, &[Entry::new("amy", "two")], Millis(start)).expect("stored");
            let records = ledger.records(0, 100).expect("read");
            assert_eq!(records.len() as u64, 2 * start);
            assert_eq!(verify(&records, ledger.tail()), Ok(ledger.tail()), "start {start}");
        }
        let (ledger, _) = open(&store);
        let mut records = ledger.records(0, 100).expect("read");
        records[3].what.push('!');
        assert_eq!(verify(&records, ledger.tail()), Err(Broken::Changed { at: 4 }));
        records.remove(3);
        assert_eq!(verify(&records, ledger.tail()), Err(Broken::Unlinked { at: 4 }));
    }

    #[test]
    fn a_deposed_manager_stores_nothing() {
        let store = MemoryStore::default();
        let (mut old_ledger, old) = open(&store);
        old_ledger.take_term(Term(0)).expect("taken");
        let (mut new_ledger, _) = open(&store);
        new_ledger.take_term(Term(0)).expect("taken");
        let refused = old_ledger.change(&old, &with_zone(&old, "lab"), &[], Millis(0)).expect_err("deposed");
        assert!(matches!(refused, LedgerFailure::NotCommitted(NotCommitted::Conflict { .. })), "{refused}");
        assert!(open(&store).1.zones.is_empty());
    }

    #[test]
    fn a_change_is_whole_whatever_operation_fails() {
        for failing in 0..40 {
            let store = MemoryStore::default();
            let (mut ledger, old) = open(&store);
            ledger.take_term(Term(0)).expect("taken");
            let new = with_zone(&old, "lab");
            store.fail_after(Some(failing));
            let outcome = ledger.change(&old, &new, &[Entry::new("amy", "zone")], Millis(1));
            let (again, found) = open(&store);
            let whole = (found == new, again.tail().records == 1);
            assert!(whole == (true, true) || whole == (false, false), "operation {failing}: {whole:?}");
            if outcome.is_ok() {
                assert_eq!(whole, (true, true));
                return;
            }
        }
        panic!("a change takes more than 40 operations");
    }
}
