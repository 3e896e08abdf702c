// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One function for each decoder. A decoder may reject any input with a one-line message, but no input may make it
//! misbehave.
//!
//! A panic is a finding. In addition to the decoder's own panics, each function checks the guarantees for the result:
//! an accepted input can be encoded and decoded again, and a rejected one gives a one-line message.

mod agent;
mod control;
mod driven_switch;
mod fabric;
mod hotness;
mod join_token;
mod named;

use std::io::{Cursor, ErrorKind};

use aquifer_cache::command::parse;
use aquifer_cache::reply::error;
use aquifer_cache::request::Decoder;
use aquifer_config::Config;
use aquifer_core::mrc::{Curve, Point};
use aquifer_core::record::{Call, HEADER_BYTES, Recording, batch_header, count_events, put_call, put_summary};
use aquifer_core::units::{ByteSize, PAGE_BYTES, REGION_PAGES};
use aquifer_cxl_switch::{Connection, Switch, SwitchConfig};
use aquifer_fmapi::{
    Category, Dialect, Header as CciHeader, Message, Opcode, Payload, Reader, Request, Response, Writer,
};
use aquifer_stats::{CurveFigures, FaultKind};
use aquifer_sys::elf;
use aquifer_sys::shared_segment::SharedSegment;
use aquifer_tiers::TierSpec;
use aquifer_tiers::profile::Profile;
use aquifer_wire::{BODY_BYTES_MAX, DonorStatus, HEADER_BYTES as FRAME_HEADER_BYTES, Header, STATUS_BYTES, body_crc};

pub use self::agent::agent_messages;
pub use self::control::control;
pub use self::driven_switch::driven_switch;
pub use self::fabric::{etcd_answer, fabric_body, fabric_config, fabric_request};
pub use self::hotness::{cedt, hotness};
pub use self::join_token::join_token;
pub use self::named::named;

/// Maximum size of a generated segment in words; the product's own is smaller.
const SEGMENT_WORDS_MAX: usize = 8192;

fn one_line(message: &str) {
    assert!(!message.is_empty(), "a refusal without a reason");
    assert!(!message.contains(['\n', '\r']), "a message of more than one line: {message:?}");
}

/// The output of a measured program.
pub fn bench_result(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match aquifer_bench::read_result(&text) {
        Ok(figure) => assert!(figure.value.is_finite() && figure.value > 0.0, "{figure:?}"),
        Err(message) => one_line(&message),
    }
}

/// The arguments of the C library's calls.
pub fn c_abi(bytes: &[u8]) {
    crate::c_abi::run(bytes);
}

/// What the clients of a cache send: requests, one after the other. They are the same requests when they arrive in
/// parts.
pub fn cache_requests(bytes: &[u8]) {
    let (mut decoder, mut in_parts, mut start) = (Decoder::default(), Decoder::default(), 0);
    loop {
        let rest = &bytes[start..];
        let whole = decoder.decode(rest);
        let part_len = rest.len() / 2;
        let part = in_parts.decode(&rest[..part_len]);
        match &part {
            Ok(Some(_)) | Err(_) => assert_eq!(part, whole),
            Ok(None) => assert_eq!(in_parts.decode(rest), whole),
        }
        let request = match whole {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(failure) => return one_line(&failure.to_string()),
        };
        assert!(request.bytes > 0 && request.bytes <= rest.len());
        let words: Vec<&[u8]> = request.words.iter().map(|word| &rest[word.clone()]).collect();
        assert!(request.words.is_sorted_by(|one, next| one.end <= next.start));
        if !words.is_empty()
            && let Err(failure) = parse(&words, 1 << 40)
        {
            let mut reply = Vec::new();
            error(&mut reply, failure);
            assert!(reply.ends_with(b"\r\n") && !reply[..reply.len() - 2].contains(&b'\n'));
        }
        start += request.bytes;
    }
}

/// The certificate of a borrower: the tenant that it names.
pub fn certificate(bytes: &[u8]) {
    if let Some(name) = aquifer_tls::tenant_name(bytes) {
        let (kind, rest) = name.split_once(':').expect("a name has its kind");
        assert!(["uri", "dns", "email", "cn"].contains(&kind) && !rest.is_empty(), "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
    }
}

/// The record of a page in a compressed tier. It may decode to any bytes, as the guards would notice.
pub fn compressed_page(bytes: &[u8]) {
    let _ = aquifer_tiers::decode_anything(bytes);
}

/// A donor's file with the limits of its tenants.
pub fn tenants(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(message) = aquifer_donor::TenantLimits::parse(&text, aquifer_donor::Limits::default()) {
        one_line(&message);
    }
}

/// The configuration in the environment.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::from_json(text) {
        Ok(config) => assert_eq!(Config::from_json(&config.to_json()), Ok(config)),
        Err(error) => one_line(&error.to_string()),
    }
}

