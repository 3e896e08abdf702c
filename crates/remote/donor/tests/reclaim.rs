// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor reclaims its memory: free memory first, then from borrowers that are notified, and at last from those that
//! do not give it back.
//!
//! The bugs it guards against: a machine that needs its memory does not get it; a borrower loses what it could have
//! moved elsewhere, because it was not notified, or because more was reclaimed than was needed.

#[macro_use]
mod certificates;
mod peer;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, EVERY_BYTE, Settings, StartFailure};
use aquifer_sys::raw::now_ns;
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Disposition, Operation, Request, Tier, TierSpec, Wait, open};
use aquifer_wire::{EVERY_LEASE, Figure, Message, RangeIndex, Refusal, SLAB_BYTES};
use certificates::Protection;
use peer::{Lease, Peer, TIMEOUT, figure, settings, start, wait_until};

const LONG: Duration = Duration::from_secs(300);

for_each_protection! {
    the_borrower_that_has_most_is_asked_for_most_on_each_connection,
    a_tier_says_what_it_will_lose,
}

fn of(protection: Protection, slabs: u64) -> Settings {
    Settings { security: protection.security(), ..settings(slabs) }
}

/// The leases that a peer was notified of, in order.
fn notices(peer: &Peer) -> Vec<(u64, u64)> {
    let one = |message: &Message| match *message {
        Message::Revoke { lease, range, .. } => (lease, range.0),
        other => panic!("{other:?}"),
    };
    peer.revoked.iter().map(one).collect()
}

fn the_borrower_that_has_most_is_asked_for_most_on_each_connection(protection: Protection) {
    let (donor, _) = start(of(protection, 8));
    let mut rich = Peer::borrower_by(protection, donor.address(), 1);
    let mut poor = Peer::borrower_by(protection, donor.address(), 2);
    let leases: Vec<Lease> = (0..5).map(|range| rich.grant(range)).collect();
    let kept = poor.grant(0);
    assert_eq!(poor.write(kept, 0, 7), Message::Written);
    // Two slabs are free, so three are asked for.
    assert_eq!(donor.reclaim(5 * SLAB_BYTES, LONG), 3 * SLAB_BYTES);
    assert_eq!(figure(&donor, Figure::ReclaimedBytes), 2 * SLAB_BYTES);
    assert_eq!(rich.write(leases[4], 0, 1), Message::Written, "what is asked back stays as it is for now");
    let asked = [(leases[2].lease, 2), (leases[3].lease, 3), (leases[4].lease, 4)];
    assert_eq!(notices(&rich), asked);
    assert_eq!(rich.read(leases[4], 0).unwrap(), [1; 4096]);
    assert_eq!(notices(&rich), asked, "it is notified once");
    let mut related = Peer::borrower_by(protection, donor.address(), 1);
    assert!(matches!(related.ask(Message::Renew, &[]).0, Message::Renewed { leases: 5, .. }));
    assert_eq!(notices(&related), asked);
    poor.ask(Message::Renew, &[]);
    assert_eq!(notices(&poor), []);
    assert_eq!(poor.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, Message::Error { refusal: Refusal::Ending });
    assert!(
        matches!(rich.ask(Message::Grant { range: RangeIndex(4) }, &[]).0, Message::Granted { .. }),
        "a token is nothing new"
    );
    // A slab that was not asked for counts, too.
    for (range, left) in [(0, 2), (3, 1), (2, 0)] {
        let Lease { lease, token, .. } = leases[range];
        assert_eq!(rich.ask(Message::Release { lease, token }, &[]).0, Message::Released { slabs: 1 });
        wait_until(&donor, |status| status.figure(Figure::DrainingBytes) == left * SLAB_BYTES);
    }
    let status = donor.status();
    assert_eq!(status.figure(Figure::ReclaimedBytes), 5 * SLAB_BYTES);
    assert_eq!((status.figure(Figure::LentBytes), status.figure(Figure::RevocationsTotal)), (3 * SLAB_BYTES, 0));
    assert_eq!(poor.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, Message::Error { refusal: Refusal::Full });
    assert_eq!(poor.read(kept, 0).unwrap(), [7; 4096]);
}

