// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors and a borrower on separate hosts: network namespaces with an address each, joined by virtual cables that are
//! unplugged and plugged in again. Also the largest number of donors that a program can have.
//!
//! An unplugged cable differs from a closed socket: neither side is notified, the kernel reports that the address is
//! unreachable, and existing connections continue when the cable is plugged in again. Needs root; otherwise the test is
//! skipped.

use std::sync::Mutex;
use std::time::Duration;

use aquifer_e2e::donor::{Donor, PLAIN, command};
use aquifer_e2e::hosts::{Hosts, address, on_host};
use aquifer_e2e::verifying::{ALARM, Game, Verified, verified};

/// The longest stall of the program that an unplugged cable may cause, with a margin for a busy machine.
const STALL_MS_MAX: u64 = 60_000;

/// Serializes the tests, because each uses the whole machine.
static TURN: Mutex<()> = Mutex::new(());

/// The addresses, in the form that follows `donor:`.
fn together(donors: &[Donor]) -> String {
    donors.iter().map(|donor| donor.address.clone()).collect::<Vec<String>>().join("+")
}

#[test]
fn a_pulled_cable_is_not_noticed_with_a_mirror() {
    let _turn = TURN.lock();
    const DONORS: usize = 3;
    let Some(hosts) = Hosts::new(DONORS) else { return };
    let start = |donor| {
        let mut command = command(format!("{}:7411", address(donor)));
        command.args(PLAIN).args(["--size", "128MiB"]);
        Donor::run(on_host(donor, command)).in_plain_text()
    };
    let donors: Vec<Donor> = (1..=DONORS).map(start).collect();
    let tier = format!("donor:{},security=plain,mirror=2,size=96MiB", together(&donors));
    let Some(game) = Game::start("hosts", &[tier], ALARM, |command| on_host(0, command)) else { return };
    for (donor, is_at_donor, away_ms) in [(1, true, 1500), (2, false, 4000), (3, true, 4000), (1, false, 300)] {
        println!("donor {donor} is cut off for {away_ms} ms, at its own end: {is_at_donor}");
        hosts.set_cable(donor, is_at_donor, "down");
        std::thread::sleep(Duration::from_millis(away_ms));
        hosts.set_cable(donor, is_at_donor, "up");
        game.wait_for_copies();
    }
    let rebuilt = game.figure("slabs_rebuilt");
    let Verified { wrong, lost, longest_ms } = verified(&game.end());
    assert_eq!((wrong, lost), (0, 0));
    assert!(rebuilt > 0, "slabs got new copies");
    assert!(longest_ms <= STALL_MS_MAX, "the program stood still for {longest_ms} ms");
}

/// An array has at most 63 members, so this is a chain of two arrays.
#[test]
fn a_program_has_its_memory_with_64_donors_and_some_are_lost() {
    let _turn = TURN.lock();
    let mut donors: Vec<Donor> = (0..64).map(|_| Donor::start(&["--size", "2MiB"])).collect();
    let (first, second) = donors.split_at(32);
    // Each has room for one slab. The first level takes only a part of the memory; on both levels, some donors are left
    // over.
    let tiers = [
        format!("donor:{},security=plain,mirror=2,size=24MiB", together(first)),
        format!("donor:{},security=plain,mirror=2", together(second)),
    ];
    let Some(game) = Game::start("hosts-many", &tiers, ALARM, |command| command) else { return };
    for lost in [40, 20, 3] {
        drop(donors.remove(lost));
        game.wait_for_copies();
    }
    let lending = donors.iter().filter(|donor| donor.number("lent_bytes") > 0).count();
    println!("{lending} donors have something");
    assert!(lending > 40, "only {lending} donors have something");
    let rebuilt = game.figure("slabs_rebuilt");
    let Verified { wrong, lost, .. } = verified(&game.end());
    assert_eq!((wrong, lost), (0, 0));
    assert!(rebuilt > 0, "slabs got new copies");
}
