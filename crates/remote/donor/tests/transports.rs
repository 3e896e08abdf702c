// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One list of tests that every transport passes, over a real donor in this process: as a tier like any other, and when
//! failures occur between the two ends, or at one of them.
//!
//! Guards against a transport that works until a failure occurs, and then overwrites a recent write with an older one,
//! waits forever, or answers with zeros.
//!
//! A new transport is a line in `kinds/mod.rs`. The behaviour of forked processes over each is tested in
//! `crates/lab/e2e/tests/donor.rs`, because a test here cannot fork.

// The random steps are the ones that test all tiers.
#[path = "../../../memory/tiers/tests/steps/mod.rs"]
mod steps;

mod certificates;
mod detour;
#[macro_use]
mod kinds;

use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Timeouts};
use aquifer_tiers::conformance::{check, frames, model};
use aquifer_tiers::{Disposition, Operation, PAGE, Request, Tier, TierFailure, TierSpec, Wait, open};
use aquifer_wire::{Figure, Refusal, SLAB_BYTES};
use detour::{Detour, Order};
use kinds::Kind;
use proptest::prelude::*;

/// Longer than any wait until a donor counts as lost.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts that take longer than [`TIMEOUT`] if each waits for a donor that is gone as the first one does, which is
/// five seconds (`borrower/src/donor/contact.rs`). Not more: all of them, and the reads between, must end before the
/// lease does.
const ATTEMPTS_ONCE_LOST: u32 = 8;
const PAGE_BYTES: u64 = PAGE as u64;

fn settings(kind: Kind) -> Settings {
    kind.settings(64 << 20)
}

fn start(settings: Settings) -> Donor {
    Donor::start(settings, Box::new(|line| println!("{line}"))).unwrap()
}

fn tier(donor: &Donor, kind: Kind) -> Box<dyn Tier> {
    kind.tier(donor.place(), "16MiB")
}

fn try_write(tier: &dyn Tier, offset: u64, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(16, 0);
    frames::stamp(frame.bytes_mut(), offset, version);
    let written = tier.write(offset, &frame);
    frames::give_back(frame);
    written
}

fn try_read(tier: &dyn Tier, offset: u64, version: u64) -> Result<(), TierFailure> {
    let mut frame = frames::frame(16, 0xee);
    let read = tier.read(offset, &mut frame);
    if read.is_ok() {
        frames::check_stamp(frame.bytes(), offset, version);
    }
    frames::give_back(frame);
    read
}

fn write(tier: &dyn Tier, offset: u64, version: u64) {
    try_write(tier, offset, version).unwrap_or_else(|failure| panic!("{failure}"));
}

fn read(tier: &dyn Tier, offset: u64, version: u64) {
    try_read(tier, offset, version).unwrap_or_else(|failure| panic!("{failure}"));
}

