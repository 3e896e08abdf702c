// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool under trouble: donors, hosts, switches and fabric managers crash, lose messages, come back, and come back
//! empty.
//!
//! A slab that is lent twice mixes the bytes of two programs; a slab that is forgotten is memory that nobody ever gets
//! back; a volume with two writers is wrong whatever each of them reads. `world/` plays histories of such trouble, each
//! from a seed. `AQUIFER_FABRIC_HISTORIES=10000` plays that many, `AQUIFER_FABRIC_SEED=N` only the one with that seed.

mod world;

use aquifer_fabric::*;

use world::site::id;
use world::writer::Order;
use world::{Plant, World, Wrong};

/// Histories of one `make test`.
const HISTORIES: u64 = 300;
/// Histories in which a planted bug must be found.
const HISTORIES_TO_FIND_A_BUG: u64 = 400;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn nothing_is_lent_twice_lost_or_written_by_two() {
    let only = variable("AQUIFER_FABRIC_SEED");
    let histories = variable("AQUIFER_FABRIC_HISTORIES").unwrap_or(HISTORIES);
    let seeds = only.map_or(0..histories, |seed| seed..seed + 1);
    let (mut presented, mut moved, mut adopted) = (0, 0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        let mut world = World::new(seed, None);
        world.traces = only.is_some();
        match world.run() {
            Ok(world) => {
                presented += world.judge.presented;
                moved += world.judge.moved;
                adopted += u64::from(world.has_lost_state);
            }
            Err(what) => failed.push(format!(
                "{what}\nrepeat with AQUIFER_FABRIC_SEED={seed} cargo test -p aquifer-fabric --test histories"
            )),
        }
    }
    assert!(failed.is_empty(), "{} histories failed:\n{}", failed.len(), failed[..failed.len().min(3)].join("\n"));
    println!("{histories} histories: {presented} spans presented, {moved} ticks of copying, {adopted} lost states");
    assert!(only.is_some() || presented > histories && moved > histories / 3, "histories about nothing");
}

/// What the only donor has lost can be placed nowhere else: it is placed there again, as soon as the donor has room.
#[test]
fn volumes_of_the_only_donor_recover_whatever_it_has_lost() {
    let only = variable("AQUIFER_FABRIC_SEED");
    let histories = variable("AQUIFER_FABRIC_HISTORIES").unwrap_or(HISTORIES);
    let seeds = only.map_or(0..histories, |seed| seed..seed + 1);
    let (mut presented, mut broken) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        let mut world = World::with_one_donor(seed);
        world.traces = only.is_some();
        match world.run() {
            Ok(world) => {
                presented += world.judge.presented;
                broken += world.judge.broken;
            }
            Err(what) => failed.push(format!("seed {seed}: {what}")),
        }
    }
    assert!(failed.is_empty(), "{} histories failed:\n{}", failed.len(), failed[..failed.len().min(3)].join("\n"));
    println!("{histories} histories: {presented} spans presented, {broken} members lost");
    assert!(only.is_some() || presented > histories && broken > histories / 10, "histories about nothing");
}

/// A host that has two LDs which look alike, and knows neither, can bring none of them online. A manager that waits for
/// the one before it binds the other must never wait for ever.
#[test]
fn logical_devices_that_look_alike_are_bound_one_after_the_other() {
    let only = variable("AQUIFER_FABRIC_SEED");
    let histories = variable("AQUIFER_FABRIC_HISTORIES").unwrap_or(HISTORIES);
    let seeds = only.map_or(0..histories, |seed| seed..seed + 1);
    let (mut presented, mut held_back) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        let mut world = World::with_mlds(seed);
        world.traces = only.is_some();
        match world.run() {
            Ok(world) => {
                presented += world.judge.presented;
                held_back += world.judge.held_back;
            }
            Err(what) => failed.push(format!(
                "{what}\nrepeat with AQUIFER_FABRIC_SEED={seed} cargo test -p aquifer-fabric --test histories alike"
            )),
        }
    }
    assert!(failed.is_empty(), "{} histories failed:\n{}", failed.len(), failed[..failed.len().min(3)].join("\n"));
    println!("{histories} histories: {presented} spans presented, {held_back} rounds in which an LD waited");
    assert!(only.is_some() || presented > histories && held_back > histories, "histories about nothing");
}

