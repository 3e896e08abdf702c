// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Frames on the agent's socket: four bytes of length, little-endian, and a message as TOML. Pure.
//!
//! ```toml
//! message = "close"
//! ```
//!
//! A frame that is too long, or not a message of this version, ends the connection: what follows cannot be understood.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes before the TOML.
pub const HEAD_BYTES: usize = 4;
/// The longest TOML of a frame: a view of [`MEMBERS_MAX`](crate::MEMBERS_MAX) members has less than a third of it.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// How much of a parser's complaint is kept.
const WHY_CHARS_MAX: usize = 200;

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAFrame {
    /// It is not a message.
    Message {
        /// What is wrong, shortened to one line.
        why: String,
    },
    /// It is longer than is allowed.
    Oversized {
        /// The frame's length.
        bytes: usize,
    },
}

impl fmt::Display for NotAFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { why } => write!(f, "a message is malformed ({why}); install the same aquifer at both ends"),
            Self::Oversized { bytes } => {
                write!(
                    f,
                    "a message has {bytes} bytes, and {FRAME_BYTES_MAX} are allowed; use fewer members in one volume"
                )
            }
        }
    }
}

impl std::error::Error for NotAFrame {}

/// A message in a table, because TOML begins with one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<M> {
    message: M,
}

/// Returns the frame of a message.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, NotAFrame> {
    let text = toml::to_string(&Envelope { message }).map_err(|error| malformed(&error.to_string()))?;
    let bytes = text.len();
    let head = u32::try_from(bytes).ok().filter(|_| bytes <= FRAME_BYTES_MAX).ok_or(NotAFrame::Oversized { bytes })?;
    Ok([&head.to_le_bytes(), text.as_bytes()].concat())
}

/// Collects bytes until they are frames. Holds one frame and one read at most.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` until all of it has arrived. After a failure, the connection cannot be used.
    pub fn take<M: DeserializeOwned>(&mut self) -> Result<Option<M>, NotAFrame> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*head) as usize;
        if bytes > FRAME_BYTES_MAX {
            return Err(NotAFrame::Oversized { bytes });
        }
        let Some(payload) = rest.get(..bytes) else { return Ok(None) };
        let text = std::str::from_utf8(payload).map_err(|error| malformed(&error.to_string()))?;
        let Envelope { message } = toml::from_str(text).map_err(|error| malformed(error.message()))?;
        self.bytes.drain(..HEAD_BYTES + bytes);
        Ok(Some(message))
    }
}

