// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns a view of the pool into the state of the switch. Pure.
//!
//! The FM API names a binding by its vPPB, so a binding must stay where it was shown. The manager keeps the vPPB in the
//! volume's label, and `labels.rs` writes it there. A volume that somebody else has bound has no label yet, or one that
//! an earlier binding left: it stays where it was shown before, or is shown at the first vPPB of its host that is free.
//! If there is none left, its logical device is taken, and no vPPB shows it; the manager refuses to bind it elsewhere.

use std::collections::BTreeSet;

use aquifer_cxl_switch::{Adopted, AdoptedBinding, AdoptedDevice, AdoptedHost, Progress};

use crate::places::Places;
use crate::view::{Ld, View, VolumeView};

/// The granularity of logical devices: 256 MiB.
pub(crate) const UNIT: u64 = 256 << 20;

/// Returns the state of the switch for a view, after one that was adopted before.
pub(crate) fn adopted(view: &View, places: &Places, before: &Adopted) -> Adopted {
    let host =
        |at: &Option<_>| match at.as_ref().and_then(|host: &aquifer_fabric::HostId| view.hosts.get(host.as_str())) {
            Some(is_up) => AdoptedHost { is_known: true, is_up: *is_up },
            None => AdoptedHost::default(),
        };
    Adopted {
        hosts: places.hosts.iter().map(host).collect(),
        devices: (0..places.donors.len()).map(|device| adopted_device(view, places, device)).collect(),
        bindings: bindings(view, places, &before.bindings),
    }
}

fn adopted_device(view: &View, places: &Places, device: usize) -> AdoptedDevice {
    let Some(donor) = places.donor(device) else { return AdoptedDevice::default() };
    let Some(found) = view.donors.get(donor) else { return AdoptedDevice::default() };
    let own = view.lds().filter(|((of, _), _)| of == donor);
    let lds: Vec<(u8, u64)> = own.map(|((_, ld_id), volume)| (*ld_id, volume.bytes)).collect();
    // Other volumes on the donor make the device smaller: its clients cannot bind them.
    let used: u64 = lds.iter().map(|(_, bytes)| bytes / UNIT * UNIT).sum();
    AdoptedDevice { is_present: found.is_up, memory_bytes: used.saturating_add(found.free / UNIT * UNIT), lds }
}

/// Returns how far a volume's binding has come, and the host that it concerns. As long as a host has not let go of it,
/// the binding to that host is what is there, even if the volume is bound to another host already.
fn progress<'a>(
    volume: &'a VolumeView,
    places: &Places,
    before: Option<&AdoptedBinding>,
) -> Option<(&'a str, Progress)> {
    if let Some(leaving) = volume.leaving_hosts.iter().find(|host| places.vcs_of(host).is_some()) {
        return Some((leaving, Progress::Unbinding));
    }
    let host = volume.host.as_ref()?;
    let is_at_host = volume.is_at_host.unwrap_or_else(|| {
        // The host has not reported to a manager that has just begun to lead.
        before.is_some_and(|before| before.progress == Progress::Bound && places.vcs_of(host) == Some(before.vcs_id))
    });
    Some((host, if is_at_host { Progress::Bound } else { Progress::Binding }))
}

/// A binding whose vPPB is sought.
struct Candidate {
    binding: AdoptedBinding,
    /// What its label says.
    label: Option<u8>,
    /// Where it was shown.
    before: Option<u8>,
}

fn candidates(view: &View, places: &Places, before: &[AdoptedBinding]) -> Vec<Candidate> {
    let candidate = |(ld, volume): (&Ld, &VolumeView)| {
        let device = places.device_of(&ld.0)?;
        let shown = before.iter().find(|shown| (shown.device, shown.ld_id) == (device, ld.1));
        let (host, progress) = progress(volume, places, shown)?;
        let vcs_id = places.vcs_of(host)?;
        let label = volume.label.as_ref().filter(|(of, _)| of == host).map(|(_, vppb_id)| *vppb_id);
        let before = shown.filter(|shown| shown.vcs_id == vcs_id).map(|shown| shown.vppb_id);
        let binding = AdoptedBinding { vcs_id, vppb_id: 0, device, ld_id: ld.1, progress };
        Some(Candidate { binding, label, before })
    };
    view.lds().filter_map(candidate).collect()
}

