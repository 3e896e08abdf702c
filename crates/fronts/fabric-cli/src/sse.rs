// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decodes server-sent events, from pieces of any size. Pure.
//!
//! An event is lines `id: NUMBER` and `data: TEXT` up to an empty line; lines that begin with a colon, and fields of
//! other names, are skipped. See the WHATWG's HTML standard, section "Server-sent events". Lines end with LF or CR LF:
//! a lone CR, which the standard allows, is not sent by a manager.

/// Maximum size of an event.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// An event as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The event's number, if it has one.
    pub id: Option<u64>,
    /// The event's data, as text.
    pub data: String,
}

/// An event is larger than [`EVENT_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The bytes of an event that is not complete yet.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    event: Sent,
    has_data: bool,
}

impl Decoder {
    /// Takes bytes, and returns the events that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Sent>, TooLong> {
        let mut events = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() + self.event.data.len() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                events.extend(self.end_line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])));
            }
        }
        Ok(events)
    }

    fn end_line(&mut self, line: &str) -> Option<Sent> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "id" => self.event.id = value.parse().ok(),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": alive\n\nid: 7\ndata: {\"a\":\ndata: 1}\r\n\r\nretry: 3\n\ndata\n\nid: x\ndata: \u{e4}\n\nid: 9";

    #[test]
    fn events_are_the_same_however_the_stream_is_cut() {
        let whole = Decoder::default().push(STREAM.as_bytes()).expect("short");
        let event = |id, data: &str| Sent { id, data: data.to_owned() };
        assert_eq!(whole, [event(Some(7), "{\"a\":\n1}"), event(None, ""), event(None, "\u{e4}")]);
        for size in 1..STREAM.len() {
            let mut decoder = Decoder::default();
            let pieces = STREAM.as_bytes().chunks(size);
            let events: Vec<Sent> = pieces.flat_map(|piece| decoder.push(piece).expect("short")).collect();
            assert_eq!(events, whole, "cut into {size}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_refused() {
        let mut decoder = Decoder::default();
        let mut lines = (0..).map(|_| decoder.push(&[b'x'; 4096]));
        assert_eq!(lines.by_ref().take(EVENT_BYTES_MAX / 4096 + 1).find(Result::is_err), Some(Err(TooLong)));
        let mut decoder = Decoder::default();
        let line = format!("data: {}\n", "x".repeat(1000));
        let refusal = (0..EVENT_BYTES_MAX / 1000 + 1).map(|_| decoder.push(line.as_bytes())).find(Result::is_err);
        assert_eq!(refusal, Some(Err(TooLong)));
    }
}
