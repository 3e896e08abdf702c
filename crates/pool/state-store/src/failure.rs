// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a store cannot be opened or read, and why a transaction is not committed.

use std::fmt;
use std::path::PathBuf;

use crate::etcd::NotSettings;
use crate::key::Key;

/// Why etcd refuses a request. In each case the request that was refused has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It takes no more requests at the moment.
    Busy,
    /// Its members contradict each other.
    Damaged,
    /// The space for its data is used up.
    NoSpace,
    /// It does not know this client, or the client has no right to the keys.
    NotAllowed,
    /// Another reason: etcd's own words are all that is known.
    Other,
    /// The request has too many bytes or operations.
    TooLarge,
}

impl Refusal {
    /// Returns what was refused why, and the remedy. `why` is etcd's message.
    fn line(self, why: &str) -> String {
        match self {
            Self::Busy => format!(
                "etcd takes no more requests at the moment ({why}); give its members faster disks, or fewer clients"
            ),
            Self::Damaged => {
                format!("etcd's members contradict each other ({why}); replace the damaged one, as etcd's manual says")
            }
            Self::NoSpace => format!(
                "etcd has no space left ({why}); compact and defragment its members, or raise their space quota, and \
                 then run 'etcdctl alarm disarm'"
            ),
            Self::NotAllowed => format!(
                "etcd does not admit this manager ({why}); managers have no etcd user: run 'etcdctl auth disable', and \
                 admit clients by their certificates (--client-cert-auth)"
            ),
            Self::Other => format!("etcd refuses a request ({why}); look at the logs of its members"),
            Self::TooLarge => format!(
                "etcd refuses a change of the state for its size ({why}); make smaller changes, or raise \
                 --max-request-bytes of its members"
            ),
        }
    }
}

/// Why a store cannot be opened or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The file is damaged, or is not a store.
    Damaged {
        /// What is wrong with the file.
        what: String,
    },
    /// etcd does not answer, or its answer is invalid.
    Etcd {
        /// The error of the last attempt.
        what: String,
    },
    /// The file was written with another format.
    Format {
        /// The format of the file.
        found: u32,
        /// The format of this program.
        known: u32,
    },
    /// Another process has the file open.
    InUse {
        /// The path of the file.
        path: PathBuf,
    },
    /// The operating system refused an operation.
    Io {
        /// The operation that was refused.
        what: &'static str,
        /// The error of the system or of the store.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier operation failed, so that what is stored is not known. Open the store again.
    Latched,
    /// etcd refuses a request.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// etcd's own words.
        why: String,
    },
    /// The settings of etcd cannot be used.
    Settings(NotSettings),
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { what } => write!(f, "the state file is damaged ({what}); restore a backup of it"),
            Self::Etcd { what } => write!(
                f,
                "etcd does not answer ({}); check that most of its members run, and the endpoints of this manager",
                what.replace(['\n', '\r'], " ")
            ),
            Self::Format { found, known } => write!(
                f,
                "the state has format {found}, this program reads format {known}; start the version that wrote it"
            ),
            Self::InUse { path } => write!(
                f,
                "{} is open in another process; stop that fabric manager, or name another directory",
                path.display()
            ),
            Self::Io { what, source } => {
                write!(f, "the state file cannot be {what}: {source}; free space or check the disk, then start again")
            }
            Self::Latched => {
                f.write_str("an earlier write of the state failed; check the disk or etcd, then start again")
            }
            Self::Refused { refusal, why } => f.write_str(&refusal.line(why)),
            Self::Settings(not) => not.fmt(f),
        }
    }
}

impl std::error::Error for StoreFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

/// Why a transaction is not committed.
#[derive(Debug)]
pub enum NotCommitted {
    /// An expectation does not hold. Nothing was written.
    Conflict {
        /// The key whose version is another one.
        key: Key,
    },
    /// The store failed before anything was written.
    Failed(StoreFailure),
    /// etcd refuses the transaction. Nothing was written, and the store can still be used.
    Refused {
        /// The reason.
        refusal: Refusal,
        /// etcd's own words.
        why: String,
    },
    /// The transaction is larger than a store takes. Nothing was written.
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much of it the transaction has.
        found: usize,
        /// How much a store takes.
        max: usize,
    },
    /// The store failed while it committed: the transaction is stored or it is not, as a whole. Open the store again
    /// to find out.
    Unknown(StoreFailure),
}

impl fmt::Display for NotCommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { key } => write!(f, "{key} was changed by another writer; read it again"),
            Self::Failed(failure) | Self::Unknown(failure) => failure.fmt(f),
            Self::Refused { refusal, why } => f.write_str(&refusal.line(why)),
            Self::TooLarge { what, found, max } => {
                write!(f, "a change of the state has {found} {what}, at most {max} are stored; make smaller changes")
            }
        }
    }
}

impl std::error::Error for NotCommitted {}
