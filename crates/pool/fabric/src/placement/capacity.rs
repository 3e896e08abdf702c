// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The free capacity, in the order in which it is handed out.
//!
//! A *shelf* indexes the sources of one pool, reach and class by one kind of fault domain. It orders the domains by the
//! largest free amount of one of their sources, and the sources of each domain by their free amount. A reservation
//! moves one source on three shelves, one for each kind of domain: a handful of look-ups in ordered maps, whatever the
//! number of donors. Next: `capacity/running.rs`, which keeps the figures up to date from round to round.

mod running;

pub use running::RunningCapacity;

use std::collections::{BTreeMap, BTreeSet};

use super::{Choice, Pick, Refusal};
use crate::bytes::{Bytes, SLAB};
use crate::desired::{Desired, Volume};
use crate::id::{DeviceId, DonorId, EnclosureId, HostId, PoolId, RackId, SwitchId, VolumeId, VppbAddress, ZoneId};
use crate::observed::{Availability, LdBinding, LeaseState, Observed};
use crate::shared_map::SharedMap;
use crate::topology::{DeviceKind, FaultDomain, LatencyClass, Topology};
use crate::volume::Source;
use crate::volumes::Volumes;

/// Where a source can be used from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It can be used from every host.
    Network,
    /// It can be used from the hosts of this switch.
    Switch(SwitchId),
}

impl Reach {
    /// Returns what a host can reach; without a host, everything.
    pub fn of(topology: &Topology, host: Option<&HostId>) -> Vec<Reach> {
        let switches: BTreeSet<&SwitchId> = match host {
            Some(host) => topology.vcss(host).iter().map(|(switch, _)| switch).collect(),
            None => topology.parts().switches.keys().collect(),
        };
        let switches = switches.into_iter().cloned().map(Reach::Switch);
        std::iter::once(Reach::Network).chain(switches).collect()
    }
}

/// A fault domain, of one of the kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Domain {
    Device(DeviceId),
    Donor(DonorId),
    Enclosure(EnclosureId),
    Rack(RackId),
}

/// What one source offers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    pool: PoolId,
    reach: Reach,
    class: LatencyClass,
    enclosure: EnclosureId,
    rack: RackId,
    /// The total that may be promised.
    total: Bytes,
    /// The unit in which it is handed out; all of it for an LD.
    unit: Bytes,
    /// `true` while the source takes new members: it answers and is not draining.
    open: bool,
}

/// Sources with room, for one kind of fault domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shelf {
    domains: BTreeMap<Domain, BTreeSet<(Bytes, Source)>>,
    by_max: BTreeSet<(Bytes, Domain)>,
    free: Bytes,
}

impl Shelf {
    fn max(&self, domain: &Domain) -> Option<Bytes> {
        self.domains.get(domain)?.last().map(|(free, _)| *free)
    }

    /// Puts a source on the shelf, or takes it off. Sources without room are on no shelf.
    fn change(&mut self, domain: &Domain, free: Bytes, source: &Source, put: bool) {
        if free == Bytes::ZERO {
            return;
        }
        if let Some(max) = self.max(domain) {
            self.by_max.remove(&(max, domain.clone()));
        }
        let sources = self.domains.entry(domain.clone()).or_default();
        if put {
            sources.insert((free, source.clone()));
            self.free = self.free.plus(free);
        } else {
            sources.remove(&(free, source.clone()));
            self.free = self.free.minus(free);
        }
        match self.max(domain) {
            Some(max) => drop(self.by_max.insert((max, domain.clone()))),
            None => drop(self.domains.remove(domain)),
        }
    }
}

/// What a zone uses, and may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ZoneUse {
    pub quota: Bytes,
    pub used: Bytes,
}

/// A source that was found.
pub(super) struct Found {
    pub source: Source,
    pub domain: Domain,
    pub free: Bytes,
}

type ShelfKey = (PoolId, Reach, LatencyClass, FaultDomain);

/// The free capacity of each pool, and what each zone may still take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    offers: SharedMap<Source, Offer>,
    /// What is promised of each source, whether it is offered or not. More than it offers if a report gives less than
    /// before.
    reserved: SharedMap<Source, Bytes>,
    shelves: BTreeMap<ShelfKey, Shelf>,
    zones: SharedMap<ZoneId, ZoneUse>,
    /// vPPBs that an LD is bound to, as reported.
    vppbs_bound: BTreeSet<VppbAddress>,
    /// Switches whose devices have all reported, so that every bound vPPB is known.
    switches_known: BTreeSet<SwitchId>,
    /// The volumes that are counted. They share their nodes with the desired state that they were taken from: otherwise
    /// the search for what differs would look at all of them.
    counted: Volumes,
    /// Leases of each donor that are in no volume, as counted.
    strays: SharedMap<Source, Bytes>,
}