/// An older state is restored, with donors down: it knows nothing of what was bound, moved, grown or released since.
/// Restores have destroyed all copies of mirrored volumes, and given ids out again that hosts had.
#[test]
fn nothing_is_lent_twice_or_lost_when_an_older_state_is_restored() {
    let only = variable("AQUIFER_FABRIC_SEED");
    let histories = variable("AQUIFER_FABRIC_HISTORIES").unwrap_or(HISTORIES);
    let seeds = only.map_or(0..histories, |seed| seed..seed + 1);
    let (mut presented, mut restored) = (0, 0);
    let mut failed = Vec::new();
    for seed in seeds {
        let mut world = World::with_a_restore(seed);
        world.traces = only.is_some();
        match world.run() {
            Ok(world) => {
                presented += world.judge.presented;
                restored += u64::from(!world.adopted.is_empty());
            }
            Err(what) => failed.push(format!(
                "{what}\nrepeat with AQUIFER_FABRIC_SEED={seed} cargo test -p aquifer-fabric --test histories restored"
            )),
        }
    }
    assert!(failed.is_empty(), "{} histories failed:\n{}", failed.len(), failed[..failed.len().min(3)].join("\n"));
    println!("{histories} histories: {presented} spans presented, {restored} with something to adopt");
    assert!(only.is_some() || presented > histories && restored > histories / 10, "histories about nothing");
}

/// Returns the first seed whose history finds the bug, and what it says.
fn found(plant: Plant) -> (u64, String) {
    for seed in 0..HISTORIES_TO_FIND_A_BUG {
        match World::new(seed, Some(plant)).run() {
            Err(Wrong::Judged(what)) => {
                let first = what.lines().next().unwrap_or_default().to_owned();
                println!("{plant:?}: seed {seed}: {first}");
                return (seed, first);
            }
            Err(Wrong::Mismatch(what)) => panic!("{plant:?}, seed {seed}: no judge's find, but a mismatch: {what}"),
            Ok(_) => {}
        }
    }
    panic!("{plant:?} was not found in {HISTORIES_TO_FIND_A_BUG} histories");
}

#[test]
fn planted_bugs_are_found() {
    for plant in [
        Plant::ActsBeforeStoring,
        Plant::AgentPresentsHalf,
        Plant::CopiesAreNotAwaited,
        Plant::DonorDoesNotWipe,
        Plant::DonorGrantsTwice,
        Plant::DropsWithoutConfirmation,
        Plant::GateIsOpen,
        Plant::LdsAreNotAwaited,
        Plant::SilenceIsConsent,
    ] {
        found(plant);
    }
}

/// Creates bound volumes of three kinds, in a pool in which nothing fails.
fn calm_pool() -> World {
    let mut world = World::at(world::site::topology(), 1, None);
    world.trouble = false;
    let kinds = [Redundancy::None, Redundancy::Mirror { copies: 2 }, Redundancy::Parity { data: 2, parity: 1 }];
    world.tick().expect("a tick");
    for (number, redundancy) in kinds.into_iter().enumerate() {
        let spec = VolumeSpec {
            size: Bytes::slabs(4),
            pool: id("main"),
            zone: id("a"),
            class: LatencyClass::Tcp,
            redundancy,
            spread: FaultDomain::Rack,
            width: 2,
            presentation: Presentation::OneRange,
            expires_at: None,
            donor: None,
            labels: Default::default(),
        };
        let volume = VolumeId(number as u64);
        let orders = &mut world.writers[0].orders;
        orders.push(Order::Create(volume, id(format!("v{number}")), Box::new(spec)));
        orders.push(Order::Bind(volume, id("h1")));
    }
    settle_down(&mut world);
    world
}