#[test]
fn borrowers_that_stay_are_revoked_at_the_end_of_their_time() {
    let (donor, _) = start(settings(4));
    let mut one = Peer::borrower(donor.address(), 1);
    let leases: Vec<Lease> = (0..4).map(|range| one.grant(range)).collect();
    leases.iter().for_each(|lease| assert_eq!(one.write(*lease, 0, 9), Message::Written));
    let within = Duration::from_millis(400);
    let begun = Instant::now();
    donor.reclaim(SLAB_BYTES, within);
    while one.read(leases[3], 0).is_ok() {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(10));
    }
    // The donor counts whole milliseconds.
    assert!(begun.elapsed() + Duration::from_millis(1) >= within, "it had {within:?}");
    assert_eq!(one.read(leases[3], 0), Err(Refusal::NoLease));
    let status = wait_until(&donor, |status| status.figure(Figure::DrainingBytes) == 0);
    assert_eq!((status.figure(Figure::RevocationsTotal), status.figure(Figure::WipesTotal)), (1, 1));
    assert_eq!(status.figure(Figure::ReclaimedBytes), SLAB_BYTES);
    (0..3).for_each(|at| assert_eq!(one.read(leases[at], 0).unwrap(), [9; 4096]));
}

#[test]
fn one_notice_can_revoke_every_lease_and_a_shorter_time_is_notified_again() {
    let (donor, _) = start(settings(200));
    let mut one = Peer::borrower(donor.address(), 1);
    let leases: Vec<Lease> = (0..150).map(|range| one.grant(range)).collect();
    donor.reclaim(150 * SLAB_BYTES, LONG);
    one.read(leases[0], 0).unwrap();
    // Fifty slabs are free. The other hundred are more than the donor announces before one answer, since a faulting
    // thread may wait for that answer.
    let first = notices(&one).len();
    assert!((1..100).contains(&first), "{first}");
    let mut idle = Peer::borrower(donor.address(), 1);
    idle.ask(Message::Renew, &[]);
    while one.revoked.len() < 100 {
        one.read(leases[0], 0).unwrap();
    }
    assert_eq!(notices(&one), notices(&idle));
    let all: Vec<(u64, u64)> = leases[50..].iter().map(|lease| (lease.lease, lease.range)).collect();
    assert_eq!(notices(&one), all);
    one.revoked.clear();
    donor.reclaim(EVERY_BYTE, Duration::from_secs(100));
    one.ask(Message::Renew, &[]);
    let [Message::Revoke { lease: EVERY_LEASE, range: RangeIndex(0), within_ms }] = one.revoked[..] else {
        panic!("{:?}", one.revoked)
    };
    assert!((1..=100_000).contains(&within_ms), "{within_ms}");
    assert_eq!(one.ask(Message::Release { lease: EVERY_LEASE, token: 0 }, &[]).0, Message::Released { slabs: 150 });
    wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == 200 * SLAB_BYTES);
    assert_eq!(one.ask(Message::Grant { range: RangeIndex(0) }, &[]).0, Message::Error { refusal: Refusal::Ending });
    let Message::Welcome { lendable_bytes, .. } = Peer::borrower(donor.address(), 2).welcome.unwrap() else {
        panic!("not a welcome")
    };
    assert_eq!(lendable_bytes, 0);
    let spec = format!("donor:{},security=plain", donor.address());
    let reported = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
    assert!(reported.contains("takes its memory back"), "{reported}");
}

fn write(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(16, 0);
    frames::stamp(frame.bytes_mut(), offset, version);
    tier.write(offset, &frame).unwrap();
    frames::give_back(frame);
}