impl Capacity {
    /// Counts everything once. Later changes update the figures one by one.
    ///
    /// A donor or device that has never reported offers nothing, and a donor that reports less than the topology says
    /// offers what it reports. Leases that are not in the desired state take room, too.
    pub fn new(topology: &Topology, desired: &Desired, observed: &Observed) -> Capacity {
        let mut capacity = Capacity::default();
        for (name, zone) in &desired.zones {
            capacity.zones.insert(name.clone(), ZoneUse { quota: zone.quota, used: Bytes::ZERO });
        }
        // One pass over the volumes, however many zones there are.
        for volume in desired.volumes.values() {
            capacity.retake(&volume.spec.zone, &volume.taken());
        }
        capacity.counted = desired.volumes.clone();
        for donor in observed.donors.keys() {
            capacity.recount_strays(desired, observed, donor);
        }
        capacity.offer_all(topology, desired, observed);
        capacity
    }

    fn offer_all(&mut self, topology: &Topology, desired: &Desired, observed: &Observed) {
        self.look_at_switches(topology, observed);
        for (name, pool) in &desired.pools {
            for donor in &pool.donors {
                self.offer_donor(topology, desired, observed, name, donor);
            }
            for device in &pool.devices {
                self.offer_device(topology, observed, name, device);
            }
        }
    }

    /// Counts a volume as it is now, instead of as it was counted last.
    pub(crate) fn recount(&mut self, id: VolumeId, volume: Option<&Volume>) {
        if let Some((zone, taken)) = self.counted.get(&id).map(|old| (old.spec.zone.clone(), old.taken())) {
            self.refund(&zone, &taken);
        }
        match volume {
            Some(volume) => {
                self.retake(&volume.spec.zone, &volume.taken());
                self.counted.insert(id, volume.clone());
            }
            None => drop(self.counted.remove(&id)),
        }
    }

    fn look_at_switches(&mut self, topology: &Topology, observed: &Observed) {
        self.switches_known = topology.parts().switches.keys().cloned().collect();
        self.vppbs_bound.clear();
        for device in topology.parts().devices.keys() {
            match (observed.devices.get(device), topology.slot(device)) {
                (None, Some(slot)) => drop(self.switches_known.remove(&slot.switch)),
                (None, None) => {}
                (Some(report), _) => {
                    self.vppbs_bound.extend(report.lds.values().filter_map(|ld| match &ld.binding {
                        LdBinding::Bound(vppb) => Some(vppb.clone()),
                        LdBinding::Busy | LdBinding::Unbound => None,
                    }));
                }
            }
        }
    }

    /// Returns whether a vPPB is known to be free: every device of its switch has reported, and none is bound to it.
    pub(crate) fn is_free(&self, vppb: &VppbAddress) -> bool {
        self.switches_known.contains(&vppb.switch) && !self.vppbs_bound.contains(vppb)
    }

    fn offer_donor(
        &mut self,
        topology: &Topology,
        desired: &Desired,
        observed: &Observed,
        pool: &PoolId,
        name: &DonorId,
    ) {
        let source = Source::Slabs { donor: name.clone() };
        let Some(donor) = topology.parts().donors.get(name) else { return self.offer(source, None) };
        let (report, rules) = (observed.donors.get(name), desired.pools.get(pool));
        let retired = desired.retired_donors.contains_key(name);
        let up = !retired && report.is_some_and(|report| report.availability == Availability::Up);
        let said = report.map_or(Bytes::ZERO, |report| report.capacity).min(donor.capacity);
        let percent = rules.map_or(0, |pool| pool.overcommit_percent).saturating_add(100);
        let offer = Offer {
            pool: pool.clone(),
            reach: Reach::Network,
            class: donor.class,
            enclosure: donor.enclosure.clone(),
            rack: topology.rack(&donor.enclosure).clone(),
            total: said.percent(percent),
            unit: SLAB,
            open: up && !desired.draining.contains(name),
        };
        self.offer(source, Some(offer));
    }

    /// Offers a source as it is now, or no longer.
    fn offer(&mut self, source: Source, offer: Option<Offer>) {
        if self.offers.get(&source) == offer.as_ref() {
            return;
        }
        self.shelve(&source, false);
        match offer {
            Some(offer) => {
                self.offers.insert(source.clone(), offer);
                self.shelve(&source, true);
            }
            None => drop(self.offers.remove(&source)),
        }
    }