fn settle_down(world: &mut World) {
    for _ in 0..100 {
        world.tick().expect("a tick");
        if world.is_settled().expect("no contradiction") && world.writers.iter().all(|one| one.orders.is_empty()) {
            return world.check_nothing_is_lost().expect("nothing is lost");
        }
    }
    panic!("not settled: {:#?}", reconcile(&world.store.desired, &world.writers[0].observed));
}

#[test]
fn adoption_after_a_lost_state_disturbs_nobody() {
    let mut world = calm_pool();
    let before = world.agents[&id("h1")].volumes.clone();
    assert_eq!(before.len(), 3);
    world.lose_state();
    settle_down(&mut world);
    assert_eq!(world.agents[&id("h1")].volumes, before, "members, tokens and places are what they were");
    let names = world.store.desired.volumes.values().map(|volume| volume.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["v0", "v1", "v2"], "agents know the names");
    assert!(world.store.desired.volumes.values().all(|volume| volume.leaving.is_empty()));
    // An adopted volume can be changed like any other.
    let first = *world.store.desired.volumes.keys().next().expect("three");
    world.writers[0].orders.push(Order::Release(first));
    settle_down(&mut world);
    assert_eq!(world.agents[&id("h1")].volumes.len(), 2);
}

/// By the restored state, one volume is at its first host, and another is smaller than it is.
#[test]
fn what_was_bound_elsewhere_or_grown_since_a_backup_stays_as_it_is() {
    let mut world = calm_pool();
    let backup = world.store.desired.clone();
    let (moved, grown) = (VolumeId(0), VolumeId(1));
    for order in [Order::Unbind(moved), Order::Bind(moved, id("h0")), Order::Grow(grown, Bytes::slabs(8))] {
        world.writers[0].orders.push(order);
        settle_down(&mut world);
    }
    let of_all = |world: &World| world.agents.values().map(|agent| agent.volumes.clone()).collect::<Vec<_>>();
    let before = of_all(&world);
    world.restore(backup);
    settle_down(&mut world);
    assert_eq!(of_all(&world), before, "members, tokens and places are what they were");
    let volumes = &world.store.desired.volumes;
    assert_eq!((&volumes[&moved].host, volumes[&grown].spec.size), (&Some(id("h0")), Bytes::slabs(8)));
    assert_eq!(volumes[&moved].name, id("v0"), "the restored state knows its name");
}

/// The backup knows the volume as unbound, so the ids of its members are those that a host has.
#[test]
fn a_volume_that_was_bound_since_a_backup_is_given_to_no_other_host() {
    let mut world = calm_pool();
    let volume = VolumeId(1);
    world.writers[0].orders.push(Order::Unbind(volume));
    settle_down(&mut world);
    let backup = world.store.desired.clone();
    world.writers[0].orders.push(Order::Bind(volume, id("h0")));
    settle_down(&mut world);
    let before = world.agents[&id("h0")].volumes.clone();
    world.restore(backup);
    world.is_restored = false;
    world.tick().expect("a tick");
    world.writers[0].orders.push(Order::Bind(volume, id("h1")));
    for _ in 0..20 {
        world.tick().expect("a tick");
    }
    assert!(!world.agents[&id("h1")].volumes.contains_key(&volume), "two hosts have it");
    world.is_restored = true;
    settle_down(&mut world);
    assert_eq!(world.agents[&id("h0")].volumes, before, "members, tokens and places are what they were");
    assert_eq!(world.store.desired.volumes[&volume].host, Some(id("h0")));
}