/// While a donor counts as lost, one try is made in half a second.
fn eventually_write(tier: &dyn Tier, offset: u64, version: u64) {
    let begun = Instant::now();
    while let Err(failure) = try_write(tier, offset, version) {
        assert!(begun.elapsed() < TIMEOUT, "{failure}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The result of `act`, and how long it took.
fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (act(), begun.elapsed())
}

fn wait_until(donor: &Donor, what: impl Fn(&Donor) -> bool) {
    let start = Instant::now();
    while !what(donor) {
        assert!(start.elapsed() < TIMEOUT, "{:?}", donor.status());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_donor_passes_the_suite(kind: Kind) {
    let donor = start(settings(kind));
    check("donor", &|| tier(&donor, kind));
    wait_until(&donor, |donor| donor.status().figure(Figure::LentBytes) == 0);
    for figure in [Figure::ReadsTotal, Figure::WritesTotal] {
        let served = donor.status().figure(figure);
        assert_eq!(served > 0, kind.asks_for_bytes(), "{served}: bytes go past the donor, or by it");
    }
    for refusal in Refusal::ALL {
        assert_eq!(donor.status().refused(*refusal), 0, "{refusal}");
    }
}

for_each_kind! {
    a_donor_passes_the_suite,
    every_size_at_every_alignment_goes_there_and_back,
    many_threads_write_and_read_and_give_back,
    each_refusal_arrives_as_itself,
    requests_cut_on_their_way_are_repeated,
    late_requests_do_no_harm,
    a_donor_that_stands_still_is_given_up_and_found_again,
    a_donor_that_ends_amid_a_request_is_an_error,
    slabs_are_borrowed_when_they_are_written_and_given_back_when_they_are_discarded,
    leases_stay_while_they_are_tended,
    connections_that_break_are_made_again,
    a_donor_that_is_gone_is_an_error_within_a_bound,
    a_restarted_donor_has_nothing_that_was_stored_there,
    a_donor_with_nothing_left_is_a_full_tier,
    a_tier_that_cannot_be_opened_says_why,
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(
        kind in any::<prop::sample::Index>(),
        depth in 1u32..16,
        steps in steps::steps(),
    ) {
        let kind = *kind.get(&Kind::all());
        let donor = start(settings(kind));
        model::replay(&*tier(&donor, kind), depth, &steps);
        donor.stop(Duration::ZERO);
    }
}

/// From one page to a whole slab, at offsets such that the pages lie within a slab, at its ends, or across two.
fn every_size_at_every_alignment_goes_there_and_back(kind: Kind) {
    let donor = start(settings(kind));
    let tier = tier(&donor, kind);
    let slab_pages = SLAB_BYTES / PAGE_BYTES;
    for pages in [1, 2, 3, 15, 16, 31, 64, 100, 256, 511, 512] {
        for start in [0, 1, slab_pages - pages, slab_pages - pages / 2, slab_pages - 1, slab_pages, 3 * slab_pages + 7]
        {
            let (offset, version) = (start * PAGE_BYTES, pages * 10_000 + start);
            let mut frame = frames::frame(pages as usize, 0);
            frames::stamp(frame.bytes_mut(), offset, version);
            tier.write(offset, &frame).unwrap();
            frame.bytes_mut().fill(0xee);
            tier.read(offset, &mut frame).unwrap();
            frames::check_stamp(frame.bytes(), offset, version);
            frames::give_back(frame);
        }
    }
}

fn many_threads_write_and_read_and_give_back(kind: Kind) {
    const THREADS: u64 = 12;
    let donor = start(settings(kind));
    let tier = kind.tier(donor.place(), "48MiB");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let tier = &*tier;
            // Two threads in each slab, so that they want a grant for it at the same time.
            scope.spawn(move || {
                let offset = thread / 2 * SLAB_BYTES + thread % 2 * (SLAB_BYTES / 2);
                let own_slab = (THREADS + thread) * SLAB_BYTES;
                for version in 0..20 {
                    write(tier, offset, version);
                    write(tier, own_slab, version);
                    read(tier, offset, version);
                    read(tier, own_slab, version);
                    tier.discard(own_slab, SLAB_BYTES).unwrap();
                }
            });
        }
    });
    assert_eq!(donor.status().figure(Figure::LentBytes), THREADS / 2 * SLAB_BYTES);
    drop(tier);
    wait_until(&donor, |donor| donor.status().figure(Figure::LentBytes) == 0);
}

fn each_refusal_arrives_as_itself(kind: Kind) {
    let errno = |failure: TierFailure| failure.errno();
    let full = start(Settings { capacity_bytes: 16 << 20, ..settings(kind) });
    let (one, other) = (tier(&full, kind), tier(&full, kind));
    (0..8).for_each(|slab| write(&*one, slab * SLAB_BYTES, 1));
    assert_eq!(try_write(&*other, 0, 1).map_err(errno), Err(Some(libc::ENOSPC)));
    assert_eq!(full.status().refused(Refusal::Full), 1);

    let quota_bytes = Some(16 << 20);
    let frugal = start(Settings { quota_bytes, ..settings(kind) });
    let tier = tier(&frugal, kind);
    assert_eq!(tier.capacity_bytes(), 16 << 20, "a borrower that asks for no more than the quota never meets it");

    let ending = start(settings(kind));
    let late = kind.tier(ending.place(), "16MiB");
    write(&*late, 0, 1);
    let end = std::thread::spawn(move || ending.stop(TIMEOUT));
    let begun = Instant::now();
    // Once the donor has begun to end, it lends nothing new, but what it has lent can be read.
    let refused = loop {
        match try_write(&*late, SLAB_BYTES, 1) {
            Ok(()) => late.discard(SLAB_BYTES, SLAB_BYTES).unwrap(),
            Err(failure) => break failure,
        }
        assert!(begun.elapsed() < TIMEOUT / 2, "the donor does not end");
    };
    assert_eq!(errno(refused), Some(libc::ENOSPC));
    read(&*late, 0, 1);
    drop(late);
    end.join().unwrap();

    let busy = start(Settings { connections_max: 0, ..settings(kind) });
    let message = open(&kind.spec(busy.place(), "16MiB").parse::<TierSpec>().unwrap()).err().unwrap().to_string();
    assert!(message.contains(Refusal::TooManyConnections.meaning()), "{message}");
}

/// Cut on the way there; and on the way back, after the donor has carried the request out.
fn requests_cut_on_their_way_are_repeated(kind: Kind) {
    let donor = start(settings(kind));
    let detour = Detour::start(donor.place());
    let tier = kind.tier(&detour.address, "16MiB");
    write(&*tier, 0, 0);
    for version in 1..5 {
        let order = if version % 2 == 0 { Order::CutAnswer } else { Order::CutRequest };
        detour.order(order);
        // Where bytes do not go over the connection, this cuts the grant.
        write(&*tier, version * SLAB_BYTES, version);
        assert!(detour.is_done());
        detour.order(order);
        write(&*tier, 0, version);
        detour.order(order);
        read(&*tier, 0, version);
        detour.order(order);
        tier.discard(version * SLAB_BYTES, SLAB_BYTES).unwrap();
        detour.order(Order::Pass);
        read(&*tier, 0, version);
    }
    assert_eq!(donor.status().figure(Figure::LentBytes), SLAB_BYTES);
}

/// A write got no answer, was repeated and overwritten, and only then reached the donor: without a new token for the
/// second write, every later read returned the first one's bytes. And a grant came late: its slab then had a token that
/// the borrower did not know, and every read of it was refused.
fn late_requests_do_no_harm(kind: Kind) {
    let donor = start(settings(kind));
    let detour = Detour::start(donor.place());
    let tier = kind.tier(&detour.address, "16MiB");
    let (known, new) = (4 << 20, 8 << 20);
    write(&*tier, known, 1);
    detour.order(Order::KeepRequest);
    write(&*tier, known, 2);
    write(&*tier, known, 3);
    assert_eq!(detour.is_done(), kind.asks_for_bytes(), "others go past the connection");
    detour.let_go();
    if kind.asks_for_bytes() {
        wait_until(&donor, |donor| donor.status().refused(Refusal::StaleToken) == 1);
    }
    read(&*tier, known, 3);

    detour.order(Order::KeepRequest);
    // Over a network, the grant is asked for on another connection.
    let granted = try_write(&*tier, new, 1);
    assert!(detour.is_done());
    assert!(granted.is_ok() || !kind.is_network(), "{granted:?}");
    let before = donor.status().figure(Figure::GrantsTotal);
    detour.let_go();
    wait_until(&donor, |donor| donor.status().figure(Figure::GrantsTotal) > before);
    if granted.is_ok() {
        read(&*tier, new, 1);
    }
    eventually_write(&*tier, new, 2);
    read(&*tier, new, 2);
    read(&*tier, known, 3);
}

fn a_donor_that_stands_still_is_given_up_and_found_again(kind: Kind) {
    let donor = start(settings(kind));
    let detour = Detour::start(donor.place());
    let tier = kind.tier(&detour.address, "16MiB");
    write(&*tier, 0, 1);
    detour.stand_still(true);
    let (granted, took) = timed(|| try_write(&*tier, SLAB_BYTES, 1));
    assert_eq!(granted.map_err(|failure| failure.disposition()), Err(Disposition::Keep));
    assert!(took < TIMEOUT, "{took:?}");
    let (found, took) = timed(|| try_read(&*tier, 0, 1));
    assert_eq!(found.is_err(), kind.asks_for_bytes(), "others can be read without the donor");
    assert!(took < TIMEOUT, "{took:?}");
    // Once the donor counts as lost, no access waits that long again, even for bytes that only the donor has.
    let again = || {
        let _ = try_read(&*tier, 0, 1);
        timed(|| try_write(&*tier, SLAB_BYTES, 1).unwrap_err()).1
    };
    let took: Duration = (0..ATTEMPTS_ONCE_LOST).map(|_| again()).sum();
    assert!(took < TIMEOUT, "{ATTEMPTS_ONCE_LOST} attempts took {took:?}");
    detour.stand_still(false);
    eventually_write(&*tier, SLAB_BYTES, 2);
    read(&*tier, 0, 1);
    read(&*tier, SLAB_BYTES, 2);
}

fn a_donor_that_ends_amid_a_request_is_an_error(kind: Kind) {
    let donor = start(settings(kind));
    let detour = Detour::start(donor.place());
    let tier = kind.tier(&detour.address, "16MiB");
    write(&*tier, 0, 1);
    detour.order(Order::KeepRequest);
    let ((written, read), took) = timed(|| {
        std::thread::scope(|scope| {
            // Not granted yet, so it goes over the connection in any case.
            let written = scope.spawn(|| try_write(&*tier, SLAB_BYTES, 1));
            let begun = Instant::now();
            while !detour.is_done() && begun.elapsed() < TIMEOUT {
                std::thread::sleep(Duration::from_millis(5));
            }
            donor.stop(Duration::ZERO);
            detour.let_go();
            (written.join().unwrap(), try_read(&*tier, 0, 1))
        })
    });
    assert_eq!(written.map_err(|failure| failure.disposition()), Err(Disposition::Keep));
    assert_eq!(read.map_err(|failure| failure.disposition()), Err(Disposition::Poison));
    assert!(took < TIMEOUT, "{took:?}");
}

fn slabs_are_borrowed_when_they_are_written_and_given_back_when_they_are_discarded(kind: Kind) {
    let donor = start(settings(kind));
    let tier = tier(&donor, kind);
    let lent = || donor.status().figure(Figure::LentBytes) / SLAB_BYTES;
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
    wait_until(&donor, |donor| donor.status().figure(Figure::LentBytes) == 0);
}

fn leases_stay_while_they_are_tended(kind: Kind) {
    let lease = Duration::from_millis(1500);
    let donor = start(Settings { lease, ..settings(kind) });
    let tier = tier(&donor, kind);
    write(&*tier, 0, 1);
    let begun = Instant::now();
    while begun.elapsed() < 2 * lease {
        let pause = tier.upkeep().expect("leases have upkeep").turn(None);
        assert!(pause <= lease / 2);
        std::thread::sleep(pause / 2);
    }
    let found = try_read(&*tier, 0, 1);
    if donor.status().figure(Figure::ExpiriesTotal) > 0 {
        aquifer_test_support::skip("this machine is too busy for leases so short");
        return;
    }
    found.unwrap_or_else(|failure| panic!("{failure}"));
    // Nobody renews the lease any more: the bytes are gone, and nobody reads zeros in their place.
    wait_until(&donor, |donor| donor.status().figure(Figure::ExpiriesTotal) == 1);
    let mut frame = frames::frame(16, 0xee);
    let failure = tier.read(0, &mut frame).unwrap_err();
    assert_eq!((failure.errno(), failure.disposition()), (Some(libc::ENODATA), Disposition::Poison));
    frames::give_back(frame);
    write(&*tier, 0, 2);
    read(&*tier, 0, 2);
}

fn connections_that_break_are_made_again(kind: Kind) {
    // Every idle connection is dropped by the donor at once, where it cannot tell whether the borrower lives.
    let (idle, frame) = (Duration::from_millis(1), Duration::from_millis(50));
    let timeouts = Timeouts { idle, frame, ..Timeouts::default() };
    let donor = start(Settings { timeouts, ..settings(kind) });
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
        if kind.is_network() {
            wait_until(&donor, |donor| donor.status().figure(Figure::Connections) == 0);
        } else {
            std::thread::sleep(4 * (frame + idle));
        }
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
    assert!(begun.elapsed() < TIMEOUT);
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
    assert!(begun.elapsed() < TIMEOUT);
}

fn a_restarted_donor_has_nothing_that_was_stored_there(kind: Kind) {
    let donor = start(settings(kind));
    let listen = donor.place().clone();
    let tier = tier(&donor, kind);
    write(&*tier, 0, 1);
    donor.stop(Duration::ZERO);
    let _successor = start(Settings { listen, ..settings(kind) });
    let mut frame = frames::frame(1, 0xee);
    let failure = tier.read(0, &mut frame).unwrap_err();
    // In shared memory, the status page says that the lease has ended.
    let errno = if kind.is_network() { libc::ESTALE } else { libc::ENODATA };
    assert_eq!((failure.errno(), failure.disposition()), (Some(errno), Disposition::Poison), "{failure}");
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

fn a_tier_that_cannot_be_opened_says_why(kind: Kind) {
    let donor = start(settings(kind));
    let nowhere = if kind.is_network() { ([127, 0, 0, 1], 1).into() } else { kinds::socket() };
    for (spec, remedy) in [
        (kind.spec(donor.place(), "1GiB"), "less with size="),
        (kind.spec(donor.place(), "1MiB"), "at least 2MiB"),
        (kind.spec(&nowhere, "16MiB"), "aquifer donor"),
    ] {
        let message = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
        assert!(message.contains(remedy) && !message.contains('\n'), "{message}");
    }
    assert_eq!(tier(&donor, kind).capacity_bytes() as usize % PAGE, 0);
}
