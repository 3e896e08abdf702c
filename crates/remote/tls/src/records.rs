// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The records of TLS 1.3 (RFC 8446, section 5), after the handshake, in the caller's memory: nothing is allocated.
//!
//! ```text
//! 23 3 3 length(2) │ text … 23 │ tag(16)
//! └── the head ────┘└─ sealed ─┘  head: authenticated, not sealed; 23: application data, also inside
//! ```
//!
//! The nonce of a record is the exclusive or of its number and the direction's initialization vector; numbers count up
//! and are never repeated. One key protects at most [`RECORDS_MAX`] records; then the connection is replaced, with new
//! keys. Only application data is accepted: an Aquifer donor sends no tickets, and no new keys before that limit, and
//! its alerts end the connection.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::{AlertDescription, ConnectionTrafficSecrets};

use crate::distrust::Distrust;

/// Bytes before the sealed part.
pub const RECORD_HEAD_BYTES: usize = 5;
/// Maximum number of bytes of text in one record.
pub const TEXT_BYTES_MAX: usize = 1 << 14;
/// The number of bytes by which a record is longer than its text.
pub const RECORD_EXTRA_BYTES: usize = RECORD_HEAD_BYTES + 1 + TAG_BYTES;
/// The longest record: the standard lets the sealed part be 256 bytes longer than its text.
pub const RECORD_BYTES_MAX: usize = RECORD_HEAD_BYTES + TEXT_BYTES_MAX + 256;

const TAG_BYTES: usize = 16;
const APPLICATION_DATA: u8 = 23;
const ALERT: u8 = 21;
/// Maximum number of records under one key. Half of the number after which rustls makes new keys on a donor's side, and
/// a third of what the standard allows with AES-GCM (2^24.5, section 5.5): 128 GiB in full records.
const RECORDS_MAX: u64 = 1 << 23;

/// Why a record is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The record does not match its tag: damaged, forged, or sealed with other keys.
    Damaged,
    /// The donor's final alert.
    Ended(Distrust),
    /// Not a record that a donor sends.
    Foreign,
    /// The key has protected the maximum number of records.
    Spent,
}

/// One direction.
struct Direction {
    key: LessSafeKey,
    vector: [u8; 12],
    number: u64,
}

impl Direction {
    fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Option<Direction> {
        let (algorithm, key, iv): (&'static Algorithm, _, _) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?);
        Some(Direction { key, vector: iv.as_ref().try_into().ok()?, number })
    }

    /// The next record's nonce. Each call takes a number, so no nonce is used twice.
    fn nonce(&mut self) -> Result<Nonce, Broken> {
        if self.number >= RECORDS_MAX {
            return Err(Broken::Spent);
        }
        let mut nonce = self.vector;
        for (byte, of_number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= of_number;
        }
        self.number += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Whether a new connection is due; leaves room for one request and its answer.
    fn is_worn(&self) -> bool {
        self.number >= RECORDS_MAX - (1 << 16)
    }
}

/// Seals sent records.
pub struct Sealing(Direction);

/// Opens received records.
pub struct Opening(Direction);

impl Sealing {
    pub(crate) fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Option<Sealing> {
        Direction::new(secrets, number).map(Sealing)
    }

    /// Writes one record with `first` and then `second`, together at most [`TEXT_BYTES_MAX`], to the start of `out`.
    /// Returns the record's length.
    pub fn seal(&mut self, first: &[u8], second: &[u8], out: &mut [u8]) -> Result<usize, Broken> {
        let text_bytes = first.len() + second.len();
        assert!(text_bytes <= TEXT_BYTES_MAX, "a record carries so much");
        let length = u16::try_from(text_bytes + 1 + TAG_BYTES).expect("the text has a maximum length");
        let (head, rest) = out[..text_bytes + RECORD_EXTRA_BYTES].split_at_mut(RECORD_HEAD_BYTES);
        head[..3].copy_from_slice(&[APPLICATION_DATA, 3, 3]);
        head[3..].copy_from_slice(&length.to_be_bytes());
        let (text, tag_place) = rest.split_at_mut(text_bytes + 1);
        text[..first.len()].copy_from_slice(first);
        text[first.len()..text_bytes].copy_from_slice(second);
        text[text_bytes] = APPLICATION_DATA;
        let nonce = self.0.nonce()?;
        let sealed = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), text);
        // ring refuses only texts longer than AES-GCM's limit of 64 GiB.
        tag_place.copy_from_slice(sealed.map_err(|_| Broken::Spent)?.as_ref());
        Ok(text_bytes + RECORD_EXTRA_BYTES)
    }

    /// Whether the connection should be replaced before the next request.
    pub fn is_worn(&self) -> bool {
        self.0.is_worn()
    }
}

impl Opening {
    pub(crate) fn new(secrets: &ConnectionTrafficSecrets, number: u64) -> Option<Opening> {
        Direction::new(secrets, number).map(Opening)
    }

    /// The length of the record that begins with `begun`; `None` while its head is incomplete.
    pub fn length(begun: &[u8]) -> Result<Option<usize>, Broken> {
        let Some(&[kind, major, _, high, low]) = begun.first_chunk::<RECORD_HEAD_BYTES>() else { return Ok(None) };
        let whole = RECORD_HEAD_BYTES + usize::from(u16::from_be_bytes([high, low]));
        // An unsealed alert comes from a donor that could not read anything we sent.
        if kind == ALERT && major == 3 && whole == RECORD_HEAD_BYTES + 2 {
            return Ok(Some(whole));
        }
        let fits = kind == APPLICATION_DATA && major == 3 && (RECORD_EXTRA_BYTES..=RECORD_BYTES_MAX).contains(&whole);
        if fits { Ok(Some(whole)) } else { Err(Broken::Foreign) }
    }

    /// Opens a whole record in place. Returns the range of the text in it.
    pub fn open(&mut self, record: &mut [u8]) -> Result<std::ops::Range<usize>, Broken> {
        let (head, sealed) = record.split_at_mut(RECORD_HEAD_BYTES);
        if head[0] == ALERT {
            return Err(ended(sealed));
        }
        let nonce = self.0.nonce()?;
        let opened = self.0.key.open_in_place(nonce, Aad::from(&*head), sealed).map_err(|_| Broken::Damaged)?;
        // The kind follows the text, and is followed by any number of zeros.
        let at = opened.iter().rposition(|byte| *byte != 0).ok_or(Broken::Foreign)?;
        match opened[at] {
            APPLICATION_DATA if at <= TEXT_BYTES_MAX => Ok(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + at),
            ALERT => Err(ended(&opened[..at])),
            _ => Err(Broken::Foreign),
        }
    }

    /// Whether the connection should be replaced before the next request.
    pub fn is_worn(&self) -> bool {
        self.0.is_worn()
    }
}

fn ended(alert: &[u8]) -> Broken {
    match alert {
        [_, what] => Broken::Ended(Distrust::of_alert(AlertDescription::from(*what))),
        _ => Broken::Foreign,
    }
}
