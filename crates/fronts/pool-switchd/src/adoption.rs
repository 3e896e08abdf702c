// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns a view of the pool into the state of the switch. Pure.
//!
//! A volume that others have bound has no vPPB in its label, or another host there: it is shown at the first vPPB of
//! its host that no label takes. If there is none left, its logical device is taken, and no vPPB shows it; a bind of it
//! is refused by the manager's answer.

use std::collections::BTreeSet;

use aquifer_cxl_switch::{Adopted, AdoptedBinding, AdoptedDevice, AdoptedHost, Progress};

use crate::places::Places;
use crate::view::{View, VolumeView};

/// The granularity of logical devices: 256 MiB.
const UNIT: u64 = 256 << 20;

/// Returns the state of the switch for a view. Each virtual CXL switch has `vppbs` vPPBs.
pub(crate) fn adopted(view: &View, places: &Places, vppbs: u8) -> Adopted {
    let host =
        |at: &Option<_>| match at.as_ref().and_then(|host: &aquifer_fabric::HostId| view.hosts.get(host.as_str())) {
            Some(is_up) => AdoptedHost { is_known: true, is_up: *is_up },
            None => AdoptedHost::default(),
        };
    Adopted {
        hosts: places.hosts.iter().map(host).collect(),
        devices: (0..places.donors.len()).map(|device| adopted_device(view, places, device)).collect(),
        bindings: bindings(view, places, vppbs),
    }
}

fn adopted_device(view: &View, places: &Places, device: usize) -> AdoptedDevice {
    let Some(donor) = places.donor(device) else { return AdoptedDevice::default() };
    let Some(found) = view.donors.get(donor) else { return AdoptedDevice::default() };
    let own = view.volumes.iter().filter(|((of, _), volume)| of == donor && volume.is_in_place);
    let lds: Vec<(u8, u64)> = own.map(|((_, ld_id), volume)| (*ld_id, volume.bytes)).collect();
    // Other volumes on the donor make the device smaller: its clients cannot bind them.
    let used: u64 = lds.iter().map(|(_, bytes)| bytes / UNIT * UNIT).sum();
    AdoptedDevice { is_present: found.is_up, memory_bytes: used.saturating_add(found.free / UNIT * UNIT), lds }
}

/// Returns how far a volume's binding has come, and the host that it concerns.
fn progress(volume: &VolumeView) -> Option<(&str, Progress)> {
    match (&volume.host, &volume.label) {
        (Some(host), _) if volume.is_settled => Some((host, Progress::Bound)),
        (Some(host), _) => Some((host, Progress::Binding)),
        (None, Some((host, _))) if volume.is_leaving => Some((host, Progress::Unbinding)),
        (None, _) => None,
    }
}

fn bindings(view: &View, places: &Places, vppbs: u8) -> Vec<AdoptedBinding> {
    let (mut bindings, mut unnamed, mut taken) = (Vec::new(), Vec::new(), BTreeSet::new());
    for ((donor, ld_id), volume) in view.volumes.iter().filter(|(_, volume)| volume.is_in_place) {
        let Some((host, progress)) = progress(volume) else { continue };
        let (Some(device), Some(vcs_id)) = (places.device_of(donor), places.vcs_of(host)) else { continue };
        let binding = AdoptedBinding { vcs_id, vppb_id: 0, device, ld_id: *ld_id, progress };
        match &volume.label {
            Some((of, vppb_id)) if of == host && *vppb_id < vppbs && taken.insert((vcs_id, *vppb_id)) => {
                bindings.push(AdoptedBinding { vppb_id: *vppb_id, ..binding });
            }
            _ => unnamed.push(binding),
        }
    }
    for binding in unnamed {
        let free = (0..vppbs).find(|vppb_id| !taken.contains(&(binding.vcs_id, *vppb_id)));
        let Some(vppb_id) = free else { continue };
        taken.insert((binding.vcs_id, vppb_id));
        bindings.push(AdoptedBinding { vppb_id, ..binding });
    }
    bindings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::DonorView;

    fn places() -> Places {
        let donors = ["d1", "d2"].map(|name| Some(name.parse().expect("a name")));
        Places { donors: donors.to_vec(), hosts: vec![Some("h1".parse().expect("a name")), None] }
    }

    fn volume(units: u64, host: Option<&str>, label: Option<(&str, u8)>) -> VolumeView {
        VolumeView {
            bytes: units * UNIT,
            host: host.map(str::to_owned),
            label: label.map(|(host, vppb)| (host.to_owned(), vppb)),
            is_settled: true,
            is_in_place: true,
            ..VolumeView::default()
        }
    }

    fn view(volumes: Vec<VolumeView>) -> View {
        let donor: aquifer_fabric::DonorId = "d1".parse().expect("a name");
        View {
            donors: [(donor.clone(), DonorView { is_up: true, free: 3 * UNIT + 1 })].into(),
            hosts: [("h1".to_owned(), true), ("h9".to_owned(), true)].into(),
            volumes: (0..).zip(volumes).map(|(ld_id, volume)| ((donor.clone(), ld_id), volume)).collect(),
        }
    }

    #[test]
    fn donors_are_devices_and_volumes_are_their_logical_devices() {
        let elsewhere = VolumeView { is_in_place: false, ..volume(7, Some("h1"), None) };
        let state = adopted(&view(vec![volume(2, None, None), elsewhere]), &places(), 4);
        assert_eq!(state.hosts, [AdoptedHost { is_known: true, is_up: true }, AdoptedHost::default()]);
        assert_eq!(
            state.devices[0],
            AdoptedDevice { is_present: true, memory_bytes: 5 * UNIT, lds: vec![(0, 2 * UNIT)] }
        );
        assert_eq!(state.devices[1], AdoptedDevice::default());
        assert_eq!(state.bindings, []);
    }

    #[test]
    fn bindings_are_where_their_labels_say_or_at_the_first_free_vppb() {
        let leaving = VolumeView { is_leaving: true, ..volume(1, None, Some(("h1", 2))) };
        let binding = VolumeView { is_settled: false, ..volume(1, Some("h1"), Some(("h1", 9))) };
        let state = adopted(
            &view(vec![
                volume(1, Some("h1"), None),
                volume(1, Some("h1"), Some(("h1", 0))),
                leaving,
                binding,
                volume(1, Some("h1"), Some(("h1", 0))),
                volume(1, Some("h1"), Some(("h2", 3))),
                volume(1, Some("h9"), None),
                volume(1, None, Some(("h1", 3))),
            ]),
            &places(),
            4,
        );
        let shown: Vec<(u8, u8, Progress)> =
            state.bindings.iter().map(|it| (it.ld_id, it.vppb_id, it.progress)).collect();
        let expected =
            [(1, 0, Progress::Bound), (2, 2, Progress::Unbinding), (0, 1, Progress::Bound), (3, 3, Progress::Binding)];
        assert_eq!(shown, expected, "the others have no vPPB left, or no place for their host");
    }
}