/// A donor and the manager lose power together: the next manager has never heard the donor, and replaces it all the
/// same.
#[test]
fn a_donor_that_is_silent_when_a_manager_begins_is_replaced() {
    let mut world = calm_pool();
    let gone: DonorId = id("d00");
    assert!(!world.donors[&gone].lent().0.is_empty(), "nothing is on the donor");
    world.donors.get_mut(&gone).expect("a donor of the site").is_on = false;
    world.writers.clear();
    for _ in 0..100 {
        world.tick().expect("a tick");
    }
    let volumes = &world.agents[&id("h1")].volumes;
    for (volume, view) in volumes.iter().filter(|(_, view)| view.redundancy != Redundancy::None) {
        let members = view.members.values();
        let is_well =
            |member: &MemberReport| member.state == MemberState::InSync && member.lease.source.donor() != Some(&gone);
        assert!(members.clone().all(is_well), "{volume}: {members:?}");
    }
}

/// An agent finishes what the lost state began: what leaves must not be adopted as if it stayed.
#[test]
fn a_volume_that_shrinks_while_the_state_is_lost_is_adopted_without_what_leaves() {
    let mut world = calm_pool();
    let mirror = VolumeId(1);
    world.writers[0].orders.push(Order::Grow(mirror, Bytes::slabs(8)));
    settle_down(&mut world);
    world.writers[0].orders.push(Order::Shrink(mirror, Bytes::slabs(4)));
    let is_leaving = |world: &World| {
        let mut members = world.agents[&id("h1")].volumes.values().flat_map(|view| view.members.values());
        members.any(|member| matches!(member.state, MemberState::Leaving { .. }))
    };
    let begins = (0..20).any(|_| {
        world.tick().expect("a tick");
        is_leaving(&world)
    });
    assert!(begins, "nothing leaves");
    world.lose_state();
    world.tick().expect("a tick");
    assert!(is_leaving(&world), "adopted when all had left");
    settle_down(&mut world);
    let volume = &world.store.desired.volumes[&mirror];
    assert!(volume.leaving.is_empty() && volume.spec.size == Bytes::slabs(4), "{volume:?}");
}

#[test]
fn a_volume_that_fills_the_only_donor_is_placed_there_again_after_a_restart() {
    let mut world = World::with_one_donor(1);
    world.trouble = false;
    world.tick().expect("a tick");
    let spec = VolumeSpec {
        size: Bytes::slabs(8),
        pool: id("main"),
        zone: id("a"),
        class: LatencyClass::Tcp,
        redundancy: Redundancy::None,
        spread: FaultDomain::Host,
        width: 1,
        presentation: Presentation::OneRange,
        expires_at: None,
        donor: None,
        labels: Default::default(),
    };
    let volume = VolumeId(1);
    world.writers[0].orders.push(Order::Create(volume, id("v"), Box::new(spec)));
    world.writers[0].orders.push(Order::Bind(volume, id("h0")));
    settle_down(&mut world);
    let mut last = 0;
    for restarts in 1..=3 {
        world.donors.get_mut(&id("d0")).expect("the only one").restart_empty();
        settle_down(&mut world);
        assert_eq!(world.judge.broken, restarts, "programs get an error for the bytes that are lost");
        let members: Vec<u64> = world.agents[&id("h0")].volumes[&volume].members.keys().map(|one| one.0).collect();
        assert!(members.len() == 1 && members[0] > last, "a new member, which no earlier lease admits: {members:?}");
        last = members[0];
        assert_eq!(world.store.desired.zone_bytes(&id("a")), Bytes::slabs(8));
    }
}

#[test]
fn a_drained_donor_is_empty_in_the_end_and_programs_keep_their_bytes() {
    let mut world = calm_pool();
    for donor in ["d00", "d10", "d20"] {
        world.writers[0].orders.push(Order::Drain(id(donor), true));
        settle_down(&mut world);
        assert!(world.donors[&id(donor)].lent().0.is_empty(), "{donor} still lends");
    }
    assert_eq!(world.agents[&id("h1")].volumes.len(), 3);
}