/// What managers send to the software switch: messages. Two bytes precede each: its length, and the time since the
/// previous message in milliseconds.
pub fn cxl_switch(bytes: &[u8]) {
    let mut switch = Switch::new(SwitchConfig::example()).expect("the example is a switch");
    let connection = Connection { id: 1, ingress_port_id: 0, dialect: &Dialect::STANDARD };
    let (mut rest, mut now_ns) = (bytes, 0);
    while let Some(([length, later_ms], tail)) = rest.split_first_chunk::<2>() {
        let (message, left) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = left;
        now_ns += u64::from(*later_ms) * 1_000_000;
        let outcome = switch.receive(now_ns, &connection, message);
        let header = CciHeader::read(&mut Reader::new(message, connection.dialect));
        let is_request = header.is_ok_and(|header| header.category == Category::Request);
        assert_eq!((outcome.replies.len(), outcome.refusal.is_none()), (usize::from(is_request), is_request));
        if let (Some(reply), Ok(header)) = (outcome.replies.first(), header) {
            let answer = Message::decode(&reply.bytes, connection.dialect).expect("an answer is a message");
            assert_eq!(answer.check_answers(&header, connection.dialect), Ok(()));
        }
        outcome.refusal.inspect(|refusal| one_line(&refusal.to_string()));
    }
}

/// The headers of a program that is to be run.
pub fn elf(bytes: &[u8]) {
    match elf::read(&mut Cursor::new(bytes)) {
        Ok(elf::Elf::Dynamic { interpreter }) => assert!(!interpreter.contains('\0')),
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}"),
    }
}

/// A message of the CXL fabric-manager API, in every dialect: the message itself, and its payload as a request and as a
/// response.
pub fn fmapi(bytes: &[u8]) {
    for dialect in &Dialect::ALL {
        if let Ok(message) = Message::decode(bytes, dialect) {
            assert_eq!(Message::decode(&message.encode(dialect), dialect).as_ref(), Ok(&message));
            read_payload(message.header.opcode, &message.payload, &message.payload, dialect);
        }
        let Some(([opcode, cut], payload)) = bytes.split_first_chunk::<2>() else { continue };
        let (asked, answered) = payload.split_at(usize::from(*cut).min(payload.len()));
        read_payload(Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()], asked, answered, dialect);
    }
}

fn read_payload(opcode: Opcode, asked: &[u8], answered: &[u8], dialect: &Dialect) {
    let request = match Request::decode(opcode, asked, dialect) {
        Ok(request) => request,
        Err(failure) => return one_line(&failure.to_string()),
    };
    let mut out = Writer::new(dialect);
    request.write(&mut out);
    assert_eq!(Request::decode(opcode, &out.bytes, dialect).as_ref(), Ok(&request), "{}", dialect.name);
    match Response::decode(&request, answered, dialect) {
        Ok(response) => {
            let mut out = Writer::new(dialect);
            response.write(&mut out);
            assert_eq!(Response::decode(&request, &out.bytes, dialect).as_ref(), Ok(&response), "{}", dialect.name);
        }
        Err(failure) => one_line(&failure.to_string()),
    }
}

/// A device profile.
pub fn profile(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Profile::parse(text) {
        Ok(profile) => {
            for direction in [&profile.read, &profile.write] {
                let times: Vec<u64> = (0..=64).map(|step| direction.latency_ns_at(f64::from(step) / 64.0)).collect();
                assert!(times.is_sorted(), "latencies fall: {times:?}");
            }
        }
        Err(reason) => one_line(&reason),
    }
}

/// The input of `aquifer-sim replay`: as a whole file, and as the events of a file with correct checksums, because
/// wrong checksums would make the decoder reject most inputs.
pub fn recording(bytes: &[u8]) {
    read_recording(bytes);
    let header = include_bytes!("../../../memory/core/tests/golden/recording_v2.bin")[..HEADER_BYTES].to_vec();
    read_recording(&[&header[..], &batch_header(false, 0, bytes), bytes].concat());
}

fn read_recording(file: &[u8]) {
    let mut recording = match Recording::open(file) {
        Ok((_, recording)) => recording,
        Err(damage) => return one_line(&damage.to_string()),
    };
    let mut count = 0;
    let end = recording.read(|number, event| {
        assert_eq!(number, count);
        count += 1;
        let mut bytes = Vec::new();
        put_call(&mut bytes, &event.call);
        put_summary(&mut bytes, &event.call, event.summary);
        assert_eq!(count_events(&bytes), Some(1), "what was read cannot be written: {event:?}");
        if let Call::Cleaned { guards, .. } = event.call {
            assert!(guards.guarded().count() <= REGION_PAGES as usize);
        }
        true
    });
    match end {
        Ok(end) => assert_eq!(end.events, count),
        Err(damage) => one_line(&damage.to_string()),
    }
}

