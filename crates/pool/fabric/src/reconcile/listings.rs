// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whose reports list a volume, so that a decision about one volume need not look at all reports.

use std::collections::BTreeSet;

use super::End;
use crate::id::VolumeId;
use crate::observed::{DeviceReport, DonorReport, HostReport, Observed};
use crate::shared_map::SharedMap;

/// Donors, hosts and devices by the volumes that their reports list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listings(SharedMap<(VolumeId, End), ()>);

impl Listings {
    /// Returns the listings of all reports.
    pub(crate) fn of(observed: &Observed) -> Listings {
        let mut listings = Listings::default();
        for (name, report) in &observed.donors {
            listings.replace(&End::Donor(name.clone()), &BTreeSet::new(), &of_donor(Some(report)));
        }
        for (name, report) in &observed.hosts {
            listings.replace(&End::Host(name.clone()), &BTreeSet::new(), &of_host(Some(report)));
        }
        for (name, report) in &observed.devices {
            listings.replace(&End::Device(name.clone()), &BTreeSet::new(), &of_device(Some(report)));
        }
        listings
    }

    /// Returns the ends that list a volume, in the order of their names.
    pub(crate) fn of_volume(&self, id: VolumeId) -> impl Iterator<Item = &End> {
        let from = self.0.iter_from(move |(of, _)| of.cmp(&id));
        from.map(|(key, ())| key).take_while(move |(of, _)| *of == id).map(|(_, end)| end)
    }

    /// Notes that a report that listed some volumes lists others now.
    pub(crate) fn replace(&mut self, end: &End, old: &BTreeSet<VolumeId>, new: &BTreeSet<VolumeId>) {
        old.difference(new).for_each(|id| drop(self.0.remove(&(*id, end.clone()))));
        new.difference(old).for_each(|id| drop(self.0.insert((*id, end.clone()), ())));
    }
}

/// Returns the volumes that a donor lists.
pub(crate) fn of_donor(report: Option<&DonorReport>) -> BTreeSet<VolumeId> {
    report.into_iter().flat_map(|report| report.leases.keys().copied()).collect()
}

/// Returns the volumes that a host lists.
pub(crate) fn of_host(report: Option<&HostReport>) -> BTreeSet<VolumeId> {
    let keys = |report: &HostReport| -> Vec<VolumeId> {
        report.volumes.keys().chain(report.left.keys()).chain(report.trouble.keys()).copied().collect()
    };
    report.into_iter().flat_map(keys).collect()
}

/// Returns the volumes that have dynamic capacity of a device.
pub(crate) fn of_device(report: Option<&DeviceReport>) -> BTreeSet<VolumeId> {
    report.into_iter().flat_map(|report| report.extents.keys().copied()).collect()
}
