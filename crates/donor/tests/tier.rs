// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's memory is a tier, over a real donor in this process; and what happens to it when things go wrong there.

// The judge's random steps are those of all tiers.
#[path = "../../tiers/tests/steps/mod.rs"]
mod steps;

#[macro_use]
mod certificates;

use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Source};
use aquifer_tiers::conformance::{check, frames, model};
use aquifer_tiers::{Disposition, Operation, PAGE, Request, Tier, TierSpec, Wait, open};
use aquifer_wire::{Figure, Refusal, SLAB_BYTES};
use certificates::Kind;
use proptest::prelude::*;

/// Longer than any loss is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

fn settings(kind: Kind) -> Settings {
    Settings::new(([127, 0, 0, 1], 0).into(), 64 << 20, Source::Anonymous, kind.security())
}

fn start(settings: Settings) -> Donor {
    Donor::start(settings, Box::new(|line| println!("{line}"))).unwrap()
}

fn tier(donor: &Donor, kind: Kind) -> Box<dyn Tier> {
    let spec = format!("donor:{},size=16MiB{}", donor.address(), kind.options());
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
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

fn wait_until(donor: &Donor, what: impl Fn(&Donor) -> bool) {
    let start = Instant::now();
    while !what(donor) {
        assert!(start.elapsed() < PATIENCE, "{:?}", donor.standing());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_donor_passes_the_suite(kind: Kind) {
    let donor = start(settings(kind));
    check("donor", &|| tier(&donor, kind));
    wait_until(&donor, |donor| donor.standing().figure(Figure::LentBytes) == 0);
    for refusal in Refusal::ALL {
        assert_eq!(donor.standing().refused(*refusal), 0, "{refusal}");
    }
}

for_each_kind! {
    a_donor_passes_the_suite,
    slabs_are_borrowed_when_they_are_written_and_given_back_when_they_are_discarded,
    leases_stay_while_they_are_tended,
    connections_that_break_are_made_anew,
    a_donor_that_is_gone_is_an_error_within_a_bound,
    a_donor_that_was_started_anew_has_nothing_of_ours,
    a_donor_with_nothing_left_is_a_full_tier,
    what_cannot_be_opened_says_why,
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(is_plain: bool, depth in 1u32..16, steps in steps::steps()) {
        let kind = if is_plain { Kind::Plain } else { Kind::Tls };
        let donor = start(settings(kind));
        model::replay(&*tier(&donor, kind), depth, &steps);
        donor.stop(Duration::ZERO);
    }
}

fn slabs_are_borrowed_when_they_are_written_and_given_back_when_they_are_discarded(kind: Kind) {
    let donor = start(settings(kind));
    let tier = tier(&donor, kind);
    let lent = || donor.standing().figure(Figure::LentBytes) / SLAB_BYTES;
    assert_eq!(lent(), 0);
    write(&*tier, 0, 1);
    write(&*tier, 5 * SLAB_BYTES, 1);
    assert_eq!(lent(), 2);
    tier.discard(0, 4096).unwrap();
    assert_eq!(lent(), 2, "a part of a slab stays borrowed");
    tier.discard(0, 2 * SLAB_BYTES).unwrap();
    assert_eq!(lent(), 1);
    read(&*tier, 5 * SLAB_BYTES, 1);
    drop(tier);
    assert_eq!(lent(), 0);
}

fn leases_stay_while_they_are_tended(kind: Kind) {
    let lease = Duration::from_millis(1500);
    let donor = start(Settings { lease, ..settings(kind) });
    let tier = tier(&donor, kind);
    write(&*tier, 0, 1);
    let begun = Instant::now();
    while begun.elapsed() < 2 * lease {
        let pause = tier.tend().expect("leases are tended");
        assert!(pause <= lease / 2);
        std::thread::sleep(pause / 2);
    }
    if donor.standing().figure(Figure::ExpiriesTotal) > 0 {
        println!("skipped, because this machine is too busy for leases so short");
        return;
    }
    read(&*tier, 0, 1);
    // Nobody tends it any more: the bytes are gone, and nobody reads zeros in their place.
    wait_until(&donor, |donor| donor.standing().figure(Figure::ExpiriesTotal) == 1);
    let mut frame = frames::frame(16, 0xee);
    let failure = tier.read(0, &mut frame).unwrap_err();
    assert_eq!((failure.errno(), failure.disposition()), (Some(libc::ENODATA), Disposition::Poison));
    frames::give_back(frame);
    write(&*tier, 0, 2);
    read(&*tier, 0, 2);
}

fn connections_that_break_are_made_anew(kind: Kind) {
    // Every idle connection is dropped by the donor at once.
    let (idle, frame) = (Duration::from_millis(1), Duration::from_millis(50));
    let patience = aquifer_donor::Patience { idle, frame, ..aquifer_donor::Patience::default() };
    let donor = start(Settings { patience, ..settings(kind) });
    let tier = tier(&donor, kind);
    let mut queue = tier.open_queue(4).unwrap();
    for version in 0..5 {
        write(&*tier, 0, version);
        let mut buffer = frames::frame(16, 0);
        frames::stamp(buffer.bytes_mut(), SLAB_BYTES, version);
        assert!(queue.submit(Request { operation: Operation::Write, offset: SLAB_BYTES, buffer, tag: 0 }).is_ok());
        queue.kick().unwrap();
        while queue.in_flight() > 0 {
            queue.complete(Wait::ForOne, 1, &mut |completion| {
                completion.outcome.unwrap();
                frames::give_back(completion.buffer);
            });
        }
        wait_until(&donor, |donor| donor.standing().figure(Figure::Connections) == 0);
        read(&*tier, 0, version);
        read(&*tier, SLAB_BYTES, version);
    }
}

fn a_donor_that_is_gone_is_an_error_within_a_bound(kind: Kind) {
    let donor = start(settings(kind));
    let tier = tier(&donor, kind);
    write(&*tier, 0, 1);
    let mut queue = tier.open_queue(4).unwrap();
    donor.stop(Duration::ZERO);
    let begun = Instant::now();
    let mut frame = frames::frame(1, 0xee);
    let failure = tier.read(0, &mut frame).unwrap_err();
    assert_eq!(failure.disposition(), Disposition::Poison, "{failure}");
    assert!(begun.elapsed() < PATIENCE);
    // Once it counts as lost, nobody waits for it again.
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(tier.read(0, &mut frame).unwrap_err().disposition(), Disposition::Poison);
        assert_eq!(tier.write(4096, &frame).unwrap_err().disposition(), Disposition::Keep);
    }
    assert!(tier.discard(0, 4096).is_err());
    let (operation, buffer) = (Operation::Read, frames::frame(1, 0));
    assert!(queue.submit(Request { operation, offset: 0, buffer, tag: 0 }).is_ok());
    queue.kick().unwrap();
    let count = queue.complete(Wait::ForOne, 1, &mut |completion| {
        assert_eq!(completion.outcome.unwrap_err().disposition(), Disposition::Poison);
    });
    assert_eq!(count, 1);
    assert!(begun.elapsed() < PATIENCE);
}

fn a_donor_that_was_started_anew_has_nothing_of_ours(kind: Kind) {
    let donor = start(settings(kind));
    let address = donor.address();
    let tier = tier(&donor, kind);
    write(&*tier, 0, 1);
    donor.stop(Duration::ZERO);
    let _successor = start(Settings { listen: address, ..settings(kind) });
    let mut frame = frames::frame(1, 0xee);
    let failure = tier.read(0, &mut frame).unwrap_err();
    assert_eq!((failure.errno(), failure.disposition()), (Some(libc::ESTALE), Disposition::Poison), "{failure}");
    assert_eq!(tier.write(0, &frame).unwrap_err().errno(), Some(libc::ESTALE));
    frames::give_back(frame);
}

fn a_donor_with_nothing_left_is_a_full_tier(kind: Kind) {
    let donor = start(Settings { capacity_bytes: 16 << 20, ..settings(kind) });
    let (one, other) = (tier(&donor, kind), tier(&donor, kind));
    (0..8).for_each(|slab| write(&*one, slab * SLAB_BYTES, 1));
    let frame = frames::frame(1, 0);
    assert_eq!(other.write(0, &frame).unwrap_err().disposition(), Disposition::Refuse);
    one.discard(0, SLAB_BYTES).unwrap();
    other.write(0, &frame).unwrap();
    frames::give_back(frame);
}

fn what_cannot_be_opened_says_why(kind: Kind) {
    let donor = start(settings(kind));
    let address = donor.address();
    for (spec, remedy) in [
        (format!("donor:{address},size=1GiB{}", kind.options()), "less with size="),
        (format!("donor:{address},size=1MiB{}", kind.options()), "at least 2MiB"),
        (format!("donor:127.0.0.1:1{}", kind.options()), "aquifer donor"),
    ] {
        let message = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
        assert!(message.contains(remedy) && !message.contains('\n'), "{message}");
    }
    assert_eq!(tier(&donor, kind).capacity_bytes() as usize % PAGE, 0);
}

/// Between a borrower and a donor: passes frames on, and keeps the first write back while it is told to.
mod detour {
    use std::io::{Read, Write, copy};
    use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use aquifer_wire::{HEADER_BYTES, Header, Message};

    pub struct Detour {
        pub address: SocketAddr,
        pub keep_next: Arc<AtomicBool>,
        pub let_go: Arc<AtomicBool>,
    }

    pub fn start(donor: SocketAddr) -> Detour {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (keep_next, let_go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let detour = Detour { address: listener.local_addr().unwrap(), keep_next, let_go };
        let (keep_next, let_go) = (Arc::clone(&detour.keep_next), Arc::clone(&detour.let_go));
        std::thread::spawn(move || {
            for borrower in listener.incoming().map_while(Result::ok) {
                let donor = TcpStream::connect(donor).unwrap();
                let (mut from, mut to) = (donor.try_clone().unwrap(), borrower.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let (keep_next, let_go) = (Arc::clone(&keep_next), Arc::clone(&let_go));
                std::thread::spawn(move || pass(borrower, donor, &keep_next, &let_go));
            }
        });
        detour
    }

    fn pass(mut borrower: TcpStream, mut donor: TcpStream, keep_next: &AtomicBool, let_go: &AtomicBool) {
        let mut frame = vec![0; HEADER_BYTES];
        while borrower.read_exact(&mut frame[..HEADER_BYTES]).is_ok() {
            let header = Header::decode(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();
            frame.resize(HEADER_BYTES + header.body_bytes as usize, 0);
            borrower.read_exact(&mut frame[HEADER_BYTES..]).unwrap();
            if matches!(header.message, Message::Write { .. }) && keep_next.swap(false, Ordering::SeqCst) {
                while !let_go.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            if donor.write_all(&frame).is_err() {
                return;
            }
            frame.truncate(HEADER_BYTES);
        }
        let _ = donor.shutdown(Shutdown::Both);
    }
}

/// A write got no answer, was repeated and overwritten, and only then came to the donor. Without a new token for the
/// second write, the first one's bytes were what a read returned from then on. In plain text: the detour reads frames.
#[test]
fn a_write_that_is_late_does_not_land() {
    let donor = start(settings(Kind::Plain));
    let detour = detour::start(donor.address());
    let spec = format!("donor:{},security=plain,size=16MiB", detour.address);
    let tier = open(&spec.parse::<TierSpec>().unwrap()).unwrap();
    write(&*tier, 4 << 20, 1);
    detour.keep_next.store(true, std::sync::atomic::Ordering::SeqCst);
    write(&*tier, 4 << 20, 2);
    write(&*tier, 4 << 20, 3);
    detour.let_go.store(true, std::sync::atomic::Ordering::SeqCst);
    let written = |donor: &Donor| donor.standing().figure(Figure::WritesTotal);
    wait_until(&donor, |donor| donor.standing().refused(Refusal::StaleToken) + written(donor) == 4);
    read(&*tier, 4 << 20, 3);
    assert_eq!((donor.standing().refused(Refusal::StaleToken), written(&donor)), (1, 3));
}
