// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MLDs that two switches show: a device with a head at each. Pure.
//!
//! A device of the topology is at one switch. So the first switch of the configuration has such a device, and at the
//! other it is left out: otherwise its memory would count twice, and one LD could be handed out to two hosts. What is
//! bound at one of the switches is busy at the other.

use std::collections::BTreeMap;

use aquifer_fabric::{Content, DeviceId, DeviceReport, LdBinding, LdId};

use crate::inventory::Inventory;

/// Returns the MLDs that an earlier switch shows, too, with their names there. One that was pulled out of a switch does
/// not count there.
pub(crate) fn shown_twice<'a>(inventories: impl Iterator<Item = &'a Inventory>) -> BTreeMap<DeviceId, DeviceId> {
    let (mut first, mut twice) = (BTreeMap::new(), BTreeMap::new());
    for (name, device) in inventories.flat_map(|inventory| &inventory.devices) {
        let Some(serial) = device.serial.filter(|_| device.is_mld() && device.is_present) else { continue };
        let known: &DeviceId = first.entry(serial).or_insert(name);
        if known != name {
            twice.insert(name.clone(), known.clone());
        }
    }
    twice
}

/// Reports each LD that is bound at one switch as busy at the other that shows it.
pub(crate) fn share_bindings(
    twice: &BTreeMap<DeviceId, DeviceId>,
    reports: &mut BTreeMap<DeviceId, Option<DeviceReport>>,
) {
    let taken = |report: Option<&Option<DeviceReport>>| -> Vec<LdId> {
        let lds = report.into_iter().flatten().flat_map(|report| &report.lds);
        lds.filter(|(_, ld)| ld.binding != LdBinding::Unbound).map(|(ld_id, _)| *ld_id).collect()
    };
    for (second, first) in twice {
        for (name, taken) in [(second, taken(reports.get(first))), (first, taken(reports.get(second)))] {
            let report = reports.get_mut(name).and_then(Option::as_mut);
            let lds = report.into_iter().flat_map(|report| &mut report.lds);
            for (_, ld) in lds.filter(|(ld_id, ld)| taken.contains(ld_id) && ld.binding == LdBinding::Unbound) {
                (ld.binding, ld.content) = (LdBinding::Busy, Content::Used);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{DeviceView, Memory};
    use aquifer_fabric::{LdReport, VppbAddress};

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
        name.parse().expect("a name")
    }

    fn device(serial: Option<u64>, memory: Memory) -> DeviceView {
        DeviceView {
            ports: vec![1],
            serial,
            memory,
            capacity: None,
            qos_fractions: Default::default(),
            qos: None,
            is_present: true,
            is_reachable: true,
        }
    }

    fn inventory(devices: Vec<(&str, DeviceView)>) -> Inventory {
        let devices = devices.into_iter().map(|(name, device)| (id(name), device)).collect();
        Inventory { devices, ..Inventory::default() }
    }

    #[test]
    fn an_mld_belongs_to_the_first_switch_that_has_it() {
        let mld = |serial| device(serial, Memory::Lds(vec![1 << 30; 2]));
        let sld = device(Some(9), Memory::Whole(Some(1 << 30)));
        let first = inventory(vec![("s0.7", mld(Some(7))), ("s0.9", sld.clone()), ("s0.p3", mld(None))]);
        let second =
            inventory(vec![("s1.7", mld(Some(7))), ("s1.8", mld(Some(8))), ("s1.9", sld), ("s1.p3", mld(None))]);
        let twice = |inventories: &[&Inventory]| shown_twice(inventories.iter().copied());
        let expected: BTreeMap<DeviceId, DeviceId> = [(id("s1.7"), id("s0.7"))].into();
        assert_eq!(twice(&[&first, &second]), expected);
        let out = inventory(vec![("s0.7", DeviceView { is_present: false, ..mld(Some(7)) })]);
        assert_eq!(twice(&[&out, &second]), BTreeMap::new(), "it was moved to the other switch");
    }

    #[test]
    fn what_is_bound_at_one_switch_is_busy_at_the_other() {
        let ld = |binding| LdReport { binding, content: Content::Wiped };
        let vppb: VppbAddress =
            serde_json::from_str(r#"{"switch": "s1", "vcs_id": 0, "vppb_id": 2}"#).expect("an address");
        let report = |lds: [LdBinding; 3]| {
            let lds = (0..).map(LdId).zip(lds.map(ld)).collect();
            Some(DeviceReport { lds, ..DeviceReport::default() })
        };
        let bound = LdBinding::Bound(vppb);
        let (unbound, busy) = (LdBinding::Unbound, LdBinding::Busy);
        let mut reports: BTreeMap<DeviceId, Option<DeviceReport>> = [
            (id("s0.7"), report([unbound.clone(), busy.clone(), unbound.clone()])),
            (id("s1.7"), report([bound.clone(), unbound.clone(), unbound.clone()])),
        ]
        .into();
        let twice = [(id("s1.7"), id("s0.7")), (id("s1.8"), id("s0.8"))].into();
        share_bindings(&twice, &mut reports);
        let bindings = |name: &str| -> Vec<LdBinding> {
            let report = reports[&id::<DeviceId>(name)].as_ref().expect("a report");
            report.lds.values().map(|ld| ld.binding.clone()).collect()
        };
        assert_eq!(bindings("s0.7"), [busy.clone(), busy.clone(), unbound.clone()]);
        assert_eq!(bindings("s1.7"), [bound, busy, unbound]);
    }
}
