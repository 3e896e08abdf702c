// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is left to do, kept from round to round: only what concerns a change is decided again.
//!
//! [`reconcile`](super::reconcile) decides about one subject after the other, each from a part of both states. A
//! backlog keeps the decisions that are not empty. When the states change, it finds the subjects that depend on what
//! has changed, and decides about these: the cost of a round is that of the change, not that of the pool. The order of
//! the subjects is that of `reconcile`, so both give the same round; `tests/histories.rs` compares them after each
//! round of each history.
//!
//! What a decision about a volume depends on: the volume; what reports say of it; whether its hosts and sources answer,
//! are dead or retired, and which start they are; and the same of other volumes that have LDs of the same devices,
//! since LDs that look alike are bound one after the other. About a device: its report, its pool, and the volumes with
//! members on it.

use std::collections::{BTreeMap, BTreeSet};

use super::alike::ld_of;
use super::listings::{Listings, of_device, of_donor, of_host};
use super::{End, Round, States};
use crate::desired::{Desired, Volume};
use crate::id::{DeviceId, DonorId, HostId, Incarnation, VolumeId};
use crate::observed::{DonorReport, HostReport, MemberReport, Observed};
use crate::repair::is_ailing;
use crate::volume::{Member, Source};

/// What one decision is about, in the order of `reconcile`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Volume(VolumeId),
    Presented(HostId, VolumeId),
    Left(HostId, VolumeId),
    Lent(DonorId, VolumeId),
    Device(DeviceId),
}

/// What a change concerns.
#[derive(Default)]
struct Concerned {
    volumes: BTreeSet<VolumeId>,
    devices: BTreeSet<DeviceId>,
}

/// What is left to do in a pool, and the states that it was decided from.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    desired: Desired,
    observed: Observed,
    listings: Listings,
    /// The decisions that are not empty.
    parts: BTreeMap<Subject, Round>,
    /// Volumes with a member that is not well.
    ailing: BTreeSet<VolumeId>,
}

impl Backlog {
    /// Takes both states as they are now.
    pub fn follow(&mut self, desired: &Desired, observed: &Observed) {
        let mut concerned = Concerned::default();
        self.volumes_that_changed(desired, &mut concerned);
        self.hosts_that_changed(desired, observed, &mut concerned);
        self.donors_that_changed(desired, observed, &mut concerned);
        self.devices_that_changed(desired, observed, &mut concerned);
        if self.observed.asked_since != observed.asked_since {
            concerned.volumes.extend(desired.volumes.keys());
        }
        let beside: Vec<VolumeId> = concerned.volumes.iter().flat_map(|id| self.beside(*id, desired)).collect();
        concerned.volumes.extend(beside);
        for id in &concerned.volumes {
            let subjects: Vec<Subject> = self.listings.of_volume(*id).flat_map(|end| subjects(end, *id)).collect();
            subjects.iter().for_each(|subject| drop(self.parts.remove(subject)));
        }
        self.list_again(observed);
        (self.desired, self.observed) = (desired.clone(), observed.clone());
        concerned.volumes.iter().for_each(|id| self.decide_volume(*id));
        concerned.devices.into_iter().for_each(|device| self.decide(Subject::Device(device)));
    }

    /// Returns what is left to do, as [`reconcile`](super::reconcile) says it.
    pub fn round(&self) -> Round {
        let mut round = Round::default();
        for part in self.parts.values() {
            round.steps.extend(part.steps.iter().cloned());
            round.waiting.extend(part.waiting.iter().cloned());
            round.strays.extend(part.strays.iter().cloned());
        }
        round
    }

    /// Returns the volumes of which [`Edit::repair`](crate::Edit::repair) may replace a member, now or once its source
    /// was silent for long enough.
    pub fn ailing(&self) -> impl Iterator<Item = VolumeId> {
        self.ailing.iter().copied()
    }

    /// Returns those whose reports may end the wait for something: the hosts and sources of what is left to do.
    pub fn awaited(&self) -> BTreeSet<End> {
        let mut awaited = BTreeSet::new();
        for subject in self.parts.keys() {
            match subject {
                Subject::Presented(host, _) | Subject::Left(host, _) => drop(awaited.insert(End::Host(host.clone()))),
                Subject::Lent(donor, _) => drop(awaited.insert(End::Donor(donor.clone()))),
                Subject::Device(device) => drop(awaited.insert(End::Device(device.clone()))),
                Subject::Volume(id) => {
                    let volume = self.desired.volumes.get(id);
                    volume.into_iter().for_each(|volume| awaited.extend(ends(volume)));
                }
            }
        }
        awaited
    }

