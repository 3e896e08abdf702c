// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several donors as one tier, over real donors in this process: striped, mirrored, with parity, and after the loss of
//! one of them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Security, Settings, Source};
use aquifer_tiers::conformance::{check, frames};
use aquifer_tiers::{Operation, Request, Tier, TierSpec, Wait, open};
use aquifer_wire::{Figure, SLAB_BYTES};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time that one access may take when a donor is lost, which is the product's promise, and as much again
/// for a machine that runs other tests.
const STALL_MAX: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    Settings::new(([127, 0, 0, 1], 0).into(), 64 << 20, Source::Anonymous, Security::Plain)
}

fn start(settings: Settings) -> Donor {
    Donor::start(settings, Box::new(|line| println!("{line}"))).unwrap()
}

fn donors(count: usize) -> Vec<Donor> {
    (0..count).map(|_| start(settings())).collect()
}

fn array(addresses: &[SocketAddr], options: &str) -> Box<dyn Tier> {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let spec = format!("donor:{},security=plain{options}", addresses.join("+"));
    open(&spec.parse::<TierSpec>().unwrap()).unwrap_or_else(|failure| panic!("{failure}"))
}

fn addresses(donors: &[Donor]) -> Vec<SocketAddr> {
    donors.iter().map(Donor::address).collect()
}

fn write(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(16, 0);
    frames::stamp(frame.bytes_mut(), offset, version);
    tier.write(offset, &frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::give_back(frame);
}

fn read(tier: &dyn Tier, offset: u64, version: u64) {
    let mut frame = frames::frame(16, 0xee);
    tier.read(offset, &mut frame).unwrap_or_else(|failure| panic!("{failure}"));
    frames::check_stamp(frame.bytes(), offset, version);
    frames::give_back(frame);
}

/// Runs the upkeep until `done`.
fn upkeep(tier: &dyn Tier, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < TIMEOUT, "it does not come to that");
        let pause = tier.upkeep().expect("arrays have upkeep").turn(None);
        std::thread::sleep(pause.min(Duration::from_millis(50)));
    }
}

fn lent(donor: &Donor) -> u64 {
    donor.status().figure(Figure::LentBytes) / SLAB_BYTES
}

