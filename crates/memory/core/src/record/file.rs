// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a recording: a header, then batches of whole events, little-endian. Golden file:
//! `tests/golden/recording_v2.bin`.
//!
//! | offset | bytes | the header's field                                                        |
//! |--------|-------|---------------------------------------------------------------------------|
//! | 0      | 8     | magic: `AQUIFREC`                                                         |
//! | 8      | 4     | version: 2                                                                |
//! | 12     | 4     | bit 0: reads ahead, bit 1: elastic blocks, bit 2: seals; the others zero  |
//! | 16     | 8     | budget, in pages                                                          |
//! | 24     | 4     | slabs that the tier has room for                                          |
//! | 28     | 4     | process that was recorded                                                 |
//! | 32     | 16    | policy: UTF-8, padded with zeros                                          |
//! | 48     | 16    | release of the writer: UTF-8, padded with zeros                           |
//! | 64     | 4     | pages up to which blocks are copied                                       |
//! | 68     | 4     | zero                                                                      |
//! | 72     | 8     | what a fetch costs, in rescues                                            |
//! | 80     | 104   | program: UTF-8, padded with zeros                                         |
//! | 184    | 8     | CRC-64 (NVMe) of the bytes 0 to 184                                       |
//!
//! | offset | bytes | a batch's field                                                           |
//! |--------|-------|---------------------------------------------------------------------------|
//! | 0      | 4     | `EVTS`: the payload is events; `STAT`: it is the state of the recording   |
//! | 4      | 4     | bytes of the payload                                                      |
//! | 8      | 8     | number of the batch, from 0                                               |
//! | 16     | 8     | CRC-64 of the payload                                                     |
//! | 24     | 8     | CRC-64 of the bytes 0 to 24                                               |
//! | 32     | –     | payload                                                                   |
//!
//! The payload of `STAT` is three numbers of 8 bytes: events so far, events lost after them, and 1 when the recording
//! is closed. The last `STAT` counts. A file that ends within a batch was cut short, for instance by a kill, and is
//! valid up to there; any other inconsistency is damage, and an error.

use std::fmt;

use crc_fast::{CrcAlgorithm, checksum};

use super::event::{Event, Reader};
use crate::engine::Settings;
use crate::prefetch::WINDOW_PAGES;

/// The version of the format, events included. A change of any byte's meaning is a new version.
pub const VERSION: u32 = 2;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 192;
/// Bytes of a batch before its payload.
pub const BATCH_HEADER_BYTES: usize = 32;
/// Maximum number of bytes in one batch's payload.
pub const BATCH_PAYLOAD_MAX: usize = 16 << 20;

const MAGIC: &[u8; 8] = b"AQUIFREC";
const EVENTS: &[u8; 4] = b"EVTS";
const STATE: &[u8; 4] = b"STAT";
const STATE_BYTES: usize = 24;
const PREFETCH: u32 = 1;
const ELASTIC: u32 = 2;
const SEALS: u32 = 4;

fn crc(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes")
}

/// What a recording says about its engine before the first event.
#[derive(Clone, Debug)]
pub struct Header {
    /// The engine's settings.
    pub settings: Settings,
    /// The policy's name.
    pub policy: String,
    /// Process that was recorded.
    pub pid: u32,
    /// The release that wrote it.
    pub release: String,
    /// The program that ran.
    pub program: String,
}