/// Places the bindings: first those that are shown where their labels say, then by the other labels, then where they
/// were shown, and then wherever a vPPB is free.
fn bindings(view: &View, places: &Places, before: &[AdoptedBinding]) -> Vec<AdoptedBinding> {
    let rules: [fn(&Candidate) -> Option<u8>; 3] =
        [|it| it.label.filter(|label| it.before == Some(*label)), |it| it.label, |it| it.before];
    let (mut placed, mut taken) = (Vec::new(), BTreeSet::new());
    let mut rest = candidates(view, places, before);
    for rule in rules {
        rest.retain(|candidate| {
            let Some(vppb_id) = rule(candidate).filter(|vppb_id| *vppb_id < places.vppbs) else { return true };
            let is_free = taken.insert((candidate.binding.vcs_id, vppb_id));
            is_free.then(|| placed.push(AdoptedBinding { vppb_id, ..candidate.binding }));
            !is_free
        });
    }
    for Candidate { binding, .. } in rest {
        if let Some(vppb_id) = (0..places.vppbs).find(|vppb_id| taken.insert((binding.vcs_id, *vppb_id))) {
            placed.push(AdoptedBinding { vppb_id, ..binding });
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::DonorView;

    fn places() -> Places {
        let donors = ["d1", "d2"].map(|name| Some(name.parse().expect("a name")));
        Places { donors: donors.to_vec(), hosts: vec![Some("h1".parse().expect("a name")), None], vppbs: 4 }
    }

    fn volume(units: u64, host: Option<&str>, label: Option<(&str, u8)>) -> VolumeView {
        VolumeView {
            bytes: units * UNIT,
            host: host.map(str::to_owned),
            label: label.map(|(host, vppb)| (host.to_owned(), vppb)),
            is_settled: true,
            is_at_host: Some(host.is_some()),
            is_in_place: true,
            ..VolumeView::default()
        }
    }

    fn leaving(host: &str, label: Option<(&str, u8)>) -> VolumeView {
        VolumeView { is_leaving: true, leaving_hosts: vec![host.to_owned()], ..volume(1, None, label) }
    }

    fn view(volumes: Vec<VolumeView>) -> View {
        let donor: aquifer_fabric::DonorId = "d1".parse().expect("a name");
        View {
            donors: [(donor.clone(), DonorView { is_up: true, free: 3 * UNIT + 1 })].into(),
            hosts: [("h1".to_owned(), true), ("h9".to_owned(), true)].into(),
            volumes: (0..).zip(volumes).map(|(ld_id, volume)| ((donor.clone(), ld_id), volume)).collect(),
            ..View::default()
        }
    }

    /// Returns what is shown at h1 after something else: vPPB, logical device, progress, sorted.
    fn shown(volumes: Vec<VolumeView>, before: &mut Adopted) -> Vec<(u8, u8, Progress)> {
        *before = adopted(&view(volumes), &places(), before);
        let mut shown: Vec<_> = before.bindings.iter().map(|it| (it.vppb_id, it.ld_id, it.progress)).collect();
        shown.sort_unstable_by_key(|(vppb_id, ..)| *vppb_id);
        shown
    }

    #[test]
    fn donors_are_devices_and_volumes_are_their_logical_devices() {
        let elsewhere = VolumeView { is_in_place: false, ..volume(7, Some("h1"), None) };
        let mut seen = view(vec![volume(2, None, None), elsewhere]);
        let state = adopted(&seen, &places(), &Adopted::default());
        assert_eq!(state.hosts, [AdoptedHost { is_known: true, is_up: true }, AdoptedHost::default()]);
        let device = AdoptedDevice { is_present: true, memory_bytes: 5 * UNIT, lds: vec![(0, 2 * UNIT)] };
        assert_eq!(state.devices, [device, AdoptedDevice::default()]);
        assert_eq!(state.bindings, []);
        // One that was released while a host has it is still there.
        seen.released.insert(("d1".parse().expect("a name"), 5), leaving("h1", None));
        let state = adopted(&seen, &places(), &Adopted::default());
        assert_eq!(state.devices[0].lds, [(0, 2 * UNIT), (5, UNIT)]);
        assert_eq!((state.bindings[0].ld_id, state.bindings[0].progress), (5, Progress::Unbinding));
    }

    #[test]
    fn bindings_are_where_their_labels_say_or_at_the_first_free_vppb() {
        let binding = VolumeView { is_at_host: Some(false), ..volume(1, Some("h1"), Some(("h1", 9))) };
        let volumes = vec![
            volume(1, Some("h1"), None),
            volume(1, Some("h1"), Some(("h1", 0))),
            leaving("h1", Some(("h1", 2))),
            binding,
            volume(1, Some("h1"), Some(("h1", 0))),
            volume(1, Some("h1"), Some(("h2", 3))),
            volume(1, Some("h9"), None),
            volume(1, None, Some(("h1", 3))),
            leaving("h9", Some(("h1", 3))),
        ];
        let expected =
            [(0, 1, Progress::Bound), (1, 0, Progress::Bound), (2, 2, Progress::Unbinding), (3, 3, Progress::Binding)];
        assert_eq!(shown(volumes, &mut Adopted::default()), expected, "the others have no vPPB left, or no place");
    }

    #[test]
    fn a_binding_stays_where_it_was_shown() {
        let (bound, unbound) = (|label| volume(1, Some("h1"), label), || volume(1, None, None));
        let mut state = Adopted::default();
        assert_eq!(shown(vec![bound(None), bound(None)], &mut state).len(), 2);
        assert_eq!(shown(vec![unbound(), bound(None)], &mut state), [(1, 1, Progress::Bound)]);
        // The label that an earlier binding left does not take the place of one that is there.
        let stale = bound(Some(("h1", 1)));
        let fresh = bound(Some(("h1", 1)));
        let both = vec![stale, fresh];
        assert_eq!(shown(both.clone(), &mut state), [(0, 0, Progress::Bound), (1, 1, Progress::Bound)]);
        assert_eq!(shown(both, &mut state), [(0, 0, Progress::Bound), (1, 1, Progress::Bound)]);
        // A label that a bind has just written wins.
        assert_eq!(shown(vec![unbound(), bound(Some(("h1", 3)))], &mut state), [(3, 1, Progress::Bound)]);
    }

    #[test]
    fn a_host_that_has_not_let_go_is_shown_before_the_next_one() {
        let moved = VolumeView { leaving_hosts: vec!["h1".into()], ..volume(1, Some("h9"), Some(("h9", 2))) };
        let mut state = Adopted::default();
        assert_eq!(shown(vec![volume(1, Some("h1"), Some(("h1", 3)))], &mut state), [(3, 0, Progress::Bound)]);
        assert_eq!(shown(vec![moved.clone()], &mut state), [(3, 0, Progress::Unbinding)]);
        assert_eq!(shown(vec![VolumeView { leaving_hosts: Vec::new(), ..moved }], &mut state), []);
    }

    #[test]
    fn only_the_host_decides_whether_it_has_a_volume() {
        let seen = |is_at_host, state: &mut Adopted| {
            let volume = VolumeView { is_at_host, is_settled: false, ..volume(1, Some("h1"), None) };
            shown(vec![volume], state)[0].2
        };
        let mut state = Adopted::default();
        assert_eq!(seen(None, &mut state), Progress::Binding, "nobody has seen it there");
        assert_eq!(seen(Some(true), &mut state), Progress::Bound, "whatever else goes on");
        assert_eq!(seen(None, &mut state), Progress::Bound, "a new leader has not heard from the host yet");
        assert_eq!(seen(Some(false), &mut state), Progress::Binding);
    }
}