#[test]
fn donors_together_pass_the_suite() {
    for (count, options) in [(2, ""), (3, ",mirror=2"), (3, ",parity=2+1"), (6, ",parity=4+2")] {
        let donors = donors(count);
        let addresses = addresses(&donors);
        check(options, &|| array(&addresses, &format!("{options},size=16MiB")));
        let started = Instant::now();
        while donors.iter().any(|donor| lent(donor) > 0) {
            assert!(started.elapsed() < TIMEOUT, "what was borrowed comes back");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn room_is_what_all_lend_less_what_is_kept_twice() {
    let donors = donors(3);
    let addresses = addresses(&donors);
    assert_eq!(array(&addresses, "").capacity_bytes(), 192 << 20);
    assert_eq!(array(&addresses, ",mirror=2").capacity_bytes(), 96 << 20);
    assert_eq!(array(&addresses, ",parity=2+1").capacity_bytes(), 128 << 20);
    let spec = format!("donor:{}+{},security=plain,mirror=2,size=80MiB", addresses[0], addresses[1]);
    let refused = open(&spec.parse::<TierSpec>().unwrap()).err().unwrap().to_string();
    assert!(refused.contains("less with size="), "{refused}");
}

/// Both copies of a slab were with one donor, and lost together: only the texts of the addresses were compared.
#[test]
fn two_names_of_one_donor_are_not_taken_for_two_donors() {
    let donors = donors(2);
    let [one, other] = [donors[0].address().port(), donors[1].address().port()];
    for options in ["", ",mirror=2"] {
        let spec = |first: &str, second: &str| format!("donor:{first}+{second},security=plain{options}");
        let opened = |first: String, second: String| open(&spec(&first, &second).parse::<TierSpec>().unwrap());
        let refused = opened(format!("127.0.0.1:{one}"), format!("localhost:{one}")).err().unwrap().to_string();
        assert!(refused.contains("are one donor; give each donor once"), "{refused}");
        assert!(opened(format!("127.0.0.1:{one}"), format!("localhost:{other}")).is_ok());
    }
}

#[test]
fn a_mirror_can_begin_without_one_of_its_donors_and_takes_it_in_later() {
    let donor = start(settings());
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tier = array(&[donor.address(), absent], ",mirror=2,size=16MiB");
    assert!(tier.notices().iter().any(|notice| notice.contains(&absent.to_string())), "{:?}", tier.notices());
    write(&*tier, 0, 1);
    read(&*tier, 0, 1);
    let late = start(Settings { listen: absent.into(), ..settings() });
    upkeep(&*tier, || lent(&late) == 1);
    upkeep(&*tier, || tier.take_figures().slabs_rebuilt == 1);
    donor.stop(Duration::ZERO);
    read(&*tier, 0, 1);
}

/// Otherwise a program would start and then could not write.
#[test]
fn shards_cannot_begin_with_fewer_donors_than_it_takes_to_read() {
    let donors = donors(4);
    let absent = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let spec = |addresses: &[SocketAddr]| {
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        format!("donor:{},security=plain,parity=4+1,size=16MiB", addresses.join("+")).parse::<TierSpec>().unwrap()
    };
    let there = addresses(&donors);
    let refused = open(&spec(&[&there[..3], &[absent(), absent()]].concat())).err().unwrap().to_string();
    assert!(refused.contains("4 of these donors are needed to start, and 3 can be reached; no donor"), "{refused}");
    let tier = open(&spec(&[&there[..], &[absent()]].concat())).unwrap();
    write(&*tier, 0, 1);
    read(&*tier, 0, 1);
}

/// Each donor in turn is restarted and has lost its memory. Copies are made before the next one is restarted.
#[test]
fn donors_are_restarted_one_after_the_other_and_nothing_is_lost() {
    one_after_the_other(3, ",mirror=2,size=32MiB", 32);
}

#[test]
fn donors_with_shards_are_restarted_one_after_the_other_and_nothing_is_lost() {
    one_after_the_other(6, ",parity=4+1,size=32MiB", 20);
}

/// `count` donors, which together lend `lends` slabs.
fn one_after_the_other(count: usize, options: &str, lends: u64) {
    let mut donors = donors(count);
    let addresses = addresses(&donors);
    let tier = array(&addresses, options);
    (0..16).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
    for round in 0..4 {
        let at = round % count;
        donors.remove(at).stop(Duration::ZERO);
        let begun = Instant::now();
        read(&*tier, 0, if round == 0 { 0 } else { 100 + round as u64 - 1 });
        write(&*tier, 0, 100 + round as u64);
        assert!(begun.elapsed() < STALL_MAX, "{:?}", begun.elapsed());
        donors.insert(at, start(Settings { listen: addresses[at].into(), ..settings() }));
        upkeep(&*tier, || donors.iter().map(lent).sum::<u64>() == lends);
        // The copy of a slab that counts as lent may still be in progress.
        let mut rebuilt = 0;
        upkeep(&*tier, || {
            let before = rebuilt;
            rebuilt += tier.take_figures().slabs_rebuilt;
            rebuilt > 0 && rebuilt == before
        });
        (1..16).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab));
        read(&*tier, 0, 100 + round as u64);
    }
    assert_eq!(tier.take_figures().slabs_lost, 0);
}

#[test]
fn a_donor_that_reclaims_its_memory_is_done_without() {
    for (count, options) in [(2, ",mirror=2,size=16MiB"), (3, ",parity=2+1,size=16MiB")] {
        let mut donors = donors(count);
        let tier = array(&addresses(&donors), options);
        (0..8).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
        let last = donors.pop().unwrap();
        last.stop(Duration::from_millis(200));
        for slab in 0..8 {
            read(&*tier, slab * SLAB_BYTES, slab);
            write(&*tier, slab * SLAB_BYTES, slab + 50);
            read(&*tier, slab * SLAB_BYTES, slab + 50);
        }
    }
}

/// A relay to a donor that passes this many bytes a second in each direction, or passes nothing on.
struct Relay {
    address: SocketAddr,
    is_stalled: Arc<AtomicBool>,
}

impl Relay {
    fn to(donor: SocketAddr, bytes_per_second: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay { address: listener.local_addr().unwrap(), is_stalled: Arc::new(AtomicBool::new(false)) };
        let is_stalled = Arc::clone(&relay.is_stalled);
        std::thread::spawn(move || {
            for borrower in listener.incoming().map_while(Result::ok) {
                let donor = TcpStream::connect(donor).unwrap();
                for (from, to) in [(&borrower, &donor), (&donor, &borrower)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let is_stalled = Arc::clone(&is_stalled);
                    std::thread::spawn(move || pass(from, to, bytes_per_second, &is_stalled));
                }
            }
        });
        relay
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes_per_second: u64, is_stalled: &AtomicBool) {
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    let mut bytes = vec![0; 64 << 10];
    let mut free_at = Instant::now();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = Instant::now();
        free_at = free_at.max(now) + Duration::from_secs_f64(count as f64 / bytes_per_second as f64);
        // Short pauses are made up for later, since a sleep takes longer than it should.
        if free_at > now + Duration::from_millis(2) {
            std::thread::sleep(free_at - now);
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// How long reads of all slabs take through a queue, in blocks of 128 KiB, as read-ahead makes them.
fn stream(tier: &dyn Tier, slabs: u64) -> Duration {
    let mut queue = tier.open_queue(32).unwrap();
    let block = 128 << 10;
    let started = Instant::now();
    let mut next = 0;
    while next < slabs * SLAB_BYTES || queue.in_flight() > 0 {
        while next < slabs * SLAB_BYTES && queue.in_flight() < 32 {
            let request = Request { operation: Operation::Read, offset: next, buffer: frames::frame(32, 0), tag: next };
            assert!(queue.submit(request).is_ok());
            next += block;
        }
        queue.kick().unwrap();
        queue.complete(Wait::ForOne, 32, &mut |done| {
            done.outcome.unwrap();
            frames::give_back(done.buffer);
        });
    }
    started.elapsed()
}

#[test]
fn two_slow_donors_together_are_faster_than_one() {
    const SLABS: u64 = 16;
    let donors = donors(2);
    let relays: Vec<SocketAddr> = donors.iter().map(|donor| Relay::to(donor.address(), 48 << 20).address).collect();
    let fill = |tier: &dyn Tier| (0..SLABS).for_each(|slab| write(tier, slab * SLAB_BYTES, 1));
    let (alone, together) = (array(&relays[..1], ",size=32MiB"), array(&relays, ",size=32MiB"));
    fill(&*alone);
    fill(&*together);
    // The best of three rounds, because a busy machine spoils some.
    let best = |tier: &dyn Tier| (0..3).map(|_| stream(tier, SLABS)).min().unwrap();
    let (one, two) = (best(&*alone), best(&*together));
    println!("one donor: {one:?}, two: {two:?}, {:.2} times as fast", one.as_secs_f64() / two.as_secs_f64());
    assert!(one.as_secs_f64() >= 1.6 * two.as_secs_f64(), "one donor: {one:?}, two: {two:?}");
}

#[test]
fn a_relay_that_stalls_costs_one_short_wait() {
    read_past_a_stalled_relay(2, ",mirror=2,size=16MiB", 8);
}

#[test]
fn a_relay_that_stalls_costs_hardly_a_wait_where_parity_makes_up_for_it() {
    read_past_a_stalled_relay(5, ",parity=4+1,size=16MiB", 8);
}

/// The relay to one of `count` donors passes nothing on, until `lacking` copies are missing.
fn read_past_a_stalled_relay(count: usize, options: &str, lacking: u64) {
    let donors = donors(count);
    let relays: Vec<Relay> = donors.iter().map(|donor| Relay::to(donor.address(), 1 << 40)).collect();
    let addresses: Vec<SocketAddr> = relays.iter().map(|relay| relay.address).collect();
    let tier = array(&addresses, options);
    (0..8).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
    (0..8).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab));
    relays[0].is_stalled.store(true, Ordering::SeqCst);
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        for slab in 0..8 {
            let started = Instant::now();
            read(&*tier, slab * SLAB_BYTES, slab);
            longest = longest.max(started.elapsed());
        }
    }
    let figures = tier.take_figures();
    println!("the longest read took {longest:?}; {figures:?}");
    assert!(longest < STALL_MAX);
    assert!(figures.reads_hedged > 0, "{figures:?}");
    // Writes notice it, too, and the copies that they miss there are made later.
    (0..8).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab + 30));
    relays[0].is_stalled.store(false, Ordering::SeqCst);
    let mut rebuilt = 0;
    upkeep(&*tier, || {
        rebuilt += tier.take_figures().slabs_rebuilt;
        rebuilt == lacking
    });
    relays[1].is_stalled.store(true, Ordering::SeqCst);
    (0..8).for_each(|slab| read(&*tier, slab * SLAB_BYTES, slab + 30));
}