/// Sizes, in both parsers: if both accept a text, they must agree on its value.
pub fn size(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (product, bench) = (text.parse::<ByteSize>(), aquifer_bench::parse_size(text));
    if let (Ok(ByteSize(one)), Ok(other)) = (&product, &bench) {
        assert_eq!(one, other, "{text:?}");
    }
    // Displayed with one decimal digit of the unit, the largest sizes round up beyond 64 bits.
    if let Ok(size) = product
        && size.0 <= i64::MAX as u64
    {
        let shown: ByteSize = size.to_string().parse().expect("what is shown can be typed");
        assert!(shown.0.abs_diff(size.0) <= size.0 / 16, "{size} is shown for {}", size.0);
    }
}

/// The segment of another process, as `aquifer stat` reads it.
pub fn stats_segment(bytes: &[u8]) {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .take(SEGMENT_WORDS_MAX)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("chunks of eight")))
        .collect();
    if words.is_empty() {
        return;
    }
    let segment = SharedSegment::create(c"fuzzed", words.len()).expect("a memfd can be made");
    for (place, word) in segment.words().iter().zip(&words) {
        place.store(*word, std::sync::atomic::Ordering::Release);
    }
    match aquifer_stats::read(segment.descriptor().expect("it was made here")) {
        Ok(snapshot) => {
            let json: serde_json::Value = serde_json::from_str(&snapshot.to_json()).expect("it is JSON");
            assert!(json.is_object());
            for line in snapshot.to_prometheus().lines().filter(|line| !line.starts_with('#')) {
                assert!(line.starts_with("aquifer_") && line.contains(' '), "no metric: {line:?}");
            }
            for kind in FaultKind::ALL {
                let latencies = snapshot.latencies(*kind);
                assert!(latencies.quantile_us(0.5) <= latencies.quantile_us(0.99));
            }
            snapshot.curve().inspect(|figures| curve(figures));
        }
        Err(refused) => one_line(&refused.to_string()),
    }
}

/// What another process says is a miss-ratio curve: refused, or one that answers.
fn curve(figures: &CurveFigures) {
    let points = figures.points.iter().map(|point| Point {
        pages: point.bytes / PAGE_BYTES,
        pages_per_s: point.bytes_per_s,
        fetches_per_s: point.fetches_per_s,
    });
    let pages = figures.content_bytes / PAGE_BYTES;
    let touched = figures.touched_bytes_per_s;
    let Some(curve) = Curve::from_parts(points.collect(), touched, pages, figures.samples) else { return };
    for size in [0, 1, pages / 2, pages, u64::MAX] {
        assert!((0.0..=1.0).contains(&curve.miss_ratio(size)), "{curve:?}");
        assert!((0.0..=1.0).contains(&curve.loss(size, figures.fetch_s.abs(), figures.waited)), "{curve:?}");
    }
    assert!(curve.least_pages(0.05, 80e-6, 0.0) <= pages.saturating_add(pages / 16), "{curve:?}");
}

/// The value of `--tier`, as a user types it.
pub fn tier_spec(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(failure) = text.parse::<TierSpec>() {
        one_line(&failure.to_string());
    }
}

/// The bytes that donor and borrower read from each other: unchanged, and with corrected checksums.
pub fn wire(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else { return };
    read_frame(header, body);
    let mut forged = *header;
    forged[..6].copy_from_slice(b"AQWR\x01\0");
    forged[56..64].copy_from_slice(&body_crc(body).to_le_bytes());
    let sum = body_crc(&forged[..64]);
    forged[64..].copy_from_slice(&sum.to_le_bytes());
    read_frame(&forged, body);
}

fn read_frame(bytes: &[u8; FRAME_HEADER_BYTES], body: &[u8]) {
    match Header::decode(bytes) {
        Ok(header) => {
            assert_eq!(header.encode(), *bytes, "one message has two forms: {header:?}");
            assert!(header.body_bytes <= BODY_BYTES_MAX, "{header:?}");
            if header.check_body(body).is_ok() {
                assert_eq!(Header::new(header.request, header.message, body), header);
            }
        }
        Err(refusal) => one_line(refusal.meaning()),
    }
    if let Some(status) = body.first_chunk::<STATUS_BYTES>() {
        assert_eq!(DonorStatus::decode(status).encode(), *status);
    }
}
