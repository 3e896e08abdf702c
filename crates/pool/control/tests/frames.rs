// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Each message as bytes: what is written is read back, and is what the golden file says.

mod ends;

use std::path::Path;

use aquifer_control::{
    Changes, Directory, Faults, HEADER_BYTES, Kind, Message, Query, Refused, Report, Whereabouts, decode, encode,
    payload_bytes,
};
use aquifer_fabric::{Bytes, Cause, Command, MemberId, RequestId, VolumeId};
use aquifer_fabric::{DonorReport, HostReport, LeaseReport, LeaseState, Term, Token, VolumeReport};
use ends::{registration, release};

fn messages() -> Vec<Message> {
    let lease = LeaseReport {
        host: "h1".parse().expect("a name"),
        bytes: Bytes::gib(1),
        state: LeaseState::Lent { token: Token(u64::MAX) },
    };
    let report = DonorReport {
        leases: [(VolumeId(7), [(MemberId(1), lease)].into())].into(),
        capacity: Bytes::gib(8),
        ..DonorReport::default()
    };
    let whereabouts = Whereabouts { addresses: vec!["10.0.0.7:7411".into()], identity: "dns:d1.example".into() };
    let directory = Directory {
        donors: [("d1".parse().expect("a name"), whereabouts)].into(),
        hosts: [("h1".parse().expect("a name"), "dns:h1.example".to_owned())].into(),
    };
    vec![
        Message::Hello { oldest: 1, newest: 1, registration: registration(Kind::Donor, "d1") },
        Message::Welcome { version: 1 },
        Message::Refused(Refused::new("because; do this")),
        Message::Ping,
        Message::Pong,
        Message::Query(Query { term: Term(3), is_drained: true, directory: Some(directory), ..Query::default() }),
        Message::Query(Query::default()),
        Message::Reported(Report::Donor(report)),
        Message::Reported(Report::Host(HostReport::default())),
        Message::Deposed(Term(9)),
        Message::Unable(Refused::new("because; do this")),
        Message::Commands(vec![release("d1", 3, 4)]),
        Message::Outcomes(vec![Ok(()), Err(Refused::new("because; do this"))]),
    ]
}

/// Returns the messages that version 2 adds.
fn messages_of_version_2() -> Vec<Message> {
    vec![
        Message::Hello { oldest: 1, newest: 2, registration: registration(Kind::Host, "h1") },
        Message::Query(Query { term: Term(3), revocations: Some("a list".into()), ..Query::default() }),
        Message::Renew,
        Message::Request("a request".into()),
        Message::Certificate("a chain".into()),
        Message::Renewed,
    ]
}

/// Returns the messages that version 3 adds.
fn messages_of_version_3() -> Vec<Message> {
    let lease = LeaseReport {
        host: "h1".parse().expect("a name"),
        bytes: Bytes::gib(1),
        state: LeaseState::Lent { token: Token(5) },
    };
    let lent = DonorReport { capacity: Bytes::gib(8), ..DonorReport::default() };
    let more = DonorReport { leases: [(VolumeId(7), [(MemberId(1), lease)].into())].into(), ..lent.clone() };
    let presented = HostReport { volumes: [(VolumeId(7), VolumeReport::default())].into(), ..HostReport::default() };
    let left = HostReport { left: [(VolumeId(7), [MemberId(1)].into())].into(), ..HostReport::default() };
    let between = |old: Report, new: Report| Message::Changed(Changes::between(&old, &new).expect("of one kind"));
    vec![
        Message::Query(Query { term: Term(3), known: Some(8), ..Query::default() }),
        between(Report::Donor(lent.clone()), Report::Donor(more.clone())),
        between(Report::Donor(more), Report::Donor(lent)),
        between(Report::Host(presented.clone()), Report::Host(left.clone())),
        between(Report::Host(left), Report::Host(presented)),
        Message::Unchanged,
    ]
}

/// Returns the messages that version 4 changes.
fn messages_of_version_4() -> Vec<Message> {
    let request = "ticket-4711".parse().expect("an id");
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok();
    let caused = |traceparent| Command {
        cause: Some(Cause { request: RequestId::clone(&request), traceparent }),
        ..release("d1", 3, 4)
    };
    vec![Message::Commands(vec![caused(None), caused(traceparent)])]
}

/// Returns the messages that version 5 changes.
fn messages_of_version_5() -> Vec<Message> {
    let name = || "db".parse().ok();
    let report = VolumeReport { name: name(), ..VolumeReport::default() };
    let report = HostReport { volumes: [(VolumeId(7), report)].into(), ..HostReport::default() };
    let step = ends::present("h1", name());
    vec![Message::Commands(vec![Command { step, ..release("d1", 3, 4) }]), Message::Reported(Report::Host(report))]
}

/// Returns the messages that version 6 adds.
fn messages_of_version_6() -> Vec<Message> {
    let faults = Faults { sum_ns: 27_500, buckets: [(40, 2), (131, 1)].into() };
    vec![Message::Measure, Message::Measured(None), Message::Measured(Some(faults))]
}

#[test]
fn what_is_written_is_read_back_and_is_golden() {
    check(messages(), "messages_v1.jsonl");
    check(messages_of_version_2(), "messages_v2.jsonl");
    check(messages_of_version_3(), "messages_v3.jsonl");
    check(messages_of_version_4(), "messages_v4.jsonl");
    check(messages_of_version_5(), "messages_v5.jsonl");
    check(messages_of_version_6(), "messages_v6.jsonl");
}

fn check(messages: Vec<Message>, golden: &str) {
    let mut text = String::new();
    for (number, message) in (1..).zip(messages) {
        let frame = encode(number, &message).expect("short");
        let header = frame[..HEADER_BYTES].try_into().expect("a header");
        assert_eq!(payload_bytes(header, frame.len()), Ok((frame.len() - HEADER_BYTES, number)));
        assert_eq!(decode(&frame[HEADER_BYTES..]).as_ref(), Ok(&message));
        text.push_str(std::str::from_utf8(&frame[HEADER_BYTES..]).expect("JSON is text"));
        text.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(golden);
    if std::env::var_os("AQUIFER_BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    assert_eq!(std::fs::read_to_string(path).expect("the golden file"), text, "AQUIFER_BLESS=1 writes it again");
}
