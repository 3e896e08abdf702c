// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Adds a switch with its devices to a topology. Pure.
//!
//! The fabric manager chooses the vPPB of each LD itself. It does not get to choose vPPBs that are bound to an empty
//! port or to a PCIe device, nor those for dynamic capacity: `capacity.rs` chooses these from the last vPPBs of each
//! virtual CXL switch, one for each device.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Bytes, Device, DeviceId, DeviceKind, Enclosure, EnclosureId, LDS_MAX, LdId, NO_LD, Parts, Port, PortId, SLAB,
    Switch, Vcs, VcsId, VppbId,
};
use aquifer_fmapi::{BindingStatus, PortState};

use crate::config::SwitchConfig;
use crate::inventory::{CapacityView, DeviceView, Inventory};

/// Returns the vPPBs of a virtual CXL switch that are kept for dynamic capacity: the last ones, half of all at most.
pub(crate) fn kept_for_capacity(inventory: &Inventory, vcs_id: u8) -> std::ops::Range<u8> {
    let dcds = inventory.devices.values().filter(|device| device.capacity.is_some()).count();
    let total = inventory.vcss.get(&vcs_id).map_or(0, |vcs| u8::try_from(vcs.vppbs.len()).unwrap_or(u8::MAX));
    let kept = u8::try_from(dcds).unwrap_or(u8::MAX).min(total / 2);
    total - kept..total
}

/// Adds a switch to the parts of a topology, without the devices that another switch has. Hosts that the topology does
/// not have are not connected yet.
pub(crate) fn add(
    config: &SwitchConfig,
    inventory: &Inventory,
    elsewhere: &BTreeMap<DeviceId, DeviceId>,
    parts: &mut Parts,
) {
    let enclosure = enclosure(config, parts);
    let mut switch = Switch { enclosure: enclosure.clone(), ports: BTreeMap::new(), vcss: BTreeMap::new() };
    for (port_id, port) in &inventory.ports {
        let is_downstream =
            matches!(port.state, PortState::Downstream | PortState::BindInProgress | PortState::UnbindInProgress);
        let host = config.hosts.iter().find(|(_, ports)| ports.contains(&PortId(*port_id))).map(|(host, _)| host);
        if port.state == PortState::Upstream {
            let host = host.filter(|host| parts.hosts.contains_key(*host)).cloned();
            switch.ports.extend(host.map(|host| (PortId(*port_id), Port::Upstream { host })));
        } else if is_downstream {
            switch.ports.insert(PortId(*port_id), Port::Downstream { device: None });
        }
    }
    for (name, device) in inventory.devices.iter().filter(|(name, _)| !elsewhere.contains_key(*name)) {
        let Some(kind) = kind(device) else { continue };
        // A device that was pulled out keeps its place until another one is there. With several heads, the first port
        // stands for all.
        let is_at_port = |port_id: &&u8| inventory.device_at(**port_id).is_some_and(|(at_port, _)| at_port == name);
        let Some(port_id) = device.ports.iter().find(is_at_port) else { continue };
        if let Some(port @ Port::Downstream { device: None }) = switch.ports.get_mut(&PortId(*port_id)) {
            *port = Port::Downstream { device: Some(name.clone()) };
            parts.devices.insert(name.clone(), Device { enclosure: enclosure.clone(), kind });
        }
    }
    for (vcs_id, vcs) in &inventory.vcss {
        let upstream = PortId(vcs.usp_id);
        let is_taken = switch.vcss.values().any(|vcs| vcs.upstream == upstream);
        if matches!(switch.ports.get(&upstream), Some(Port::Upstream { .. })) && !is_taken {
            let vppbs = offered(inventory, *vcs_id);
            switch.vcss.insert(VcsId(*vcs_id), Vcs { upstream, vppbs });
        }
    }
    parts.switches.insert(config.name.clone(), switch);
}

/// Returns the vPPBs that may be chosen for an LD.
fn offered(inventory: &Inventory, vcs_id: u8) -> BTreeSet<VppbId> {
    let kept = kept_for_capacity(inventory, vcs_id);
    let of_vcs = inventory.vppbs().filter(|(of, _, _)| *of == vcs_id);
    let is_for_lds = |vppb: &aquifer_fmapi::Vppb| match inventory.bound_to(vppb) {
        Some((name, _)) => inventory.devices.get(name).is_some_and(|device| !device.lds().is_empty()),
        None => !matches!(vppb.status, BindingStatus::Ld | BindingStatus::Port),
    };
    of_vcs
        .filter(|(_, vppb_id, vppb)| !kept.contains(vppb_id) && is_for_lds(vppb))
        .map(|(_, vppb_id, _)| VppbId(vppb_id))
        .collect()
}

fn enclosure(config: &SwitchConfig, parts: &mut Parts) -> EnclosureId {
    let name = config.name.as_str();
    let own = || name.parse().expect("a name of a switch is a name");
    let enclosure = config.enclosure.clone().unwrap_or_else(own);
    let rack = config.rack.clone().unwrap_or_else(|| name.parse().expect("a name of a switch is a name"));
    parts.enclosures.entry(enclosure.clone()).or_insert(Enclosure { rack });
    enclosure
}

