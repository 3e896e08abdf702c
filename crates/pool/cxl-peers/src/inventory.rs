// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The inventory of a switch, as it was read, and which vPPB has which LD. Pure.

use std::collections::BTreeMap;

use aquifer_fabric::{DeviceId, LdId, NO_LD};
use aquifer_fmapi::{BindingStatus, DeviceType, PortState, PortStatus, QosControl, VirtualSwitch, Vppb};

use crate::tag::Tag;

/// The memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Multiple logical devices, with the bytes of each.
    Lds(Vec<u64>),
    /// A single logical device of this many bytes; None where the device does not say.
    Whole(Option<u64>),
}

/// Dynamic capacity that a host has, or is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The device's number for the host.
    pub host_id: u16,
    /// The tag of the capacity.
    pub tag: Tag,
    /// What the host has accepted of it.
    pub bytes: u64,
    /// `true` while the host has not answered to all of it, as far as is known.
    pub is_pending: bool,
}

/// The dynamic capacity of a device. Of its regions the largest one that hosts cannot share is handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacityView {
    /// How many hosts there can be.
    pub hosts: u16,
    /// The number of the region.
    pub region_id: u8,
    /// The region's first address of the device.
    pub start: u64,
    /// The region's length in bytes.
    pub bytes: u64,
    /// The unit in which the region is handed out, in bytes.
    pub block_bytes: u64,
    /// `true` if the device wipes all that is released.
    pub is_sanitized: bool,
    /// Ways of choosing what is added, and what is released, as bits.
    pub policies: (u16, u16),
    /// `true` if the device lists what each host was offered and has not answered.
    pub lists_pending: bool,
    /// What hosts have, or are offered.
    pub offers: Vec<Offer>,
}

/// A memory device, as its switch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// The ports that its heads are at.
    pub ports: Vec<u8>,
    /// Its serial number, if it has one.
    pub serial: Option<u64>,
    /// Its memory, apart from dynamic capacity.
    pub memory: Memory,
    /// Its dynamic capacity, if it has some.
    pub capacity: Option<CapacityView>,
    /// The part of the bandwidth that is allocated to each LD, and the limit, in 256ths. Empty where the device does
    /// not say.
    pub qos_fractions: (Vec<u8>, Vec<u8>),
    /// How it reports congestion.
    pub qos: Option<QosControl>,
    /// `false` after it was pulled out.
    pub is_present: bool,
    /// `false` while no link to it is up.
    pub is_reachable: bool,
}

impl DeviceView {
    /// Returns `true` if it has multiple logical devices.
    pub fn is_mld(&self) -> bool {
        matches!(self.memory, Memory::Lds(_))
    }

    /// Returns whether an LD has memory apart from dynamic capacity, or may have some; [`NO_LD`] for the whole of an
    /// SLD.
    pub(crate) fn has_static_memory(&self, ld_id: LdId) -> bool {
        match &self.memory {
            Memory::Whole(bytes) => bytes.is_none_or(|bytes| bytes > 0),
            Memory::Lds(lds) => lds.get(usize::from(ld_id.0)).is_some_and(|bytes| *bytes > 0),
        }
    }

    /// Returns all its LDs, whatever their memory is.
    pub(crate) fn all_lds(&self) -> Vec<LdId> {
        match &self.memory {
            Memory::Whole(_) => vec![NO_LD],
            Memory::Lds(lds) => (0..NO_LD.0).map(LdId).take(lds.len()).collect(),
        }
    }

    /// Returns the LDs that are handed out, with their bytes: those that have memory, unless its capacity is dynamic.
    pub fn lds(&self) -> Vec<(LdId, u64)> {
        match &self.memory {
            _ if self.capacity.is_some() => Vec::new(),
            Memory::Whole(bytes) => bytes.filter(|bytes| *bytes > 0).map(|bytes| (NO_LD, bytes)).into_iter().collect(),
            Memory::Lds(lds) => {
                let all = lds.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
                all.map(|(ld_id, bytes)| (LdId(u16::try_from(ld_id).unwrap_or(NO_LD.0)), *bytes)).collect()
            }
        }
    }
}

/// Who has an LD, or a port as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A bind or an unbind of its port is under way.
    Busy,
    /// Nobody has it.
    Nobody,
    /// This vPPB is bound to it.
    Vppb { vcs_id: u8, vppb_id: u8 },
}

/// The state that was read from a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The states of its ports, by number.
    pub ports: BTreeMap<u8, PortStatus>,
    /// Its virtual CXL switches.
    pub vcss: BTreeMap<u8, VirtualSwitch>,
    /// The devices that are or were at its ports.
    pub devices: BTreeMap<DeviceId, DeviceView>,
}

/// Returns whether a link is up. Peers report different states of link training for one that is; all report its width.
pub(crate) fn is_up(port: &PortStatus) -> bool {
    port.link_width > 0
}

/// Returns whether memory is at a port.
pub(crate) fn has_memory(port: &PortStatus) -> bool {
    matches!(port.device_type, DeviceType::Type3Mld | DeviceType::Type3Sld)
}

impl Inventory {
    /// Returns a vPPB.
    pub(crate) fn vppb(&self, vcs_id: u8, vppb_id: u8) -> Option<Vppb> {
        self.vcss.get(&vcs_id)?.vppbs.get(usize::from(vppb_id)).copied()
    }

