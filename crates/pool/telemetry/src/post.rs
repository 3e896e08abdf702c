// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One batch as one HTTP request, on a connection of its own.
//!
//! Threads: the sender's alone, which may wait. A collector that answers a byte at a time is given up all the same:
//! the limits hold for the whole answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;

use crate::collector::Collector;

/// The path of spans in OTLP over HTTP.
const PATH: &str = "/v1/traces";
/// How long a collector may take to accept a connection. It is on this machine.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// How long a collector may take for one batch, from the first byte that is sent to the last one of the answer.
const EXCHANGE_WAIT: Duration = Duration::from_secs(5);
/// Longest answer that is read. A collector answers with a few bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Bytes that are read or written at a time.
const PIECE_BYTES: usize = 16 << 10;

/// Posts a batch of encoded spans. Returns how many of them the collector says that it rejects.
pub(crate) fn post(collector: &Collector, body: &[u8]) -> io::Result<u64> {
    let mut stream = connect(collector)?;
    let until = Instant::now() + EXCHANGE_WAIT;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: {}\r\nuser-agent: aquifer/{}\r\ncontent-type: application/x-protobuf\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        collector.authority(),
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    for piece in [head.as_bytes()].into_iter().chain(body.chunks(PIECE_BYTES)) {
        stream.set_write_timeout(Some(left(until)?))?;
        stream.write_all(piece)?;
    }
    let answer = receive(&mut stream, until)?;
    match status(&answer) {
        Some(200..300) => Ok(rejected(&answer)),
        Some(status) => Err(io::Error::other(format!("it answers with status {status}"))),
        None => Err(io::Error::other("it does not speak HTTP")),
    }
}

/// Connects to the first address of the collector that accepts: `localhost` has two.
fn connect(collector: &Collector) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in collector.place().to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
            Ok(stream) => return Ok(stream),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

/// Returns what is left of the time, or the failure when nothing is.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads an answer until the whole of it is there or the connection ends.
fn receive(stream: &mut TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let (mut answer, mut piece) = (Vec::new(), [0; PIECE_BYTES]);
    while !is_whole(&answer) && answer.len() < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(failure) if failure.kind() == ErrorKind::Interrupted => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(answer)
}

/// Returns the head and what follows it, if the head is complete.
fn parts(answer: &[u8]) -> Option<(&str, &[u8])> {
    const GAP: &[u8] = b"\r\n\r\n";
    let end = answer.windows(GAP.len()).position(|bytes| bytes == GAP)?;
    Some((std::str::from_utf8(&answer[..end]).ok()?, &answer[end + GAP.len()..]))
}

/// Returns the length that an answer's head gives. Without one, the end of the connection is the end of the answer.
fn length(head: &str) -> Option<usize> {
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1.trim().parse().ok()
}

fn is_whole(answer: &[u8]) -> bool {
    parts(answer).is_some_and(|(head, body)| length(head).is_some_and(|length| body.len() >= length))
}

/// Returns the status in an answer's first line.
fn status(answer: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(answer.split(|byte| *byte == b'\r').next()?).ok()?;
    let mut words = line.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let status = words.next().filter(|word| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()))?;
    status.parse().ok()
}

/// Returns how many spans an answer rejects. One that cannot be read rejects none: its status says that they were
/// taken.
fn rejected(answer: &[u8]) -> u64 {
    let Some((head, body)) = parts(answer) else { return 0 };
    let body = length(head).and_then(|length| body.get(..length)).unwrap_or_default();
    let partial = ExportTraceServiceResponse::decode(body).ok().and_then(|answer| answer.partial_success);
    partial.and_then(|partial| u64::try_from(partial.rejected_spans).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn only_http_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 503\r\n"), Some(503));
        let others: [&[u8]; 7] = [
            b"",
            b"SSH-2.0-x\r\n",
            b"HTTP/2 200\r\n",
            b"HTTP/1.1",
            b"HTTP/1.1 20 OK",
            b"HTTP/1.1 +20\r\n",
            b"\xff\r\n",
        ];
        for other in others {
            assert_eq!(status(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_answer_is_whole_when_its_length_is_there() {
        for whole in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n"] {
            assert!(is_whole(whole.as_bytes()), "{whole}");
            assert!(!is_whole(&whole.as_bytes()[..whole.len() - 1]), "{whole}");
        }
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"));
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"));
    }

    #[test]
    fn rejected_spans_are_read_and_nonsense_rejects_none() {
        let of = |spans| {
            let partial = ExportTracePartialSuccess { rejected_spans: spans, error_message: "full".into() };
            ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        let answer = |body: &[u8]| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            [head.as_bytes(), body].concat()
        };
        assert_eq!(rejected(&answer(&of(3))), 3);
        for other in [answer(b""), answer(&of(-1)), answer(b"\xff\xff"), answer(b"{}"), b"HTTP/1.1 200 OK".to_vec()] {
            assert_eq!(rejected(&other), 0, "{other:?}");
        }
    }

    /// Draws a random number by SplitMix64.
    fn draw(state: &mut u64) -> usize {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        usize::try_from((mixed ^ (mixed >> 27)) >> 33).expect("31 bits")
    }

    #[test]
    fn an_answer_with_any_damage_is_read_or_refused() {
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "full".into() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let good = [head.as_bytes(), &body].concat();
        let (mut changed, mut state) = (0, 4711);
        for _ in 0..20_000 {
            let mut answer = good.clone();
            for _ in 0..=draw(&mut state) % 4 {
                let at = draw(&mut state) % answer.len();
                answer[at] = u8::try_from(draw(&mut state) % 256).expect("a byte");
            }
            answer.truncate(answer.len() - draw(&mut state) % 8);
            let (status, _) = (status(&answer), is_whole(&answer));
            changed += usize::from((status, rejected(&answer)) != (Some(200), 3));
        }
        assert!(changed > 10_000, "only {changed} answers were damaged");
    }
}
