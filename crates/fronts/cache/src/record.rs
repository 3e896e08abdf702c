// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of one record of the log: a key and its value. Pure.
//!
//! | offset      | bytes | field | meaning                                           |
//! |-------------|-------|-------|---------------------------------------------------|
//! | 0           | 4     | key   | length of the key                                 |
//! | 4           | 4     | value | length of the value                               |
//! | 8           | 8     | hash  | of the key, as in the index                       |
//! | 16          | key   |       | the key                                           |
//! | 16 + key    | value |       | the value                                         |
//! |             | 0..15 |       | zeros, up to a multiple of 16                     |
//!
//! Little-endian. There is no checksum: the space guards every page, and a log does not outlive its process.

use crate::command::KEY_BYTES_MAX;
use crate::request::WORD_BYTES_MAX;

/// Records begin and end at multiples of this.
pub const UNIT_BYTES: u64 = 16;
/// What precedes the key.
pub const HEADER_BYTES: usize = 16;
/// Maximum length of a record.
pub const RECORD_BYTES_MAX: usize = (HEADER_BYTES + KEY_BYTES_MAX + WORD_BYTES_MAX).next_multiple_of(16);

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the key.
    pub key_bytes: u32,
    /// Length of the value.
    pub value_bytes: u32,
    /// Hash of the key.
    pub hash: u64,
}

impl Header {
    /// Reads a header. Returns `None` if no record begins like this.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (key_bytes, value_bytes) = (word(0), word(4));
        let hash = u64::from(word(8)) | u64::from(word(12)) << 32;
        let fits = key_bytes as usize <= KEY_BYTES_MAX && value_bytes as usize <= WORD_BYTES_MAX;
        fits.then_some(Self { key_bytes, value_bytes, hash })
    }

    /// Returns the length of the record.
    pub fn record_bytes(&self) -> usize {
        record_bytes(self.key_bytes as usize, self.value_bytes as usize)
    }
}

/// Returns the length of the record of a key and a value with these lengths.
pub fn record_bytes(key_bytes: usize, value_bytes: usize) -> usize {
    (HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(UNIT_BYTES as usize)
}

/// Writes a record over what `out` contains.
pub fn write(out: &mut Vec<u8>, hash: u64, key: &[u8], value: &[u8]) {
    out.clear();
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&hash.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out.resize(record_bytes(key.len(), value.len()), 0);
}

/// Returns the value in a record, if it is the record of this key.
pub fn value_of<'r>(record: &'r [u8], key: &[u8]) -> Option<&'r [u8]> {
    let header = Header::read(record.first_chunk()?)?;
    let (key_end, value_bytes) = (HEADER_BYTES + header.key_bytes as usize, header.value_bytes as usize);
    let value = record.get(key_end..key_end + value_bytes)?;
    (record.get(HEADER_BYTES..key_end)? == key).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = vec![9; 100];
        for (key, value) in [(&b""[..], &b""[..]), (b"key", b"value"), (b"k", &[7; 1000])] {
            write(&mut record, 0x0123_4567_89ab_cdef, key, value);
            let header = Header::read(record.first_chunk().unwrap()).unwrap();
            assert_eq!((header.hash, header.record_bytes()), (0x0123_4567_89ab_cdef, record.len()));
            assert!(record.len().is_multiple_of(16));
            assert_eq!(value_of(&record, key), Some(value));
            assert_eq!(value_of(&record, b"other"), None);
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_not_read_as_one() {
        let mut record = Vec::new();
        write(&mut record, 1, b"key", b"value");
        assert_eq!(value_of(&record[..20], b"key"), None);
        assert_eq!(value_of(&record[..4], b"key"), None);
        record[3] = 0xff;
        assert_eq!(Header::read(record.first_chunk().unwrap()), None);
    }
}
