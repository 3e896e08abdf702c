// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The store on etcd: the state survives the loss of a member, and several managers can take turns.
//!
//! | key | value |
//! |---|---|
//! | `PREFIX/format` | [`ETCD_FORMAT`] in digits |
//! | `PREFIX/state/KEY` | the value of a key; its version is etcd's `mod_revision` |
//! | `PREFIX/commit` | the name of the transaction that was committed last |
//! | `PREFIX/leader` | the manager that writes, under a lease; see `etcd/leadership.rs` |
//!
//! A transaction is one transaction of etcd's. It gets a name, and it is carried out only while `commit` is as this
//! store saw it last, which it replaces with its name. So it can be sent again when an answer was lost: it happens once
//! at most, and the second attempt finds the name of the first. An attempt that is still on its way in a member that
//! was cut off does nothing when it arrives.

mod connection;
mod gateway;
mod leadership;
pub(crate) mod messages;
mod settings;

use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use crate::failure::{NotCommitted, StoreFailure};
use crate::key::Key;
use crate::store::{Entry, Expectation, SCAN_MAX, StateStore, Transaction, holds};
use gateway::{Gateway, NoAnswer};
use messages::{
    Outcome, Pair, after_prefix, bytes, compare, operations, outcome_of, pairs_of, range, read, revision_of,
};

pub use leadership::{Campaign, Election, LEASE_SECONDS_MIN, Leadership};
pub use settings::{Bounds, ENDPOINTS_MAX, EtcdSettings, EtcdTls, NotSettings, PREFIX_BYTES_MAX};

/// The version of the layout above. Another one is refused.
pub const ETCD_FORMAT: u32 = 1;

/// Entries of one answer: few enough that an answer of ordinary values is small.
const PAGE: usize = 128;
/// How often a commit is tried while others commit changes to other keys.
const OVERTAKEN_MAX: usize = 16;

/// A store on a cluster of etcd.
#[derive(Debug)]
pub struct EtcdStore {
    gateway: Gateway,
    prefix: String,
    /// The revision of `PREFIX/commit` as this store saw it last.
    last_commit: u64,
    /// Names of transactions begin with this. No other store has it.
    own: String,
    /// The number of transactions so far.
    count: u64,
    /// Set by the first commit whose outcome is not known.
    is_latched: bool,
}

fn not_answered(no: NoAnswer) -> StoreFailure {
    match no {
        NoAnswer::Lost(what) => StoreFailure::Etcd { what },
        NoAnswer::Refused { refusal, message, .. } => StoreFailure::Refused { refusal, why: message },
    }
}

fn odd() -> StoreFailure {
    StoreFailure::Etcd { what: "an answer is not etcd's".into() }
}

