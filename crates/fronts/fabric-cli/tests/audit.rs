// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The audit log, all of it and verified: of a real daemon, and of a server that has a long log, takes its time, or
//! lies.

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use program::{Rack, directory, stderr, stdout};
use serde_json::{Value, json};

#[test]
fn the_whole_log_is_shown_and_verified() {
    let rack = Rack::ready("audit", "");
    let part = rack.json(&["audit"]);
    let records = part["Records"].as_array().expect("a list");
    assert!(records.len() >= 3, "{part}");
    let lines = rack.done(&["audit", "--all", "--json"]);
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(&all[..records.len()], records, "one record on each line");
    assert_eq!(rack.done(&["audit", "--all", "--after", "2", "--json"]).lines().count(), all.len() - 2);
    assert_eq!(rack.done(&["audit", "--all"]), rack.done(&["audit"]));
    assert_eq!(rack.done(&["audit", "--all", "--after", "999999"]), "NUMBER  TIME  WHO  WHAT\n");
    let verified = rack.done(&["audit", "--verify"]);
    let head = format!("state    intact\nrecords  {}\nhash     ", all.len());
    assert!(verified.starts_with(&head) && verified.lines().count() == 3, "{verified}");
    assert_eq!(rack.json(&["audit", "--verify"])["IsIntact"], true);
}

/// What a server answers: the status, more headers, and the body.
type Answer = (u16, &'static str, Value);

/// Starts a server that answers each GET by its path, and returns a logged-in rack that asks it. It serves until the
/// test program ends.
fn served(name: &str, answer: impl Fn(&str) -> Answer + Send + 'static) -> Rack {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| serve(stream, &answer)));
    let rack = Rack { directory: directory(name), url, more: Vec::new() };
    let output = rack.fed(&["login", "admin", "--password-stdin"], "a long password");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    rack
}

fn serve(stream: TcpStream, answer: &impl Fn(&str) -> Answer) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|count| count > 0) {}
    // Closing with unread bytes would reset the connection, perhaps before the answer is read.
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let _ = reader.read_exact(&mut vec![0; length.unwrap_or(0)]);
    let (status, headers, body) = match head.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
        Some(path) => answer(path),
        None => (201, "x-auth-token: t\r\nlocation: /redfish/v1/SessionService/Sessions/s\r\n", json!({})),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    let _ = reader.get_mut().write_all(format!("{head}{body}").as_bytes());
}

/// Returns the page of a log with this many records that a path asks for.
fn page(path: &str, all: u64) -> Answer {
    let number = |name: &str| {
        let value = path.split(['?', '&']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|value| value.parse::<u64>().ok()).expect("a number")
    };
    let (after, top) = (number("$skip"), number("$top"));
    assert!(top <= 1000, "no manager gives more");
    let records: Vec<Value> = (after + 1..=all.min(after + top))
        .map(|sequence| json!({ "sequence": sequence, "at": 0, "who": "admin", "what": "a change" }))
        .collect();
    (200, "", json!({ "Records": records, "Tail": { "records": all, "hash": "" } }))
}

#[test]
fn a_long_log_is_read_page_by_page_to_where_it_ended_at_the_beginning() {
    let asked = AtomicU32::new(0);
    // It grows with each page.
    let rack = served("long", move |path| page(path, 2500 + 1000 * u64::from(asked.fetch_add(1, Ordering::Relaxed))));
    let lines = rack.done(&["audit", "--all", "--json"]);
    let numbers: Vec<u64> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["sequence"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (1..=2500).collect::<Vec<u64>>());
    let rack = served("long-text", |path| page(path, 2500));
    let table = rack.done(&["audit", "--all", "--after", "500"]);
    assert_eq!(table.lines().filter(|line| line.starts_with("NUMBER")).count(), 2, "with each page");
    assert_eq!((table.lines().count(), table.contains("\n2500 ")), (2002, true));
}

/// Runs it; it must fail after it has shown a part.
fn broken_off(rack: &Rack) -> String {
    let output = rack.run(&["audit", "--all", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(stdout(&output).lines().count(), 1000);
    stderr(&output)
}

#[test]
fn a_log_with_gaps_or_without_an_end_is_a_failure() {
    let rack = served("cut", |path| {
        let (status, headers, body) = page(path, 1000);
        (status, headers, json!({ "Records": body["Records"], "Tail": { "records": 1200 } }))
    });
    let line = broken_off(&rack);
    assert!(line.contains("ends after record 1000, and should have 1200; have it verified"), "{line}");
    // The same page again and again would have no end.
    let rack = served("again", |_| page("?$skip=0&$top=1000", 5000));
    let line = broken_off(&rack);
    assert!(line.contains("after record 1000 of the audit log comes 1; have it verified"), "{line}");
}

#[test]
fn a_check_that_is_under_way_is_waited_for_and_damage_is_an_exit_code() {
    let asked = AtomicU32::new(0);
    let under_way = || json!({ "error": { "code": "c", "message": "5 of 9 records are done; ask again" } });
    let rack = served("damage", move |_| match asked.fetch_add(1, Ordering::Relaxed) % 3 {
        0 | 1 => (503, "retry-after: 1\r\n", under_way()),
        _ => (200, "", json!({ "IsIntact": false, "Damage": "record 2 was changed; compare it", "Tail": null })),
    });
    let begun = Instant::now();
    let found = rack.run(&["audit", "--verify"]);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    let damage = "state    damaged\ndamage   record 2 was changed; compare it\n";
    assert_eq!((found.status.code(), stdout(&found).as_str(), stderr(&found).as_str()), (Some(3), damage, ""));
    let found = rack.run(&["audit", "--verify", "--json"]);
    assert_eq!(found.status.code(), Some(3), "{found:?}");
    assert_eq!(serde_json::from_str::<Value>(&stdout(&found)).expect("JSON")["IsIntact"], false);

    let rack = served("no-verdict", |_| (200, "", json!({})));
    assert!(rack.fails(1, &["audit", "--verify"]).contains("does not say whether the audit log is intact"));
    let rack = served("trouble", move |_| (503, "", under_way()));
    assert_eq!(rack.fails(1, &["audit", "--verify"]), "5 of 9 records are done; ask again");
}

#[test]
fn a_verification_is_of_the_whole_log() {
    let rack = Rack { directory: directory("audit-words"), url: "http://127.0.0.1:1".to_owned(), more: Vec::new() };
    for words in [&["--verify", "--all"][..], &["--verify", "--after", "7"], &["--all", "--count", "7"]] {
        let output = rack.run(&[&["audit"][..], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains("cannot be used with"), "{words:?}: {}", stderr(&output));
    }
}
