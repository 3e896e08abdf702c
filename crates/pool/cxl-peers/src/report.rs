// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns the inventory of a switch into a report for each of its devices. Pure.
//!
//! A device that was pulled out has no host's bytes any more: its LDs are reported as unbound and wiped, and the device
//! as draining, so that members on it may leave and nothing new is placed there. When it comes back, its LDs count as
//! used. A port that stays bound while its device is out is reported as bound, since its vPPB is taken. Of a device
//! whose link is down, nothing is known.

use std::collections::BTreeMap;

use aquifer_fabric::{
    Availability, Bytes, Content, DeviceId, DeviceReport, ExtentReport, HostId, LdBinding, LdId, LdReport, PortId,
    SwitchId, VcsId, VppbAddress, VppbId,
};

use crate::config::SwitchConfig;
use crate::contents::Contents;
use crate::inventory::{DeviceView, Holder, Inventory};
use crate::tag::{BEING_WIPED, member_of};

/// Returns the address of a vPPB.
pub(crate) fn address(switch: &SwitchId, vcs_id: u8, vppb_id: u8) -> VppbAddress {
    VppbAddress { switch: switch.clone(), vcs_id: VcsId(vcs_id), vppb_id: VppbId(vppb_id) }
}

/// Returns the host of a virtual CXL switch.
pub(crate) fn host_of<'a>(config: &'a SwitchConfig, inventory: &Inventory, vcs_id: u8) -> Option<&'a HostId> {
    let upstream = PortId(inventory.vcss.get(&vcs_id)?.usp_id);
    config.hosts.iter().find(|(_, ports)| ports.contains(&upstream)).map(|(host, _)| host)
}

/// Returns who has the LD or the head through which a host of dynamic capacity reaches a device; None if it is not at
/// this switch. `host_id` is the device's number for the host: that of an LD of an MLD, or of a head.
pub(crate) fn holder_of_host(inventory: &Inventory, device: &DeviceView, host_id: u16) -> Option<Holder> {
    match device.is_mld() {
        true => Some(inventory.holder(device, LdId(host_id))),
        false => {
            let head = DeviceView { ports: vec![*device.ports.get(usize::from(host_id))?], ..device.clone() };
            Some(inventory.holder(&head, aquifer_fabric::NO_LD))
        }
    }
}

/// Returns the vPPB through which a host of dynamic capacity reaches a device.
pub(crate) fn vppb_of_host(inventory: &Inventory, device: &DeviceView, host_id: u16) -> Option<(u8, u8)> {
    match holder_of_host(inventory, device, host_id)? {
        Holder::Vppb { vcs_id, vppb_id } => Some((vcs_id, vppb_id)),
        Holder::Busy | Holder::Nobody => None,
    }
}

/// Returns the report of a device; None while nothing is known of it.
pub(crate) fn report(
    config: &SwitchConfig,
    inventory: &Inventory,
    contents: &Contents,
    name: &DeviceId,
    device: &DeviceView,
) -> Option<DeviceReport> {
    if device.is_present && !device.is_reachable {
        return None;
    }
    let lds = device.lds().into_iter().map(|(ld_id, _)| {
        let binding = match inventory.holder(device, ld_id) {
            Holder::Busy => LdBinding::Busy,
            Holder::Nobody => LdBinding::Unbound,
            Holder::Vppb { vcs_id, vppb_id } => LdBinding::Bound(address(&config.name, vcs_id, vppb_id)),
        };
        let content = match &binding {
            LdBinding::Unbound if device.is_present => contents.of(name, ld_id),
            LdBinding::Unbound => Content::Wiped,
            LdBinding::Bound(_) | LdBinding::Busy => Content::Used,
        };
        (ld_id, LdReport { binding, content })
    });
    let availability = if device.is_present { Availability::Up } else { Availability::Draining };
    Some(DeviceReport { availability, lds: lds.collect(), extents: extents(config, inventory, device) })
}

