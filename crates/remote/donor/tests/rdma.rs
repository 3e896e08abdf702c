// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a borrower reaches bypassing the donor: the slabs of its own leases, by their last tokens, and nothing else.
//! Also the messages where there is no RDMA.
//!
//! The bug it guards against: the donor's processor is not asked, so an access that the donor forgets to close stays
//! open, and the previous holder of a slab reads or overwrites it when it belongs to another borrower.
//!
//! Tests that need a device are skipped without one; the borrower of `crates/lab/e2e/tests/rdma.rs` has one.

mod certificates;
#[macro_use]
mod kinds;
mod peer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_donor::{DeviceChoice, Donor, Settings, StartFailure};
use aquifer_sys::verbs::{BounceBuffer, Completion, Device, Domain, End, QueuePair, Work, choose};
use aquifer_tiers::{TierSpec, open};
use aquifer_wire::{Figure, Message, PairEnd, Refusal, SLAB_BYTES};
use kinds::Kind;
use peer::{Lease, Peer};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A borrower that says what it likes, and its end of an RDMA connection to the donor.
struct RawBorrower {
    peer: Peer,
    pair: QueuePair,
    buffer: BounceBuffer,
    pair_number: u32,
}

fn end(pair: &QueuePair, psn: u32) -> PairEnd {
    let End { pair, psn, lid, mtu, gid } = pair.end(psn);
    PairEnd { pair, psn, lid, mtu, gid }
}

impl RawBorrower {
    fn come(device: &Arc<Device>, donor: &Donor, who: u128) -> RawBorrower {
        let domain = Arc::new(Domain::new(device).unwrap());
        let (pair, buffer) = (QueuePair::new(&domain).unwrap(), BounceBuffer::new(&domain, 8192).unwrap());
        let mut borrower = RawBorrower { peer: Peer::borrower(donor.address(), who), pair, buffer, pair_number: 7 };
        borrower.join();
        borrower
    }

    fn join(&mut self) {
        self.pair.reset().unwrap();
        let message = Message::Pair { number: self.pair_number, end: end(&self.pair, 5) };
        let (Message::Paired { end }, _) = self.peer.ask(message, &[]) else { panic!("not paired") };
        let PairEnd { pair, psn, lid, mtu, gid } = end;
        self.pair.connect(5, &End { pair, psn, lid, mtu, gid }, false).unwrap();
    }

    fn key(&mut self, lease: Lease) -> Result<u32, Refusal> {
        match self.peer.ask(Message::Key { lease: lease.lease, token: lease.token }, &[]).0 {
            Message::Keyed { key } => Ok(key),
            Message::Error { refusal } => Err(refusal),
            other => panic!("neither a key nor a refusal: {other:?}"),
        }
    }

    /// Posts one work request for a page of a slab. A refusal ends the connection, which is then established again.
    fn try_page(&mut self, work: Work, at: u64, key: u32) -> Completion {
        self.pair.post(work, &mut self.buffer, 0, 4096, at, key).unwrap();
        let begun = Instant::now();
        let completion = loop {
            assert!(begun.elapsed() < TIMEOUT, "no completion");
            if let Some(completion) = self.pair.poll().unwrap() {
                break completion;
            }
        };
        if completion != Completion::Done {
            self.join();
        }
        completion
    }

    fn write_page(&mut self, byte: u8, key: u32) -> Completion {
        self.buffer.copy_in(0, &[byte; 4096]);
        self.try_page(Work::Write, 0, key)
    }

