// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager with a collector sends it a span for each request, order and step. With a collector that is gone, or
//! without one, requests are answered as ever. Each answer has the id of its request.

mod daemon;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use aquifer_test_support::SpanCollector;
use daemon::{APPLY, Daemon, WAIT_MAX, apply_body, declaration, directory, rack};

#[test]
fn a_request_is_found_again_by_its_id() {
    let collector = SpanCollector::start();
    let directory = directory("telemetry");
    let end = format!("[telemetry]\ncollector = \"{}\"\n[rounds]\nidle-ms = 50\nbusy-ms = 1\n", collector.url());
    let daemon = Daemon::start_with(&directory, &rack(None), "", &end);
    let token = daemon.login("admin", &daemon.password());
    let ask = |headers: &str| daemon.ask("GET", "/redfish/v1/Oem/Aquifer", &format!("{token}{headers}"), "").unwrap();
    let given = ask("x-request-id: ticket-4711\r\n");
    assert_eq!((given.status, given.header("x-request-id")), (200, Some("ticket-4711")));
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let caller = ask(&format!("traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n"));
    assert_eq!(caller.header("x-request-id"), Some(trace));
    let own = ask("x-request-id: not a number\r\n");
    let own = own.header("x-request-id").expect("the trace's").to_owned();
    assert!(own.len() == 32 && own != trace, "{own}");
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(daemon.settle(&token));
    collector.wait_for(&[
        "aquifer-fabricd",
        "aquifer.request.id",
        "ticket-4711",
        trace,
        own.as_str(),
        "GET /redfish/v1/Oem/Aquifer",
        &format!("POST {APPLY}"),
        "carry out order",
        "send step",
    ]);
    // Those who read spans must not get sessions.
    let secret = token.trim().rsplit(' ').next().expect("a token").to_owned();
    assert!(!collector.has(&secret) && !collector.has(&daemon.password()));
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_manager_whose_collector_is_gone_answers_and_counts_what_it_drops() {
    // A port that was free a moment ago. Another program that takes it now does not speak OTLP.
    let gone = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let directory = directory("telemetry-gone");
    let head = format!("\nmetrics = \"{}:0\"\n", daemon::address());
    let end = format!("[telemetry]\ncollector = \"http://{gone}\"\n[rounds]\nidle-ms = 50\nbusy-ms = 1\n");
    let daemon = Daemon::start_with(&directory, &rack(None), &head, &end);
    let token = daemon.login("admin", &daemon.password());
    let applied = daemon.ask("POST", APPLY, &token, &apply_body(&declaration())).expect("an answer");
    assert_eq!(applied.status, 200, "{applied:?}");
    assert!(daemon.settle(&token));
    let begun = Instant::now();
    loop {
        let page = daemon.raw_at(&daemon.metrics, b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let page = page.expect("an answer");
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name}: {page}"))
        };
        assert_eq!(value("aquifer_fabric_spans_sent_total"), 0);
        if value("aquifer_fabric_spans_dropped_total") > 0 {
            break;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(daemon);
    let log = std::fs::read_to_string(directory.join("log")).expect("a log");
    assert_eq!(log.matches("does not take spans").count(), 1, "{log}");
    std::fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn without_a_collector_each_request_has_an_id_too() {
    let directory = directory("no-telemetry");
    let daemon = Daemon::start(&directory, &rack(None), "");
    let id = |headers: &str| {
        let answer = daemon.ask("GET", "/redfish/v1", headers, "").expect("an answer");
        answer.header("x-request-id").expect("an id").to_owned()
    };
    assert_eq!(id("x-request-id: ticket-4711\r\n"), "ticket-4711");
    let drawn = [id(""), id("x-request-id: a b\r\n")];
    assert!(drawn.iter().all(|id| id.len() == 32) && drawn[0] != drawn[1], "{drawn:?}");
    drop(daemon);
    std::fs::remove_dir_all(directory).expect("removed");
}
