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
//! | `token/ID`, `certificate/SERIAL` | see `issuance.rs` |
//!
//! A change is stored with its audit records, under the expectation that `term` and `desired/head` are as this manager
//! wrote them last: a manager that was deposed stores nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use aquifer_fabric::{Corrupt, Desired, Millis, Record, Tail, Term, Verifier, Volume, VolumeId};
use aquifer_state_store::{Expectation, Key, NotCommitted, Refusal, SCAN_MAX, StateStore, StoreFailure, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::crash::CrashPoint;
use crate::meters::Meters;

/// Maximum length of a text in an audit record; a longer one is cut, and marked as cut.
const AUDIT_TEXT_MAX: usize = 2000;

/// Why the store cannot be opened or written.
#[derive(Debug)]
pub(crate) enum ManagerStoreFailure {
    /// The desired state contradicts itself.
    Corrupt(Corrupt),
    /// A value cannot be read.
    Damaged { key: String, error: serde_json::Error },
    /// A transaction was not committed.
    NotCommitted(NotCommitted),
    /// The store cannot be read.
    Store(StoreFailure),
    /// No term is greater than the stored one.
    TermsUsedUp(Term),
}

impl fmt::Display for ManagerStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(corrupt) => corrupt.fmt(f),
            Self::Damaged { key, error } => write!(
                f,
                "{key} of the state is damaged, or newer than this program ({error}); start the newest version that has \
                 managed this pool, or restore a backup"
            ),
            Self::NotCommitted(not) => not.fmt(f),
            Self::Store(failure) => failure.fmt(f),
            Self::TermsUsedUp(term) => write!(f, "no term is greater than {term}, the stored one; restore a backup"),
        }
    }
}

impl From<StoreFailure> for ManagerStoreFailure {
    fn from(failure: StoreFailure) -> Self {
        Self::Store(failure)
    }
}

impl From<NotCommitted> for ManagerStoreFailure {
    fn from(not: NotCommitted) -> Self {
        Self::NotCommitted(not)
    }
}

/// Where the audit log is damaged: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditDamage(pub(crate) String);

impl ManagerStoreFailure {
    /// Returns whether another attempt, by this manager or another one, may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Corrupt(_) | Self::Damaged { .. } | Self::TermsUsedUp(_) => false,
            Self::NotCommitted(_) => true,
            Self::Store(failure) => !matches!(
                failure,
                StoreFailure::Damaged { .. } | StoreFailure::Format { .. } | StoreFailure::Settings(_)
            ),
        }
    }

    /// Returns whether the store has refused a transaction, and is as before: it can still be used.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::NotCommitted(NotCommitted::Refused { .. } | NotCommitted::TooLarge { .. }))
    }

    /// Returns whether a transaction was refused for its size, so that a smaller one may be stored.
    pub(crate) fn is_too_large(&self) -> bool {
        let Self::NotCommitted(not) = self else { return false };
        matches!(not, NotCommitted::Refused { refusal: Refusal::TooLarge, .. } | NotCommitted::TooLarge { .. })
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

/// A check of the audit log in progress.
pub(crate) struct AuditCheck {
    verifier: Verifier,
    after: Key,
    /// Records that are still to be checked. Records that were added since the check began are left to the next check.
    left: u64,
    /// Records that were checked.
    pub(crate) checked: u64,
}

/// The store, and what this manager knows to be in it.
pub(crate) struct ManagerStore {
    store: Box<dyn StateStore>,
    crash: CrashPoint,
    meters: Arc<Meters>,
    term: Term,
    term_version: Option<u64>,
    /// Whether `term` was taken by this manager.
    has_taken_term: bool,
    head_version: Option<u64>,
    tail: Tail,
    tail_version: Option<u64>,
    /// Why the store has refused the last transaction, if not for its size.
    refusal: Option<(Refusal, String)>,
    /// Whether it has refused one in this round.
    is_refusing: bool,
}

fn key(text: impl Into<String>) -> Key {
    Key::new(text).expect("names and numbers are plain")
}

pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what is stored can be written as JSON")
}

fn parse<T: DeserializeOwned>(key: &Key, value: &[u8]) -> Result<T, ManagerStoreFailure> {
    serde_json::from_slice(value).map_err(|error| ManagerStoreFailure::Damaged { key: key.to_string(), error })
}

fn expected(version: Option<u64>) -> Expectation {
    version.map_or(Expectation::Absent, Expectation::Version)
}

fn volume_key(id: VolumeId) -> Key {
    key(format!("desired/volume/{id}"))
}