    fn read_page(&mut self, key: u32) -> Result<u8, Completion> {
        match self.try_page(Work::Read, 0, key) {
            Completion::Done => {
                let mut bytes = [0xee; 4096];
                self.buffer.copy_out(0, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of it");
                Ok(bytes[0])
            }
            completion => Err(completion),
        }
    }
}

/// A donor that lends over RDMA, and a device to reach it by. `None` where there is none.
fn lend(slabs: u64, lease: Duration) -> Option<(Donor, Arc<Device>)> {
    if !Kind::Rdma.is_there() {
        return None;
    }
    let settings = Settings { lease, ..Kind::Rdma.settings(slabs * SLAB_BYTES) };
    let donor = Donor::start(settings, Box::new(|line| println!("{line}"))).unwrap();
    Some((donor, Arc::new(Device::open(&choose(None, None).unwrap()).unwrap())))
}

fn wait_until(donor: &Donor, figure: Figure, value: u64) {
    let begun = Instant::now();
    while donor.status().figure(figure) != value {
        assert!(begun.elapsed() < TIMEOUT, "{:?}", donor.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_slab_is_reached_by_its_last_token_alone() {
    let Some((donor, device)) = lend(4, Duration::from_secs(60)) else { return };
    let mut borrower = RawBorrower::come(&device, &donor, 1);
    let first = borrower.peer.grant(3);
    let key = borrower.key(first).unwrap();
    assert_eq!(borrower.key(first), Ok(key), "one window, however often it is asked for");
    assert_eq!(borrower.write_page(7, key), Completion::Done);
    assert_eq!(borrower.read_page(key), Ok(7));
    assert_eq!(borrower.peer.read(first, 0).unwrap()[..2], [7, 7], "requests find the same bytes");
    // An access with the key of the previous token is late from now on.
    let second = borrower.peer.grant(3);
    assert_eq!(borrower.write_page(8, key), Completion::Refused);
    assert_eq!(borrower.key(first), Err(Refusal::StaleToken));
    let key = borrower.key(second).unwrap();
    assert_eq!(borrower.read_page(key), Ok(7), "and has changed nothing");
    // A part that is discarded reads as zeros in both ways.
    let Lease { lease, token, range } = second;
    let discard = Message::Discard { lease, token, offset: range * SLAB_BYTES, bytes: 4096 };
    assert_eq!(borrower.peer.ask(discard, &[]).0, Message::Discarded);
    assert_eq!(borrower.read_page(key), Ok(0));
    assert_eq!(borrower.peer.read(second, 0).unwrap()[..2], [0, 0]);
}

#[test]
fn a_slab_of_anothers_is_not_reached() {
    let Some((donor, device)) = lend(4, Duration::from_secs(60)) else { return };
    let (mut borrower, mut stranger) = (RawBorrower::come(&device, &donor, 1), RawBorrower::come(&device, &donor, 2));
    let lease = borrower.peer.grant(0);
    let key = borrower.key(lease).unwrap();
    assert_eq!(borrower.write_page(7, key), Completion::Done);
    assert_eq!(stranger.key(lease), Err(Refusal::NotYours));
    assert_eq!(stranger.read_page(key), Err(Completion::Refused), "the key itself is of no use to it");
    assert_eq!(stranger.write_page(9, key), Completion::Refused);
    let own = stranger.peer.grant(0);
    let own = stranger.key(own).unwrap();
    assert_eq!(stranger.try_page(Work::Read, SLAB_BYTES, own), Completion::Refused, "nor the slab beside its own");
    assert_eq!(stranger.read_page(own), Ok(0), "its own it has");
    assert_eq!(borrower.read_page(key), Ok(7));
}

/// Released, revoked, expired: what is late is refused by the device, and the next holder finds zeros that stay.
#[test]
fn a_slab_whose_lease_is_over_is_not_reached() {
    let Some((donor, device)) = lend(1, Duration::from_millis(1500)) else { return };
    let mut borrower = RawBorrower::come(&device, &donor, 1);
    for how in ["released", "expired"] {
        let lease = borrower.peer.grant(0);
        let key = borrower.key(lease).unwrap();
        assert_eq!(borrower.write_page(7, key), Completion::Done);
        if how == "released" {
            let release = Message::Release { lease: lease.lease, token: lease.token };
            assert_eq!(borrower.peer.ask(release, &[]).0, Message::Released { slabs: 1 });
        }
        wait_until(&donor, Figure::LentBytes, 0);
        wait_until(&donor, Figure::WipingBytes, 0);
        assert_eq!(borrower.write_page(9, key), Completion::Refused, "{how}");
        assert_eq!(borrower.read_page(key), Err(Completion::Refused), "{how}");
        assert_eq!(borrower.key(lease), Err(Refusal::NoLease), "{how}");
        let mut next = RawBorrower::come(&device, &donor, 2);
        let lease = next.peer.grant(0);
        let its = next.key(lease).unwrap();
        assert_eq!(borrower.write_page(9, key), Completion::Refused, "{how}");
        assert_eq!(next.read_page(its), Ok(0), "{how}");
        let release = Message::Release { lease: lease.lease, token: lease.token };
        next.peer.ask(release, &[]);
        wait_until(&donor, Figure::WipingBytes, 0);
    }
    let lease = borrower.peer.grant(0);
    let key = borrower.key(lease).unwrap();
    assert_eq!(donor.reclaim(SLAB_BYTES, Duration::ZERO), 0);
    assert_eq!(borrower.write_page(9, key), Completion::Refused, "revoked");
    assert_eq!(borrower.key(lease), Err(Refusal::NoLease), "revoked");
}

#[test]
fn connections_have_a_bound_and_the_newest_of_a_number_counts() {
    let Some((donor, device)) = lend(4, Duration::from_secs(60)) else { return };
    let mut borrower = RawBorrower::come(&device, &donor, 1);
    let lease = borrower.peer.grant(0);
    let key = borrower.key(lease).unwrap();
    for _ in 0..3 {
        borrower.join();
        assert_eq!(borrower.write_page(7, key), Completion::Done);
    }
    let end = end(&borrower.pair, 5);
    let refusal =
        (100..400).find_map(|pair_number| match borrower.peer.ask(Message::Pair { number: pair_number, end }, &[]).0 {
            Message::Paired { .. } => None,
            Message::Error { refusal } => Some(refusal),
            other => panic!("neither paired nor refused: {other:?}"),
        });
    assert_eq!(refusal, Some(Refusal::TooManyConnections));
}

/// Over Ethernet the kernel asks the network who has the address that a borrower gives, and waits a second for the
/// answer: with a lock held meanwhile, one borrower kept all others from their slabs.
#[test]
fn an_address_that_nobody_has_holds_up_nobody_else() {
    let Some((donor, device)) = lend(4, Duration::from_secs(60)) else { return };
    let (mut borrower, mut stranger) = (RawBorrower::come(&device, &donor, 1), RawBorrower::come(&device, &donor, 2));
    let mut nowhere = end(&stranger.pair, 5);
    nowhere.gid[15] ^= 0x40;
    let begun = Instant::now();
    let asked = std::thread::spawn(move || {
        let answer = stranger.peer.ask(Message::Pair { number: 8, end: nowhere }, &[]).0;
        (answer, begun.elapsed())
    });
    let mut answered = 0;
    while !asked.is_finished() {
        let lease = borrower.peer.grant(0);
        borrower.key(lease).unwrap();
        answered += 1;
        // By the next round, the stranger's request is in progress.
        std::thread::sleep(Duration::from_millis(10));
    }
    let (answer, took) = asked.join().unwrap();
    println!("answered {answer:?} after {took:?}; {answered} grants and keys meanwhile");
    if took < Duration::from_millis(500) {
        return aquifer_test_support::skip(format!("the network has answered within {took:?}"));
    }
    assert_eq!(answer, Message::Error { refusal: Refusal::BadField });
    // Otherwise the first round would have had to wait for the stranger's request.
    assert!(answered > 1, "only {answered} in {took:?}");
}

/// Without a device, natively.
#[test]
fn a_donor_that_does_not_lend_over_rdma_refuses_it() {
    let donor = Donor::start(Kind::Plain.settings(4 << 20), Box::new(|_| {})).unwrap();
    let any = PairEnd { pair: 1, psn: 1, lid: 0, mtu: 3, gid: [1; 16] };
    for message in [Message::Pair { number: 1, end: any }, Message::Key { lease: 0, token: 1 }] {
        let mut peer = Peer::borrower(donor.address(), 1);
        peer.send(message, &[]);
        peer.expect_the_end(Refusal::UnknownKind);
    }
    // A malformed endpoint is refused as a damaged frame, like the others in `crates/remote/wire/tests/frames.rs`.
    let mut peer = Peer::borrower(donor.address(), 1);
    let mut frame = peer.frame(Message::Pair { number: 1, end: any }, &[]);
    frame[54] = 9;
    peer.send_bytes(&frame);
    peer.expect_the_end(Refusal::HeaderDamaged);
}

#[test]
fn without_rdma_it_is_said_what_is_missing() {
    let settings =
        Settings { rdma: Some(DeviceChoice::Named("no-such-device".into())), ..Kind::Plain.settings(4 << 20) };
    let failure = Donor::start(settings, Box::new(|_| {})).err().expect("there is no such device");
    assert!(matches!(failure, StartFailure::Rdma(_)), "{failure}");
    let message = failure.to_string();
    assert!(
        message.contains("over RDMA: there is no RDMA device no-such-device") && !message.contains('\n'),
        "{message}"
    );
    let donor = Donor::start(Kind::Plain.settings(4 << 20), Box::new(|_| {})).unwrap();
    let spec = format!("donor:rdma:{},security=plain", donor.address());
    let message = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
    assert!(!message.contains('\n') && message.contains("leave rdma: out"), "{message}");
    let spec = format!("donor:rdma:{},security=plain,device=no-such-device", donor.address());
    let message = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
    assert!(message.contains("no-such-device") && message.contains("leave rdma: out"), "{message}");
}