/// The thread that renews leases used to wait for silent donors, one after the other, and to make copies as well. Ten
/// silent donors kept it from renewing leases at the others for longer than a lease lasts.
#[test]
fn silent_donors_do_not_make_leases_at_other_donors_expire() {
    const SILENT: usize = 10;
    let lease = Duration::from_secs(3);
    let donors: Vec<Donor> = (0..SILENT + 4).map(|_| start(Settings { lease, ..settings() })).collect();
    let relays: Vec<Relay> = donors[..SILENT].iter().map(|donor| Relay::to(donor.address(), 1 << 40)).collect();
    let direct = donors[SILENT..].iter().map(Donor::address);
    let addresses: Vec<SocketAddr> = relays.iter().map(|relay| relay.address).chain(direct).collect();
    let tier: Arc<dyn Tier> = Arc::from(array(&addresses, ",mirror=2"));
    (0..40).for_each(|slab| write(&*tier, slab * SLAB_BYTES, slab));
    let held: Vec<u64> = donors[SILENT..].iter().map(lent).collect();
    assert!(held.iter().all(|slabs| *slabs > 0), "{held:?}");
    let is_over = Arc::new(AtomicBool::new(false));
    let (for_upkeep, for_renewing) =
        ((Arc::clone(&tier), Arc::clone(&is_over)), (Arc::clone(&tier), Arc::clone(&is_over)));
    let upkeep_thread = std::thread::spawn(move || {
        while !for_upkeep.1.load(Ordering::SeqCst) {
            let pause = for_upkeep.0.upkeep().expect("arrays have upkeep").turn(None);
            std::thread::sleep(pause.min(Duration::from_millis(50)));
        }
    });
    let renewal_thread = std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !for_renewing.1.load(Ordering::SeqCst) {
            let started = Instant::now();
            let pause = aquifer_tiers::keep_alive(for_renewing.0.upkeep().unwrap()).expect("an array is kept alive");
            std::thread::sleep(pause);
            longest = longest.max(started.elapsed());
        }
        longest
    });
    relays.iter().for_each(|relay| relay.is_stalled.store(true, Ordering::SeqCst));
    std::thread::sleep(lease * 3);
    let expired: Vec<u64> = donors[SILENT..].iter().map(|donor| donor.status().figure(Figure::ExpiriesTotal)).collect();
    // The upkeep thread may be waiting for the silent donors for a long time.
    is_over.store(true, Ordering::SeqCst);
    let longest = renewal_thread.join().unwrap();
    upkeep_thread.join().unwrap();
    if longest > lease / 2 {
        return aquifer_test_support::skip("this machine is too busy for such short leases");
    }
    assert_eq!(expired, [0; 4], "leases at donors that answer");
}
