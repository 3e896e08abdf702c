// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A peer that does what no borrower may do is refused, counted, reported once, and learns no byte of anybody's memory.
//!
//! The trouble it guards against: a donor faces a network, where frames are cut, repeated, forged and delayed.

#[macro_use]
mod certificates;
mod peer;

use std::io::Write;
use std::time::{Duration, Instant};

use aquifer_donor::{Settings, Timeouts};
use aquifer_wire::{BODY_BYTES_MAX, Figure, HEADER_BYTES, Header, Message, RangeIndex, Refusal, SLAB_BYTES};
use certificates::Protection;
use peer::{Lease, Peer, TIMEOUT, figure, impatient, refused, reported_once, settings, start, wait_until};

for_each_protection! {
    a_stranger_is_refused,
    anothers_slab_is_out_of_reach,
    a_stale_token_never_passes,
    bytes_beyond_a_lease_are_out_of_reach,
    a_replayed_frame_is_refused_on_its_connection_and_on_others,
    a_truncated_frame_changes_nothing,
    a_damaged_frame_changes_nothing,
    a_length_beyond_all_bounds_is_refused_before_anything_is_read,
    a_peer_that_draws_a_frame_out_is_dropped,
    there_are_only_so_many_connections,
    a_quota_and_the_end_of_the_memory_are_refusals_that_leave_the_rest_alone,
}

fn of(protection: Protection, settings: Settings) -> Settings {
    // A handshake also takes computing time of the peer, on a machine that is busy with other tests.
    let frame = settings.timeouts.frame.max(Duration::from_millis(500));
    let timeouts = Timeouts { frame, handshake: TIMEOUT, ..settings.timeouts };
    Settings { security: protection.security(), timeouts, ..settings }
}

/// A borrower's secret, and the donor that keeps it.
fn with_a_secret(protection: Protection, settings: Settings) -> (aquifer_donor::Donor, peer::Lines, Peer, Lease) {
    let (donor, lines) = start(of(protection, settings));
    let mut owner = Peer::borrower_by(protection, donor.address(), 1);
    let lease = owner.grant(0);
    assert_eq!(owner.write(lease, 3, 7), Message::Written);
    (donor, lines, owner, lease)
}

fn a_stranger_is_refused(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let mut stranger = Peer::connect(protection, donor.address());
    let Lease { lease: number, token, .. } = lease;
    stranger.send(Message::Read { lease: number, token, offset: 3 * 4096, bytes: 4096 }, &[]);
    stranger.expect_the_end(Refusal::NoHello);
    let mut stranger = Peer::connect(protection, donor.address());
    stranger.send_bytes(&[b'G'; 200]);
    assert!(stranger.receive().is_none(), "who speaks something else gets no answer");
    let mut stranger = Peer::connect(protection, donor.address());
    stranger.send(Message::Hello { oldest: 9, newest: 12, borrower: aquifer_wire::BorrowerId(5) }, &[]);
    stranger.expect_the_end(Refusal::Version);
    for refusal in [Refusal::NoHello, Refusal::Foreign, Refusal::Version] {
        wait_until(&donor, |status| status.refused(refusal) == 1);
        reported_once(&lines, refusal);
    }
    assert_eq!(owner.read(lease, 3).unwrap(), [7; 4096]);
}