    /// Decides about a volume, and about it in all reports that list it.
    fn decide_volume(&mut self, id: VolumeId) {
        self.decide(Subject::Volume(id));
        let subjects: Vec<Subject> = self.listings.of_volume(id).flat_map(|end| subjects(end, id)).collect();
        subjects.into_iter().for_each(|subject| self.decide(subject));
        let volume = self.desired.volumes.get(&id);
        match volume.is_some_and(|volume| is_ailing(&self.desired, &self.observed, id, volume)) {
            true => drop(self.ailing.insert(id)),
            false => drop(self.ailing.remove(&id)),
        }
    }

    fn decide(&mut self, subject: Subject) {
        let states = States { desired: &self.desired, observed: &self.observed, listings: &self.listings };
        let mut part = Round::default();
        match &subject {
            Subject::Volume(id) => states.volume(*id, &mut part),
            Subject::Presented(host, id) => states.presented(host, *id, &mut part),
            Subject::Left(host, id) => states.left(host, *id, &mut part),
            Subject::Lent(donor, id) => states.lent(donor, *id, &mut part),
            Subject::Device(device) => states.device(device, &mut part),
        }
        match part.is_settled() {
            true => drop(self.parts.remove(&subject)),
            false => drop(self.parts.insert(subject, part)),
        }
    }

    fn volumes_that_changed(&self, desired: &Desired, concerned: &mut Concerned) {
        for id in self.desired.volumes.differences(&desired.volumes) {
            for volume in self.desired.volumes.get(&id).into_iter().chain(desired.volumes.get(&id)) {
                concerned.devices.extend(members(volume).filter_map(|member| member.source.device().cloned()));
            }
            let listing = self.listings.of_volume(id).filter_map(|end| match end {
                End::Device(device) => Some(device.clone()),
                End::Donor(_) | End::Host(_) => None,
            });
            concerned.devices.extend(listing);
            concerned.volumes.insert(id);
        }
    }

    fn hosts_that_changed(&self, desired: &Desired, observed: &Observed, concerned: &mut Concerned) {
        let mut all: BTreeSet<HostId> = starts_that_changed(&self.desired.dead_hosts, &desired.dead_hosts);
        // Donors may have lent to them what the desired state does not list.
        if !all.is_empty() {
            let leases = observed.donors.values().flat_map(|report| &report.leases);
            let are_theirs = leases.filter(|(_, leases)| leases.values().any(|lease| all.contains(&lease.host)));
            concerned.volumes.extend(are_theirs.map(|(id, _)| *id));
        }
        for host in self.observed.hosts.differences(&observed.hosts) {
            let (old, new) = (self.observed.hosts.get(&host), observed.hosts.get(&host));
            match old.zip(new).filter(|(old, new)| is_same_host(old, new)) {
                Some((old, new)) => {
                    concerned.volumes.extend(keys_that_changed(&old.volumes, &new.volumes));
                    concerned.volumes.extend(keys_that_changed(&old.left, &new.left));
                    concerned.volumes.extend(keys_that_changed(&old.trouble, &new.trouble));
                }
                None => drop(all.insert(host)),
            }
        }
        for host in &all {
            concerned.volumes.extend(of_host(self.observed.hosts.get(host)));
            concerned.volumes.extend(of_host(observed.hosts.get(host)));
            concerned.volumes.extend(desired.volumes.of_host(host));
        }
    }

    fn donors_that_changed(&self, desired: &Desired, observed: &Observed, concerned: &mut Concerned) {
        let mut all: BTreeSet<DonorId> = starts_that_changed(&self.desired.retired_donors, &desired.retired_donors);
        all.extend(self.desired.draining.symmetric_difference(&desired.draining).cloned());
        for donor in self.observed.donors.differences(&observed.donors) {
            let (old, new) = (self.observed.donors.get(&donor), observed.donors.get(&donor));
            match old.zip(new).filter(|(old, new)| is_same_donor(old, new)) {
                Some((old, new)) => concerned.volumes.extend(keys_that_changed(&old.leases, &new.leases)),
                None => drop(all.insert(donor)),
            }
        }
        for donor in &all {
            concerned.volumes.extend(of_donor(self.observed.donors.get(donor)));
            concerned.volumes.extend(of_donor(observed.donors.get(donor)));
            concerned.volumes.extend(desired.volumes.on(&Source::Slabs { donor: donor.clone() }));
        }
        // Hosts may have members there that neither the donor nor the desired state lists.
        if !all.is_empty() {
            let presented = observed.hosts.values().flat_map(|report| &report.volumes);
            let is_there = |one: &MemberReport| one.lease.source.donor().is_some_and(|donor| all.contains(donor));
            let meets = presented.filter(|(_, view)| view.members.values().any(is_there));
            concerned.volumes.extend(meets.map(|(id, _)| *id));
        }
    }

