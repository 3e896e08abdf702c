// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Requests to etcd as JSON, and what its answers say. Pure: answers are not trusted, and none makes this panic.
//!
//! Bytes are base 64, numbers of 64 bits are texts, and what is zero or empty is left out. A transaction has at most
//! `--max-txn-ops` operations on each level, 128 by default, with the levels added up; transactions within a
//! transaction have their own, so that three levels of [`LEVEL_MAX`] hold [`crate::WRITES_MAX`] writes.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::store::{Entry, Write};

/// Maximum number of operations on one level: three levels, with the commit's own operations, stay below 128.
const LEVEL_MAX: usize = 41;

/// Returns a key or value as JSON has it.
pub(super) fn bytes(bytes: impl AsRef<[u8]>) -> Value {
    Value::String(STANDARD.encode(bytes))
}

/// Returns the bytes of a field; an absent one is empty.
pub(super) fn bytes_of(value: &Value, name: &str) -> Option<Vec<u8>> {
    match value.get(name) {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(text)) => STANDARD.decode(text).ok(),
        Some(_) => None,
    }
}

/// Returns a number of 64 bits; an absent one is 0.
pub(super) fn number_of(value: &Value, name: &str) -> Option<u64> {
    match value.get(name) {
        None | Some(Value::Null) => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_u64(),
    }
}

/// A key-value pair of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: Vec<u8>,
    pub(super) entry: Entry,
}

/// Returns the pairs of a range.
pub(super) fn pairs_of(range: &Value) -> Option<Vec<Pair>> {
    let Some(pairs) = range.get("kvs").filter(|pairs| !pairs.is_null()) else { return Some(Vec::new()) };
    let pair = |pair: &Value| {
        let entry = Entry { version: number_of(pair, "mod_revision")?, value: bytes_of(pair, "value")? };
        Some(Pair { key: bytes_of(pair, "key")?, entry })
    };
    pairs.as_array()?.iter().map(pair).collect()
}

/// Returns the revision of the store when it answered.
pub(super) fn revision_of(answer: &Value) -> Option<u64> {
    number_of(answer.get("header")?, "revision").filter(|revision| *revision > 0)
}

/// Holds if the key was written last by a revision; 0 stands for a key without a value.
pub(super) fn compare(key: &str, revision: u64) -> Value {
    json!({ "key": bytes(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

/// Reads one key.
pub(super) fn read(key: &str) -> Value {
    json!({ "key": bytes(key) })
}

/// Reads up to `limit` keys from `first` on, before `end`.
pub(super) fn range(first: &[u8], end: &[u8], limit: usize) -> Value {
    json!({ "key": bytes(first), "range_end": bytes(end), "limit": limit.to_string() })
}

/// Returns the first key after all that begin with a prefix of ASCII.
pub(super) fn after_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn operation(root: &str, write: &Write) -> Value {
    match write {
        Write::Delete(key) => json!({ "request_delete_range": { "key": bytes(format!("{root}{key}")) } }),
        Write::Put(key, value) => {
            json!({ "request_put": { "key": bytes(format!("{root}{key}")), "value": bytes(value) } })
        }
    }
}

/// Writes as operations, of each key the last one, since etcd takes one for each key.
pub(super) fn operations(root: &str, writes: &[Write]) -> Vec<Value> {
    let mut last = BTreeMap::new();
    for write in writes {
        let (Write::Delete(key) | Write::Put(key, _)) = write;
        last.insert(key, write);
    }
    let mut level: Vec<Value> = last.into_values().map(|write| operation(root, write)).collect();
    while level.len() > LEVEL_MAX {
        let within = |operations: &[Value]| json!({ "request_txn": { "success": operations } });
        level = level.chunks(LEVEL_MAX).map(within).collect();
    }
    level
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether its comparisons held.
    pub(super) succeeded: bool,
    pub(super) revision: u64,
    /// For each range of the branch that was taken, what was found.
    pub(super) found: Vec<Vec<Pair>>,
}

/// Reads the answer to a transaction.
pub(super) fn outcome_of(answer: &Value) -> Option<Outcome> {
    let succeeded = answer.get("succeeded").and_then(Value::as_bool).unwrap_or(false);
    let none = Vec::new();
    let responses = match answer.get("responses") {
        None | Some(Value::Null) => &none,
        Some(responses) => responses.as_array()?,
    };
    let ranges = responses.iter().filter_map(|response| response.get("response_range"));
    let found = ranges.map(pairs_of).collect::<Option<_>>()?;
    Some(Outcome { succeeded, revision: revision_of(answer)?, found })
}

/// Reads an answer of etcd's in every way. For the fuzzer.
pub fn take_answer(status: u16, body: &[u8]) {
    if let Ok(answer) = super::gateway::answer(status, body) {
        let _ = (outcome_of(&answer), pairs_of(&answer), revision_of(&answer));
        let _ = super::leadership::time_to_live(&answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::store::WRITES_MAX;

    fn depth_and_widest(operations: &[Value]) -> (usize, usize, usize) {
        let mut found = (1, operations.len(), 0);
        for operation in operations {
            match operation.get("request_txn") {
                None => found.2 += 1,
                Some(within) => {
                    let within = depth_and_widest(within["success"].as_array().expect("operations"));
                    found = (found.0.max(1 + within.0), found.1.max(within.1), found.2 + within.2);
                }
            }
        }
        found
    }

    #[test]
    fn the_largest_transaction_keeps_etcds_default_limit() {
        for count in [0, 1, LEVEL_MAX, LEVEL_MAX + 1, 2000, WRITES_MAX] {
            let key = |number: usize| Key::new(format!("v/{number}")).expect("a key");
            let writes: Vec<Write> = (0..count).map(|number| Write::Put(key(number), Vec::new())).collect();
            let (depth, widest, all) = depth_and_widest(&operations("p/", &writes));
            assert_eq!(all, count);
            assert!(depth * widest < 128 || count == 0, "{count} writes: {depth} levels of {widest}");
        }
    }

    #[test]
    fn of_several_writes_to_a_key_the_last_one_counts() {
        let key = Key::new("a").expect("a key");
        let writes = [Write::Put(key.clone(), vec![1]), Write::Delete(key.clone()), Write::Put(key, vec![2])];
        let operations = operations("p/", &writes);
        assert_eq!(operations, [json!({ "request_put": { "key": "cC9h", "value": "Ag==" } })]);
    }

    #[test]
    fn answers_are_read_with_what_etcd_leaves_out() {
        let text = r#"{"header":{"revision":"7"},"responses":[{"response_range":{"kvs":[{"key":"cC9h",
            "mod_revision":"5"}]}},{"response_range":{}},{"response_put":{}}]}"#;
        let outcome = outcome_of(&serde_json::from_str(text).expect("JSON")).expect("an outcome");
        assert_eq!((outcome.succeeded, outcome.revision, outcome.found.len()), (false, 7, 2));
        assert_eq!(outcome.found[0][0].entry, Entry { version: 5, value: Vec::new() });
        for text in ["{}", r#"{"header":{"revision":"-1"}}"#, r#"{"header":{"revision":"7"},"responses":3}"#] {
            assert_eq!(outcome_of(&serde_json::from_str(text).expect("JSON")), None, "{text}");
        }
    }
}