fn anothers_slab_is_out_of_reach(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let mut thief = Peer::borrower_by(protection, donor.address(), 2);
    for _ in 0..3 {
        assert_eq!(thief.read(lease, 3), Err(Refusal::NotYours));
    }
    let Lease { lease: number, token, .. } = lease;
    assert_eq!(thief.write(lease, 3, 9), Message::Error { refusal: Refusal::NotYours });
    let discard = Message::Discard { lease: number, token, offset: 0, bytes: SLAB_BYTES };
    assert_eq!(thief.ask(discard, &[]).0, Message::Error { refusal: Refusal::NotYours });
    let release = Message::Release { lease: number, token };
    assert_eq!(thief.ask(release, &[]).0, Message::Error { refusal: Refusal::NotYours });
    assert_eq!(thief.read(Lease { lease: 3, ..lease }, 3), Err(Refusal::NoLease), "one that nobody has");
    assert_eq!(thief.read(Lease { lease: 1 << 40, ..lease }, 3), Err(Refusal::NoLease), "one that there is not");
    // All of a tree's leases are its members' to give back, and no other tree's.
    let member = Peer::borrower_by(protection, donor.address(), 5 << 64 | 1).grant(0);
    let mut other = Peer::borrower_by(protection, donor.address(), 6 << 64);
    let tree = |token| Message::Release { lease: aquifer_wire::EVERY_LEASE, token };
    assert_eq!(other.ask(tree(5), &[]).0, Message::Error { refusal: Refusal::NotYours });
    assert_eq!(other.ask(tree(6), &[]).0, Message::Released { slabs: 0 });
    assert!(Peer::borrower_by(protection, donor.address(), 5 << 64 | 1).read(member, 0).is_ok());
    assert_eq!(
        Peer::borrower_by(protection, donor.address(), 5 << 64).ask(tree(5), &[]).0,
        Message::Released { slabs: 1 }
    );
    // All of it is counted, and reported once.
    assert_eq!(refused(&donor, Refusal::NotYours), 7);
    reported_once(&lines, Refusal::NotYours);
    assert_eq!(owner.read(lease, 3).unwrap(), [7; 4096]);
}

fn a_stale_token_never_passes(protection: Protection) {
    let (donor, lines, mut owner, old) = with_a_secret(protection, settings(4));
    let new = owner.grant(0);
    assert_eq!((new.lease, new.token > old.token), (old.lease, true));
    assert_eq!(owner.write(old, 3, 9), Message::Error { refusal: Refusal::StaleToken });
    assert_eq!(owner.read(old, 3), Err(Refusal::StaleToken));
    assert_eq!(owner.read(Lease { token: new.token + 1, ..new }, 3), Err(Refusal::StaleToken));
    assert_eq!(refused(&donor, Refusal::StaleToken), 3);
    reported_once(&lines, Refusal::StaleToken);
    assert_eq!(owner.read(new, 3).unwrap(), [7; 4096], "a new token keeps what was stored");
    // The same holds after the slab was released and granted to the same borrower again.
    let Lease { lease, token, .. } = new;
    assert_eq!(owner.ask(Message::Release { lease, token }, &[]).0, Message::Released { slabs: 1 });
    let again = owner.grant(0);
    assert_eq!(owner.read(again, 3).unwrap(), [0; 4096], "what was released was wiped");
    assert!(owner.read(new, 3).is_err());
}

fn bytes_beyond_a_lease_are_out_of_reach(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let next = owner.grant(1);
    let Lease { lease: number, token, .. } = lease;
    for (offset, bytes) in
        [(SLAB_BYTES, 4096), (SLAB_BYTES - 4096, 8192), (7 * SLAB_BYTES, 4096), (u64::MAX - 2 * 4096 + 1, 4096)]
    {
        let answer = owner.ask(Message::Read { lease: number, token, offset, bytes }, &[]).0;
        assert_eq!(answer, Message::Error { refusal: Refusal::OutsideLease }, "{bytes} at {offset:#x}");
    }
    let write = Message::Write { lease: number, token, offset: SLAB_BYTES - 4096 };
    assert_eq!(owner.ask(write, &[9; 8192]).0, Message::Error { refusal: Refusal::OutsideLease });
    assert_eq!(refused(&donor, Refusal::OutsideLease), 5);
    reported_once(&lines, Refusal::OutsideLease);
    assert_eq!(owner.read(next, 0).unwrap(), [0; 4096]);
    assert_eq!(owner.read(lease, 511).unwrap(), [0; 4096], "nothing of a refused write is stored");
}

