// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The messages of a control channel, and how they become bytes. Pure.
//!
//! A frame is a header of 12 bytes, little-endian, and a message as JSON. The golden files are in `tests/golden`.
//!
//! | offset | bytes | field   | meaning                                                            |
//! |--------|-------|---------|--------------------------------------------------------------------|
//! | 0      | 4     | magic   | "AQC1"                                                             |
//! | 4      | 4     | length  | of the JSON, [`FRAME_BYTES_MAX`] at most; [`HELLO_BYTES_MAX`] before registration |
//! | 8      | 4     | number  | of the request; its answer has the same                            |
//!
//! | from an end | from the manager | meaning |
//! |---|---|---|
//! | `hello` | `welcome` or `refused` | registration |
//! | `reported`, `deposed` or `unable` | `query` | a report; from version 5 on with names of volumes |
//! | `changed` or `unchanged` | `query` with `known` | what has changed in the report since then (version 3) |
//! | `outcomes` | `commands` | commands, in their order; with their requests (version 4) and names of volumes (version 5) |
//! | `pong` | `ping` | both are alive |
//! | `request` or `unable` | `renew` | a request for a new certificate (version 2) |
//! | `renewed` or `unable` | `certificate` | the new certificate (version 2) |
//! | `measured` | `measure` | the faults of the programs of an agent's host (version 6) |
//!
//! Unknown messages and unknown fields end the connection: any change of the messages needs a new version.

use std::collections::BTreeMap;
use std::fmt;

use aquifer_fabric::{Command, DonorId, DonorReport, HostId, HostReport, Term};
use serde::{Deserialize, Serialize};

use crate::changes::Changes;
use crate::end::Refused;
use crate::faults::Faults;
use crate::registration::Registration;

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 12;
/// Longest message: a report of some ten thousand leases has 2 MiB.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Longest message of an end that is not registered yet: all its labels and addresses fit.
pub const HELLO_BYTES_MAX: usize = 16 << 10;
/// Oldest version of the protocol that is spoken.
pub const VERSION_OLDEST: u16 = 1;
/// Newest version of the protocol that is spoken.
pub const VERSION_NEWEST: u16 = 6;
/// The first version in which commands have causes.
pub(crate) const VERSION_CAUSES: u16 = 4;
/// The first version in which volumes have names, in commands and in reports.
pub(crate) const VERSION_NAMES: u16 = 5;
/// The first version in which agents count the faults of programs.
pub(crate) const VERSION_FAULTS: u16 = 6;

const MAGIC: [u8; 4] = *b"AQC1";

/// What an end reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Report {
    /// The report of a donor.
    Donor(DonorReport),
    /// The report of a host's agent.
    Host(HostReport),
}

impl Report {
    /// Returns the report without the names of volumes, for a manager that does not know them.
    pub(crate) fn nameless(mut self) -> Report {
        if let Report::Host(report) = &mut self {
            report.volumes.values_mut().for_each(|volume| volume.name = None);
        }
        self
    }
}

/// Where a donor is, for agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Whereabouts {
    /// Its addresses, the preferred one first.
    pub addresses: Vec<String>,
    /// The name in its certificate.
    pub identity: String,
}

/// Who is who: an agent finds the donors in it, and a donor finds under which name each host borrows. Each gets its
/// own part only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Directory {
    /// Where donors are, for agents.
    pub donors: BTreeMap<DonorId, Whereabouts>,
    /// The names in the certificates of hosts: the tenants as which they borrow.
    pub hosts: BTreeMap<HostId, String>,
}

/// A request for a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Query {
    /// The manager's term.
    pub term: Term,
    /// `true` while an operator drains this donor: everything is to move off it. For an agent it is always `false`.
    pub is_drained: bool,
    /// The directory, if it has changed since this end last got it.
    pub directory: Option<Directory>,
    /// The list of certificates that the pool's authority has revoked, in PEM, if the list has changed since this end
    /// last received it. From version 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocations: Option<String>,
    /// The number of the request over this connection that the last report answered, if the manager still has it: the
    /// end need send only what has changed since. From version 3 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<u32>,
}

/// A message, in either direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Message {
    /// A new certificate and those that signed it, in PEM.
    Certificate(String),
    /// What has changed in the report since the one that the query names.
    Changed(Changes),
    /// Commands, to be carried out in this order.
    Commands(Vec<Command>),
    /// There is no report, because the end has seen this greater term.
    Deposed(Term),
    /// An end asks to be registered.
    Hello {
        /// The oldest version that it speaks.
        oldest: u16,
        /// The newest version that it speaks.
        newest: u16,
        /// What it says about itself.
        registration: Registration,
    },
    /// Asks an agent for the faults of its host's programs.
    Measure,
    /// The faults since the agent was started, of programs that are or were shown to it; `None` if it counts none.
    Measured(Option<Faults>),
    /// What became of each command.
    Outcomes(Vec<Result<(), Refused>>),
    /// Asks whether the end is alive.
    Ping,
    /// The end is alive.
    Pong,
    /// Requests a report.
    Query(Query),
    /// The end is not registered. The manager ends the connection.
    Refused(Refused),
    /// Asks the end for a certificate request.
    Renew,
    /// The new certificate is in use.
    Renewed,
    /// The end's report.
    Reported(Report),
    /// A request for a new certificate, in PEM.
    Request(String),
    /// The end cannot report now.
    Unable(Refused),
    /// The report is the one that the query names.
    Unchanged,
    /// The end is registered.
    Welcome {
        /// The version that both speak from now on.
        version: u16,
    },
}

