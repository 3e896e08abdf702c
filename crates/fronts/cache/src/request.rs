// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decodes what clients send: requests of RESP2, as arrays of bulk strings or as lines of words.
//!
//! Pure. Nothing is allocated for what was only announced: a request's bytes are where they arrived, and its words are
//! ranges of them. Every length has a limit, which is checked before waiting for the bytes. A request that arrives in
//! parts is decoded once: [`Decoder`] remembers how far it has come.
//!
//! | bytes                              | meaning                                                    |
//! |------------------------------------|------------------------------------------------------------|
//! | `*N\r\n`, then N bulk strings      | a request of N words; N of 0 or less is no request         |
//! | `$N\r\n`, N bytes, `\r\n`          | a bulk string                                              |
//! | anything else, up to `\n`          | an inline request: words between spaces and tabs           |

use std::fmt;
use std::ops::Range;

/// Maximum number of words in a request. Redis allows a million; a client that sets or gets this many keys at a time
/// would gain nothing from larger batches.
pub const WORDS_MAX: usize = 8192;
/// Maximum length of a word, hence of a value; memcached's default, too. `spans.rs` says what larger ones would cost.
pub const WORD_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a request.
pub const REQUEST_BYTES_MAX: usize = 16 << 20;
/// Maximum length of an inline request, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a line that states a length: a sign, the digits of any 64-bit number, and what surrounds them.
const LENGTH_LINE_BYTES_MAX: usize = 32;

/// A request whose bytes have all arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Its words, as ranges of the bytes that were decoded. None for an empty line or array, which has no reply.
    pub words: Vec<Range<usize>>,
    /// How many bytes it takes.
    pub bytes: usize,
}

/// What makes a connection's bytes unreadable from here on. Its text is Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFailure {
    /// An array of a length that is not a number, or beyond [`WORDS_MAX`].
    ArrayLength,
    /// A bulk string of a length that is not a number, negative, or beyond [`WORD_BYTES_MAX`].
    BulkLength,
    /// A bulk string does not end where its length says.
    BulkEnd,
    /// Another byte where a bulk string should begin.
    ExpectedBulk(u8),
    /// An inline request beyond [`INLINE_BYTES_MAX`].
    InlineTooLong,
    /// A request beyond [`REQUEST_BYTES_MAX`].
    RequestTooLong,
}

impl fmt::Display for ProtocolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArrayLength => f.write_str("ERR Protocol error: invalid multibulk length"),
            Self::BulkLength => f.write_str("ERR Protocol error: invalid bulk length"),
            Self::BulkEnd => f.write_str("ERR Protocol error: a bulk string does not end where its length says"),
            Self::ExpectedBulk(byte) => {
                write!(f, "ERR Protocol error: expected '$', got '{}'", char::from(*byte).escape_default())
            }
            Self::InlineTooLong => f.write_str("ERR Protocol error: too big inline request"),
            Self::RequestTooLong => {
                write!(f, "ERR Protocol error: a request of more than {REQUEST_BYTES_MAX} bytes; split it")
            }
        }
    }
}

/// How far the present request has been decoded.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    words: Vec<Range<usize>>,
    /// Words of the array that are still to come.
    missing: usize,
    /// Everything before this byte has been decoded. 0 at a request's first byte.
    at: usize,
}

impl Decoder {
    /// Returns the memory of the words of a request that has not arrived whole.
    pub fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<Range<usize>>()
    }

    /// Decodes the request at the start of `bytes`. `None`: more bytes are needed, and the next call gets the same
    /// bytes with more after them. After a request, the next call gets the bytes after it. After a failure, none.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Option<Request>, ProtocolFailure> {
        if self.at == 0 {
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return inline(bytes),
            }
            let Some((count, next)) = length(bytes, 0).map_err(|()| ProtocolFailure::ArrayLength)? else {
                return Ok(None);
            };
            if count > WORDS_MAX as i64 {
                return Err(ProtocolFailure::ArrayLength);
            }
            (self.missing, self.at) = (count.max(0) as usize, next);
        }
        while self.missing > 0 {
            let Some(word) = bulk(bytes, self.at)? else { return Ok(None) };
            self.at = word.end + 2;
            self.words.push(word);
            self.missing -= 1;
        }
        let request = Request { words: std::mem::take(&mut self.words), bytes: self.at };
        self.at = 0;
        Ok(Some(request))
    }
}

/// Returns the bulk string at `at`; `None` if it has not arrived.
fn bulk(bytes: &[u8], at: usize) -> Result<Option<Range<usize>>, ProtocolFailure> {
    match bytes.get(at) {
        None => return Ok(None),
        Some(b'$') => {}
        Some(other) => return Err(ProtocolFailure::ExpectedBulk(*other)),
    }
    let Some((count, start)) = length(bytes, at).map_err(|()| ProtocolFailure::BulkLength)? else { return Ok(None) };
    let count = usize::try_from(count).ok().filter(|count| *count <= WORD_BYTES_MAX);
    let end = start + count.ok_or(ProtocolFailure::BulkLength)?;
    if end + 2 > REQUEST_BYTES_MAX {
        return Err(ProtocolFailure::RequestTooLong);
    }
    match bytes.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some(start..end)),
        Some(_) => Err(ProtocolFailure::BulkEnd),
    }
}

