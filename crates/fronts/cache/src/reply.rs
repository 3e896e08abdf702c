// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Encodes replies of RESP2. Pure.

use std::fmt::Display;
use std::io::Write;

/// Maximum length of the reply to one request. A request for more gets an error, before anything is read.
pub const REPLY_BYTES_MAX: usize = 16 << 20;

/// Maximum length of what precedes and follows a bulk string.
pub const BULK_FRAME_BYTES_MAX: usize = 16;

/// Writes a status, such as `OK`.
pub fn status(out: &mut Vec<u8>, text: &str) {
    line(out, '+', text);
}

/// Writes an error: a word in capitals, and why. Line breaks in it would end the reply.
pub fn error(out: &mut Vec<u8>, text: impl Display) {
    line(out, '-', text.to_string().replace(char::is_control, "?"));
}

/// Writes a number.
pub fn integer(out: &mut Vec<u8>, number: i64) {
    line(out, ':', number);
}

/// Writes bytes.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    line(out, '$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes the null bulk string.
pub fn nothing(out: &mut Vec<u8>) {
    line(out, '$', -1);
}

/// Writes the start of an array: `len` replies follow.
pub fn array(out: &mut Vec<u8>, len: usize) {
    line(out, '*', len);
}

fn line(out: &mut Vec<u8>, kind: char, text: impl Display) {
    write!(out, "{kind}{text}\r\n").expect("a vector takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_the_protocol_says() {
        let mut out = Vec::new();
        status(&mut out, "OK");
        error(&mut out, "ERR unknown command 'a\r\nb'");
        integer(&mut out, -7);
        bulk(&mut out, b"a\r\nb");
        nothing(&mut out);
        array(&mut out, 2);
        let expected = "+OK\r\n-ERR unknown command 'a??b'\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*2\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