/// Returns how the memory of a device is handed out; None if it cannot be.
fn kind(device: &DeviceView) -> Option<DeviceKind> {
    if let Some(capacity) = &device.capacity {
        return dynamic(capacity);
    }
    let whole = |bytes: u64| Bytes(bytes / SLAB.0 * SLAB.0);
    let lds = device.lds().into_iter().map(|(ld_id, bytes)| (ld_id, whole(bytes)));
    let is_possible = |ld_id: LdId| ld_id == NO_LD || usize::from(ld_id.0) < LDS_MAX;
    let lds: BTreeMap<_, _> = lds.filter(|(ld_id, bytes)| *bytes > Bytes::ZERO && is_possible(*ld_id)).collect();
    match device.is_mld() {
        _ if lds.is_empty() => None,
        true => Some(DeviceKind::Mld { lds }),
        false => lds.into_values().next().map(|capacity| DeviceKind::Sld { capacity }),
    }
}

/// Returns the kind of a device with dynamic capacity. Blocks smaller than a slab are handed out in whole slabs.
fn dynamic(capacity: &CapacityView) -> Option<DeviceKind> {
    let block = Bytes(capacity.block_bytes.max(SLAB.0));
    let whole = Bytes(capacity.bytes / block.0 * block.0);
    (whole > Bytes::ZERO && block.is_whole_slabs()).then_some(DeviceKind::DynamicCapacity { capacity: whole, block })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Memory;
    use aquifer_fabric::{Host, Topology};
    use aquifer_fmapi::{PortStatus, VirtualSwitch, Vppb};

    fn device(port_id: u8, memory: Memory, capacity: Option<CapacityView>) -> DeviceView {
        DeviceView {
            ports: vec![port_id],
            serial: None,
            memory,
            capacity,
            qos_fractions: Default::default(),
            qos: None,
            is_present: true,
            is_reachable: true,
        }
    }

    #[test]
    fn a_switch_joins_the_topology_with_the_hosts_that_are_known() {
        let config = r#"{"name": "s0", "address": "tcp:a", "hosts": {"h0": [4], "h9": [5]}}"#;
        let config: SwitchConfig = serde_json::from_str(config).expect("a switch");
        let id = |name: &str| name.parse::<aquifer_fabric::DeviceId>().expect("a name");
        let port = |port_id: u8| {
            let state = if port_id < 4 { PortState::Downstream } else { PortState::Upstream };
            (port_id, PortStatus { port_id, state, ..PortStatus::default() })
        };
        let vppb = |status, port_id| Vppb { status, port_id, ld_id: Vppb::NO_LD };
        let vppbs = vec![
            vppb(BindingStatus::Port, 0),
            vppb(BindingStatus::Port, 3),
            vppb(BindingStatus::Unbound, 0),
            vppb(BindingStatus::Unbound, 0),
        ];
        let vcs = |usp_id| VirtualSwitch { usp_id, vppbs_total: 4, vppbs: vppbs.clone(), ..VirtualSwitch::default() };
        let capacity = CapacityView { bytes: 5 << 20, block_bytes: 2 << 20, ..CapacityView::default() };
        let devices = [
            (id("s0.1"), device(0, Memory::Whole(Some(1 << 30)), None)),
            (id("s0.2"), device(1, Memory::Lds(vec![0, 1 << 30]), None)),
            (id("s0.3"), device(2, Memory::Whole(None), Some(capacity))),
            (id("s0.4"), device(3, Memory::Whole(None), None)),
        ];
        // The second virtual switch is a hostile one: it names the upstream port of the first.
        let inventory = Inventory {
            ports: (0..6).map(port).collect(),
            vcss: [(0, vcs(4)), (1, vcs(4)), (2, vcs(5))].into(),
            devices: devices.into(),
        };
        let mut parts = Parts::default();
        parts.enclosures.insert("e0".parse().expect("a name"), Enclosure { rack: "r0".parse().expect("a name") });
        parts.hosts.insert("h0".parse().expect("a name"), Host { enclosure: "e0".parse().expect("a name") });
        let (elsewhere, mut less) = ([(id("s0.2"), id("s9.2"))].into(), parts.clone());
        add(&config, &inventory, &elsewhere, &mut less);
        assert_eq!(less.devices.keys().collect::<Vec<_>>(), [&id("s0.1"), &id("s0.3")], "another switch has it");
        add(&config, &inventory, &BTreeMap::new(), &mut parts);
        let topology = Topology::new(parts).expect("a consistent topology");
        let switch = &topology.parts().switches[&config.name];
        assert_eq!(switch.vcss.keys().collect::<Vec<_>>(), [&VcsId(0)], "host h9 is not known");
        // One that is bound to a port without memory of ours, and the last one, are not for LDs.
        assert_eq!(switch.vcss[&VcsId(0)].vppbs, [VppbId(0), VppbId(2)].into());
        let kinds: Vec<_> = topology.parts().devices.values().map(|device| device.kind.clone()).collect();
        let (capacity, block) = (Bytes::slabs(2), Bytes::slabs(1));
        assert_eq!(
            kinds,
            [
                DeviceKind::Sld { capacity: Bytes::gib(1) },
                DeviceKind::Mld { lds: [(LdId(1), Bytes::gib(1))].into() },
                DeviceKind::DynamicCapacity { capacity, block },
            ]
        );
    }
}
