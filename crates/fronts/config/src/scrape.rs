// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The protocol between `aquifer-metrics`, the program that serves metrics over HTTP, and the command that starts it.
//!
//! The child's standard input is the listening socket, and its standard output a connected stream socket:
//!
//! | from   | bytes           | meaning |
//! |--------|-----------------|---------|
//! | child  | 1, [`READY`]    | it listens; the first byte, so that another version of the program is noticed |
//! | child  | 1, [`ASK`]      | a request for the text of one scrape; the next request follows the answer |
//! | parent | 8 + text        | the text: its length, little-endian, and UTF-8 |
//!
//! When one process closes its end of the socket, the other knows that the first has ended.

/// Says which version of these bytes the program speaks.
pub const READY: u8 = b'1';
/// Asks for a text.
pub const ASK: u8 = b'?';
/// How many bytes precede a text.
pub const HEAD_BYTES: usize = 8;
/// Maximum length of a text. One program takes about 20 KiB of it, so there is room for more than a thousand programs.
pub const TEXT_BYTES_MAX: usize = 64 << 20;

/// Returns the bytes that precede a text of this length.
pub fn head(text_bytes: usize) -> [u8; HEAD_BYTES] {
    (text_bytes as u64).to_le_bytes()
}

/// Returns the length that these bytes announce; `None` if no text is that long.
pub fn text_bytes(head: [u8; HEAD_BYTES]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(head)).ok().filter(|bytes| *bytes <= TEXT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_arrives_unless_it_is_out_of_bounds() {
        for bytes in [0, 1, 300, TEXT_BYTES_MAX] {
            assert_eq!(text_bytes(head(bytes)), Some(bytes));
        }
        assert_eq!(head(0x0102), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(text_bytes(head(TEXT_BYTES_MAX + 1)), None);
        assert_eq!(text_bytes([0xff; HEAD_BYTES]), None);
    }
}