    fn offer_device(&mut self, topology: &Topology, observed: &Observed, pool: &PoolId, name: &DeviceId) {
        let Some((device, slot)) = topology.parts().devices.get(name).zip(topology.slot(name)) else { return };
        let report = observed.devices.get(name);
        let is_known = self.switches_known.contains(&slot.switch);
        let up = is_known && report.is_some_and(|report| report.availability == Availability::Up);
        let offer = |total, unit, open| Offer {
            pool: pool.clone(),
            reach: Reach::Switch(slot.switch.clone()),
            class: LatencyClass::Cxl,
            enclosure: device.enclosure.clone(),
            rack: topology.rack(&device.enclosure).clone(),
            total,
            unit,
            open,
        };
        if let DeviceKind::DynamicCapacity { capacity, block } = device.kind {
            self.offer(Source::DynamicCapacity { device: name.clone() }, Some(offer(capacity, block, up)));
        }
        for (ld_id, bytes) in device.lds() {
            let ld = report.and_then(|report| report.lds.get(&ld_id));
            let unbound = ld.is_some_and(|ld| ld.binding == LdBinding::Unbound);
            let source = Source::LogicalDevice { device: name.clone(), ld_id };
            self.offer(source, Some(offer(bytes, bytes, up && unbound)));
        }
    }

    /// Counts as reserved the leases of a donor that are not in the desired state and not released yet.
    fn recount_strays(&mut self, desired: &Desired, observed: &Observed, name: &DonorId) {
        let mut strays = Bytes::ZERO;
        for (id, leases) in observed.donors.get(name).into_iter().flat_map(|donor| &donor.leases) {
            let volume = desired.volumes.get(id);
            let is_known =
                |member| volume.is_some_and(|one| one.member(member).is_some() || one.leaving.contains_key(&member));
            let lent = leases.iter().filter(|(_, lease)| lease.state != LeaseState::Released);
            strays = strays.plus(lent.filter(|(member, _)| !is_known(**member)).map(|(_, lease)| lease.bytes).sum());
        }
        let source = Source::Slabs { donor: name.clone() };
        let before = self.strays.get(&source).copied().unwrap_or_default();
        if before != strays {
            self.change(&source, |reserved| reserved.minus(before).plus(strays));
            match strays {
                Bytes::ZERO => drop(self.strays.remove(&source)),
                strays => drop(self.strays.insert(source, strays)),
            }
        }
    }

    /// Returns what a source can hand out: whole units.
    fn free(&self, source: &Source, offer: &Offer) -> Bytes {
        let reserved = self.reserved.get(source).copied().unwrap_or_default();
        let free = if offer.open { offer.total.minus(reserved) } else { Bytes::ZERO };
        Bytes(free.0 - free.0 % offer.unit.0)
    }

    /// Puts a source on its shelves, or takes it off.
    fn shelve(&mut self, source: &Source, put: bool) {
        let Some(offer) = self.offers.get(source) else { return };
        let free = self.free(source, offer);
        for level in FaultDomain::ALL {
            let key = (offer.pool.clone(), offer.reach.clone(), offer.class, level);
            let domain = domain_of(source, offer, level);
            self.shelves.entry(key).or_default().change(&domain, free, source, put);
        }
    }

    /// Returns the domain of a source.
    pub(super) fn domain(&self, source: &Source, level: FaultDomain) -> Option<Domain> {
        self.offers.get(source).map(|offer| domain_of(source, offer, level))
    }

    /// Returns the use and quota of a zone.
    pub(super) fn zone(&mut self, zone: &ZoneId) -> Result<&mut ZoneUse, Refusal> {
        self.zones.value_mut(zone).ok_or_else(|| Refusal::UnknownZone { zone: zone.clone() })
    }

    /// Returns what a volume takes, to its sources and to the quota of its zone.
    pub(crate) fn refund(&mut self, zone: &ZoneId, choices: &[Choice]) {
        for choice in choices {
            if let Some(zone_use) = self.zones.value_mut(zone) {
                zone_use.used = zone_use.used.minus(choice.bytes);
            }
            self.give_back(choice);
        }
    }

    /// Reserves what a volume takes, whether there is room or not.
    pub(crate) fn retake(&mut self, zone: &ZoneId, choices: &[Choice]) {
        for choice in choices {
            self.retake_zone(zone, choice.bytes);
            self.change(&choice.source, |reserved| reserved.plus(choice.bytes));
        }
    }

    /// Counts what a zone takes, within its quota or not.
    pub(crate) fn retake_zone(&mut self, zone: &ZoneId, bytes: Bytes) {
        if let Some(zone_use) = self.zones.value_mut(zone) {
            zone_use.used = zone_use.used.plus(bytes);
        }
    }

