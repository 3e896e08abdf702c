// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The life of a slab at a real donor: granted, used, given back or taken, wiped, and granted to another borrower.

mod certificates;
mod peer;

use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Source, StartFailure};
use aquifer_wire::{DonorStatus, EVERY_LEASE, Figure, Message, RangeIndex, Refusal, SLAB_BYTES, STATUS_BYTES};
use peer::{Peer, figure, impatient, settings, start, wait_until};

#[test]
fn bytes_of_one_borrower_are_not_found_by_the_next() {
    for source in [Source::Anonymous, Source::Memfd, Source::Huge] {
        let settings = Settings { source: source.clone(), ..settings(1) };
        if let Err(none) = Donor::start(settings.clone(), Box::new(|_| ())).map(|donor| donor.stop(Duration::ZERO)) {
            assert_eq!(source, Source::Huge, "{none}");
            aquifer_test_support::skip_part("one case", none);
            continue;
        }
        let (donor, _) = start(settings);
        let mut one = Peer::borrower(donor.address(), 1);
        let lease = one.grant(4);
        (0..512).for_each(|page| assert_eq!(one.write(lease, page, 0xab), Message::Written));
        assert_eq!(one.read(lease, 511).unwrap(), [0xab; 4096]);
        let discard = Message::Discard { lease: lease.lease, token: lease.token, offset: 4 * SLAB_BYTES, bytes: 4096 };
        assert_eq!(one.ask(discard, &[]).0, Message::Discarded);
        assert_eq!((one.read(lease, 0).unwrap(), one.read(lease, 1).unwrap()), (vec![0; 4096], vec![0xab; 4096]));
        let released = one.ask(Message::Release { lease: EVERY_LEASE, token: 0 }, &[]).0;
        assert_eq!(released, Message::Released { slabs: 1 });
        let mut other = Peer::borrower(donor.address(), 2);
        let lease = other.grant(0);
        (0..512).for_each(|page| assert_eq!(other.read(lease, page).unwrap(), [0; 4096], "page {page}"));
        assert_eq!(figure(&donor, Figure::WipesTotal), 1);
    }
}

/// Two runs gave the same slab and the same token for the same range. A process that had not noticed the restart took a
/// related process's lease for its own, and a key of RDMA for that of another slab.
#[test]
fn a_token_of_an_earlier_run_is_no_token_of_a_later_one() {
    let first_token = || {
        let (donor, _) = start(settings(1));
        let token = Peer::borrower(donor.address(), 1).grant(0).token;
        donor.stop(Duration::ZERO);
        token
    };
    let tokens: Vec<u64> = (0..3).map(|_| first_token()).collect();
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2] && tokens[0] != tokens[2], "{tokens:?}");
    assert!(tokens.iter().all(|token| (1..=1 << 37).contains(token)), "{tokens:?}");
}

/// The thread of a request used to wipe: a borrower that released 6 GiB waited for seconds until all of it was wiped,
/// and so did one that merely read in the meantime. Here the wiper stands still unless somebody waits for it.
#[test]
fn an_answer_waits_only_for_the_wipe_of_the_slab_that_it_grants() {
    const SLABS: u64 = 8;
    for source in [Source::Anonymous, Source::Memfd, Source::Huge] {
        let settings = Settings { source: source.clone(), wipe_parts: u32::MAX, ..settings(SLABS) };
        if let Err(none) = Donor::start(settings.clone(), Box::new(|_| ())).map(|donor| donor.stop(Duration::ZERO)) {
            assert_eq!(source, Source::Huge, "{none}");
            aquifer_test_support::skip_part("one case", none);
            continue;
        }
        let (donor, _) = start(settings);
        let mut one = Peer::borrower(donor.address(), 1);
        let mut other = Peer::borrower(donor.address(), 2);
        let kept = other.grant(0);
        assert_eq!(other.write(kept, 0, 0xcd), Message::Written);
        let leases: Vec<_> = (1..SLABS).map(|range| one.grant(range)).collect();
        leases.iter().for_each(|lease| assert_eq!(one.write(*lease, 511, 0xab), Message::Written));
        let released = one.ask(Message::Release { lease: EVERY_LEASE, token: 0 }, &[]).0;
        assert_eq!(released, Message::Released { slabs: SLABS - 1 });
        for _ in 0..32 {
            assert_eq!(other.read(kept, 0).unwrap(), [0xcd; 4096]);
            assert_eq!(other.write(kept, 0, 0xcd), Message::Written);
        }
        let status = donor.status();
        let (wiping, wipes) = (status.figure(Figure::WipingBytes), status.figure(Figure::WipesTotal));
        assert_eq!((wiping, wipes), ((SLABS - 1) * SLAB_BYTES, 0), "{source:?}: 65 answers, and no slab was wiped");
        for range in 1..SLABS {
            let lease = other.grant(range);
            assert_eq!(other.read(lease, 511).unwrap(), [0; 4096], "{source:?}: what is granted is wiped");
        }
        assert_eq!(figure(&donor, Figure::WipingBytes), 0);
        assert_eq!(
            other.ask(Message::Grant { range: RangeIndex(SLABS) }, &[]).0,
            Message::Error { refusal: Refusal::Full }
        );
    }
}

