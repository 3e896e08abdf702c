// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What donors, agents and fabric managers send each other over control channels.

use std::time::Duration;

use aquifer_control::{
    Changes, Entry, FAULT_BUCKETS, FRAME_BYTES_MAX, Faults, HEADER_BYTES, Kind, Message, Patterns, Report, Roster,
    decode, encode, payload_bytes,
};
use aquifer_fabric::{DonorReport, HostReport};

use super::one_line;

/// Frames, one after the other, as both sides read them. Frames that are accepted are the same when they are written
/// and read again, and a registration that a manager accepts is one that it can store.
pub fn control(bytes: &[u8]) {
    let (mut rest, mut roster) = (bytes, Roster::default());
    while let Some((header, tail)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let length = match payload_bytes(header, FRAME_BYTES_MAX) {
            Ok((length, _)) => length.min(tail.len()),
            Err(refused) => return one_line(&refused.to_string()),
        };
        let (payload, left) = tail.split_at(length);
        rest = left;
        match decode(payload) {
            Ok(message) => take(&mut roster, message),
            Err(refused) => one_line(&refused.to_string()),
        }
    }
    let stored: Vec<Entry> = roster.entries().values().cloned().collect();
    let again = Roster::new(stored, Patterns::default(), Patterns::default());
    assert_eq!(again.entries(), roster.entries());
    assert_eq!(again.directory_for(Kind::Host), roster.directory_for(Kind::Host));
}

fn take(roster: &mut Roster, message: Message) {
    let frame = encode(1, &message).expect("it was shorter");
    assert_eq!(decode(&frame[HEADER_BYTES..]).as_ref(), Ok(&message));
    match message {
        Message::Hello { registration, .. } => match roster.register("dns:fuzz", registration) {
            Ok(id) => assert!(roster.entries().contains_key(&id)),
            Err(refused) => one_line(&refused.to_string()),
        },
        Message::Changed(changes) => change(changes),
        Message::Measured(Some(faults)) => measure(&faults),
        _ => {}
    }
}

/// Takes counts as a manager takes those of an agent that was restarted. What is taken is plausible.
fn measure(faults: &Faults) {
    let Some(grown) = faults.since(&Faults::default(), Duration::from_secs(5)) else { return };
    assert!(grown.buckets.keys().all(|bucket| *bucket < FAULT_BUCKETS));
    assert_eq!(grown.since(&grown, Duration::ZERO), Some(Faults::default()));
    let times = (grown.mean_us(), grown.quantile_us(0.99));
    assert!(matches!((grown.count(), times), (0, (None, None)) | (1.., (Some(0.0..2e9), Some(0.0..2e9)))), "{times:?}");
}

/// Applies changes to an empty report. The changes from the empty report to the result give the same result.
fn change(changes: Changes) {
    let applied = |changes: Changes| match changes {
        Changes::Donor(changes) => {
            let mut report = DonorReport::default();
            changes.apply(&mut report);
            (Report::Donor(DonorReport::default()), Report::Donor(report))
        }
        Changes::Host(changes) => {
            let mut report = HostReport::default();
            changes.apply(&mut report);
            (Report::Host(HostReport::default()), Report::Host(report))
        }
    };
    let (empty, report) = applied(changes);
    let again = Changes::between(&empty, &report).expect("both are of one kind");
    assert_eq!(applied(again).1, report);
}
