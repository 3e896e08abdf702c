// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What sources say they have lent.

use super::NotAdopted;
use crate::bytes::Bytes;
use crate::id::{HostId, MemberId, VolumeId};
use crate::observed::{LeaseState, Observed};
use crate::volume::Source;

/// What a host was lent.
pub(super) struct Lent {
    pub(super) source: Source,
    pub(super) volume: VolumeId,
    pub(super) member: MemberId,
    pub(super) host: HostId,
    pub(super) bytes: Bytes,
}

impl Lent {
    /// Returns the error for leases that are invalid.
    pub(super) fn contradiction(&self, what: &str) -> NotAdopted {
        let (volume, by, what) = (self.volume, self.source.to_string(), what.to_owned());
        NotAdopted::Contradiction { volume, by, what }
    }
}

/// Returns all leases, and all dynamic capacity, of sources that answer.
pub(super) fn lent(observed: &Observed) -> impl Iterator<Item = Lent> {
    let donors = observed.donors.iter().filter(|(_, report)| report.availability.answers());
    let leases = donors.flat_map(|(donor, report)| {
        let leases = report.leases.iter().flat_map(|(volume, leases)| leases.iter().map(move |one| (*volume, one)));
        leases.filter(|(_, (_, lease))| matches!(lease.state, LeaseState::Lent { .. })).map(
            |(volume, (member, lease))| {
                let source = Source::Slabs { donor: donor.clone() };
                Lent { source, volume, member: *member, host: lease.host.clone(), bytes: lease.bytes }
            },
        )
    });
    let devices = observed.devices.iter().filter(|(_, report)| report.availability.answers());
    let extents = devices.flat_map(|(device, report)| {
        let tags = report.extents.iter().flat_map(|(volume, tags)| tags.iter().map(move |one| (*volume, one)));
        tags.map(|(volume, (member, extent))| {
            let source = Source::DynamicCapacity { device: device.clone() };
            Lent { source, volume, member: *member, host: extent.host.clone(), bytes: extent.bytes }
        })
    });
    leases.chain(extents)
}