#[test]
fn a_lease_ends_without_a_sign_of_life_and_not_with_one() {
    let lease_time = Duration::from_millis(400);
    let (donor, _) = start(Settings { lease: lease_time, ..settings(2) });
    let mut one = Peer::borrower(donor.address(), 1);
    let lease = one.grant(0);
    one.write(lease, 0, 1);
    let (begun, mut last_sign) = (Instant::now(), Instant::now());
    while begun.elapsed() < 3 * lease_time {
        std::thread::sleep(lease_time / 8);
        let renewed = one.ask(Message::Renew, &[]).0;
        if last_sign.elapsed() > lease_time / 2 {
            aquifer_test_support::skip("this machine is too busy for leases so short");
            return;
        }
        last_sign = Instant::now();
        assert!(matches!(renewed, Message::Renewed { leases: 1, .. }), "{renewed:?}");
    }
    wait_until(&donor, |status| status.figure(Figure::ExpiriesTotal) == 1);
    // It is wiped although no request waits for that.
    wait_until(&donor, |status| status.figure(Figure::WipesTotal) == 1);
    assert_eq!(one.read(lease, 0), Err(Refusal::NoLease));
    let again = one.grant(0);
    assert_eq!(one.read(again, 0).unwrap(), [0; 4096]);
}

#[test]
fn a_donor_that_ends_tells_its_borrowers_and_waits_for_them() {
    let (donor, _) = start(settings(4));
    let address = donor.address();
    let mut one = Peer::borrower(address, 1);
    one.grant(0);
    let ending = std::thread::spawn(move || {
        let start = Instant::now();
        donor.stop(peer::TIMEOUT);
        start.elapsed()
    });
    while one.revoked.is_empty() {
        assert!(matches!(one.ask(Message::Renew, &[]).0, Message::Renewed { leases: 1, .. }));
    }
    let [Message::Revoke { lease: EVERY_LEASE, range: RangeIndex(0), within_ms }] = one.revoked[..] else {
        panic!("{:?}", one.revoked)
    };
    assert!(u128::from(within_ms) <= peer::TIMEOUT.as_millis());
    assert_eq!(one.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, Message::Error { refusal: Refusal::Ending });
    assert_eq!(one.ask(Message::Release { lease: EVERY_LEASE, token: 0 }, &[]).0, Message::Released { slabs: 1 });
    assert_eq!(one.revoked.len(), 1, "it is notified once");
    assert!(one.receive().is_none(), "then the connection ends");
    assert!(ending.join().unwrap() < peer::TIMEOUT, "it does not wait longer than it must");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_donor_that_ends_does_not_wait_for_those_who_stay() {
    let (donor, _) = start(impatient(4));
    let mut one = Peer::borrower(donor.address(), 1);
    one.grant(0);
    let start = Instant::now();
    donor.stop(Duration::from_millis(100));
    assert!(start.elapsed() < peer::TIMEOUT);
    while one.receive().is_some() {}
}

#[test]
fn the_status_is_that_of_the_donor() {
    let (donor, _) = start(settings(4));
    let mut one = Peer::borrower(donor.address(), 1);
    let lease = one.grant(0);
    one.write(lease, 0, 1);
    let (answer, body) = one.ask(Message::Status, &[]);
    assert_eq!(answer, Message::StatusReport);
    let bytes: &[u8; STATUS_BYTES] = body[..].try_into().unwrap();
    let status = DonorStatus::decode(bytes);
    for (figure, value) in [
        (Figure::CapacityBytes, 4 * SLAB_BYTES),
        (Figure::LentBytes, SLAB_BYTES),
        (Figure::Borrowers, 1),
        (Figure::Connections, 1),
        (Figure::GrantsTotal, 1),
        (Figure::WritesTotal, 1),
        (Figure::WrittenBytesTotal, 4096),
    ] {
        assert_eq!(status.figure(figure), value, "{figure:?}");
    }
}

#[test]
fn settings_that_cannot_be_lent_are_refused_in_one_line_with_a_remedy() {
    let listening = start(settings(1)).0;
    let none = || Box::new(|_: &str| ());
    for (settings, remedy) in [
        (Settings { capacity_bytes: 1 << 20, ..settings(1) }, "at least one"),
        (Settings { capacity_bytes: 1 << 50, ..settings(1) }, "a second one"),
        (Settings { listen: listening.address().into(), ..settings(1) }, "a free port"),
        (Settings { node: Some(63), ..settings(1) }, "/sys/devices/system/node"),
        (Settings { source: Source::Huge, ..settings(1 << 20) }, "vm.nr_hugepages"),
    ] {
        let failure: StartFailure = Donor::start(settings, none()).err().expect("it cannot be started");
        let text = failure.to_string();
        assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn lent_memory_stays_out_of_swap_or_the_donor_says_why_not() {
    for source in [Source::Anonymous, Source::Memfd] {
        let (donor, lines) = start(Settings { source, ..settings(2) });
        let locked = figure(&donor, Figure::LockedBytes);
        let warned = lines.lock().unwrap().iter().any(|line| line.contains("swap") && line.contains("ulimit -l"));
        assert_eq!((locked == 2 * SLAB_BYTES, locked == 0), (!warned, warned), "{lines:?}");
        // Locked memory is lent and given back like any other.
        let mut one = Peer::borrower(donor.address(), 1);
        let lease = one.grant(0);
        assert_eq!(one.write(lease, 3, 7), Message::Written);
        if locked > 0 {
            let status = std::fs::read_to_string("/proc/self/smaps").unwrap();
            assert!(status.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" lo ")), "{status}");
        }
        donor.stop(Duration::ZERO);
    }
}
