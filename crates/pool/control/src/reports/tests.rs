// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager gets what the end reports, whatever changes, reconnects and older versions come in between.

use aquifer_fabric::{
    Availability, Bytes, Incarnation, LeaseReport, LeaseState, MemberId, Millis, Term, Token, VolumeId, VolumeReport,
};

use aquifer_test_support::Random;

use super::*;
use crate::end::Refused;
use crate::message::encode;

const HISTORIES: u64 = 100;
const QUERIES: u32 = 60;
/// How many volumes there are: few, so that they come, change and go.
const VOLUMES: u64 = 6;

fn change_donor(report: &mut DonorReport, random: &mut Random) {
    let volume = VolumeId(random.below(VOLUMES));
    let (host, bytes) = ("h1".parse().expect("a name"), Bytes::gib(1));
    let lease = LeaseReport { host, bytes, state: LeaseState::Lent { token: Token(random.below(3)) } };
    match random.below(6) {
        0 => report.term = Term(random.below(3)),
        1 => report.availability = Availability::Gone { since: Millis(random.below(3)) },
        2 => report.incarnation = Incarnation(random.below(3)),
        3 => drop(report.leases.remove(&volume)),
        4 => drop(report.leases.insert(volume, [].into())),
        _ => drop(report.leases.entry(volume).or_default().insert(MemberId(random.below(2)), lease)),
    }
}

fn change_host(report: &mut HostReport, random: &mut Random) {
    let volume = VolumeId(random.below(VOLUMES));
    match random.below(7) {
        0 => report.term = Term(random.below(3)),
        1 => drop(report.volumes.remove(&volume)),
        2 => drop(report.volumes.insert(volume, VolumeReport::default())),
        3 => drop(report.left.remove(&volume)),
        4 => drop(report.left.entry(volume).or_default().insert(MemberId(random.below(2)))),
        5 => drop(report.trouble.remove(&volume)),
        _ => {
            let why = format!("reason {}", random.below(2));
            report.trouble.entry(volume).or_default().insert(MemberId(1), why);
        }
    }
}

fn change(report: &mut Report, random: &mut Random) {
    match report {
        Report::Donor(report) => change_donor(report, random),
        Report::Host(report) => change_host(report, random),
    }
}

/// Passes one query and its answer between the two, as bytes.
fn ask(held: &mut Held, sent: &mut Sent, number: u32, report: &Report) -> (&'static str, Result<Heard, Message>) {
    let known = held.known();
    let query = Query { known, ..Query::default() };
    let answer = sent.answer(number, &query, report.clone());
    let frame = encode(number, &answer).expect("short");
    (answer.name(), held.take(known.is_some(), number, answer, frame.len()))
}

#[test]
fn a_manager_hears_what_the_end_reports_whatever_was_sent() {
    let (mut whole, mut parts, mut same) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let mut report = match random.below(2) {
            0 => Report::Donor(DonorReport::default()),
            _ => Report::Host(HostReport::default()),
        };
        let (mut held, mut sent) = (Held::new(VERSION), Sent::default());
        for number in 1..=QUERIES {
            for _ in 0..random.below(3) {
                change(&mut report, &mut random);
            }
            match random.below(20) {
                // A new connection, on one side or on both.
                0 => held = Held::new(VERSION),
                1 => sent = Sent::default(),
                // An answer without a report.
                2 => {
                    let refused = Message::Unable(Refused::new("because; do this"));
                    assert!(held.take(held.known().is_some(), number, refused, 9).is_err());
                    continue;
                }
                _ => {}
            }
            let (name, heard) = ask(&mut held, &mut sent, number, &report);
            assert_eq!(heard.map(Report::from).as_ref(), Ok(&report), "seed {seed}, query {number}: {name}");
            match name {
                "reported" => whole += 1,
                "changed" => parts += 1,
                _ => same += 1,
            }
        }
    }
    assert!(whole > 300 && parts > 1000 && same > 500, "{whole} whole, {parts} changed, {same} the same");
}

#[test]
fn a_report_that_has_not_changed_is_the_same_allocation() {
    let report = Report::Donor(DonorReport::default());
    let (mut held, mut sent) = (Held::new(VERSION), Sent::default());
    let (Ok(Heard::Donor(one)), Ok(Heard::Donor(two))) =
        (ask(&mut held, &mut sent, 1, &report).1, ask(&mut held, &mut sent, 2, &report).1)
    else {
        panic!("a donor reports");
    };
    assert!(Arc::ptr_eq(&one, &two));
}

#[test]
fn an_end_of_an_older_version_always_sends_the_whole_report() {
    let report = Report::Host(HostReport::default());
    let (mut held, mut sent) = (Held::new(VERSION - 1), Sent::default());
    for number in 1..5 {
        assert_eq!(ask(&mut held, &mut sent, number, &report).0, "reported");
    }
}

#[test]
fn changes_that_nobody_asked_for_are_no_report() {
    let (donor, host) = (Report::Donor(DonorReport::default()), Report::Host(HostReport::default()));
    let changes = |report: &Report| Message::Changed(Changes::between(report, report).expect("of one kind"));
    let mut held = Held::new(VERSION);
    assert!(held.take(false, 1, Message::Unchanged, 9).is_err(), "there is none yet");
    assert!(held.take(false, 1, changes(&donor), 9).is_err(), "there is none yet");
    assert!(held.take(false, 1, Message::Reported(donor.clone()), 9).is_ok());
    assert!(held.take(false, 2, Message::Unchanged, 9).is_err(), "the query names none");
    assert!(held.take(true, 2, changes(&host), 9).is_err(), "a donor is no host");
    assert!(held.take(true, 3, changes(&donor), 9).is_ok());
    assert!(Changes::between(&donor, &host).is_none());
}

#[test]
fn an_end_that_only_adds_to_its_report_sends_it_whole_now_and_then() {
    let report = Report::Donor(DonorReport::default());
    let changes = || Message::Changed(Changes::between(&report, &report).expect("of one kind"));
    let mut held = Held::new(VERSION);
    assert!(held.take(false, 1, Message::Reported(report.clone()), 9).is_ok());
    assert!(held.take(true, 2, changes(), FRAME_BYTES_MAX - 9).is_ok());
    assert_eq!(held.known(), Some(2));
    assert!(held.take(true, 3, changes(), 1).is_ok());
    assert_eq!(held.known(), None, "all that was sent is longer than the longest message");
    assert!(held.take(false, 4, Message::Reported(report.clone()), 9).is_ok());
    assert_eq!(held.known(), Some(4));
}
