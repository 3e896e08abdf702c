// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What requests read: the two states as the last round left them. A snapshot never changes; the writer publishes the
//! next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use aquifer_control::FaultFigures;
use aquifer_cxl_peers::Inventory;
use aquifer_fabric::{
    Availability, Bytes, Capacity, Desired, DonorId, LeaseState, Observed, Source, SwitchId, Term, Topology, VolumeId,
};

use crate::tasks::{Tasks, is_settled, unsettled};

/// Steps since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    pub(crate) sent: u64,
    pub(crate) failed: u64,
}

/// How many donors, hosts or devices the topology has, and how many of those answer. What reports without being in the
/// topology, such as a device that a switch found behind a port that the topology leaves empty, is in neither number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answering {
    pub(crate) answering: usize,
    pub(crate) all: usize,
}

impl Answering {
    fn of<K: Ord, P>(parts: &BTreeMap<K, P>, availability: impl Fn(&K) -> Option<Availability>) -> Answering {
        let answers = |part: &&K| availability(part).is_some_and(Availability::answers);
        Answering { answering: parts.keys().filter(answers).count(), all: parts.len() }
    }
}

/// The state after a round, as requests see it.
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
    /// The faults of programs, as agents count them.
    pub(crate) faults: Arc<FaultFigures>,
    pub(crate) term: Term,
    /// Counts rounds since the start.
    pub(crate) rounds: u64,
    /// Counts steps that were sent since the start, and those that failed.
    pub(crate) steps: StepCounts,
    /// The number of the newest event when this was published.
    pub(crate) newest_event: u64,
}

impl Snapshot {
    /// Returns whether a volume is as it is desired to be.
    pub(crate) fn is_settled(&self, volume: VolumeId) -> bool {
        is_settled(Some(volume), &self.desired, &self.round)
    }

    /// Returns the number of volumes that do not match their desired state.
    pub(crate) fn unsettled(&self) -> usize {
        unsettled(&self.desired, &self.round)
    }

    /// Returns the donors of the topology.
    pub(crate) fn donors(&self) -> Answering {
        let reports = &self.observed.donors;
        Answering::of(&self.topology.parts().donors, |id| reports.get(id).map(|report| report.availability))
    }

    /// Returns the hosts of the topology.
    pub(crate) fn hosts(&self) -> Answering {
        let reports = &self.observed.hosts;
        Answering::of(&self.topology.parts().hosts, |id| reports.get(id).map(|report| report.availability))
    }

    /// Returns the devices of the topology.
    pub(crate) fn devices(&self) -> Answering {
        let reports = &self.observed.devices;
        Answering::of(&self.topology.parts().devices, |id| reports.get(id).map(|report| report.availability))
    }

    /// Returns what the donors of the topology lend, by their reports.
    pub(crate) fn capacity(&self) -> Bytes {
        let donors = self.topology.parts().donors.keys();
        donors.filter_map(|donor| self.observed.donors.get(donor)).map(|report| report.capacity).sum()
    }

    /// Returns what each donor has lent or still has to wipe, by its report.
    pub(crate) fn lent(&self, donor: &DonorId) -> Bytes {
        let report = self.observed.donors.get(donor);
        let leases = report.into_iter().flat_map(|report| report.leases.values()).flat_map(|leases| leases.values());
        let is_lent = |state: LeaseState| state != LeaseState::Released;
        leases.filter(|lease| is_lent(lease.state)).map(|lease| lease.bytes).sum()
    }

    /// Returns what is promised from each donor: reserved, lent, or on its way back. What comes back after an unbind is
    /// room for the next binding of the volume, and does not count twice.
    pub(crate) fn promised(&self) -> BTreeMap<DonorId, Bytes> {
        let mut promised: BTreeMap<DonorId, Bytes> = BTreeMap::new();
        for volume in self.desired.volumes.values() {
            for taken in volume.taken() {
                if let Source::Slabs { donor } = taken.source {
                    let bytes = promised.entry(donor).or_default();
                    *bytes = bytes.plus(taken.bytes);
                }
            }
        }
        promised
    }

    /// Returns the free capacity, as the next placement counts it.
    pub(crate) fn free(&self) -> Capacity {
        Capacity::new(&self.topology, &self.desired, &self.observed)
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{DeviceReport, DonorReport, HostReport};

    use super::*;
    use crate::config::SimulatedConfig;
    use crate::simulated::topology;

    #[test]
    fn what_is_not_in_the_topology_counts_neither_as_answering_nor_at_all() {
        let config: SimulatedConfig = toml::from_str("donors = 3\nhosts = 2\ndevices = 1").unwrap();
        let topology = Arc::new(topology(&config));
        let parts = topology.parts().clone();
        let mut observed = Observed::default();
        let lends = DonorReport { capacity: Bytes::gib(1), ..DonorReport::default() };
        for name in parts.donors.keys() {
            observed.donors.insert(name.clone(), lends.clone());
        }
        observed.donors.insert("stranger".parse().unwrap(), lends.clone());
        observed.hosts.insert("stranger".parse().unwrap(), HostReport::default());
        observed.devices.insert("stranger".parse().unwrap(), DeviceReport::default());
        let gone = Availability::Gone { since: aquifer_fabric::Millis(1) };
        let first = parts.donors.keys().next().unwrap().clone();
        observed.donors.insert(first, DonorReport { availability: gone, ..lends });
        let snapshot = Snapshot { topology, observed: Arc::new(observed), ..Snapshot::default() };
        let all = parts.donors.len();
        assert_eq!(snapshot.donors(), Answering { answering: all - 1, all });
        assert_eq!(snapshot.hosts(), Answering { answering: 0, all: parts.hosts.len() });
        assert_eq!(snapshot.devices(), Answering { answering: 0, all: parts.devices.len() });
        assert_eq!(snapshot.capacity(), Bytes::gib(all as u64));
    }
}