fn read(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(16, 0xee);
    tier.read(offset, &mut frame).unwrap();
    frames::check_stamp(frame.bytes(), offset, version);
    frames::give_back(frame);
}

/// The slabs that a tier will lose.
fn leaving(tier: &dyn Tier) -> Vec<u64> {
    let mut from = 0;
    let next = || {
        let found = tier.leaving(from)?;
        assert_eq!(found.len, SLAB_BYTES);
        from = found.offset + found.len;
        Some(found.offset / SLAB_BYTES)
    };
    std::iter::from_fn(next).collect()
}

fn a_tier_says_what_it_will_lose(protection: Protection) {
    let (donor, _) = start(of(protection, 8));
    let spec = format!("donor:{}{}", donor.address(), protection.options());
    let tier = open(&spec.parse::<TierSpec>().unwrap()).unwrap();
    (0..6).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
    assert_eq!(leaving(&*tier), [0; 0]);
    donor.reclaim(4 * SLAB_BYTES, LONG);
    // An idle tier is notified when it renews its leases, and from then on it renews them sooner.
    let pause = tier.upkeep().unwrap().turn(None);
    assert_eq!(leaving(&*tier), [4, 5]);
    assert!(pause <= Duration::from_secs(1), "{pause:?}");
    let until_ns = tier.leaving(0).unwrap().until_ns;
    let (now, long) = (now_ns(), LONG.as_nanos() as u64);
    assert!((now + long / 2..=now + long).contains(&until_ns), "{until_ns}");
    // A leaving slab can be used as before until it is moved away.
    write(&*tier, 4 * SLAB_BYTES, 40);
    read(&*tier, 4 * SLAB_BYTES, 40);
    read(&*tier, 5 * SLAB_BYTES, 5);
    let mut frame = frames::frame(16, 0);
    assert_eq!(tier.write(7 * SLAB_BYTES, &frame).unwrap_err().disposition(), Disposition::Refuse, "nothing new");
    frames::give_back(frame);
    tier.discard(4 * SLAB_BYTES, SLAB_BYTES).unwrap();
    assert_eq!(leaving(&*tier), [5]);
    tier.discard(5 * SLAB_BYTES, SLAB_BYTES).unwrap();
    assert_eq!(leaving(&*tier), [0; 0]);
    wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == 4 * SLAB_BYTES);
    // A queue's connection receives notices, too.
    let mut queue = tier.open_queue(4).unwrap();
    read_by(&mut *queue, 0);
    donor.reclaim(EVERY_BYTE, Duration::from_secs(2));
    read_by(&mut *queue, SLAB_BYTES);
    assert_eq!(leaving(&*tier), [0, 1, 2, 3]);
    // What was not moved away is lost, and nobody reads anything else in its place.
    wait_until(&donor, |status| status.figure(Figure::ReclaimedBytes) == 8 * SLAB_BYTES);
    frame = frames::frame(16, 0xee);
    assert_eq!(tier.read(0, &mut frame).unwrap_err().disposition(), Disposition::Poison);
    frames::give_back(frame);
}

fn read_by(queue: &mut dyn aquifer_tiers::TierQueue, offset: u64) {
    let buffer = frames::frame(16, 0xee);
    assert!(queue.submit(Request { operation: Operation::Read, offset, buffer, tag: 0 }).is_ok());
    queue.kick().unwrap();
    let mut outcome = None;
    while queue.in_flight() > 0 {
        queue.complete(Wait::ForOne, 1, &mut |completion| {
            outcome = Some(completion.outcome);
            frames::give_back(completion.buffer);
        });
    }
    outcome.unwrap().unwrap();
}