    /// Returns all vPPBs with their addresses.
    pub(crate) fn vppbs(&self) -> impl Iterator<Item = (u8, u8, Vppb)> + '_ {
        self.vcss.iter().flat_map(|(vcs_id, vcs)| {
            // A virtual switch has at most 255 vPPBs.
            (0..=u8::MAX).zip(&vcs.vppbs).map(move |(vppb_id, vppb)| (*vcs_id, vppb_id, *vppb))
        })
    }

    /// Returns whether a bind or an unbind is under way.
    pub(crate) fn is_changing(&self) -> bool {
        let is_at_work =
            |port: &PortStatus| matches!(port.state, PortState::BindInProgress | PortState::UnbindInProgress);
        self.ports.values().any(is_at_work) || self.vppbs().any(|(_, _, vppb)| vppb.status == BindingStatus::InProgress)
    }

    /// Returns the devices that are or were at a port.
    pub(crate) fn devices_at(&self, port_id: u8) -> impl Iterator<Item = &DeviceId> {
        self.devices.iter().filter(move |(_, device)| device.ports.contains(&port_id)).map(|(name, _)| name)
    }

    /// Returns who has an LD of a device; [`NO_LD`] for the whole of an SLD.
    pub(crate) fn holder(&self, device: &DeviceView, ld_id: LdId) -> Holder {
        let of_device = self.vppbs().filter(|(_, _, vppb)| device.ports.contains(&vppb.port_id));
        let mut bound = of_device.filter(|(_, _, vppb)| match vppb.status {
            // The whole of a port has all its LDs.
            BindingStatus::Port => true,
            BindingStatus::Ld => !device.is_mld() || u16::from(vppb.ld_id) == ld_id.0,
            _ => false,
        });
        if let Some((vcs_id, vppb_id, _)) = bound.next() {
            return Holder::Vppb { vcs_id, vppb_id };
        }
        let states = device.ports.iter().filter_map(|port_id| self.ports.get(port_id)).map(|port| port.state);
        match states.into_iter().any(|state| matches!(state, PortState::BindInProgress | PortState::UnbindInProgress)) {
            true => Holder::Busy,
            false => Holder::Nobody,
        }
    }

    /// Returns the device and the LD that a vPPB is bound to.
    pub(crate) fn bound_to(&self, vppb: &Vppb) -> Option<(&DeviceId, LdId)> {
        if !matches!(vppb.status, BindingStatus::Ld | BindingStatus::Port) {
            return None;
        }
        let (name, device) = self.device_at(vppb.port_id)?;
        let is_ld = vppb.status == BindingStatus::Ld && device.is_mld();
        Some((name, if is_ld { LdId(vppb.ld_id.into()) } else { NO_LD }))
    }

    /// Returns the device at a port: the one that is there, or else the one that was pulled out there.
    pub(crate) fn device_at(&self, port_id: u8) -> Option<(&DeviceId, &DeviceView)> {
        let at_port = self.devices.iter().filter(|(_, device)| device.ports.contains(&port_id));
        at_port.max_by_key(|(_, device)| device.is_present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ld_has_the_vppb_that_is_bound_to_it_or_to_its_port() {
        let device = |memory, port_id| DeviceView {
            ports: vec![port_id],
            serial: None,
            memory,
            capacity: None,
            qos_fractions: Default::default(),
            qos: None,
            is_present: true,
            is_reachable: true,
        };
        let (mld, sld) = (device(Memory::Lds(vec![1, 0, 1]), 1), device(Memory::Whole(Some(1)), 2));
        let vppb = |status, port_id, ld_id| Vppb { status, port_id, ld_id };
        let vppbs = vec![
            vppb(BindingStatus::Unbound, 0, Vppb::NO_LD),
            vppb(BindingStatus::Ld, 1, 2),
            vppb(BindingStatus::Port, 2, Vppb::NO_LD),
            vppb(BindingStatus::InProgress, 0, Vppb::NO_LD),
        ];
        let vcs = VirtualSwitch { vcs_id: 0, vppbs_total: 4, vppbs, ..VirtualSwitch::default() };
        let id = |name: &str| name.parse::<DeviceId>().expect("a name");
        let mut inventory = Inventory {
            vcss: [(0, vcs)].into(),
            devices: [(id("mld"), mld.clone()), (id("sld"), sld.clone())].into(),
            ..Inventory::default()
        };
        assert_eq!(inventory.holder(&mld, LdId(0)), Holder::Nobody);
        assert_eq!(inventory.holder(&mld, LdId(2)), Holder::Vppb { vcs_id: 0, vppb_id: 1 });
        assert_eq!(inventory.holder(&sld, NO_LD), Holder::Vppb { vcs_id: 0, vppb_id: 2 });
        assert_eq!(mld.lds(), [(LdId(0), 1), (LdId(2), 1)], "an LD without memory is not handed out");
        assert_eq!([&mld, &sld].map(DeviceView::all_lds), [vec![LdId(0), LdId(1), LdId(2)], vec![NO_LD]]);
        let unknown = device(Memory::Whole(None), 3);
        assert!(unknown.has_static_memory(NO_LD) && sld.has_static_memory(NO_LD) && !mld.has_static_memory(LdId(1)));
        let bound: Vec<_> = inventory.vppbs().map(|(_, _, vppb)| inventory.bound_to(&vppb)).collect();
        assert_eq!(bound, [None, Some((&id("mld"), LdId(2))), Some((&id("sld"), NO_LD)), None]);
        let port = PortStatus { port_id: 1, state: PortState::BindInProgress, ..PortStatus::default() };
        inventory.ports.insert(1, port);
        assert_eq!(inventory.holder(&mld, LdId(0)), Holder::Busy, "a bind of any LD of the port may be of this one");
    }
}