impl Header {
    /// The header's bytes. Texts that are too long are cut.
    pub fn bytes(&self) -> [u8; HEADER_BYTES] {
        let Settings {
            budget_pages,
            tier_slabs,
            prefetch,
            elastic,
            copied_pages_max,
            seals,
            fetch_cost,
            window_pages: window,
        } = self.settings;
        let flags = u32::from(prefetch) * PREFETCH + u32::from(elastic) * ELASTIC + u32::from(seals) * SEALS;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&budget_pages.to_le_bytes());
        bytes[24..28].copy_from_slice(&tier_slabs.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.pid.to_le_bytes());
        bytes[64..68].copy_from_slice(&copied_pages_max.to_le_bytes());
        bytes[68..72].copy_from_slice(&(window.saturating_sub(WINDOW_PAGES)).to_le_bytes());
        bytes[72..80].copy_from_slice(&fetch_cost.to_le_bytes());
        for (text, range) in [(&self.policy, 32..48), (&self.release, 48..64), (&self.program, 80..184)] {
            let mut end = text.len().min(range.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            bytes[range.start..range.start + end].copy_from_slice(&text.as_bytes()[..end]);
        }
        let sum = crc(&bytes[..184]);
        bytes[184..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Header, Damage> {
        if bytes.is_empty() {
            return Err(Damage::Empty);
        }
        if !bytes.starts_with(MAGIC) && !MAGIC.starts_with(&bytes[..bytes.len().min(8)]) {
            return Err(Damage::Foreign);
        }
        if bytes.len() < HEADER_BYTES {
            return Err(Damage::Headless);
        }
        let version = u32::from_le_bytes(number(bytes, 8));
        if version != VERSION {
            return Err(Damage::Version { found: version });
        }
        let flags = u32::from_le_bytes(number(bytes, 12));
        if u64::from_le_bytes(number(bytes, 184)) != crc(&bytes[..184]) || flags > PREFETCH + ELASTIC + SEALS {
            return Err(Damage::Header);
        }
        let text = |range: std::ops::Range<usize>| {
            let text = bytes[range].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let settings = Settings {
            budget_pages: u64::from_le_bytes(number(bytes, 16)),
            tier_slabs: u32::from_le_bytes(number(bytes, 24)),
            prefetch: flags & PREFETCH != 0,
            elastic: flags & ELASTIC != 0,
            copied_pages_max: u32::from_le_bytes(number(bytes, 64)),
            seals: flags & SEALS != 0,
            fetch_cost: u64::from_le_bytes(number(bytes, 72)),
            window_pages: WINDOW_PAGES.saturating_add(u32::from_le_bytes(number(bytes, 68))),
        };
        let pid = u32::from_le_bytes(number(bytes, 28));
        Ok(Header { settings, policy: text(32..48), pid, release: text(48..64), program: text(80..184) })
    }
}

/// The contents of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch<'a> {
    /// Whole events.
    Events(&'a [u8]),
    /// The state of the recording.
    State(End),
}

/// The state of a recording, and finally how it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Events that were recorded.
    pub events: u64,
    /// Events that followed them and were lost, because the writer could not keep up.
    pub lost: u64,
    /// Whether the writer closed it. Otherwise the program ended in a way that left no time to close it.
    pub closed: bool,
}

impl End {
    /// The payload that encodes this state.
    pub fn payload(&self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        for (place, value) in bytes.chunks_exact_mut(8).zip([self.events, self.lost, self.closed.into()]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn read(payload: &[u8]) -> Option<End> {
        if payload.len() != STATE_BYTES {
            return None;
        }
        let word = |index: usize| u64::from_le_bytes(number(payload, index * 8));
        (word(2) <= 1).then(|| End { events: word(0), lost: word(1), closed: word(2) == 1 })
    }
}

/// The header of batch `number`, whose payload is `payload`.
pub fn batch_header(is_state: bool, number: u64, payload: &[u8]) -> [u8; BATCH_HEADER_BYTES] {
    let mut bytes = [0; BATCH_HEADER_BYTES];
    let len = u32::try_from(payload.len()).expect("a payload is at most BATCH_PAYLOAD_MAX bytes");
    bytes[..4].copy_from_slice(if is_state { STATE } else { EVENTS });
    bytes[4..8].copy_from_slice(&len.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..24].copy_from_slice(&crc(payload).to_le_bytes());
    let sum = crc(&bytes[..24]);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Why bytes are not a readable recording.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// A batch's bytes differ from those written.
    Batch {
        /// Where it starts in the file.
        offset: u64,
    },
    /// The file is empty.
    Empty,
    /// Not a recording at all.
    Foreign,
    /// The header's bytes differ from those written.
    Header,
    /// Shorter than a header.
    Headless,
    /// The format is that of another release.
    Version {
        /// The version in the file.
        found: u32,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Batch { offset } => write!(
                f,
                "the recording is damaged at byte {offset}: its checksum does not fit; copy it again, or record again"
            ),
            Damage::Empty => f.write_str(
                "the recording is empty: the program stayed within its budget, so there was nothing to decide; \
                 record with a smaller --dram",
            ),
            Damage::Foreign => {
                f.write_str("this is not a recording; give a file that 'aquifer run --record' has written")
            }
            Damage::Header => f.write_str("the recording's header is damaged; copy it again, or record again"),
            Damage::Headless => f.write_str("the recording ends within its header; record again"),
            Damage::Version { found } => write!(
                f,
                "the recording has version {found} and this release reads version {VERSION}; \
                 replay it with the release that recorded it"
            ),
        }
    }
}

impl std::error::Error for Damage {}

/// A recording's bytes, one batch after the other.
#[derive(Clone, Debug)]
pub struct Recording<'a> {
    bytes: &'a [u8],
    offset: usize,
    number: u64,
    events: u64,
    end: End,
}

impl<'a> Recording<'a> {
    /// Reads the header.
    pub fn open(bytes: &'a [u8]) -> Result<(Header, Self), Damage> {
        let header = Header::read(bytes)?;
        Ok((header, Self { bytes, offset: HEADER_BYTES, number: 0, events: 0, end: End::default() }))
    }

    /// The next batch; `None` at the end of the complete batches.
    fn batch(&mut self) -> Result<Option<Batch<'a>>, Damage> {
        let damage = Damage::Batch { offset: self.offset as u64 };
        let rest = &self.bytes[self.offset..];
        let Some((header, rest)) = rest.split_at_checked(BATCH_HEADER_BYTES) else { return Ok(None) };
        if u64::from_le_bytes(number(header, 24)) != crc(&header[..24])
            || u64::from_le_bytes(number(header, 8)) != self.number
        {
            return Err(damage);
        }
        let len = u32::from_le_bytes(number(header, 4)) as usize;
        if len > BATCH_PAYLOAD_MAX {
            return Err(damage);
        }
        let Some((payload, _)) = rest.split_at_checked(len) else { return Ok(None) };
        if u64::from_le_bytes(number(header, 16)) != crc(payload) {
            return Err(damage);
        }
        self.offset += BATCH_HEADER_BYTES + len;
        self.number += 1;
        match &header[..4] {
            kind if kind == EVENTS => Ok(Some(Batch::Events(payload))),
            kind if kind == STATE => End::read(payload).map(|end| Some(Batch::State(end))).ok_or(damage),
            _ => Err(damage),
        }
    }

    /// Passes every event to `each`, with its number from 0 on, until `each` returns false. Returns the state
    /// at the end of the part that was read.
    pub fn read(&mut self, mut each: impl FnMut(u64, Event<'a>) -> bool) -> Result<End, Damage> {
        loop {
            let offset = self.offset as u64;
            match self.batch()? {
                None => return Ok(End { events: self.events, ..self.end }),
                Some(Batch::State(end)) if end.events == self.events => self.end = end,
                Some(Batch::State(_)) => return Err(Damage::Batch { offset }),
                Some(Batch::Events(payload)) => {
                    let mut reader = Reader::new(payload);
                    while !reader.is_empty() {
                        let event = reader.event().ok_or(Damage::Batch { offset })?;
                        let number = self.events;
                        self.events += 1;
                        if !each(number, event) {
                            return Ok(End { events: self.events, ..self.end });
                        }
                    }
                }
            }
        }
    }
}

/// The number of events in `payload`; `None` when it is not whole events.
pub fn count_events(payload: &[u8]) -> Option<u64> {
    let (mut reader, mut count) = (Reader::new(payload), 0);
    while !reader.is_empty() {
        reader.event()?;
        count += 1;
    }
    Some(count)
}
