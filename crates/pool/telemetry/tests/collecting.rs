// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A collector gets the spans of a process; a process without a collector, or whose collector is silent, goes on.
//!
//! The trouble it guards against: telemetry that costs a request its time when the collector hangs, or that grows
//! without limit when the collector is gone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_telemetry::{Counts, Operation, Side, Telemetry};
use aquifer_test_support::SpanCollector;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

type Lines = Arc<Mutex<Vec<String>>>;

const WAIT_MAX: Duration = Duration::from_secs(60);

fn start(url: &str) -> (Telemetry, Lines) {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let log = Arc::new(move |line: &str| log.lock().unwrap().push(line.to_owned()));
    let telemetry = Telemetry::start(Some(&url.parse().unwrap()), "aquifer-test", "one", log).unwrap();
    (telemetry, lines)
}

/// Returns the attribute of a span, as text.
fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|one| one.key == key)?;
    Some(format!("{:?}", found.value.as_ref()?.value.as_ref()?))
}

#[test]
fn a_collector_gets_what_was_done_and_in_which_trace() {
    let collector = SpanCollector::start();
    let (telemetry, lines) = start(&collector.url());
    let mut operation =
        telemetry.begin("request", Side::Server, Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    operation.rename(|| "GET /redfish/v1".into());
    operation.note("aquifer.request.id", || "r-1".into());
    operation.count("http.response.status_code", 503);
    operation.fail(|| "no".into());
    assert_eq!(operation.trace_id().unwrap(), "4bf92f3577b34da6a3ce929d0e0e4736");
    drop(operation);
    let own = telemetry.begin("step", Side::Client, Some("nonsense")).trace_id().unwrap();
    assert_eq!(own.len(), 32);
    telemetry.end();
    collector.wait_for(&["GET /redfish/v1", "step"]);
    let posts = collector.posts();
    assert!(posts.iter().all(|post| (&*post.path, &*post.media) == ("/v1/traces", "application/x-protobuf")));
    let requests = posts.iter().map(|post| ExportTraceServiceRequest::decode(&*post.body).unwrap());
    let resources: Vec<_> = requests.flat_map(|request| request.resource_spans).collect();
    let of_service = |name: &str| resources[0].resource.as_ref().unwrap().attributes.iter().any(|one| one.key == name);
    assert!(of_service("service.name") && of_service("service.instance.id") && of_service("service.version"));
    let spans: Vec<Span> = resources.into_iter().flat_map(|one| one.scope_spans).flat_map(|one| one.spans).collect();
    let [request, step] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((request.name.as_str(), request.kind, step.name.as_str(), step.kind), ("GET /redfish/v1", 2, "step", 3));
    assert_eq!(request.parent_span_id, 0x00f0_67aa_0ba9_02b7u64.to_be_bytes());
    assert!(step.parent_span_id.is_empty() && request.trace_id != step.trace_id);
    assert_eq!(attribute(request, "aquifer.request.id").unwrap(), "StringValue(\"r-1\")");
    assert_eq!(attribute(request, "http.response.status_code").unwrap(), "IntValue(503)");
    assert_eq!(request.status.as_ref().map(|status| (status.code, status.message.as_str())), Some((2, "no")));
    assert!(request.end_time_unix_nano >= request.start_time_unix_nano && request.start_time_unix_nano > 0);
    assert!(lines.lock().unwrap().is_empty());
}

#[test]
fn nobody_waits_for_a_collector_that_hangs() {
    // It accepts connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (telemetry, _) = start(&format!("http://{}", silent.local_addr().unwrap()));
    let begun = Instant::now();
    for _ in 0..100_000 {
        telemetry.begin("step", Side::Client, None).note("aquifer.step", || "x".repeat(100));
    }
    telemetry.end();
    assert!(begun.elapsed() < WAIT_MAX, "{:?}", begun.elapsed());
    let counts = telemetry.counts();
    // All but those that wait, and the batch that is on its way.
    assert!(counts.sent == 0 && counts.dropped >= 100_000 - 3000, "{counts:?}");
}

/// Reads a whole request: a connection that ends while something is unread is reset, and its answer is lost.
fn read_request(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut request, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if request.len() >= head.len() + 4 + length.parse::<usize>().expect("a number") {
                return Ok(());
            }
        }
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
}

/// Returns a collector that reads one request, answers with these bytes, and then sends a byte at a time if it
/// `trickles`.
fn hostile(answer: Vec<u8>, trickles: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let _ = read_request(&mut stream);
        let mut sent = stream.write_all(&answer);
        while trickles && sent.is_ok() {
            std::thread::sleep(Duration::from_millis(200));
            sent = stream.write_all(b"a");
        }
    });
    format!("http://{address}")
}