    /// Returns the volumes that have LDs of the same devices as a volume has, or had.
    fn beside(&self, id: VolumeId, desired: &Desired) -> BTreeSet<VolumeId> {
        let states = self.desired.volumes.get(&id).into_iter().chain(desired.volumes.get(&id));
        let devices: BTreeSet<&DeviceId> =
            states.flat_map(members).filter_map(ld_of).map(|(device, _)| device).collect();
        devices.into_iter().flat_map(|device| desired.volumes.on_device(device)).collect()
    }

    /// Adds the devices that have changed. Devices are few, so each is looked at as a whole.
    fn devices_that_changed(&self, desired: &Desired, observed: &Observed, concerned: &mut Concerned) {
        for device in self.observed.devices.differences(&observed.devices) {
            concerned.volumes.extend(of_device(self.observed.devices.get(&device)));
            concerned.volumes.extend(of_device(observed.devices.get(&device)));
            concerned.volumes.extend(desired.volumes.on_device(&device));
            concerned.devices.insert(device);
        }
        if self.desired.pools != desired.pools {
            concerned.devices.extend(observed.devices.keys().cloned());
        }
    }

    /// Notes what the reports that have changed list now.
    fn list_again(&mut self, observed: &Observed) {
        for name in self.observed.donors.differences(&observed.donors) {
            let (old, new) = (self.observed.donors.get(&name), observed.donors.get(&name));
            self.listings.replace(&End::Donor(name.clone()), &of_donor(old), &of_donor(new));
        }
        for name in self.observed.hosts.differences(&observed.hosts) {
            let (old, new) = (self.observed.hosts.get(&name), observed.hosts.get(&name));
            self.listings.replace(&End::Host(name.clone()), &of_host(old), &of_host(new));
        }
        for name in self.observed.devices.differences(&observed.devices) {
            let (old, new) = (self.observed.devices.get(&name), observed.devices.get(&name));
            self.listings.replace(&End::Device(name.clone()), &of_device(old), &of_device(new));
        }
    }
}

/// Returns the decisions that a report affects by listing this volume.
fn subjects(end: &End, id: VolumeId) -> Vec<Subject> {
    match end {
        // Its extents are a part of the decision about the device.
        End::Device(_) => Vec::new(),
        End::Donor(donor) => vec![Subject::Lent(donor.clone(), id)],
        End::Host(host) => vec![Subject::Presented(host.clone(), id), Subject::Left(host.clone(), id)],
    }
}

fn members(volume: &Volume) -> impl Iterator<Item = &Member> {
    volume.places().map(|(_, member)| member).chain(volume.leaving.values().map(|leaving| &leaving.member))
}

/// Returns the hosts and sources of a volume.
fn ends(volume: &Volume) -> impl Iterator<Item = End> {
    let hosts = volume.host.iter().chain(volume.leaving.values().map(|leaving| &leaving.host));
    let sources = members(volume).map(|member| match &member.source {
        Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. } => End::Device(device.clone()),
        Source::Slabs { donor } => End::Donor(donor.clone()),
    });
    hosts.map(|host| End::Host(host.clone())).chain(sources)
}

fn is_same_host(old: &HostReport, new: &HostReport) -> bool {
    (old.incarnation, old.availability) == (new.incarnation, new.availability)
}

fn is_same_donor(old: &DonorReport, new: &DonorReport) -> bool {
    (old.incarnation, old.availability) == (new.incarnation, new.availability)
}

/// Returns those that only one of the lists has, and those with different starts in the two.
fn starts_that_changed<K: Ord + Clone>(old: &BTreeMap<K, Incarnation>, new: &BTreeMap<K, Incarnation>) -> BTreeSet<K> {
    let keys = old.keys().chain(new.keys());
    keys.filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

/// Returns the volumes of which two reports differ.
fn keys_that_changed<'a, T: PartialEq>(
    old: &'a BTreeMap<VolumeId, T>,
    new: &'a BTreeMap<VolumeId, T>,
) -> impl Iterator<Item = VolumeId> + 'a {
    old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key)).copied()
}