/// Returns a unique name.
fn random_name() -> String {
    let mut bytes = [0; 16];
    // Without randomness there is no TLS either, and Linux always has some after it has booted.
    SystemRandom::new().fill(&mut bytes).expect("the kernel gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl EtcdStore {
    /// Connects, and checks the format or records it.
    pub fn open(settings: &EtcdSettings) -> Result<EtcdStore, StoreFailure> {
        let gateway = Gateway::new(settings).map_err(StoreFailure::Settings)?;
        let prefix = settings.prefix.clone();
        let (format, commit) = (format!("{prefix}/format"), format!("{prefix}/commit"));
        let transaction = json!({
            "compare": [compare(&format, 0)],
            "success": [{ "request_put": { "key": bytes(&format), "value": bytes(ETCD_FORMAT.to_string()) } },
                        { "request_range": read(&format) }, { "request_range": read(&commit) }],
            "failure": [{ "request_range": read(&format) }, { "request_range": read(&commit) }],
        });
        let answer = gateway.call("/v3/kv/txn", &transaction).map_err(not_answered)?;
        let Outcome { found, .. } = outcome_of(&answer).ok_or_else(odd)?;
        let [format, commit] = found.as_slice() else { return Err(odd()) };
        let format = format.first().map_or(&[][..], |pair| &pair.entry.value);
        let format = std::str::from_utf8(format).ok().and_then(|text| text.parse().ok());
        let format: u32 = format.ok_or_else(|| StoreFailure::Damaged { what: "format is not a number".into() })?;
        if format != ETCD_FORMAT {
            return Err(StoreFailure::Format { found: format, known: ETCD_FORMAT });
        }
        let last_commit = commit.first().map_or(0, |pair| pair.entry.version);
        Ok(EtcdStore { gateway, prefix, last_commit, own: random_name(), count: 0, is_latched: false })
    }

    fn root(&self) -> String {
        format!("{}/state/", self.prefix)
    }

    fn commit_key(&self) -> String {
        format!("{}/commit", self.prefix)
    }

    fn check_latch(&self) -> Result<(), StoreFailure> {
        if self.is_latched { Err(StoreFailure::Latched) } else { Ok(()) }
    }

    fn range(&self, body: &Value) -> Result<Vec<Pair>, StoreFailure> {
        self.check_latch()?;
        let answer = self.gateway.call("/v3/kv/range", body).map_err(not_answered)?;
        revision_of(&answer).ok_or_else(odd)?;
        pairs_of(&answer).ok_or_else(odd)
    }

    /// Returns the transaction as etcd takes it. If a comparison does not hold, etcd answers with what is stored
    /// instead.
    fn request(&self, transaction: &Transaction, name: &str) -> Value {
        let (root, commit) = (self.root(), self.commit_key());
        let mut comparisons = vec![compare(&commit, self.last_commit)];
        let mut found = vec![json!({ "request_range": read(&commit) })];
        for (key, expectation) in &transaction.expectations {
            let key = format!("{root}{key}");
            let revision = match expectation {
                Expectation::Absent => 0,
                Expectation::Version(version) => *version,
            };
            comparisons.push(compare(&key, revision));
            found.push(json!({ "request_range": { "key": bytes(&key), "keys_only": true } }));
        }
        let mut writes = operations(&root, &transaction.writes);
        writes.push(json!({ "request_put": { "key": bytes(&commit), "value": bytes(name) } }));
        json!({ "compare": comparisons, "success": writes, "failure": found })
    }

    /// Returns what a transaction that did not hold means: that it was committed by an earlier attempt, that it
    /// conflicts, or that others have committed changes to other keys.
    fn judge(&mut self, transaction: &Transaction, name: &str, outcome: &Outcome) -> Result<Option<u64>, NotCommitted> {
        let unknown = || NotCommitted::Unknown(odd());
        let (commit, found) = outcome.found.split_first().ok_or_else(unknown)?;
        let commit = commit.first();
        self.last_commit = commit.map_or(0, |pair| pair.entry.version);
        if commit.is_some_and(|pair| pair.entry.value == name.as_bytes()) {
            return Ok(Some(self.last_commit));
        }
        if found.len() != transaction.expectations.len() {
            return Err(unknown());
        }
        for ((key, expectation), found) in transaction.expectations.iter().zip(found) {
            if !holds(*expectation, found.first().map(|pair| pair.entry.version)) {
                return Err(NotCommitted::Conflict { key: key.clone() });
            }
        }
        Ok(None)
    }

    fn try_commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        self.count += 1;
        let name = format!("{}-{}", self.own, self.count);
        for _ in 0..OVERTAKEN_MAX {
            let answer = self.gateway.call("/v3/kv/txn", &self.request(transaction, &name));
            let answer = answer.map_err(|no| match no {
                NoAnswer::Refused { refusal, message, is_certain: true } => {
                    NotCommitted::Refused { refusal, why: message }
                }
                no => NotCommitted::Unknown(not_answered(no)),
            })?;
            let outcome = outcome_of(&answer).ok_or_else(|| NotCommitted::Unknown(odd()))?;
            if outcome.succeeded {
                self.last_commit = outcome.revision;
                return Ok(outcome.revision);
            }
            if let Some(version) = self.judge(transaction, &name, &outcome)? {
                return Ok(version);
            }
        }
        Err(NotCommitted::Failed(StoreFailure::Etcd { what: "others commit all the time".into() }))
    }
}

impl StateStore for EtcdStore {
    fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
        let found = self.range(&read(&format!("{}{key}", self.root())))?;
        Ok(found.into_iter().next().map(|pair| pair.entry))
    }

    fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
        let root = self.root();
        let mut first = match after {
            Some(after) if after.as_str() >= prefix => format!("{root}{after}\0").into_bytes(),
            _ => format!("{root}{prefix}").into_bytes(),
        };
        let end = after_prefix(&format!("{root}{prefix}"));
        let mut found = Vec::new();
        while found.len() < SCAN_MAX {
            let wanted = PAGE.min(SCAN_MAX - found.len());
            let page = self.range(&range(&first, &end, wanted))?;
            let is_last = page.len() < wanted;
            for Pair { key, entry } in page {
                first.clone_from(&key);
                first.push(0);
                let key = String::from_utf8(key).ok().and_then(|key| key.strip_prefix(&root).map(str::to_owned));
                let key = key.and_then(|key| Key::new(key).ok());
                let damaged = || StoreFailure::Damaged { what: format!("a key below {root} is none of ours") };
                found.push((key.ok_or_else(damaged)?, entry));
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
        self.check_latch().map_err(NotCommitted::Failed)?;
        transaction.check()?;
        self.try_commit(transaction).inspect_err(|not| {
            self.is_latched = matches!(not, NotCommitted::Failed(_) | NotCommitted::Unknown(_));
        })
    }
}