fn a_replayed_frame_is_refused_on_its_connection_and_on_others(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let Lease { lease: number, token, .. } = lease;
    let recorded = owner.frame(Message::Write { lease: number, token, offset: 3 * 4096 }, &[5; 4096]);
    owner.send_bytes(&recorded);
    owner.next += 1;
    assert_eq!(owner.receive().unwrap().0, Message::Written);
    assert_eq!(owner.write(lease, 3, 6), Message::Written);
    owner.send_bytes(&recorded);
    owner.expect_the_end(Refusal::Replayed);
    // On another connection that claims to be the same borrower: anyone who can read the plain text could open one.
    let mut other = Peer::borrower_by(protection, donor.address(), 1);
    other.send_bytes(&recorded);
    other.expect_the_end(Refusal::Replayed);
    wait_until(&donor, |status| status.refused(Refusal::Replayed) == 2);
    reported_once(&lines, Refusal::Replayed);
    let mut owner = Peer::borrower_by(protection, donor.address(), 1);
    assert_eq!(owner.read(lease, 3).unwrap(), [6; 4096]);
}

fn a_truncated_frame_changes_nothing(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let Lease { lease: number, token, .. } = lease;
    for (count, cut) in [(1, 10), (2, 72 + 4000)] {
        let mut other = Peer::borrower_by(protection, donor.address(), 1);
        let frame = other.frame(Message::Write { lease: number, token, offset: 3 * 4096 }, &[9; 4096]);
        other.send_bytes(&frame[..cut]);
        other.stream.shutdown(std::net::Shutdown::Write).unwrap();
        other.expect_the_end(Refusal::Truncated);
        wait_until(&donor, |status| status.refused(Refusal::Truncated) == count);
        assert_eq!(owner.read(lease, 3).unwrap(), [7; 4096]);
    }
    reported_once(&lines, Refusal::Truncated);
}

fn a_damaged_frame_changes_nothing(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, settings(4));
    let Lease { lease: number, token, .. } = lease;
    for (at, refusal) in [(40, Refusal::HeaderDamaged), (72 + 100, Refusal::BodyDamaged)] {
        let mut other = Peer::borrower_by(protection, donor.address(), 1);
        let mut frame = other.frame(Message::Write { lease: number, token, offset: 3 * 4096 }, &[9; 4096]);
        frame[at] ^= 0x10;
        other.send_bytes(&frame);
        other.expect_the_end(refusal);
        wait_until(&donor, |status| status.refused(refusal) == 1);
        reported_once(&lines, refusal);
        assert_eq!(owner.read(lease, 3).unwrap(), [7; 4096]);
    }
}

fn a_length_beyond_all_bounds_is_refused_before_anything_is_read(protection: Protection) {
    let (donor, lines, _owner, lease) = with_a_secret(protection, settings(4));
    let Lease { lease: number, token, .. } = lease;
    for bytes in [BODY_BYTES_MAX + 4096, u32::MAX] {
        let mut other = Peer::borrower_by(protection, donor.address(), 1);
        let write = Message::Write { lease: number, token, offset: 0 };
        let header = Header { request: other.next, message: write, body_bytes: bytes, body_crc: 1 };
        other.send_bytes(&header.encode());
        other.expect_the_end(Refusal::Oversized);
    }
    wait_until(&donor, |status| status.refused(Refusal::Oversized) == 2);
    reported_once(&lines, Refusal::Oversized);
}

