// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An audit log that cannot be rewritten silently: each record holds the hash of the one before.
//!
//! A record's hash is the SHA-256 of its fields in this order, each number in eight little-endian bytes and each text
//! with its length in eight bytes before it: sequence, time, who, what, the hash of the record before (32 bytes). The
//! first record follows 32 zero bytes. To hide that a record was changed, dropped or moved, all later records must be
//! rewritten, too; a copy of the newest hash, kept elsewhere, reveals that.

use std::fmt;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::id::Millis;

/// A SHA-256 hash; as text, 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Link(pub [u8; 32]);

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<Link> for String {
    fn from(link: Link) -> String {
        link.to_string()
    }
}

/// Why a text is not a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotALink;

impl fmt::Display for NotALink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a hash is not 64 hexadecimal digits; the record was damaged, compare it with a copy of the log")
    }
}

impl TryFrom<String> for Link {
    type Error = NotALink;

    fn try_from(text: String) -> Result<Link, NotALink> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut link = Link::default();
        if text.len() != 64 {
            return Err(NotALink);
        }
        for (byte, pair) in link.0.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (high, low) = digit(pair[0]).zip(digit(pair[1])).ok_or(NotALink)?;
            *byte = high << 4 | low;
        }
        Ok(link)
    }
}

/// One record of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its number, from 1 on.
    pub sequence: u64,
    /// When it was written.
    pub at: Millis,
    /// The account or program that did it.
    pub who: String,
    /// What was done, and how it ended.
    pub what: String,
    /// The hash of the record before.
    pub before: Link,
    /// The hash of this record.
    pub hash: Link,
}

impl Record {
    fn digest(&self) -> Link {
        let mut context = Context::new(&SHA256);
        context.update(&self.sequence.to_le_bytes());
        context.update(&self.at.0.to_le_bytes());
        for text in [&self.who, &self.what] {
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text.as_bytes());
        }
        context.update(&self.before.0);
        let mut link = Link::default();
        link.0.copy_from_slice(context.finish().as_ref());
        link
    }
}

/// The end of the log, to which the next record is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// How many records there are.
    pub records: u64,
    /// The hash of the last one.
    pub hash: Link,
}

impl Tail {
    /// Appends the next record, and returns it.
    pub fn append(&mut self, at: Millis, who: &str, what: &str) -> Record {
        let mut record = Record {
            sequence: self.records + 1,
            at,
            who: who.to_owned(),
            what: what.to_owned(),
            before: self.hash,
            hash: Link::default(),
        };
        record.hash = record.digest();
        *self = Tail { records: record.sequence, hash: record.hash };
        record
    }
}

/// Where a log is broken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A record does not have its hash: it was changed.
    Changed {
        /// Its number in the log, from 1 on.
        at: u64,
    },
    /// The log does not contain its known end: it is too short, or another record is there.
    Cut {
        /// How many records it has.
        records: u64,
        /// How many it had at its known end.
        known: u64,
    },
    /// A record does not follow the one before: some were dropped, added or moved.
    Unlinked {
        /// Its number in the log, from 1 on.
        at: u64,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { at } => {
                write!(f, "record {at} of the audit log was changed; compare it with an exported copy")
            }
            Self::Cut { records, known } => write!(
                f,
                "the audit log has {records} records and does not end as the log of {known} records did; restore a copy"
            ),
            Self::Unlinked { at } => write!(
                f,
                "record {at} of the audit log does not follow the one before; compare both with an exported copy"
            ),
        }
    }
}

impl std::error::Error for Broken {}

/// Checks a log from its beginning, and checks that it contains `known`: an earlier end of the log, which was kept
/// elsewhere.
pub fn verify<'a>(records: impl IntoIterator<Item = &'a Record>, known: Tail) -> Result<Tail, Broken> {
    let mut verifier = Verifier::new(known);
    records.into_iter().try_for_each(|record| verifier.take(record))?;
    verifier.end()
}

/// The same for a log that comes in parts.
#[derive(Clone, Copy, Debug)]
pub struct Verifier {
    tail: Tail,
    known: Tail,
    reached: bool,
}

impl Verifier {
    /// Begins with the first record of a log that is to contain `known`.
    pub fn new(known: Tail) -> Verifier {
        Verifier { tail: Tail::default(), known, reached: known == Tail::default() }
    }

    /// Checks the next record.
    pub fn take(&mut self, record: &Record) -> Result<(), Broken> {
        let at = self.tail.records + 1;
        if record.sequence != at || record.before != self.tail.hash {
            return Err(Broken::Unlinked { at });
        }
        if record.digest() != record.hash {
            return Err(Broken::Changed { at });
        }
        self.tail = Tail { records: at, hash: record.hash };
        self.reached |= self.tail == self.known;
        Ok(())
    }

    /// Returns the end of the log, after its last record.
    pub fn end(self) -> Result<Tail, Broken> {
        let Verifier { tail, known, reached } = self;
        if reached { Ok(tail) } else { Err(Broken::Cut { records: tail.records, known: known.records }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> (Vec<Record>, Tail) {
        let mut tail = Tail::default();
        let records = (1..=5).map(|number| tail.append(Millis(number), "operator", &format!("bind v{number} to h0")));
        (records.collect(), tail)
    }

    #[test]
    fn a_log_that_nobody_touched_is_whole() {
        let (mut records, known) = log();
        assert_eq!(verify(&records, known), Ok(known));
        let mut tail = known;
        records.push(tail.append(Millis(6), "operator", "unbind v1"));
        assert_eq!(verify(&records, known), Ok(tail), "what was added since is no harm");
        let text = serde_json::to_string(&records).expect("JSON");
        assert_eq!(serde_json::from_str::<Vec<Record>>(&text).expect("the same"), records);
    }

    #[test]
    fn the_first_broken_link_is_named() {
        let (records, known) = log();
        let after = |change: fn(&mut Vec<Record>)| {
            let mut records = records.clone();
            change(&mut records);
            verify(&records, known)
        };
        assert_eq!(after(|records| records[2].what.push('!')), Err(Broken::Changed { at: 3 }));
        assert_eq!(after(|records| records[1].at = Millis(9)), Err(Broken::Changed { at: 2 }));
        assert_eq!(after(|records| drop(records.remove(1))), Err(Broken::Unlinked { at: 2 }));
        assert_eq!(after(|records| records.swap(3, 4)), Err(Broken::Unlinked { at: 4 }));
        assert_eq!(after(|records| drop(records.pop())), Err(Broken::Cut { records: 4, known: 5 }));
        assert_eq!(after(Vec::clear), Err(Broken::Cut { records: 0, known: 5 }));
        // A changed record whose hash was recomputed breaks the link of the next record.
        let rehash = |records: &mut Vec<Record>| {
            records[0].who = "nobody".into();
            records[0].hash = records[0].digest();
        };
        assert_eq!(after(rehash), Err(Broken::Unlinked { at: 2 }));
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        let (mut one, mut other) = (Tail::default(), Tail::default());
        let (one, other) = (one.append(Millis(0), "ab", "c"), other.append(Millis(0), "a", "bc"));
        assert_ne!(one.hash, other.hash);
    }

    #[test]
    fn the_hash_of_the_first_record_is_pinned() {
        let record = Tail::default().append(Millis(1), "operator", "apply");
        assert_eq!(record.hash.to_string(), PINNED);
    }

    /// Computed by sha256sum(1) from the bytes that the module's header lists, written by `printf`.
    const PINNED: &str = "b043fd6c80d7d6c2f90098b79a6f10588a7f7025f302d7c51d7f36b1e0dff727";
}
