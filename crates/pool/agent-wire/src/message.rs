// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The messages between a program and its host's agent. Pure.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The version of the messages. An agent answers only programs of its own version.
pub const VERSION: u16 = 1;
/// The greatest number in a message: integers of TOML are signed.
pub const SESSION_MAX: u64 = i64::MAX as u64;
/// Where an agent serves programs, unless its configuration names another path.
pub const SOCKET: &str = "/run/aquifer/agent.sock";
/// Where an agent has its state, unless its configuration names another directory. The packaged agent can write only
/// there and next to its socket, so the certificates that it renews are in directories below.
pub const STATE: &str = "/var/lib/aquifer/agent";
/// The longest name of a volume, as in the pool.
pub const NAME_BYTES_MAX: usize = 63;
/// Members in one message at most: the spans of a volume, each with the members of a parity.
pub const MEMBERS_MAX: usize = 1024;
/// Maximum number of volumes in one listing: the maximum that an agent's configuration can name, and that a host can
/// have.
pub const LISTED_MAX: usize = 4096;
/// Maximum number of ids in one denial. A choice: a person reads them, and picks one.
pub const AMBIGUOUS_MAX: usize = 8;

/// Returns whether a text can be the name, or the id, of a volume: as in the pool, lower-case letters, digits, `-`, `_`
/// and `.`, beginning with a letter or a digit.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |one: u8| matches!(one, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    let is_first = |one: u8| matches!(one, b'a'..=b'z' | b'0'..=b'9');
    text.len() <= NAME_BYTES_MAX && text.bytes().all(is_allowed) && text.bytes().next().is_some_and(is_first)
}

/// What a program asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The program has closed the volume and needs none of its memory.
    Close,
    /// Asks for the volumes that the user may open. The answer is a listing, and another one whenever it changes. Such
    /// a connection neither opens nor uses a volume.
    List {
        /// The [`VERSION`] that the program speaks.
        version: u16,
    },
    /// Opens a volume. The answer is a view or a denial.
    Open {
        /// The [`VERSION`] that the program speaks.
        version: u16,
        /// The name of the volume, or its id.
        volume: String,
        /// A number that the program draws, [`SESSION_MAX`] at most, and repeats when it connects again.
        session: u64,
        /// The members that it has memory of: none at first; a forked child has those of its parent.
        holds: Vec<u64>,
    },
    /// What the program has done about the newest view.
    Progress(Vec<MemberProgress>),
    /// Shows the statistics of a program for the agent's metrics: the descriptor of their segment comes with this
    /// message (SCM_RIGHTS in unix(7)). Sent by the program's launcher. The only answer is a denial; otherwise the
    /// statistics are shown for as long as the connection lasts. Such a connection neither opens nor uses a volume. An
    /// agent of an older version denies it as malformed.
    Statistics {
        /// The [`VERSION`] that the launcher speaks.
        version: u16,
    },
}

/// What an agent answers, and what it sends when something changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// The volume cannot be used. The agent ends the connection.
    Denied(Denial),
    /// The volumes that the user may open.
    Listing(Listing),
    /// The volume, as it should be.
    View(View),
}

/// Why a volume cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Denial {
    /// Several volumes of the host have the name.
    Ambiguous {
        /// The ids of these volumes, [`AMBIGUOUS_MAX`] at most.
        ids: Vec<String>,
    },
    /// The agent serves as many programs as it can, or this program or its user has its share.
    Busy {
        /// How many programs the agent serves.
        programs: usize,
    },
    /// The request is malformed.
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// The agent serves no metrics, so it needs no statistics.
    NoMetrics,
    /// The volume is not bound to this host.
    NotBound {
        /// The name of the host.
        host: String,
    },
    /// The user may not use the volume.
    NotPermitted {
        /// The user's number.
        uid: u32,
        /// The number of the user's group.
        gid: u32,
    },
    /// The agent cannot record that the program uses the volume.
    NotRecorded {
        /// Why the agent cannot record it.
        why: String,
    },
    /// The agent speaks another version.
    Version {
        /// The version that the agent speaks.
        version: u16,
    },
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ambiguous { ids } => {
                write!(f, "several volumes of this host have this name; name one by its id instead: {}", ids.join(", "))
            }
            Self::Busy { programs } => {
                write!(
                    f,
                    "the agent serves {programs} programs already, or this program has it open too often; end some, or \
                     raise programs_max in its file"
                )
            }
            Self::Malformed { why } => {
                write!(f, "the request is malformed ({why}); use the aquifer of the agent's version")
            }
            Self::NoMetrics => f.write_str("the agent serves no metrics; set metrics in its file, and restart it"),
            Self::NotBound { host } => write!(
                f,
                "it is not bound to this host; bind it with 'aquifer fabric bind VOLUME {host}', or check its name with \
                 'aquifer fabric volumes'"
            ),
            Self::NotPermitted { uid, gid } => write!(
                f,
                "user {uid} with group {gid} may not use it; add one of them to a [[volume]] in the agent's file, and \
                 reload the agent"
            ),
            Self::NotRecorded { why } => {
                write!(f, "the agent cannot record its use: {why}; free space in the agent's state directory")
            }
            Self::Version { version } => write!(
                f,
                "the agent speaks version {version} of its protocol, and this program speaks {VERSION}; install the same \
                 aquifer for both"
            ),
        }
    }
}