/// Returns the number in the line at `at`, after its first byte, and where the next line begins.
fn length(bytes: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    let line = &bytes[at..bytes.len().min(at + LENGTH_LINE_BYTES_MAX)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() == LENGTH_LINE_BYTES_MAX { Err(()) } else { Ok(None) };
    };
    let digits = line[1..end].strip_suffix(b"\r").ok_or(())?;
    Ok(Some((integer(digits).ok_or(())?, at + end + 1)))
}

/// Returns a decimal number as Redis writes it: no plus sign, no spaces, no leading zeros, nothing else. Otherwise
/// `INCR` would change values such as `007`, which are text to Redis.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_number = match digits {
        [] => false,
        [b'0', ..] => text == b"0",
        digits => digits.iter().all(u8::is_ascii_digit),
    };
    if !is_number {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn inline(bytes: &[u8]) -> Result<Option<Request>, ProtocolFailure> {
    let line = &bytes[..bytes.len().min(INLINE_BYTES_MAX)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() == INLINE_BYTES_MAX { Err(ProtocolFailure::InlineTooLong) } else { Ok(None) };
    };
    let (mut words, mut start) = (Vec::new(), 0);
    for (at, byte) in bytes[..=end].iter().enumerate() {
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            if start < at {
                words.push(start..at);
            }
            start = at + 1;
        }
    }
    if words.len() > WORDS_MAX {
        Err(ProtocolFailure::ArrayLength)
    } else {
        Ok(Some(Request { words, bytes: end + 1 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Decoded<'b> = Result<Option<(Vec<&'b [u8]>, usize)>, ProtocolFailure>;

    fn words(bytes: &[u8]) -> Decoded<'_> {
        let request = Decoder::default().decode(bytes)?;
        Ok(request.map(|request| (request.words.into_iter().map(|word| &bytes[word]).collect(), request.bytes)))
    }

    #[test]
    fn arrays_and_lines_are_requests() {
        let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0v\r\nmore";
        assert_eq!(words(set), Ok(Some((vec![&b"SET"[..], b"k", b"\r\n\0v"], set.len() - 4))));
        assert_eq!(words(b" PING\t x \r\nGET"), Ok(Some((vec![&b"PING"[..], b"x"], 11))));
        for empty in [&b"\r\n"[..], b"\n", b"*0\r\n", b"*-1\r\n"] {
            assert_eq!(words(empty), Ok(Some((vec![], empty.len()))));
        }
        assert_eq!(words(b"*1\r\n$0\r\n\r\n"), Ok(Some((vec![&b""[..]], 10))));
    }

    #[test]
    fn a_request_that_arrives_byte_by_byte_is_the_same_request() {
        let bytes = b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\nPING\r\n";
        let mut decoder = Decoder::default();
        let whole = words(bytes).unwrap().unwrap().1;
        for end in 0..whole {
            assert_eq!(decoder.decode(&bytes[..end]), Ok(None), "{end}");
        }
        let request = decoder.decode(bytes).unwrap().unwrap();
        assert_eq!((request.bytes, request.words.len()), (whole, 2));
        assert_eq!(decoder.decode(&bytes[whole..]).unwrap().unwrap().words, vec![0..4]);
    }

    #[test]
    fn what_cannot_be_a_request_is_refused_before_its_bytes_are_waited_for() {
        for (bytes, failure) in [
            (&b"*8193\r\n"[..], ProtocolFailure::ArrayLength),
            (b"*x\r\n", ProtocolFailure::ArrayLength),
            (b"*1\n", ProtocolFailure::ArrayLength),
            (b"*+1\r\n", ProtocolFailure::ArrayLength),
            (b"*99999999999999999999999999999999", ProtocolFailure::ArrayLength),
            (b"*1\r\n:1\r\n", ProtocolFailure::ExpectedBulk(b':')),
            (b"*1\r\n$-1\r\n", ProtocolFailure::BulkLength),
            (b"*1\r\n$1048577\r\n", ProtocolFailure::BulkLength),
            (b"*1\r\n$9223372036854775807\r\n", ProtocolFailure::BulkLength),
            (b"*1\r\n$1\r\nxyz", ProtocolFailure::BulkEnd),
        ] {
            assert_eq!(words(bytes), Err(failure), "{}", bytes.escape_ascii());
        }
        assert_eq!(words(&vec![b'x'; INLINE_BYTES_MAX]), Err(ProtocolFailure::InlineTooLong));
        let mut long = b"*17\r\n".to_vec();
        for _ in 0..17 {
            long.extend_from_slice(format!("${WORD_BYTES_MAX}\r\n").as_bytes());
            long.resize(long.len() + WORD_BYTES_MAX, b'v');
            long.extend_from_slice(b"\r\n");
        }
        assert_eq!(words(&long), Err(ProtocolFailure::RequestTooLong));
    }

    #[test]
    fn only_plain_numbers_are_numbers() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!([integer(b"0"), integer(b"-10"), integer(b"100")], [Some(0), Some(-10), Some(100)]);
        for no in
            [&b""[..], b"-", b"+1", b"007", b"-0", b"00", b"-01", b" 1", b"1 ", b"1.0", b"9223372036854775808", b"\xff"]
        {
            assert_eq!(integer(no), None, "{}", no.escape_ascii());
        }
    }
}
