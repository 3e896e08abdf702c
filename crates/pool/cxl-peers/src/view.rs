// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ports and vPPBs in Redfish's terms, for people and programs. Pure.

use aquifer_fabric::{DeviceId, LdId, VppbAddress};
use aquifer_fmapi::{BindingStatus, DeviceMode, DeviceType, LinkState, PortState};

use crate::inventory::{Inventory, is_up};

/// Gigatransfers per second, by the code of a link's speed.
const SPEEDS_GTPS: [f64; 7] = [0.0, 2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// A port of a switch, in words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PortView {
    /// What it is configured as.
    pub configuration: &'static str,
    /// How the connected device speaks CXL.
    pub device_mode: Option<&'static str>,
    /// The kind of the connected device.
    pub device_type: &'static str,
    /// `true` while its link is up.
    pub is_up: bool,
    /// The state of its link's training.
    pub link_state: &'static str,
    /// Lanes in use, and the maximum.
    pub widths: (u8, u8),
    /// The speed in use, and the highest, in GT/s.
    pub speeds: (f64, f64),
    /// LDs that a device at it may have.
    pub lds_max: u8,
    /// `true` while PERST# is asserted.
    pub is_in_reset: bool,
}

/// A vPPB of a switch, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VppbView {
    /// Whether and to what it is bound.
    pub status: &'static str,
    /// The port that it is bound to.
    pub port_id: Option<u8>,
    /// The device at that port, with the LD.
    pub bound_to: Option<(DeviceId, LdId)>,
}

fn speed(code: u8) -> f64 {
    SPEEDS_GTPS.get(usize::from(code)).copied().unwrap_or_default()
}

impl Inventory {
    /// Returns a port in words.
    pub fn port_view(&self, port_id: u8) -> Option<PortView> {
        const PERST: u16 = 1 << 1;
        let port = self.ports.get(&port_id)?;
        Some(PortView {
            configuration: match port.state {
                PortState::BindInProgress => "BindInProgress",
                PortState::UnbindInProgress => "UnbindInProgress",
                PortState::Downstream => "DSP",
                PortState::Upstream => "USP",
                PortState::FabricLink => "FabricLink",
                PortState::Disabled | PortState::Invalid | PortState::Reserved(_) => "Disabled",
            },
            device_mode: match port.device_mode {
                DeviceMode::NotCxl | DeviceMode::Reserved(_) => None,
                DeviceMode::Rcd => Some("RCD"),
                DeviceMode::Flit68 => Some("CXL68BFlitAndVH"),
                DeviceMode::Flit256 => Some("Standard256BFlit"),
                DeviceMode::Flit256LowLatency => Some("CXLLatencyOptimized256BFlit"),
                DeviceMode::Pbr => Some("PBR"),
            },
            device_type: match port.device_type {
                DeviceType::None | DeviceType::Reserved(_) => "None",
                DeviceType::Pcie => "PCIeDevice",
                DeviceType::Type1 => "Type1",
                DeviceType::Type2 => "Type2",
                DeviceType::Type3Sld => "Type3SLD",
                DeviceType::Type3Mld => "Type3MLD",
                DeviceType::Switch => "CXLSwitch",
            },
            is_up: is_up(port),
            link_state: match port.link_state {
                LinkState::Detect => "Detect",
                LinkState::Polling => "Polling",
                LinkState::Configuration => "Configuration",
                LinkState::Recovery => "Recovery",
                LinkState::L0 => "L0",
                LinkState::L0s => "L0s",
                LinkState::L1 => "L1",
                LinkState::L2 => "L2",
                LinkState::Disabled => "Disabled",
                LinkState::Loopback => "Loopback",
                LinkState::HotReset => "HotReset",
                LinkState::Reserved(_) => "Reserved",
            },
            widths: (port.link_width, port.link_width_max),
            speeds: (speed(port.link_speed), speed(port.link_speed_max)),
            lds_max: port.supported_lds,
            is_in_reset: port.link_flags & PERST != 0,
        })
    }

    /// Returns a vPPB in words.
    pub fn vppb_view(&self, address: &VppbAddress) -> Option<VppbView> {
        let vppb = self.vppb(address.vcs_id.0, address.vppb_id.0)?;
        let is_bound = matches!(vppb.status, BindingStatus::Ld | BindingStatus::Port);
        Some(VppbView {
            status: match vppb.status {
                BindingStatus::Unbound | BindingStatus::Reserved(_) => "Unbound",
                BindingStatus::InProgress => "Busy",
                BindingStatus::Port => "BoundPhysicalPort",
                BindingStatus::Ld => "BoundLD",
            },
            port_id: is_bound.then_some(vppb.port_id),
            bound_to: self.bound_to(&vppb).map(|(device, ld_id)| (device.clone(), ld_id)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_fmapi::{PortStatus, VirtualSwitch, Vppb};

    #[test]
    fn ports_and_vppbs_have_the_words_of_redfish() {
        let port = PortStatus {
            port_id: 3,
            state: PortState::Downstream,
            device_type: DeviceType::Type3Mld,
            link_width: 8,
            link_width_max: 16,
            link_speed: 5,
            link_speed_max: 9,
            ..PortStatus::default()
        };
        let vppb = |status, port_id| Vppb { status, port_id, ld_id: Vppb::NO_LD };
        let vppbs = vec![vppb(BindingStatus::Port, 3), vppb(BindingStatus::InProgress, 0)];
        let vcs = VirtualSwitch { vppbs_total: 2, vppbs, ..VirtualSwitch::default() };
        let inventory = Inventory { ports: [(3, port)].into(), vcss: [(0, vcs)].into(), ..Inventory::default() };
        let view = inventory.port_view(3).expect("a port");
        assert_eq!(
            (view.configuration, view.device_type, view.device_mode, view.is_up),
            ("DSP", "Type3MLD", None, true)
        );
        assert_eq!((view.widths, view.speeds), ((8, 16), (32.0, 0.0)), "an unknown speed is none");
        assert_eq!(inventory.port_view(4), None);
        let at = |vppb_id| crate::report::address(&"s0".parse().expect("a name"), 0, vppb_id);
        let status = |vppb_id| inventory.vppb_view(&at(vppb_id)).map(|view| (view.status, view.port_id));
        assert_eq!(
            [status(0), status(1), status(2)],
            [Some(("BoundPhysicalPort", Some(3))), Some(("Busy", None)), None]
        );
    }
}
