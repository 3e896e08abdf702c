// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A thousand borrowers at one donor: each has its own memory, borrowers that have ended leave none behind, and nobody
//! waits for long.

mod certificates;
mod peer;

use std::time::{Duration, Instant};

use aquifer_donor::Settings;
use aquifer_wire::{EVERY_LEASE, Figure, Message, Refusal, SLAB_BYTES};
use peer::{Lease, Peer, figure, settings, start, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const BORROWERS: u64 = 1000;

/// How many descriptors this process may have, after it has raised its limit to the maximum.
fn descriptors() -> u64 {
    let max = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: max, maximum: max });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[test]
fn a_thousand_borrowers_have_a_slab_each_and_all_at_the_same_time() {
    // Both ends of each connection are in this process.
    if descriptors() < 2 * BORROWERS + 100 {
        aquifer_test_support::skip("there are not so many descriptors (ulimit -Hn)");
        return;
    }
    let (donor, lines) = start(settings(BORROWERS));
    let mut all: Vec<(Peer, Lease)> = Vec::new();
    for who in 0..BORROWERS {
        let mut peer = Peer::borrower(donor.address(), u128::from(who) + 1);
        let lease = peer.grant(who);
        assert_eq!(peer.write(lease, 0, who as u8), Message::Written);
        all.push((peer, lease));
    }
    let status = donor.status();
    for (is, value) in
        [(Figure::Borrowers, BORROWERS), (Figure::Connections, BORROWERS), (Figure::LentBytes, BORROWERS * SLAB_BYTES)]
    {
        assert_eq!(status.figure(is), value, "{is:?}");
    }
    let begun = Instant::now();
    for (who, (peer, lease)) in all.iter_mut().enumerate() {
        assert_eq!(peer.read(*lease, 0).unwrap(), [who as u8; 4096]);
    }
    println!("{:?} for a read, with {BORROWERS} borrowers", begun.elapsed() / BORROWERS as u32);
    let (mut thief, stolen) = (Peer::borrower(donor.address(), u128::MAX), all[77].1);
    assert_eq!(thief.read(stolen, 0), Err(Refusal::NotYours));
    // Half of all memory is taken back: everybody has one slab, so half of them are asked.
    donor.reclaim(BORROWERS / 2 * SLAB_BYTES, Duration::from_secs(300));
    for (peer, lease) in &mut all {
        assert!(matches!(peer.ask(Message::Renew, &[]).0, Message::Renewed { leases: 1, .. }));
        if !peer.revoked.is_empty() {
            assert!(matches!(peer.revoked[..], [Message::Revoke { lease: EVERY_LEASE, .. }]));
            let Lease { lease, token, .. } = *lease;
            assert_eq!(peer.ask(Message::Release { lease, token }, &[]).0, Message::Released { slabs: 1 });
        }
    }
    assert_eq!(all.iter().filter(|(peer, _)| !peer.revoked.is_empty()).count() as u64, BORROWERS / 2);
    wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == BORROWERS / 2 * SLAB_BYTES);
    drop(all);
    wait_until(&donor, |status| status.figure(Figure::Connections) == 1);
    let reported = lines.lock().unwrap().iter().filter(|line| line.starts_with("refused")).count();
    assert_eq!(reported, 1, "one line, about the thief");
}

#[test]
fn a_thousand_borrowers_that_are_gone_leave_nothing() {
    const AT_ONCE: u64 = BORROWERS / 5;
    // This many borrowers at a time have all of the memory.
    let (donor, _) = start(Settings { lease: Duration::from_secs(1), ..settings(AT_ONCE) });
    for round in 0..BORROWERS / AT_ONCE {
        for who in 0..AT_ONCE {
            let mut peer = Peer::borrower(donor.address(), u128::from(round * BORROWERS + who) + 1);
            let lease = peer.grant(0);
            assert_eq!(peer.read(lease, 511).unwrap(), [0; 4096], "nothing of an earlier borrower");
            peer.write(lease, 511, 0xff);
        }
        wait_until(&donor, |status| status.figure(Figure::WipingBytes) == 0 && status.figure(Figure::LentBytes) == 0);
    }
    assert_eq!(figure(&donor, Figure::ExpiriesTotal), BORROWERS);
    assert_eq!(figure(&donor, Figure::WipesTotal), BORROWERS);
}
