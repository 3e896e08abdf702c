// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces as text: a line for each message, and below it what it says, decoded; tunnelled messages are indented.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use aquifer_fmapi::{
    Category, DecodeFailure, Dialect, HEADER_BYTES, Header, Message, Payload, Reader, Request, Response, ReturnCode,
};

use super::{Direction, Trace, Traced};

/// The deepest tunnel that is decoded: LDs of devices are two tunnels away.
const TUNNELS_MAX: usize = 3;
/// Bytes that are shown of a message that cannot be decoded.
const SHOWN_BYTES_MAX: usize = 64;
const SECONDS_PER_DAY: u64 = 86_400;

/// Turns messages into text. It remembers the last request, without which an answer cannot be decoded.
#[derive(Debug, Default)]
pub struct Describer {
    asked: Option<(Header, Request)>,
}

impl Describer {
    /// Returns the text of a message: its line, and the lines below it.
    pub fn describe(&mut self, unix: Duration, direction: Direction, bytes: &[u8], dialect: &Dialect) -> String {
        let arrow = match direction {
            Direction::Sent => ">",
            Direction::Received => "<",
            Direction::Dropped => "x",
        };
        let mut text = format!("{} {arrow} ", time_of_day(unix));
        let asked = self.asked.take();
        let decoded = describe(&mut text, 0, bytes, asked.as_ref(), dialect);
        // The request still has no answer after a message that was dropped.
        self.asked = match direction {
            Direction::Sent => decoded,
            Direction::Received => None,
            Direction::Dropped => asked,
        };
        text
    }
}

/// Appends a message, and returns the request, if it is one.
fn describe(
    text: &mut String,
    depth: usize,
    bytes: &[u8],
    asked: Option<&(Header, Request)>,
    dialect: &Dialect,
) -> Option<(Header, Request)> {
    let indent = "    ".repeat(depth + 1);
    let message = match Message::decode(bytes, dialect) {
        Ok(message) => message,
        Err(failure) => {
            describe_damaged(text, &indent, bytes, failure, dialect);
            return None;
        }
    };
    let (header, length) = (message.header, message.payload.len());
    if header.category == Category::Request {
        let _ = writeln!(text, "tag {:<3} {}, {length} bytes", header.tag, header.opcode);
        let request = Request::decode(header.opcode, &message.payload, dialect);
        let request = shown(text, &indent, request, &message.payload)?;
        if let (Request::Tunnel(tunnel), true) = (&request, depth < TUNNELS_MAX) {
            text.push_str(&indent);
            describe(text, depth + 1, &tunnel.message, None, dialect);
        } else {
            append_fields(text, &indent, &format!("{request:?}"));
        }
        return Some((header, request));
    }
    // An answer may have opcode 0, by its dialect.
    let asked = asked.filter(|(sent, _)| message.check_answers(sent, dialect).is_ok());
    let opcode = asked.map_or(header.opcode, |(sent, _)| sent.opcode);
    let background = if header.is_background { ", goes on in the background" } else { "" };
    let _ = writeln!(text, "tag {:<3} {opcode}, {length} bytes: {}{background}", header.tag, header.return_code);
    if header.return_code != ReturnCode::SUCCESS || length == 0 {
        return None;
    }
    let Some((_, request)) = asked else {
        let _ = writeln!(text, "{indent}{}", hexadecimal(&message.payload));
        return None;
    };
    let response = Response::decode(request, &message.payload, dialect);
    match (shown(text, &indent, response, &message.payload)?, request) {
        (Response::Tunnel(inner), Request::Tunnel(tunnel)) if depth < TUNNELS_MAX => {
            let sent = Message::decode(&tunnel.message, dialect).ok();
            let sent = sent.and_then(|sent| {
                Some((sent.header, Request::decode(sent.header.opcode, &sent.payload, dialect).ok()?))
            });
            text.push_str(&indent);
            describe(text, depth + 1, &inner.message, sent.as_ref(), dialect);
        }
        (response, _) => {
            append_fields(text, &indent, &format!("{response:?}"));
        }
    }
    None
}

/// Appends a payload that has fields. `debug` names its command first, which the line above it does, too.
fn append_fields(text: &mut String, indent: &str, debug: &str) {
    let payload = debug.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(debug);
    if payload.contains('{') {
        let _ = writeln!(text, "{indent}{payload}");
    }
}

/// Returns the value, or a line with the bytes and why they cannot be decoded.
fn shown<T>(text: &mut String, indent: &str, decoded: Result<T, DecodeFailure>, payload: &[u8]) -> Option<T> {
    decoded
        .inspect_err(|failure| {
            let _ = writeln!(text, "{indent}not decoded: {failure}: {}", hexadecimal(payload));
        })
        .ok()
}

fn describe_damaged(text: &mut String, indent: &str, bytes: &[u8], failure: DecodeFailure, dialect: &Dialect) {
    match Header::read(&mut Reader::new(bytes, dialect)) {
        Ok(header) => {
            let _ = writeln!(text, "tag {:<3} {}: damaged", header.tag, header.opcode);
        }
        Err(_) => {
            let _ = writeln!(text, "no message, {} bytes; one has at least {HEADER_BYTES}", bytes.len());
        }
    }
    let _ = writeln!(text, "{indent}not decoded: {failure}: {}", hexadecimal(bytes));
}

fn hexadecimal(bytes: &[u8]) -> String {
    let shown: Vec<String> = bytes.iter().take(SHOWN_BYTES_MAX).map(|byte| format!("{byte:02x}")).collect();
    let more = bytes.len().saturating_sub(SHOWN_BYTES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(" "))
}

/// Returns the time of the day in UTC, with microseconds.
fn time_of_day(unix: Duration) -> String {
    let seconds = unix.as_secs() % SECONDS_PER_DAY;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{:06}", unix.subsec_micros())
}

/// Writes messages as text.
pub struct TextTrace<W> {
    out: W,
    describer: Describer,
    failure: Option<io::Error>,
}

impl<W: Write + Send> TextTrace<W> {
    /// Creates a trace to a stream.
    pub fn new(out: W) -> Self {
        Self { out, describer: Describer::default(), failure: None }
    }
}

impl<W: Write + Send> Trace for TextTrace<W> {
    fn record(&mut self, message: &Traced<'_>) {
        if self.failure.is_none() {
            let text = self.describer.describe(message.unix, message.direction, message.bytes, message.dialect);
            self.failure = self.out.write_all(text.as_bytes()).err();
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        let failure = self.failure.take().map_or(Ok(()), Err);
        failure.and(self.out.flush())
    }
}