impl ManagerStore {
    /// Reads the term, and nothing else: until this manager has a term of its own, another one may be changing the
    /// state, which is then not read as a whole.
    pub(crate) fn open(store: Box<dyn StateStore>, crash: CrashPoint) -> Result<ManagerStore, ManagerStoreFailure> {
        let mut store = ManagerStore {
            store,
            crash,
            meters: Arc::default(),
            term: Term(0),
            term_version: None,
            has_taken_term: false,
            head_version: None,
            tail: Tail::default(),
            tail_version: None,
            refusal: None,
            is_refusing: false,
        };
        if let Some((version, term)) = store.load::<Term>("term")? {
            (store.term_version, store.term) = (Some(version), term);
        }
        Ok(store)
    }

    /// Counts transactions there.
    #[must_use]
    pub(crate) fn counted_by(mut self, meters: Arc<Meters>) -> ManagerStore {
        self.meters = meters;
        self
    }

    /// Reads the state; an empty store has the empty state. Once this manager has taken a term, only the state of that
    /// term is returned: nobody else changes it, and a manager that has been deposed since must not write under its
    /// successor's term.
    pub(crate) fn reload(&mut self) -> Result<Desired, ManagerStoreFailure> {
        let desired = self.read_state();
        // A successor may have changed the state while it was read; then it may look damaged, and is not.
        if self.has_taken_term && self.successor()?.is_some() {
            return Err(NotCommitted::Conflict { key: key("term") }.into());
        }
        desired
    }

    fn read_state(&mut self) -> Result<Desired, ManagerStoreFailure> {
        let tail = self.load::<Tail>("audit/tail")?;
        (self.tail_version, self.tail) = tail.map_or((None, Tail::default()), |(version, tail)| (Some(version), tail));
        let (mut desired, mut head_version) = (Desired::default(), None);
        if let Some((version, head)) = self.load::<Desired>("desired/head")? {
            (desired, head_version) = (head, Some(version));
        }
        self.head_version = head_version;
        for (found, entry) in self.store.scan_all("desired/volume/")? {
            let id = found.as_str().rsplit('/').next().unwrap_or_default().to_owned();
            let id = serde_json::from_value::<VolumeId>(id.into());
            let id = id.map_err(|error| ManagerStoreFailure::Damaged { key: found.to_string(), error })?;
            desired.volumes.insert(id, parse::<Volume>(&found, &entry.value)?);
        }
        desired.check().map_err(ManagerStoreFailure::Corrupt)?;
        Ok(desired)
    }

    fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<(u64, T)>, ManagerStoreFailure> {
        let key = key(name);
        let Some(entry) = self.store.read(&key)? else { return Ok(None) };
        Ok(Some((entry.version, parse(&key, &entry.value)?)))
    }

    /// Returns why the store has refused the last transaction, if not for its size.
    pub(crate) fn refusal(&self) -> Option<ManagerStoreFailure> {
        let (refusal, why) = self.refusal.clone()?;
        Some(NotCommitted::Refused { refusal, why }.into())
    }

    /// Lets the store be asked again. After a refusal, everything else in the same round is refused at once: a store
    /// that is busy takes seconds to refuse, and hundreds of requests may wait.
    pub(crate) fn begin_round(&mut self) {
        self.is_refusing = false;
    }

    /// Returns the end of the audit log.
    pub(crate) fn tail(&self) -> Tail {
        self.tail
    }

    /// Stores a term greater than all before it, and greater than `seen`.
    pub(crate) fn take_term(&mut self, seen: Term) -> Result<Term, ManagerStoreFailure> {
        let before = self.term.max(seen);
        let term = Term(before.0.checked_add(1).ok_or(ManagerStoreFailure::TermsUsedUp(before))?);
        let transaction =
            Transaction::new().expect(key("term"), expected(self.term_version)).put(key("term"), json(&term));
        let version = self.write(&transaction)?;
        (self.term, self.term_version, self.has_taken_term) = (term, Some(version), true);
        Ok(term)
    }

    /// Returns the stored term, if it is not the one that this manager has taken: then another manager was elected.
    pub(crate) fn successor(&self) -> Result<Option<Term>, ManagerStoreFailure> {
        let (version, term) = self.load::<Term>("term")?.unzip();
        Ok(term.filter(|_| version != self.term_version))
    }

    /// Stores the difference between two desired states, with the records of why.
    pub(crate) fn change(
        &mut self,
        old: &Desired,
        new: &Desired,
        entries: &[Entry],
        now: Millis,
    ) -> Result<(), ManagerStoreFailure> {
        let mut transaction = Transaction::new().expect(key("desired/head"), expected(self.head_version));
        let head = Desired { volumes: Default::default(), ..new.clone() };
        transaction = transaction.put(key("desired/head"), json(&head));
        for id in old.volumes.differences(&new.volumes) {
            transaction = match new.volumes.get(&id) {
                Some(volume) => transaction.put(volume_key(id), json(volume)),
                None => transaction.delete(volume_key(id)),
            };
        }
        let version = self.with_entries(transaction, entries, now)?;
        self.head_version = Some(version);
        Ok(())
    }

