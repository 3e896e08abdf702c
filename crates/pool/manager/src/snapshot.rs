// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What requests read: the two states as the last round left them. A snapshot never changes; the writer publishes the
//! next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use aquifer_cxl_peers::Inventory;
use aquifer_fabric::{Bytes, Desired, DonorId, LeaseState, Observed, Source, SwitchId, Term, Topology, VolumeId};

use crate::tasks::{Tasks, is_settled, unsettled};

/// Steps since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    pub(crate) sent: u64,
    pub(crate) failed: u64,
}

/// The states.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) topology: Arc<Topology>,
    pub(crate) desired: Arc<Desired>,
    pub(crate) observed: Arc<Observed>,
    /// What the last round still had to do.
    pub(crate) round: Arc<aquifer_fabric::Round>,
    /// What could not be repaired, as lines.
    pub(crate) unrepaired: Vec<String>,
    pub(crate) tasks: Tasks,
    /// What was read of each switch that is not simulated.
    pub(crate) inventories: BTreeMap<SwitchId, Arc<Inventory>>,
    pub(crate) term: Term,
    /// Counts rounds since the start.
    pub(crate) rounds: u64,
    /// Counts steps that were sent since the start, and those that failed.
    pub(crate) steps: StepCounts,
}

impl Snapshot {
    /// Whether a volume is as it is desired to be.
    pub(crate) fn is_settled(&self, volume: VolumeId) -> bool {
        is_settled(Some(volume), &self.desired, &self.round)
    }

    /// The number of volumes that do not match their desired state.
    pub(crate) fn unsettled(&self) -> usize {
        unsettled(&self.desired, &self.round)
    }

    /// What each donor has lent or still has to wipe, by its report.
    pub(crate) fn lent(&self, donor: &DonorId) -> Bytes {
        let report = self.observed.donors.get(donor);
        let leases = report.into_iter().flat_map(|report| report.leases.values()).flat_map(|leases| leases.values());
        let is_lent = |state: LeaseState| state != LeaseState::Released;
        leases.filter(|lease| is_lent(lease.state)).map(|lease| lease.bytes).sum()
    }

    /// What is promised from each donor: reserved, lent, or on its way back.
    pub(crate) fn promised(&self) -> BTreeMap<DonorId, Bytes> {
        let mut promised: BTreeMap<DonorId, Bytes> = BTreeMap::new();
        for volume in self.desired.volumes.values() {
            let leaving = volume.leaving.values().map(|leaving| &leaving.member);
            for member in volume.places().map(|(_, member)| member).chain(leaving) {
                if let Source::Slabs { donor } = &member.source {
                    let bytes = promised.entry(donor.clone()).or_default();
                    *bytes = bytes.plus(member.bytes);
                }
            }
        }
        promised
    }
}
