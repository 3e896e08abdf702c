// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which donor or host is at which port: donors from port 0 on, hosts from port 16 on, in the order of the
//! configuration. Pure.

use aquifer_cxl_switch::{DeviceConfig, DeviceKind, PortConfig, PortRole, SwitchConfig, VirtualSwitchConfig};
use aquifer_cxl_switchd::Failure;
use aquifer_fabric::{DonorId, HostId};

use crate::config::{Config, PLACES_MAX};
use crate::view::View;

/// Logical devices of each donor: the maximum of an MLD.
pub(crate) const LDS: u8 = 16;
/// The code of the links' speed, 32 GT/s. No link is physical.
const LINK_SPEED: u8 = 5;
/// Lanes of the links.
const LINK_WIDTH: u8 = 16;
/// Maximum number of records in an event log.
const EVENTS_PER_LOG: u16 = 256;

/// The places of donors and hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// The donors, by their device numbers, which are their ports' as well.
    pub donors: Vec<Option<DonorId>>,
    /// The hosts, by their virtual CXL switches.
    pub hosts: Vec<Option<HostId>>,
    /// vPPBs of each virtual CXL switch.
    pub vppbs: u8,
}

impl Places {
    /// Returns the places that a configuration lists.
    pub fn of(config: &Config) -> Result<Self, Failure> {
        Ok(Self { donors: config.donors()?, hosts: config.hosts()?, vppbs: config.vppbs })
    }

    /// Returns the number of a donor's device.
    pub fn device_of(&self, donor: &DonorId) -> Option<usize> {
        self.donors.iter().position(|at| at.as_ref() == Some(donor))
    }

    /// Returns the virtual CXL switch of a host.
    pub fn vcs_of(&self, host: &str) -> Option<u8> {
        let at = self.hosts.iter().position(|at| at.as_ref().is_some_and(|at| at.as_str() == host))?;
        u8::try_from(at).ok()
    }

    /// Returns the donor of a device.
    pub fn donor(&self, device: usize) -> Option<&DonorId> {
        self.donors.get(device)?.as_ref()
    }

    /// Returns the host of a virtual CXL switch.
    pub fn host(&self, vcs_id: u8) -> Option<&HostId> {
        self.hosts.get(usize::from(vcs_id))?.as_ref()
    }

    /// Returns a line for each donor and host that the manager does not know. One that joins later is no failure.
    pub fn unknown(&self, view: &View) -> Vec<String> {
        let line = |key: &str, name: &str| {
            format!("{key}: the manager does not know {name}, and its port has no link; start it, or correct the name")
        };
        let donors = self.donors.iter().flatten().filter(|donor| !view.donors.contains_key(*donor));
        let hosts = self.hosts.iter().flatten().filter(|host| !view.hosts.contains_key(host.as_str()));
        let donors = donors.map(|donor| line("donors", donor.as_str()));
        donors.chain(hosts.map(|host| line("hosts", host.as_str()))).collect()
    }

    /// Returns the switch that has these places. Ports without a place are disabled.
    pub fn switch(&self, config: &Config) -> SwitchConfig {
        let role = |at: usize| match at.checked_sub(PLACES_MAX) {
            None if at < self.donors.len() => PortRole::Downstream,
            Some(at) if at < self.hosts.len() => PortRole::Upstream,
            _ => PortRole::Disabled,
        };
        let port = |at| PortConfig { role: role(at), link_width: LINK_WIDTH, link_speed: LINK_SPEED, lds: LDS };
        let device = |port_id: usize| DeviceConfig {
            kind: DeviceKind::Mld,
            ports: vec![port_id as u8],
            // The actual size is adopted from the manager.
            memory_mib: 256,
            lds_mib: vec![0; LDS.into()],
            ld_heads: Vec::new(),
            link_width: LINK_WIDTH,
            link_speed: LINK_SPEED,
            capacity: None,
        };
        let virtual_switch = |at: usize| VirtualSwitchConfig {
            upstream_port: (PLACES_MAX + at) as u8,
            vppbs: self.vppbs,
            enabled: true,
        };
        SwitchConfig {
            serial_number: config.serial_number,
            events_per_log: EVENTS_PER_LOG,
            ports: (0..PLACES_MAX + self.hosts.len()).map(port).collect(),
            virtual_switches: (0..self.hosts.len()).map(virtual_switch).collect(),
            devices: (0..self.donors.len()).map(device).collect(),
            ..SwitchConfig::example()
        }
    }
}

#[cfg(test)]
mod tests {
    use aquifer_cxl_switch::Switch;

    use super::*;
    use crate::config::EXAMPLE;

    #[test]
    fn every_configuration_is_a_switch() {
        for (donors, hosts) in [(1, 1), (2, 16), (16, 2), (16, 16)] {
            let list =
                |kind: &str, count| (0..count).map(|at| format!("\"{kind}{at}\"")).collect::<Vec<_>>().join(", ");
            let text =
                EXAMPLE.replace("\"d1\", \"d2\"", &list("d", donors)).replace("\"h1\", \"h2\"", &list("h", hosts));
            let config = Config::parse(&text).expect("a configuration");
            let places = Places::of(&config).expect("places");
            let switch = Switch::driven(places.switch(&config), 1).expect("a switch");
            let shown = switch.config();
            assert_eq!((shown.devices.len(), shown.virtual_switches.len()), (donors, hosts));
            assert_eq!(shown.virtual_switches[0].upstream_port, 16);
            assert_eq!((places.vcs_of("h0"), places.device_of(&"d0".parse().expect("a name"))), (Some(0), Some(0)));
        }
    }
}
