// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A borrower is identified by its certificate: quotas, leases and audit lines depend on that, and not on the number
//! that it chooses itself. Revoking a certificate ends its connections, without a restart.
//!
//! The bugs it guards against: any certificate evaded every quota by using another number; and anybody who had a number
//! and a token of another borrower had that borrower's memory.

mod certificates;
mod peer;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Files, Security, Settings, StartFailure};
use aquifer_wire::{EVERY_LEASE, Figure, Message, RangeIndex, Refusal, SLAB_BYTES};
use certificates::{Pair, good, write};
use peer::{Lines, Peer, TIMEOUT, settings, start, wait_until};

fn secure(pair: &Pair, slabs: u64) -> Settings {
    Settings { security: Security::Tls(pair.donor.clone()), ..settings(slabs) }
}

fn other_tenant() -> Files {
    good().authority.sign("other.example", 2100, &good().authority)
}

fn quota() -> Message {
    Message::Error { refusal: Refusal::Quota }
}

fn wait_for_line(lines: &Lines, word: &str) {
    let begun = Instant::now();
    while !lines.lock().unwrap().iter().any(|line| line.contains(word)) {
        assert!(begun.elapsed() < TIMEOUT, "no line says '{word}': {lines:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Replaces a file atomically: it is complete at every moment.
fn replace(path: &Path, text: &str) {
    let new = write("new", text);
    fs::rename(new, path).unwrap();
}

#[test]
fn a_quota_is_a_tenants_whatever_numbers_it_chooses() {
    let (donor, _) = start(Settings { quota_bytes: Some(2 * SLAB_BYTES), ..secure(good(), 8) });
    for who in 1..=2 {
        Peer::borrower_with(&good().borrower, donor.address(), who).grant(0);
    }
    let mut third = Peer::borrower_with(&good().borrower, donor.address(), 3);
    assert_eq!(third.ask(Message::Grant { range: RangeIndex(0) }, &[]).0, quota());
    let mut other = Peer::borrower_with(&other_tenant(), donor.address(), 3);
    assert!(matches!(other.welcome, Some(Message::Welcome { lendable_bytes, .. }) if lendable_bytes == 2 * SLAB_BYTES));
    other.grant(0);
}

#[test]
fn a_number_and_a_token_of_another_tenant_are_worth_nothing() {
    let (donor, _) = start(secure(good(), 8));
    let who = 7 << 64 | 9;
    let mut owner = Peer::borrower_with(&good().borrower, donor.address(), who);
    let lease = owner.grant(3);
    assert_eq!(owner.write(lease, 0, 0xab), Message::Written);
    let mut thief = Peer::borrower_with(&other_tenant(), donor.address(), who);
    assert_eq!(thief.read(lease, 0), Err(Refusal::NotYours));
    assert_eq!(thief.write(lease, 0, 1), Message::Error { refusal: Refusal::NotYours });
    let (lease_number, token) = (lease.lease, lease.token);
    let release = |peer: &mut Peer, lease, token| peer.ask(Message::Release { lease, token }, &[]).0;
    assert_eq!(release(&mut thief, lease_number, token), Message::Error { refusal: Refusal::NotYours });
    for token in [0, 7] {
        assert_eq!(release(&mut thief, EVERY_LEASE, token), Message::Released { slabs: 0 });
    }
    assert_eq!(thief.ask(Message::Renew, &[]).0, Message::Renewed { leases: 0, expires_in_ms: 60_000 });
    let own = thief.grant(3);
    assert_eq!(thief.read(own, 0).unwrap(), [0; 4096], "the same range of the same number is another slab");
    // Another process of the owner's, with the same number, reaches what it should.
    let mut sibling = Peer::borrower_with(&good().borrower, donor.address(), who);
    assert_eq!(sibling.read(lease, 0).unwrap(), [0xab; 4096]);
    let mut related = Peer::borrower_with(&good().borrower, donor.address(), 7 << 64 | 10);
    assert_eq!(release(&mut related, EVERY_LEASE, 7), Message::Released { slabs: 1 });
    assert_eq!(thief.write(own, 0, 1), Message::Written);
}

#[test]
fn a_file_says_what_each_tenant_may_and_is_read_again_when_it_changes() {
    let path = write("tenants", "dns:borrower quota=2MiB connections=2\n* quota=0\n");
    let (donor, lines) = start(Settings { tenants: Some(path.clone()), ..secure(good(), 8) });
    let mut one = Peer::borrower_with(&good().borrower, donor.address(), 1);
    one.grant(0);
    assert_eq!(one.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, quota());
    let mut other = Peer::borrower_with(&other_tenant(), donor.address(), 1);
    assert_eq!(other.ask(Message::Grant { range: RangeIndex(0) }, &[]).0, quota());
    replace(&path, "dns:borrower quota=much\n");
    wait_for_line(&lines, "new limits were not loaded, and the previous ones stay in force");
    assert_eq!(one.ask(Message::Grant { range: RangeIndex(1) }, &[]).0, quota());
    replace(&path, "dns:borrower quota=all\n");
    let begun = Instant::now();
    while one.ask(Message::Grant { range: RangeIndex(1) }, &[]).0 == quota() {
        assert!(begun.elapsed() < TIMEOUT, "{lines:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_for_line(&lines, "the limits of tenants were reloaded");
    for (file, cause) in [("/nowhere/tenants", "No such file"), ("/dev/zero", "it has more than 16777216 bytes")] {
        let wrong = Settings { tenants: Some(file.into()), ..secure(good(), 1) };
        let reported = Donor::start(wrong, Box::new(|_| ())).err().expect("it does not start");
        let line = reported.to_string();
        assert!(matches!(reported, StartFailure::Tenants(..)), "{line}");
        assert!(line.contains(cause) && line.contains("check the path"), "{line}");
    }
}

#[test]
fn a_tenant_has_so_many_connections_and_no_more() {
    let path = write("tenants", "dns:borrower connections=2\n");
    let settings = Settings { tenants: Some(path), ..secure(good(), 8) };
    let timeouts = aquifer_donor::Timeouts { spare: TIMEOUT, ..settings.timeouts };
    let (donor, _) = start(Settings { timeouts, ..settings });
    let _kept = [1, 2].map(|who| Peer::borrower_with(&good().borrower, donor.address(), who));
    let mut third = Peer::connect_with(&good().borrower, donor.address());
    third.send(Message::Hello { oldest: 1, newest: 1, borrower: aquifer_wire::BorrowerId(3) }, &[]);
    third.expect_the_end(Refusal::TooManyConnections);
    Peer::borrower_with(&other_tenant(), donor.address(), 1).grant(0);
}

#[test]
fn a_tenant_is_kept_to_its_rate() {
    let path = write("tenants", "dns:borrower rate=16MiB\n");
    let (donor, _) = start(Settings { tenants: Some(path), ..secure(good(), 8) });
    let mut peer = Peer::borrower_with(&good().borrower, donor.address(), 1);
    let lease = peer.grant(0);
    let begun = Instant::now();
    for _ in 0..16 {
        let message = Message::Write { lease: lease.lease, token: lease.token, offset: 0 };
        assert_eq!(peer.ask(message, &vec![7; SLAB_BYTES as usize]).0, Message::Written);
    }
    // 32 MiB, less the burst that is allowed at once. It may take longer on a busy machine, but never less time than
    // that.
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
}

/// A pair with its own authority: lists are about one authority.
fn fresh() -> (Pair, Files) {
    let authority = certificates::Authority::new();
    let donor = authority.sign_numbered("127.0.0.1", 1, &authority);
    let (borrower, other) =
        (authority.sign_numbered("borrower", 2, &authority), authority.sign_numbered("other.example", 3, &authority));
    (Pair { authority, donor, borrower }, other)
}

#[test]
fn a_revoked_certificate_ends_its_connections_without_a_restart() {
    let (pair, other) = fresh();
    let list: PathBuf = write("crl.pem", &pair.authority.revoke(&[]));
    let (donor, lines) = start(Settings { revocations: Some(list.clone()), ..secure(&pair, 8) });
    let mut revoked = Peer::borrower_with(&pair.borrower, donor.address(), 1);
    let mut kept = Peer::borrower_with(&other, donor.address(), 1);
    let (lost, lease) = (revoked.grant(0), kept.grant(0));
    assert_eq!(revoked.write(lost, 0, 1), Message::Written);
    replace(&list, "no list at all");
    wait_for_line(&lines, "new certificates were not loaded, and the previous ones stay in use");
    assert_eq!(revoked.write(lost, 0, 2), Message::Written, "what is broken changes nothing");
    replace(&list, &pair.authority.revoke(&[2]));
    wait_for_line(&lines, "ended a connection of dns:borrower");
    assert!(revoked.receive().is_none(), "its connection is ended");
    assert_eq!(kept.write(lease, 0, 1), Message::Written);
    let mut again = Peer::connect_with(&pair.borrower, donor.address());
    again.send(Message::Hello { oldest: 1, newest: 1, borrower: aquifer_wire::BorrowerId(1) }, &[]);
    assert!(again.receive().is_none(), "it is not taken in any more");
    wait_until(&donor, |status| status.refused(Refusal::CertificateUnusable) > 0);
}

#[test]
fn new_files_are_used_without_a_restart() {
    let (pair, _) = fresh();
    let (donor, lines) = start(secure(&pair, 8));
    let mut before = Peer::borrower_with(&pair.borrower, donor.address(), 1);
    let lease = before.grant(0);
    // The authority has been replaced: certificates of the old one are no longer trusted.
    let (next, _) = fresh();
    for (from, to) in [(&next.donor.cert, &pair.donor.cert), (&next.donor.key, &pair.donor.key)] {
        replace(to, &fs::read_to_string(from).unwrap());
    }
    donor.reload();
    wait_for_line(&lines, "the certificates, keys and revocation lists were reloaded");
    assert_eq!(before.write(lease, 0, 1), Message::Written, "the borrower's own authority has not changed");
    replace(&pair.donor.ca, &fs::read_to_string(&next.donor.ca).unwrap());
    wait_for_line(&lines, "ended a connection of dns:borrower");
    assert!(before.receive().is_none());
    Peer::borrower_with(&next.borrower, donor.address(), 2).grant(0);
}

#[test]
fn actions_of_tenants_are_in_the_audit() {
    let path = write("audit", "");
    let (donor, _) = start(Settings { audit: Some(path.clone()), quota_bytes: Some(SLAB_BYTES), ..secure(good(), 8) });
    let mut peer = Peer::borrower_with(&good().borrower, donor.address(), 0x42);
    let lease = peer.grant(5);
    assert_eq!(peer.ask(Message::Grant { range: RangeIndex(6) }, &[]).0, quota());
    assert!(matches!(peer.ask(Message::Renew, &[]).0, Message::Renewed { .. }));
    let release = Message::Release { lease: lease.lease, token: lease.token };
    assert_eq!(peer.ask(release, &[]).0, Message::Released { slabs: 1 });
    let mut stranger = Peer::stranger(donor.address());
    stranger.send_bytes(&[b'G'; 200]);
    wait_until(&donor, |status| status.refused(Refusal::Foreign) == 1);
    let begun = Instant::now();
    let wanted = [
        "event=leased tenant=dns:borrower peer=127.0.0.1 borrower=00000000000000000000000000000042 slab=",
        "event=refused tenant=dns:borrower peer=127.0.0.1 reason=quota",
        "event=renewed tenant=dns:borrower",
        "event=released tenant=dns:borrower",
        "event=refused peer=127.0.0.1 reason=foreign",
    ];
    loop {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.lines().all(|line| line.starts_with("time=2") && line.contains(" event=")), "{text}");
        if wanted.iter().all(|line| text.contains(line)) {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Twenty connections with bodies of 2 MiB at a donor that has room for four: all go through, one after the other.
#[test]
fn large_bodies_wait_for_room() {
    let (donor, _) = start(Settings { body_bytes_max: 16 << 20, ..secure(good(), 32) });
    let address = donor.address();
    std::thread::scope(|scope| {
        for who in 0..20 {
            scope.spawn(move || {
                let mut peer = Peer::borrower_with(&good().borrower, address, who + 1);
                let lease = peer.grant(0);
                for byte in 0..4 {
                    let message = Message::Write { lease: lease.lease, token: lease.token, offset: 0 };
                    assert_eq!(peer.ask(message, &vec![byte; SLAB_BYTES as usize]).0, Message::Written);
                    assert_eq!(peer.read(lease, 511).unwrap(), [byte; 4096]);
                }
            });
        }
    });
    assert_eq!(donor.status().figure(Figure::WritesTotal), 80);
}