#[test]
fn a_slab_stays_when_another_borrower_gives_back_enough() {
    let (donor, _) = start(settings(4));
    let tier = open(&format!("donor:{},security=plain", donor.address()).parse::<TierSpec>().unwrap()).unwrap();
    let mut other = Peer::borrower(donor.address(), 9);
    (0..2).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
    let leases = [other.grant(0), other.grant(1)];
    donor.reclaim(2 * SLAB_BYTES, Duration::from_millis(300));
    tier.upkeep().unwrap().turn(None);
    assert_eq!(leaving(&*tier).len(), 1);
    // The other borrower gives back more than it was asked for.
    for Lease { lease, token, .. } in leases {
        assert_eq!(other.ask(Message::Release { lease, token }, &[]).0, Message::Released { slabs: 1 });
    }
    let begun = Instant::now();
    while !leaving(&*tier).is_empty() {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(tier.upkeep().unwrap().turn(None).min(Duration::from_millis(50)));
    }
    (0..2).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab));
    assert_eq!(figure(&donor, Figure::RevocationsTotal), 0);
}

/// A path of a test's own; short, because names of sockets have to be.
fn socket(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("aq-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn an_administrator_orders_memory_back_by_the_control_socket() {
    let path = socket("orders");
    let (donor, lines) = start(Settings { control: Some(path.clone()), ..settings(8) });
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "its owner's alone");
    let mut one = Peer::borrower(donor.address(), 1);
    (0..4).for_each(|range| assert_eq!(one.grant(range).range, range));
    // A part of a slab is rounded up to one more slab.
    assert_eq!(aquifer_donor::reclaim(&path, 5 * SLAB_BYTES + 1, LONG).unwrap(), 2 * SLAB_BYTES);
    let status = aquifer_donor::control_status(&path).unwrap();
    assert_eq!(status.figure(Figure::ReclaimedBytes), 4 * SLAB_BYTES);
    assert_eq!((status.figure(Figure::DrainingBytes), status.figure(Figure::Borrowers)), (2 * SLAB_BYTES, 1));
    assert!(lines.lock().unwrap().iter().any(|line| line.starts_with("reclaiming")), "{lines:?}");
    assert_eq!(aquifer_donor::reclaim(&path, EVERY_BYTE, Duration::ZERO).unwrap(), 0);
    assert_eq!(donor.status().figure(Figure::ReclaimedBytes), 8 * SLAB_BYTES);
    donor.stop(Duration::ZERO);
    assert!(!path.exists(), "it goes with the donor");
}

#[test]
fn invalid_orders_are_refused_and_delay_no_others() {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    let path = socket("strange");
    let (donor, _) = start(Settings { control: Some(path.clone()), ..settings(2) });
    let header = |message| aquifer_wire::Header::new(5, message, &[]).encode();
    let grant = header(Message::Grant { range: RangeIndex(0) });
    for (bytes, refusal) in [(&grant, Refusal::UnknownKind), (&[7; 72], Refusal::Foreign)] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = [0; 72];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(aquifer_wire::Header::decode(&answer).unwrap().message, Message::Error { refusal });
    }
    // A silent connection does not keep later ones from being served.
    let _silent = UnixStream::connect(&path).unwrap();
    drop(UnixStream::connect(&path));
    assert!(aquifer_donor::control_status(&path).is_ok());
    assert_eq!(figure(&donor, Figure::LentBytes), 0);
}

#[test]
fn a_control_socket_takes_the_place_of_a_dead_one_and_of_nothing_else() {
    let refused = |path: &PathBuf| -> StartFailure {
        let settings = Settings { control: Some(path.clone()), ..settings(1) };
        Donor::start(settings, Box::new(|_| ())).err().expect("it does not start")
    };
    let path = socket("dead");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let (donor, _) = start(Settings { control: Some(path.clone()), ..settings(1) });
    let text = refused(&path).to_string();
    assert!(text.contains("in use") && !text.contains('\n'), "{text}");
    assert!(aquifer_donor::control_status(&path).is_ok(), "the first one's stays");
    drop(donor);
    let file = socket("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(refused(&file).to_string().contains("no control socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(refused(&"/nowhere/donor.sock".into()).to_string().contains("write to"));
    let _ = std::fs::remove_file(&file);
}