fn malformed(why: &str) -> NotAFrame {
    NotAFrame::Message { why: why.chars().filter(|one| !one.is_control()).take(WHY_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Answer, Denial, LISTED_MAX, ListedVolume, Listing, MemberProgress, MemberView, NAME_BYTES_MAX, Order, Progress,
        Redundancy, Request, SESSION_MAX, TenantFiles, View,
    };

    fn requests() -> Vec<Request> {
        vec![
            Request::Open { version: 1, volume: "db".into(), session: SESSION_MAX, holds: vec![3] },
            Request::Progress(vec![
                MemberProgress { member: 3, progress: Progress::Draining { slabs: 9, is_stalled: true } },
                MemberProgress { member: 4, progress: Progress::Left },
            ]),
            Request::List { version: 1 },
            Request::Statistics { version: 1 },
            Request::Close,
        ]
    }

    proptest! {
        #[test]
        fn frames_arrive_however_they_are_cut(cuts in prop::collection::vec(1usize..40, 1..60)) {
            let stream: Vec<u8> = requests().iter().flat_map(|request| encode(request).unwrap()).collect();
            let (mut decoder, mut found, mut rest) = (Decoder::default(), Vec::new(), &stream[..]);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (part, behind) = rest.split_at(cut.min(rest.len()));
                decoder.push(part);
                rest = behind;
                while let Some(request) = decoder.take::<Request>().unwrap() {
                    found.push(request);
                }
            }
            prop_assert_eq!(found, requests());
        }

        #[test]
        fn any_bytes_are_a_message_or_a_failure(bytes: Vec<u8>) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let _ = decoder.take::<Request>();
            let _ = decoder.take::<Answer>();
        }
    }

    #[test]
    fn a_view_is_read_back() {
        let files = TenantFiles { cert: "/c".into(), key: "/k".into(), ca: "/a".into(), crl: Some("/l".into()) };
        let member = |order| MemberView {
            member: 3,
            address: "[::1]:7411".into(),
            server_name: "d.example".into(),
            weight: 2,
            slabs: 9,
            reservation: 8,
            order,
        };
        let members = vec![member(Order::Use), member(Order::Drain), member(Order::Leave)];
        let full = View {
            revision: 5,
            redundancy: Redundancy::Parity { data: 4, parity: 1 },
            files: Some(files),
            members,
            is_withdrawn: true,
        };
        let empty = View { redundancy: Redundancy::None, files: None, members: Vec::new(), ..full.clone() };
        for view in [full, empty] {
            let mut decoder = Decoder::default();
            decoder.push(&encode(&Answer::View(view.clone())).unwrap());
            assert_eq!(decoder.take::<Answer>(), Ok(Some(Answer::View(view))));
        }
    }

    #[test]
    fn the_longest_listing_fits_a_frame_and_is_read_back() {
        let files = TenantFiles { cert: "/c".into(), key: "/k".into(), ca: "/a".into(), crl: None };
        let longest =
            ListedVolume { name: "x".repeat(NAME_BYTES_MAX), id: "f".repeat(16), slabs: SESSION_MAX, is_bound: false };
        for listing in [
            Listing { files: Some(files), volumes: vec![longest; LISTED_MAX] },
            Listing { files: None, volumes: vec![] },
        ] {
            let mut decoder = Decoder::default();
            decoder.push(&encode(&Answer::Listing(listing.clone())).unwrap());
            assert_eq!(decoder.take::<Answer>(), Ok(Some(Answer::Listing(listing))));
        }
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused_in_one_line() {
        let mut decoder = Decoder::default();
        decoder.push(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
        assert_eq!(decoder.take::<Request>(), Err(NotAFrame::Oversized { bytes: FRAME_BYTES_MAX + 1 }));
        for text in [
            "",
            "{",
            "message = 'clos'",
            "message = 'close'\nx = 1",
            "message.open = {version = 1}",
            "message.open = {version = 1, volume = 'a', session = 1, holds = [], x = 1}",
            "message.open = {version = 1, volume = 'a', session = -1, holds = []}",
        ] {
            let mut decoder = Decoder::default();
            decoder.push(&(text.len() as u32).to_le_bytes());
            decoder.push(text.as_bytes());
            let refusal = decoder.take::<Request>().expect_err(text).to_string();
            assert!(!refusal.contains('\n') && refusal.contains("; "), "{refusal}");
        }
        let long = Answer::Denied(Denial::Malformed { why: "x".repeat(FRAME_BYTES_MAX) });
        assert!(matches!(encode(&long), Err(NotAFrame::Oversized { .. })));
    }

    #[test]
    fn the_bytes_are_those_of_the_first_version() {
        let frame = encode(&Request::Open { version: 1, volume: "db".into(), session: 7, holds: vec![] }).unwrap();
        let text = "[message.open]\nversion = 1\nvolume = \"db\"\nsession = 7\nholds = []\n";
        assert_eq!(std::str::from_utf8(&frame[HEAD_BYTES..]), Ok(text));
        assert_eq!(frame[..HEAD_BYTES], (text.len() as u32).to_le_bytes());
        let files = |crl| TenantFiles { cert: "/c".into(), key: "/k".into(), ca: "/a".into(), crl };
        let listing = |crl| Answer::Listing(Listing { files: Some(files(crl)), volumes: vec![] });
        let text =
            "[message.listing]\nvolumes = []\n\n[message.listing.files]\ncert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\n";
        for (crl, more) in [(None, ""), (Some("/l".into()), "crl = \"/l\"\n")] {
            let frame = encode(&listing(crl)).unwrap();
            assert_eq!(std::str::from_utf8(&frame[HEAD_BYTES..]), Ok(&*format!("{text}{more}")));
        }
        assert_eq!(&encode(&Request::Close).unwrap()[HEAD_BYTES..], b"message = \"close\"\n");
        assert_eq!(&encode(&Request::List { version: 1 }).unwrap()[HEAD_BYTES..], b"[message.list]\nversion = 1\n");
        let statistics = encode(&Request::Statistics { version: 1 }).unwrap();
        assert_eq!(&statistics[HEAD_BYTES..], b"[message.statistics]\nversion = 1\n");
        let denied = encode(&Answer::Denied(Denial::NoMetrics)).unwrap();
        assert_eq!(&denied[HEAD_BYTES..], b"[message]\ndenied = \"no-metrics\"\n");
    }
}