fn a_peer_that_draws_a_frame_out_is_dropped(protection: Protection) {
    let (donor, lines, mut owner, lease) = with_a_secret(protection, impatient(4));
    let Lease { lease: number, token, .. } = lease;
    let start = Instant::now();
    // Says nothing at all; stops within a frame; sends a byte now and then, of a header and of a body.
    let mut mute = Peer::connect(protection, donor.address());
    let mut halting = Peer::borrower_by(protection, donor.address(), 1);
    let write = Message::Write { lease: number, token, offset: 3 * 4096 };
    let frame = halting.frame(write, &[9; 4096]);
    halting.send_bytes(&frame[..2000]);
    let drips = [0, HEADER_BYTES].map(|at_once| {
        let mut dripping = Peer::borrower_by(protection, donor.address(), 1);
        std::thread::spawn(move || {
            let frame = dripping.frame(write, &[9; 4096]);
            dripping.send_bytes(&frame[..at_once]);
            for byte in &frame[at_once..HEADER_BYTES + 4095] {
                std::thread::sleep(Duration::from_millis(20));
                if dripping.stream.write_all(std::slice::from_ref(byte)).is_err() {
                    break;
                }
                assert!(start.elapsed() < TIMEOUT, "a byte now and then is enough for ever");
            }
            dripping.expect_the_end(Refusal::Slow);
        })
    });
    mute.expect_the_end(Refusal::Slow);
    halting.expect_the_end(Refusal::Slow);
    wait_until(&donor, |status| status.refused(Refusal::Slow) == 4);
    reported_once(&lines, Refusal::Slow);
    drips.into_iter().for_each(|thread| thread.join().unwrap());
    // A peer that is only quiet between frames stays connected.
    assert_eq!(owner.read(lease, 3).unwrap(), [7; 4096]);
}

fn there_are_only_so_many_connections(protection: Protection) {
    let of_two = of(protection, Settings { connections_max: 2, ..settings(4) });
    let timeouts = Timeouts { spare: TIMEOUT, ..of_two.timeouts };
    let (donor, _) = start(Settings { timeouts, ..of_two });
    let one = Peer::borrower_by(protection, donor.address(), 1);
    let _two = Peer::borrower_by(protection, donor.address(), 2);
    // Under TLS it is reported when the handshake is done: only the borrower could have said so.
    let mut three = Peer::connect(protection, donor.address());
    three.send(Message::Hello { oldest: 1, newest: 1, borrower: aquifer_wire::BorrowerId(3) }, &[]);
    three.expect_the_end(Refusal::TooManyConnections);
    assert_eq!(refused(&donor, Refusal::TooManyConnections), 1);
    drop(one);
    wait_until(&donor, |status| status.figure(Figure::Connections) == 1);
    Peer::borrower_by(protection, donor.address(), 3);
}

fn a_quota_and_the_end_of_the_memory_are_refusals_that_leave_the_rest_alone(protection: Protection) {
    let (donor, _) = start(of(protection, Settings { quota_bytes: Some(2 * SLAB_BYTES), ..settings(2) }));
    let mut one = Peer::borrower_by(protection, donor.address(), 1);
    let mut two = Peer::borrower_by(protection, donor.address(), 2);
    // Both are of one tenant, whatever they call themselves.
    let leases = [one.grant(5), two.grant(9)];
    for peer in [&mut one, &mut two] {
        assert_eq!(
            peer.ask(Message::Grant { range: RangeIndex(6) }, &[]).0,
            Message::Error { refusal: Refusal::Quota }
        );
    }
    let (full, _) = start(of(protection, settings(1)));
    let mut only = Peer::borrower_by(protection, full.address(), 1);
    only.grant(0);
    assert_eq!(only.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, Message::Error { refusal: Refusal::Full });
    assert_eq!(refused(&full, Refusal::Full), 1);
    two.send(Message::Reclaim { bytes: u64::MAX, within_ms: 0 }, &[]);
    two.expect_the_end(Refusal::UnknownKind);
    assert_eq!(figure(&donor, Figure::ReclaimedBytes), 0, "orders come from the administrator alone");
    assert_eq!(refused(&donor, Refusal::Quota), 2);
    assert_eq!(one.write(leases[0], 0, 1), Message::Written);
    assert_eq!(figure(&donor, Figure::LentBytes), 2 * SLAB_BYTES);
}