/// Returns dynamic capacity by its tags. Leaves out capacity of a host that the configuration does not name, and what
/// is being wiped.
fn extents(
    config: &SwitchConfig,
    inventory: &Inventory,
    device: &DeviceView,
) -> BTreeMap<aquifer_fabric::VolumeId, BTreeMap<aquifer_fabric::MemberId, ExtentReport>> {
    let mut extents: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let offers = device.capacity.iter().filter(|_| device.is_present).flat_map(|capacity| &capacity.offers);
    for offer in offers.filter(|offer| offer.tag != BEING_WIPED) {
        let vppb = vppb_of_host(inventory, device, offer.host_id);
        let host = vppb.and_then(|(vcs_id, _)| host_of(config, inventory, vcs_id));
        let (Some(host), (volume, member)) = (host, member_of(offer.tag)) else { continue };
        let extent = ExtentReport {
            host: host.clone(),
            bytes: Bytes(offer.bytes),
            accepted: !offer.is_pending && offer.bytes > 0,
        };
        extents.entry(volume).or_default().insert(member, extent);
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{CapacityView, Memory, Offer};
    use crate::tag::tag_of;
    use aquifer_fabric::{MemberId, NO_LD, VolumeId};
    use aquifer_fmapi::{BindingStatus, VirtualSwitch, Vppb};

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
        name.parse().expect("a name")
    }

    fn device(port_id: u8, capacity: Option<CapacityView>) -> DeviceView {
        DeviceView {
            ports: vec![port_id],
            serial: None,
            memory: Memory::Whole(Some(1 << 30)),
            capacity,
            qos_fractions: Default::default(),
            qos: None,
            is_present: true,
            is_reachable: true,
        }
    }

    fn site() -> (SwitchConfig, Inventory) {
        let config = r#"{"name": "s0", "address": "tcp:a", "hosts": {"h0": [6]}}"#;
        let vppb = |port_id| Vppb { status: BindingStatus::Port, port_id, ld_id: Vppb::NO_LD };
        let vcs =
            VirtualSwitch { usp_id: 6, vppbs_total: 2, vppbs: vec![vppb(0), vppb(2)], ..VirtualSwitch::default() };
        let inventory = Inventory { vcss: [(0, vcs)].into(), ..Inventory::default() };
        (serde_json::from_str(config).expect("a switch"), inventory)
    }

    #[test]
    fn a_device_that_is_out_has_nothing_of_anybody_and_takes_nothing() {
        let ((config, inventory), name) = (site(), id("s0.1"));
        let report = |device: &DeviceView| report(&config, &inventory, &Contents::default(), &name, device);
        let ld = |device: &DeviceView| report(device).map(|report| (report.availability, report.lds[&NO_LD].clone()));
        let there = device(1, None);
        let used = LdReport { binding: LdBinding::Unbound, content: Content::Used };
        assert_eq!(ld(&there), Some((Availability::Up, used)));
        let out = DeviceView { is_present: false, is_reachable: false, ..there.clone() };
        let wiped = LdReport { binding: LdBinding::Unbound, content: Content::Wiped };
        assert_eq!(ld(&out), Some((Availability::Draining, wiped)));
        assert_eq!(
            ld(&DeviceView { ports: vec![0], ..out }).map(|(_, ld)| ld.binding),
            Some(LdBinding::Bound(address(&id("s0"), 0, 0)))
        );
        assert_eq!(ld(&DeviceView { is_reachable: false, ..there.clone() }), None);
    }

    #[test]
    fn capacity_belongs_to_the_member_of_its_tag_once_all_of_it_is_accepted() {
        let (config, inventory) = site();
        let offer = |member, bytes, is_pending| Offer {
            host_id: 0,
            tag: tag_of(VolumeId(7), MemberId(member)),
            bytes,
            is_pending,
        };
        let offers = vec![offer(1, 64, false), offer(2, 64, true), offer(3, 0, true)];
        let dcd = device(2, Some(CapacityView { hosts: 1, offers, ..CapacityView::default() }));
        let reported = report(&config, &inventory, &Contents::default(), &id("s0.3"), &dcd).expect("it answers");
        assert_eq!(reported.lds, BTreeMap::new(), "its port is bound for the capacity alone");
        let extents = &reported.extents[&VolumeId(7)];
        let accepted: Vec<bool> = extents.values().map(|extent| extent.accepted).collect();
        assert_eq!(accepted, [true, false, false]);
        assert!(extents.values().all(|extent| extent.host == id("h0")));
    }
}