impl Message {
    /// Returns the message's name on the wire.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Certificate(_) => "certificate",
            Self::Changed(_) => "changed",
            Self::Commands(_) => "commands",
            Self::Deposed(_) => "deposed",
            Self::Hello { .. } => "hello",
            Self::Measure => "measure",
            Self::Measured(_) => "measured",
            Self::Outcomes(_) => "outcomes",
            Self::Ping => "ping",
            Self::Pong => "pong",
            Self::Query(_) => "query",
            Self::Refused(_) => "refused",
            Self::Renew => "renew",
            Self::Renewed => "renewed",
            Self::Reported(_) => "reported",
            Self::Request(_) => "request",
            Self::Unable(_) => "unable",
            Self::Unchanged => "unchanged",
            Self::Welcome { .. } => "welcome",
        }
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAFrame {
    /// It does not begin as a frame does.
    Foreign,
    /// The JSON is not a message.
    Message {
        /// The line of serde, shortened.
        why: String,
    },
    /// It is longer than is allowed.
    Oversized {
        /// The frame's length.
        bytes: usize,
        /// The greatest length that is allowed.
        max: usize,
    },
}

impl fmt::Display for NotAFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it speaks another protocol; check the address and the port"),
            Self::Message { why } => write!(f, "a message is malformed ({why}); upgrade the older of both ends"),
            Self::Oversized { bytes, max } => {
                write!(f, "a message has {bytes} bytes, more than {max}; register fewer parts with one end")
            }
        }
    }
}

impl std::error::Error for NotAFrame {}

/// Returns the frame of a message.
pub fn encode(number: u32, message: &Message) -> Result<Vec<u8>, NotAFrame> {
    let mut frame = vec![0; HEADER_BYTES];
    serde_json::to_writer(&mut frame, message).expect("messages are JSON, and a vector takes everything");
    let bytes = frame.len() - HEADER_BYTES;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX);
    let length = length.ok_or(NotAFrame::Oversized { bytes, max: FRAME_BYTES_MAX })?;
    frame[..4].copy_from_slice(&MAGIC);
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    frame[8..12].copy_from_slice(&number.to_le_bytes());
    Ok(frame)
}

/// Returns the length of the JSON after a header, at most `max`, and the request's number.
pub fn payload_bytes(header: &[u8; HEADER_BYTES], max: usize) -> Result<(usize, u32), NotAFrame> {
    let [a, b, c, d, rest @ ..] = *header;
    if [a, b, c, d] != MAGIC {
        return Err(NotAFrame::Foreign);
    }
    let [l0, l1, l2, l3, n0, n1, n2, n3] = rest;
    let bytes = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
    match bytes <= max {
        true => Ok((bytes, u32::from_le_bytes([n0, n1, n2, n3]))),
        false => Err(NotAFrame::Oversized { bytes, max }),
    }
}

/// Returns the message in the JSON of a frame.
pub fn decode(payload: &[u8]) -> Result<Message, NotAFrame> {
    serde_json::from_slice(payload).map_err(|error| {
        let why: String = error.to_string().chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
        NotAFrame::Message { why: why.chars().take(200).collect() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_back_and_longer_ones_are_refused() {
        let frame = encode(7, &Message::Ping).expect("short");
        let header: [u8; HEADER_BYTES] = frame[..HEADER_BYTES].try_into().expect("a header");
        assert_eq!(payload_bytes(&header, 6), Ok((6, 7)));
        assert_eq!(payload_bytes(&header, 5), Err(NotAFrame::Oversized { bytes: 6, max: 5 }));
        assert_eq!(decode(&frame[HEADER_BYTES..]), Ok(Message::Ping));
        let mut foreign = header;
        foreign[..4].copy_from_slice(b"GET ");
        assert_eq!(payload_bytes(&foreign, 100), Err(NotAFrame::Foreign));
    }

    #[test]
    fn what_is_unknown_is_refused_in_one_line() {
        for text in [
            "",
            "{",
            "\"peng\"",
            "{\"welcome\":{\"version\":1,\"x\":2}}",
            "{\"commands\":[{}]}",
            "\"\u{85}\n\"",
            "[[[[",
        ] {
            let refusal = decode(text.as_bytes()).expect_err(text).to_string();
            assert!(!refusal.contains('\n') && refusal.contains("; "), "{refusal}");
        }
        assert!(decode("[".repeat(100_000).as_bytes()).is_err(), "nesting is bounded");
    }
}