/// How a volume survives the loss of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Redundancy {
    /// Each byte has several copies.
    Mirror {
        /// How many copies there are.
        copies: u8,
    },
    /// No member may be lost.
    None,
    /// Bytes are in shards, some of which are parity.
    Parity {
        /// How many shards of data there are.
        data: u8,
        /// How many shards of parity there are.
        parity: u8,
    },
}

/// The certificate with which programs of this host borrow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantFiles {
    /// The certificate, as a path on this host.
    pub cert: PathBuf,
    /// The private key of the certificate, as a path on this host.
    pub key: PathBuf,
    /// The authority of the donors' certificates.
    pub ca: PathBuf,
    /// That authority's lists of revoked certificates, if programs are to check them. A program of an older version
    /// refuses a view with them instead of borrowing unchecked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crl: Option<PathBuf>,
}

/// The volumes that a user may open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// The certificate with which programs borrow; `None` for plain text.
    pub files: Option<TenantFiles>,
    /// The volumes, [`LISTED_MAX`] at most, by name.
    #[serde(default)]
    pub volumes: Vec<ListedVolume>,
}

/// A volume in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedVolume {
    /// The name by which programs open it.
    pub name: String,
    /// Its id in the pool.
    pub id: String,
    /// How many slabs its members lend; 0 while it is not bound.
    pub slabs: u64,
    /// Whether it is bound to this host, so that programs can open it.
    pub is_bound: bool,
}

/// What a program should do with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Move everything from it to other members, and give it nothing.
    Drain,
    /// Give it up with all of its slabs.
    Leave,
    /// Use the member as any other.
    Use,
}

/// A member of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberView {
    /// The member's number in the pool.
    pub member: u64,
    /// Where its donor is, as `HOST:PORT`.
    pub address: String,
    /// The name in its donor's certificate.
    pub server_name: String,
    /// Its share, relative to the others.
    pub weight: u32,
    /// How many slabs it lends.
    pub slabs: u64,
    /// The token of its reservation at the donor.
    pub reservation: u64,
    /// What to do with it.
    pub order: Order,
}

/// A volume as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Grows with every change.
    pub revision: u64,
    /// How it survives the loss of members.
    pub redundancy: Redundancy,
    /// The certificate to borrow with; `None` to borrow in plain text.
    pub files: Option<TenantFiles>,
    /// Its members. One that is missing here, and was there before, is to be let go.
    pub members: Vec<MemberView>,
    /// `true` if the volume was unbound from this host. Programs that use it may go on; others cannot open it.
    pub is_withdrawn: bool,
}

/// How far a program is with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// The program's slabs are being moved from it.
    Draining {
        /// The slabs that are left.
        slabs: u64,
        /// `true`: the others have no room for them.
        is_stalled: bool,
    },
    /// The program has nothing there, and will have nothing.
    Left,
    /// Its donor does not answer.
    Lost,
    /// The program uses it.
    Present,
}

/// How far a program is with one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberProgress {
    /// The member's number in the pool.
    pub member: u64,
    /// How far the program is.
    pub progress: Progress,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_pool() {
        for name in ["a", "0", "db-1.rack_3", "00000000000000a1", &"x".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".a", "-a", "A", "a b", "a/b", "a\u{301}", "a,b", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn every_denial_is_one_line_with_a_remedy() {
        for (denial, remedy) in [
            (Denial::Ambiguous { ids: vec!["00000000000000a1".into()] }, "by its id instead: 00000000000000a1"),
            (Denial::Busy { programs: 9 }, "programs_max"),
            (Denial::Malformed { why: "x".into() }, "of the agent's version"),
            (Denial::NoMetrics, "set metrics"),
            (Denial::NotBound { host: "h".into() }, "aquifer fabric bind"),
            (Denial::NotPermitted { uid: 1, gid: 2 }, "agent's file"),
            (Denial::NotRecorded { why: "disk full".into() }, "free space"),
            (Denial::Version { version: 2 }, "the same aquifer"),
        ] {
            let text = denial.to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
