// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compares what the simulated peers hold with what is desired, from outside the daemon: no slab is in two leases, none
//! is lost, and each volume is bound as a whole or not at all.

use std::collections::BTreeSet;
use std::path::Path;

use aquifer_fabric::{Desired, MemberId, SLAB, Source, Volume};
use aquifer_manager::{SimulatedConfig, read_directory};
use aquifer_state_store::StateStore;

/// Panics if the peers in a directory do not hold what is desired in a store, or hold more.
pub fn judge(store: &dyn StateStore, rack: &SimulatedConfig, directory: &Path) {
    let volumes = store.scan_all("desired/volume/").expect("read");
    let mut desired = Desired::default();
    for (key, entry) in volumes {
        let id = key.as_str().rsplit('/').next().expect("an id").to_owned();
        let volume: Volume = serde_json::from_slice(&entry.value).expect("a volume");
        desired.volumes.insert(id.try_into().expect("an id"), volume);
    }
    let held = read_directory(rack, directory).expect("read");
    assert_eq!(held.lost, 0, "slabs are in two leases");
    let mut wanted = BTreeSet::new();
    for (id, volume) in desired.volumes.iter().filter(|(_, volume)| volume.host.is_some()) {
        for (_, member) in volume.places() {
            let Source::Slabs { donor } = &member.source else { continue };
            let key = (donor.clone(), *id, member.id);
            let lent = held.lent.get(&key).map_or(0, Vec::len) as u64;
            assert_eq!(lent * SLAB.0, member.bytes.0, "{key:?} is desired, and lent in part or not");
            wanted.insert(key);
        }
        let mut members: Vec<MemberId> = volume.places().map(|(_, member)| member.id).collect();
        members.sort();
        let host = volume.host.clone().expect("it is bound");
        assert_eq!(held.joined.get(&(host, *id)), Some(&members), "the host has the volume between two states");
    }
    let stray: Vec<_> = held.lent.keys().filter(|key| !wanted.contains(*key)).collect();
    assert!(stray.is_empty(), "{stray:?} are lent, and nobody wants them");
    let bound = desired.volumes.values().filter(|volume| volume.host.is_some()).count();
    assert_eq!(held.joined.len(), bound, "hosts have volumes that are not bound to them");
}
