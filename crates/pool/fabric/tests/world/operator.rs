// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What happens to the pool: operators' orders, and failures.

use aquifer_fabric::*;
use aquifer_test_support::Random;

use super::World;
use super::site::id;
use super::writer::Order;

/// Makes one order and one failure, now and then.
pub fn something_happens(world: &mut World) {
    if world.random.one_in(3)
        && let Some(order) = order(world)
        && let Some(writer) = world.writers.iter_mut().find(|writer| writer.term == world.store.term)
    {
        writer.orders.push(order);
    }
    if world.random.one_in(4) {
        failure(world);
    }
}

fn order(world: &mut World) -> Option<Order> {
    let volumes: Vec<(VolumeId, Volume)> =
        world.store.desired.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect();
    let hosts: Vec<HostId> = world.agents.keys().cloned().collect();
    let donors: Vec<DonorId> = world.donors.keys().cloned().collect();
    let has_one_donor = world.has_one_donor;
    let random = &mut world.random;
    let what = random.below(20);
    if what < 6 {
        let number = random.below(8);
        let spec = spec(random);
        let spec = Box::new(if has_one_donor { simple(spec) } else { spec });
        return Some(Order::Create(VolumeId(random.bits()), id(format!("v{number}")), spec));
    }
    if what == 19 {
        let donor = random.pick(&donors)?.clone();
        return Some(Order::Drain(donor, random.one_in(2)));
    }
    let (volume, state) = random.pick(&volumes)?.clone();
    let slabs = Bytes::slabs(1 + random.below(10));
    Some(match what {
        6..12 => Order::Bind(volume, random.pick(&hosts)?.clone()),
        12..14 => Order::Unbind(volume),
        14..16 => Order::Grow(volume, state.spec.size.plus(slabs)),
        16..18 => Order::Shrink(volume, state.spec.size.minus(slabs)),
        _ => Order::Release(volume),
    })
}

fn spec(random: &mut Random) -> VolumeSpec {
    let redundancy = match random.below(5) {
        0 | 1 => Redundancy::None,
        2 | 3 => Redundancy::Mirror { copies: 2 },
        _ => Redundancy::Parity { data: 2, parity: 1 },
    };
    let class = *random.pick(&LatencyClass::ALL).expect("three classes");
    let spread = *random.pick(&FaultDomain::ALL).expect("three domains");
    VolumeSpec {
        size: Bytes::slabs(1 + random.below(8)),
        pool: id("main"),
        zone: id(if random.one_in(2) { "a" } else { "b" }),
        class,
        redundancy,
        spread,
        width: random.below(3) as u16,
        presentation: Presentation::OneRange,
        expires_at: random.one_in(10).then_some(Millis(200)),
        donor: None,
        labels: Default::default(),
    }
}

/// Returns a specification that one donor can meet.
fn simple(spec: VolumeSpec) -> VolumeSpec {
    let size = Bytes::slabs(1 + (spec.size.0 / SLAB.0) % 4);
    VolumeSpec { size, redundancy: Redundancy::None, class: LatencyClass::Tcp, width: 1, ..spec }
}

fn failure(world: &mut World) {
    let donors: Vec<DonorId> = world.donors.keys().cloned().collect();
    let hosts: Vec<HostId> = world.agents.keys().cloned().collect();
    let donor_name = world.random.pick(&donors).expect("donors").clone();
    let host = world.random.pick(&hosts).expect("hosts").clone();
    let keeps = world.donors_keep_memory;
    let (what, donor) = (world.random.below(12), world.donors.get_mut(&donor_name).expect("listed"));
    let agent = world.agents.get_mut(&host).expect("listed");
    match what {
        0 => donor.is_cut = !donor.is_cut,
        // The donor stops, and still has everything when it goes on.
        1 => donor.is_on = !donor.is_on,
        2 if !keeps => donor.restart_empty(),
        3 => donor.is_draining = !donor.is_draining,
        4 => agent.is_cut = !agent.is_cut,
        5 => agent.restart_host(),
        6 => agent.is_on = false,
        7 if !agent.is_on => world.donors.values_mut().for_each(|donor| donor.expire(&host)),
        8 => world.switch.is_cut = !world.switch.is_cut,
        9 if !keeps => give_up_host(world, host),
        10 if !keeps => give_up_donor(world, donor_name),
        11 => revive(world, &host, &donor_name),
        _ => {}
    }
}

/// Declares a host dead, as an operator does: most of the time it is powered off, at times it is not.
fn give_up_host(world: &mut World, host: HostId) {
    let agent = world.agents.get(&host).expect("listed");
    let is_cut = agent.is_on && agent.is_cut;
    if agent.is_on && !is_cut {
        return;
    }
    let Some(writer) = world.writers.iter_mut().find(|writer| writer.term == world.store.term) else { return };
    if is_cut {
        world.zombies.insert(host.clone());
    }
    // The manager may have no report of the host, or one of an earlier start.
    writer.orders.push(Order::DeclareDead(host));
}

/// Gives up a donor that is off, as an operator does.
fn give_up_donor(world: &mut World, name: DonorId) {
    let donor = world.donors.get(&name).expect("listed");
    let Some(writer) = world.writers.iter_mut().find(|writer| writer.term == world.store.term) else { return };
    if !donor.is_on {
        writer.orders.push(Order::Retire(name));
    }
}

/// Brings back what is off or cut. A host that was declared dead comes back restarted.
fn revive(world: &mut World, host: &HostId, donor: &DonorId) {
    let agent = world.agents.get_mut(host).expect("listed");
    if !agent.is_on || world.zombies.contains(host) {
        agent.restart_host();
        world.zombies.remove(host);
    }
    agent.is_cut = false;
    let donor = world.donors.get_mut(donor).expect("listed");
    (donor.is_on, donor.is_cut) = (true, false);
    world.switch.is_cut = false;
}