#[test]
fn a_collector_that_answers_anything_harms_nobody() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let huge = format!("{ok}content-length: {}\r\n\r\n{}", u64::MAX, "a".repeat(1 << 20));
    for (answer, trickles, taken) in [
        (format!("{ok}content-length: 0\r\n\r\n"), false, Some(true)),
        // Only the head matters when the body is not OTLP.
        (format!("{ok}content-length: 2\r\n\r\n{{}}"), false, Some(true)),
        (format!("{ok}content-length: -3\r\n\r\n"), false, Some(true)),
        (huge, false, Some(true)),
        (String::new(), false, Some(false)),
        ("HTTP/1.1".into(), false, Some(false)),
        ("HTTP/1.1 307 Elsewhere\r\nlocation: http://192.0.2.1/\r\n\r\n".into(), false, Some(false)),
        ("HTTP/1.1 503 Later\r\nretry-after: 9999999\r\ncontent-length: 0\r\n\r\n".into(), false, Some(false)),
        ("SSH-2.0-x\r\n".into(), false, Some(false)),
        ("\0".repeat(1 << 20), false, Some(false)),
        // It is still being read when the process ends.
        (ok.into(), true, None),
    ] {
        let begun = Instant::now();
        let shown: String = answer.chars().take(60).collect();
        let (telemetry, lines) = start(&hostile(answer.into_bytes(), trickles));
        drop(telemetry.begin("step", Side::Client, None));
        telemetry.end();
        // On a busy machine, the end may not have waited long enough.
        let logged = |lines: &Lines| lines.lock().unwrap().len();
        let is_over = || telemetry.counts() != Counts::default() && (taken == Some(true) || logged(&lines) > 0);
        while taken.is_some() && !is_over() {
            assert!(begun.elapsed() < WAIT_MAX, "{shown:?}: {:?}", telemetry.counts());
            std::thread::sleep(Duration::from_millis(10));
        }
        let counts = telemetry.counts();
        let is_taken = (counts.sent + counts.dropped > 0).then_some(counts.sent == 1);
        assert_eq!(is_taken, taken, "{shown:?}: {counts:?}, {lines:?}");
        assert_eq!(logged(&lines), usize::from(taken == Some(false)), "{shown:?}: {lines:?}");
        assert!(begun.elapsed() < WAIT_MAX, "{shown:?}");
    }
}

#[test]
fn spans_that_the_collector_rejects_count_as_dropped() {
    // It claims to reject more than it got.
    let partial = ExportTracePartialSuccess { rejected_spans: 5, error_message: "full".into() };
    let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend(body);
    let (telemetry, _) = start(&hostile(answer, false));
    drop(telemetry.begin("step", Side::Client, None));
    telemetry.end();
    let begun = Instant::now();
    while telemetry.counts() == Counts::default() {
        assert!(begun.elapsed() < WAIT_MAX);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(telemetry.counts(), Counts { sent: 0, dropped: 1 });
}

#[test]
fn what_the_caller_does_not_record_is_not_sent_and_passed_on_as_such() {
    let collector = SpanCollector::start();
    let (telemetry, _) = start(&collector.url());
    let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let operation = telemetry.begin("request", Side::Server, Some(header));
    let passed = operation.traceparent().unwrap();
    assert!(passed.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && passed.ends_with("-00"), "{passed}");
    assert_ne!(passed, header);
    drop(operation);
    telemetry.end();
    assert!(collector.posts().is_empty() && telemetry.counts() == Counts::default());
}

/// The server closes every connection until the test lets it answer.
#[test]
fn a_collector_that_takes_nothing_is_reported_once_and_when_it_is_back() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (may_answer, count) = (Arc::clone(&answers), Arc::clone(&ended));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            if may_answer.load(Ordering::Acquire) {
                let _ = read_request(&mut stream);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            } else {
                count.fetch_add(1, Ordering::AcqRel);
            }
        }
    });
    let (telemetry, lines) = start(&format!("http://{address}"));
    let record_until = |is_done: &dyn Fn(&[String]) -> bool| {
        let begun = Instant::now();
        while !is_done(&lines.lock().unwrap()) {
            assert!(begun.elapsed() < WAIT_MAX, "{lines:?}");
            drop(telemetry.begin("step", Side::Client, None));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    record_until(&|_| ended.load(Ordering::Acquire) >= 3);
    answers.store(true, Ordering::Release);
    record_until(&|lines| lines.iter().any(|line| line.contains("takes spans again")));
    let reported = lines.lock().unwrap().clone();
    assert!(reported.len() == 2 && reported[0].contains("does not take spans"), "{reported:?}");
}

#[test]
fn without_a_collector_nothing_is_recorded() {
    let log = Arc::new(|line: &str| panic!("{line}"));
    let telemetry = Telemetry::start(None, "aquifer-test", "one", log).unwrap();
    let mut operation = telemetry.begin("step", Side::Client, None);
    operation.note("aquifer.step", || panic!("nobody reads it"));
    operation.fail(|| panic!("nobody reads it"));
    operation.rename(|| panic!("nobody reads it"));
    assert!(operation.trace_id().is_none() && operation.traceparent().is_none() && !telemetry.is_on());
    // It is nothing but a null pointer: it refers to no allocation.
    assert_eq!(size_of::<Operation>(), size_of::<usize>());
    telemetry.end();
}
