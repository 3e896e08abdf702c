// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor with fewer connections than its borrowers need, and a donor to which strangers open all the connections they
//! can: borrowers keep their memory.
//!
//! The bug it guards against: "too many connections" was an error of the read that met it, and the pager poisoned the
//! page; and anybody who could open sockets, without a certificate, could take all connections.

mod certificates;
mod peer;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use aquifer_donor::{Donor, Settings, Timeouts};
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Operation, Request, Tier, TierSpec, Wait, open};
use aquifer_wire::{Figure, Message, SLAB_BYTES};
use certificates::Protection;
use peer::{Peer, TIMEOUT, settings, start, wait_until};

fn donor(protection: Protection, connections_max: usize) -> Donor {
    let timeouts = Timeouts { handshake: TIMEOUT, ..Timeouts::default() };
    start(Settings { security: protection.security(), connections_max, timeouts, ..settings(32) }).0
}

fn tier(protection: Protection, address: SocketAddr) -> Box<dyn Tier> {
    let spec = format!("donor:{address},size=48MiB{}", protection.options());
    open(&spec.parse::<TierSpec>().unwrap()).unwrap_or_else(|failure| panic!("{failure}"))
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

/// Eight threads, each with its own slab.
fn eight_threads(tier: &dyn Tier, versions: u64) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for version in 0..versions {
                    write(tier, thread * SLAB_BYTES, version);
                    read(tier, thread * SLAB_BYTES, version);
                }
            });
        }
    });
}

#[test]
fn threads_share_the_connections_that_there_are() {
    for protection in [Protection::Plain, Protection::Tls] {
        for connections in [1, 2] {
            let donor = donor(protection, connections);
            eight_threads(&*tier(protection, donor.address()), 40);
        }
    }
}

/// The queue had the only connection, and no thread could fetch anything.
#[test]
fn the_background_takes_no_connection_from_the_threads_that_wait() {
    let donor = donor(Protection::Plain, 1);
    let tier = tier(Protection::Plain, donor.address());
    let mut queue = tier.open_queue(8).unwrap();
    for version in 0..20 {
        let offset = 20 * SLAB_BYTES;
        let mut buffer = frames::frame(16, 0);
        frames::stamp(buffer.bytes_mut(), offset, version);
        assert!(queue.submit(Request { operation: Operation::Write, offset, buffer, tag: version }).is_ok());
        queue.kick().unwrap();
        write(&*tier, 0, version);
        let mut done = 0;
        while done == 0 {
            done = queue.complete(Wait::ForOne, 1, &mut |completion| {
                completion.outcome.unwrap();
                frames::give_back(completion.buffer);
            });
        }
        read(&*tier, offset, version);
    }
}

/// Two borrowers that send something now and then, at a donor that has room for one connection at a time.
#[test]
fn an_idle_connection_makes_room_for_somebody_who_has_none() {
    let donor = donor(Protection::Tls, 1);
    let (one, other) = (tier(Protection::Tls, donor.address()), tier(Protection::Tls, donor.address()));
    for version in 0..2 {
        write(&*one, 0, version);
        write(&*other, 0, version);
        read(&*one, 0, version);
    }
}

/// `count` connections that send nothing.
fn crowd(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()).collect()
}

#[test]
fn strangers_do_not_crowd_borrowers_out() {
    for protection in [Protection::Plain, Protection::Tls] {
        let donor = donor(protection, 16);
        let tier = tier(protection, donor.address());
        write(&*tier, 0, 1);
        let strangers = crowd(donor.address(), 600);
        // The existing connection continues, and new ones can be opened in spite of the crowd.
        eight_threads(&*tier, 20);
        let mut newcomer = Peer::borrower_by(protection, donor.address(), 77);
        assert!(matches!(newcomer.ask(Message::Renew, &[]).0, Message::Renewed { .. }));
        assert!(donor.status().figure(Figure::Connections) <= 16 + 256 + 1, "{:?}", donor.status());
        drop(strangers);
    }
}

/// A stranger that stays silent, or sends a byte now and then, is dropped within a time limit.
#[test]
fn strangers_have_a_deadline() {
    let moment = Duration::from_millis(300);
    let timeouts = Timeouts { handshake: moment, frame: moment, ..Timeouts::default() };
    let (donor, _) = start(Settings { security: Protection::Tls.security(), timeouts, ..settings(4) });
    let mut silent = crowd(donor.address(), 8);
    let begun = Instant::now();
    for stream in &mut silent {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
    }
    assert!(begun.elapsed() < TIMEOUT);
    wait_until(&donor, |status| status.figure(Figure::Connections) == 0);
}
