// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The header of a frame, 72 bytes, little-endian. Golden file: `tests/golden/frames_v1.bin`.
//!
//! | offset | bytes | field                                                              |
//! |--------|-------|--------------------------------------------------------------------|
//! | 0      | 4     | magic: `AQWR`                                                      |
//! | 4      | 2     | version: 1                                                         |
//! | 6      | 2     | kind of message                                                    |
//! | 8      | 8     | request number; an answer repeats the number of its request        |
//! | 16     | 4     | bytes of the body                                                  |
//! | 20     | 4     | zero                                                               |
//! | 24     | 32    | four numbers, whose meaning depends on the kind                    |
//! | 56     | 8     | CRC-64 (NVMe) of the body; zero without a body                     |
//! | 64     | 8     | CRC-64 (NVMe) of the bytes 0 to 64                                 |
//!
//! The checksum is the one that guards and recordings use (`core/src/guard.rs`). Processors have instructions for it,
//! so that 4 KiB cost less than a tenth of the cheapest system call's round trip, and it detects errors that the 16
//! bits of TCP miss. It does not protect against an attacker; TLS does.

use crc_fast::{CrcAlgorithm, checksum};

use crate::message::Message;
use crate::refusal::Refusal;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 72;
/// The oldest version of the protocol that this release speaks.
pub const VERSION_OLDEST: u16 = 1;
/// The newest version of the protocol that this release speaks.
pub const VERSION_NEWEST: u16 = 1;

const MAGIC: &[u8; 4] = b"AQWR";
/// Number of bytes that the header's checksum covers.
const CHECKED: usize = HEADER_BYTES - 8;

/// A frame without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of this request, or of the request that this answers.
    pub request: u64,
    /// The message.
    pub message: Message,
    /// Number of bytes that follow.
    pub body_bytes: u32,
    /// The checksum of the body.
    pub body_crc: u64,
}

impl Header {
    /// Creates the header of a message with this body.
    ///
    /// # Panics
    /// If the message cannot have such a body: that is a bug of the caller.
    pub fn new(request: u64, message: Message, body: &[u8]) -> Header {
        let body_bytes = u32::try_from(body.len()).expect("a body has a maximum length");
        assert!(message.takes_body(body_bytes), "{message:?} has no body of {body_bytes} bytes");
        Header { request, message, body_bytes, body_crc: body_crc(body) }
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..6].copy_from_slice(&VERSION_NEWEST.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.message.kind().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        for (place, number) in bytes[24..56].chunks_exact_mut(8).zip(self.message.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[56..64].copy_from_slice(&self.body_crc.to_le_bytes());
        let sum = crc(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header. The result has been checked completely, and the length of its body is within its limit.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Refusal> {
        if bytes[..4] != *MAGIC {
            return Err(Refusal::Foreign);
        }
        if u64::from_le_bytes(at(bytes, CHECKED)) != crc(&bytes[..CHECKED]) {
            return Err(Refusal::HeaderDamaged);
        }
        if !(VERSION_OLDEST..=VERSION_NEWEST).contains(&u16::from_le_bytes(at(bytes, 4))) {
            return Err(Refusal::Version);
        }
        let numbers = [24, 32, 40, 48].map(|offset| u64::from_le_bytes(at(bytes, offset)));
        let message = Message::read(u16::from_le_bytes(at(bytes, 6)), numbers)?;
        let header = Header {
            request: u64::from_le_bytes(at(bytes, 8)),
            message,
            body_bytes: u32::from_le_bytes(at(bytes, 16)),
            body_crc: u64::from_le_bytes(at(bytes, 56)),
        };
        if !message.takes_body(header.body_bytes) {
            return Err(Refusal::Oversized);
        }
        if u32::from_le_bytes(at(bytes, 20)) != 0 || header.body_bytes == 0 && header.body_crc != 0 {
            return Err(Refusal::BadField);
        }
        Ok(header)
    }

    /// Checks that `body` is the body that this header describes.
    pub fn check_body(&self, body: &[u8]) -> Result<(), Refusal> {
        if body.len() != self.body_bytes as usize {
            return Err(Refusal::Truncated);
        }
        if body_crc(body) == self.body_crc { Ok(()) } else { Err(Refusal::BodyDamaged) }
    }
}

/// Whether the bytes begin as a frame does, in any version.
pub fn is_frame(begun: &[u8]) -> bool {
    begun.starts_with(MAGIC)
}

/// Whether the bytes begin as a TLS handshake does.
pub fn is_tls(begun: &[u8]) -> bool {
    begun.starts_with(&[22, 3])
}

/// The newest version that both sides speak, given the range that a greeting offers.
pub fn choose_version(oldest: u16, newest: u16) -> Result<u16, Refusal> {
    let version = newest.min(VERSION_NEWEST);
    if version >= oldest.max(VERSION_OLDEST) { Ok(version) } else { Err(Refusal::Version) }
}

/// The checksum of a body.
pub fn body_crc(body: &[u8]) -> u64 {
    if body.is_empty() { 0 } else { crc(body) }
}

fn crc(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

fn at<const N: usize>(bytes: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("a slice of N bytes")
}