    /// Stores values for `accounts.rs` and `sessions.rs`, or deletes them, with the records of why.
    pub(crate) fn keep(
        &mut self,
        values: &[(String, Option<Vec<u8>>)],
        entries: &[Entry],
        now: Millis,
    ) -> Result<(), ManagerStoreFailure> {
        let transaction = values.iter().fold(Transaction::new(), |transaction, (name, value)| match value {
            Some(value) => transaction.put(key(name), value.clone()),
            None => transaction.delete(key(name)),
        });
        self.with_entries(transaction, entries, now).map(drop)
    }

    /// Returns the value of a key, if there is one.
    pub(crate) fn one<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ManagerStoreFailure> {
        Ok(self.load(name)?.map(|(_, value)| value))
    }

    /// Returns all values whose keys begin with `prefix`, with the rest of their keys.
    pub(crate) fn all<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>, ManagerStoreFailure> {
        let found = self.store.scan_all(prefix)?;
        let one = |(key, entry): (Key, aquifer_state_store::Entry)| {
            Ok((key.as_str()[prefix.len()..].to_owned(), parse(&key, &entry.value)?))
        };
        found.into_iter().map(one).collect()
    }

    /// Returns up to `count` records after number `after`.
    pub(crate) fn records(&self, after: u64, count: usize) -> Result<Vec<Record>, ManagerStoreFailure> {
        let after = key(format!("audit/{after:016}"));
        let found = self.store.scan("audit/0", Some(&after))?;
        found.iter().take(count).map(|(key, entry)| parse(key, &entry.value)).collect()
    }

    /// Checks the whole audit log at once: the chain of its records, and that it ends where it is known to end.
    #[cfg(test)]
    pub(crate) fn verify_audit(&self) -> Result<Result<Tail, AuditDamage>, ManagerStoreFailure> {
        let mut check = AuditCheck { left: u64::MAX, ..self.begin_audit_check() };
        loop {
            if let Some(verified) = self.continue_audit_check(&mut check)? {
                return Ok(verified);
            }
        }
    }

    /// Starts to check the audit log page by page, up to its current end.
    pub(crate) fn begin_audit_check(&self) -> AuditCheck {
        AuditCheck { verifier: Verifier::new(self.tail), after: key("audit/0"), left: self.tail.records, checked: 0 }
    }

    /// Checks one more page of the audit log. Returns `None` if the check is not done.
    pub(crate) fn continue_audit_check(
        &self,
        check: &mut AuditCheck,
    ) -> Result<Option<Result<Tail, AuditDamage>>, ManagerStoreFailure> {
        let page = self.store.scan("audit/0", Some(&check.after))?;
        for (key, entry) in &page {
            if check.left == 0 {
                break;
            }
            let record = match parse::<Record>(key, &entry.value) {
                Ok(record) => record,
                Err(unreadable) => return Ok(Some(Err(AuditDamage(unreadable.to_string())))),
            };
            if let Err(broken) = check.verifier.take(&record) {
                return Ok(Some(Err(AuditDamage(broken.to_string()))));
            }
            (check.left, check.checked) = (check.left - 1, check.checked + 1);
        }
        match page.last() {
            Some((last, _)) if page.len() == SCAN_MAX && check.left > 0 => {
                check.after = last.clone();
                Ok(None)
            }
            _ => Ok(Some(check.verifier.end().map_err(|broken| AuditDamage(broken.to_string())))),
        }
    }

    fn with_entries(
        &mut self,
        transaction: Transaction,
        entries: &[Entry],
        now: Millis,
    ) -> Result<u64, ManagerStoreFailure> {
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

    fn write(&mut self, transaction: &Transaction) -> Result<u64, ManagerStoreFailure> {
        if self.is_refusing
            && let Some(failure) = self.refusal()
        {
            return Err(failure);
        }
        self.crash.pass();
        let begun = Instant::now();
        let outcome = self.store.commit(transaction);
        self.meters.count_commit(begun.elapsed(), outcome.is_ok());
        match &outcome {
            Ok(_) => self.refusal = None,
            Err(NotCommitted::Refused { refusal, why }) if *refusal != Refusal::TooLarge => {
                (self.refusal, self.is_refusing) = (Some((*refusal, why.clone())), true);
            }
            Err(_) => {}
        }
        let version = outcome?;
        self.crash.pass();
        Ok(version)
    }
}

#[cfg(test)]
mod tests;