    /// Returns what was reserved of one source.
    pub(crate) fn give_back(&mut self, choice: &Choice) {
        self.change(&choice.source, |reserved| reserved.minus(choice.bytes));
    }

    /// Reserves `bytes` of what was found, rounded up to its unit.
    pub(super) fn reserve(&mut self, found: Found, bytes: Bytes) -> Choice {
        let unit = self.offers.get(&found.source).map_or(SLAB, |offer| offer.unit);
        let bytes = Bytes(bytes.0.div_ceil(unit.0).saturating_mul(unit.0));
        assert!(bytes <= found.free, "{bytes} reserved where {} are free", found.free);
        self.change(&found.source, |reserved| reserved.plus(bytes));
        Choice { source: found.source, bytes }
    }

    fn change(&mut self, source: &Source, change: impl FnOnce(Bytes) -> Bytes) {
        self.shelve(source, false);
        let reserved = self.reserved.get(source).copied().unwrap_or_default();
        match change(reserved) {
            Bytes::ZERO => drop(self.reserved.remove(source)),
            reserved => drop(self.reserved.insert(source.clone(), reserved)),
        }
        self.shelve(source, true);
    }

    /// Returns what a donor can hand out: with what its pool promises beyond its capacity, and nothing while it takes
    /// no new members.
    pub fn free_of(&self, donor: &DonorId) -> Bytes {
        let source = Source::Slabs { donor: donor.clone() };
        self.offers.get(&source).map_or(Bytes::ZERO, |offer| self.free(&source, offer))
    }

    /// Returns the class of a donor. `None` if it is not in this pool, or not in the topology.
    pub(super) fn class_in(&self, pool: &PoolId, donor: &DonorId) -> Option<LatencyClass> {
        let offer = self.offers.get(&Source::Slabs { donor: donor.clone() });
        offer.filter(|offer| offer.pool == *pool).map(|offer| offer.class)
    }

    /// Returns a donor, if a pick may take it.
    pub(super) fn only(&self, pick: &Pick<'_>, donor: &DonorId) -> Option<Found> {
        let source = Source::Slabs { donor: donor.clone() };
        let offer = self.offers.get(&source)?;
        let domain = domain_of(&source, offer, pick.spread);
        let may = offer.pool == *pick.pool
            && pick.classes.contains(&offer.class)
            && pick.reaches.contains(&offer.reach)
            && !pick.avoid.contains(&source)
            && !pick.domains.contains(&domain);
        may.then(|| Found { free: self.free(&source, offer), source: source.clone(), domain })
    }

    /// Returns the source with the most room on one shelf, outside the domains and sources that a pick must avoid.
    pub(super) fn fullest(
        &self,
        pick: &Pick<'_>,
        reach: &Reach,
        class: LatencyClass,
        looks: &mut usize,
    ) -> Option<Found> {
        let shelf = self.shelves.get(&(pick.pool.clone(), reach.clone(), class, pick.spread))?;
        for (_, domain) in shelf.by_max.iter().rev() {
            *looks += 1;
            if pick.domains.contains(domain) {
                continue;
            }
            for (free, source) in shelf.domains.get(domain).into_iter().flatten().rev() {
                *looks += 1;
                if !pick.avoid.contains(source) {
                    return Some(Found { source: source.clone(), domain: domain.clone(), free: *free });
                }
            }
        }
        None
    }

    /// Returns how much of a pool is free in total, and in how many domains.
    pub(super) fn room(
        &self,
        pool: &PoolId,
        reaches: &[Reach],
        classes: &[LatencyClass],
        level: FaultDomain,
    ) -> (Bytes, usize) {
        let keys = classes.iter().flat_map(|class| reaches.iter().map(|reach| (reach.clone(), *class)));
        let shelves: Vec<&Shelf> =
            keys.filter_map(|(reach, class)| self.shelves.get(&(pool.clone(), reach, class, level))).collect();
        let domains: BTreeSet<&Domain> = shelves.iter().flat_map(|shelf| shelf.domains.keys()).collect();
        (shelves.iter().map(|shelf| shelf.free).sum(), domains.len())
    }
}

fn domain_of(source: &Source, offer: &Offer, level: FaultDomain) -> Domain {
    match (level, source) {
        (FaultDomain::Enclosure, _) => Domain::Enclosure(offer.enclosure.clone()),
        (FaultDomain::Rack, _) => Domain::Rack(offer.rack.clone()),
        (FaultDomain::Host, Source::Slabs { donor }) => Domain::Donor(donor.clone()),
        (FaultDomain::Host, Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. }) => {
            Domain::Device(device.clone())
        }
    }
}
