// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The section `[peers]`: donors, hosts and switches, registered or simulated.

use std::path::PathBuf;

use aquifer_fabric::Bytes;
use serde::{Deserialize, Serialize};

use super::{NotAConfig, refuse, within};
use crate::simulated::{DEVICES_MAX, SWITCH_HOSTS_MAX};

/// Maximum number of simulated donors, so that a mistyped number does not fill the disk.
const DONORS_MAX: u32 = 10_000;
/// Maximum number of simulated hosts.
const HOSTS_MAX: u32 = 1000;

/// Donors, hosts and switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PeersConfig {
    /// They have registered at the control port.
    Registered(RegisteredConfig),
    /// They are simulated in files.
    Simulated(SimulatedConfig),
}

/// Peers that have registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RegisteredConfig {
    /// The effect before or after which the daemon kills itself; see `crash.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_at_effect: Option<u64>,
}

/// A rack of simulated donors, hosts and devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SimulatedConfig {
    /// How many donors the rack has.
    #[serde(default = "default_donors")]
    pub donors: u32,
    /// What each of them lends.
    #[serde(default = "default_capacity")]
    pub donor_capacity: Bytes,
    /// How many hosts the rack has.
    #[serde(default = "default_hosts")]
    pub hosts: u32,
    /// How many memory devices there are behind one switch.
    #[serde(default)]
    pub devices: u32,
    /// What each of them holds.
    #[serde(default = "default_capacity")]
    pub device_capacity: Bytes,
    /// A directory of the rack that several managers share; by default one in the state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// The effect before or after which the daemon kills itself; see `crash.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_at_effect: Option<u64>,
}

fn default_donors() -> u32 {
    22
}

fn default_hosts() -> u32 {
    3
}

fn default_capacity() -> Bytes {
    Bytes::gib(256)
}

impl SimulatedConfig {
    pub(super) fn check(&self) -> Result<(), NotAConfig> {
        within("peers.donors", u64::from(self.donors), 0, u64::from(DONORS_MAX))?;
        within("peers.hosts", u64::from(self.hosts), 0, u64::from(HOSTS_MAX))?;
        within("peers.devices", u64::from(self.devices), 0, u64::from(DEVICES_MAX))?;
        if self.devices > 0 && self.hosts == 0 {
            return refuse(format!("peers.devices need a host; write peers.hosts = 1 to {SWITCH_HOSTS_MAX}"));
        }
        for (name, capacity) in [("donor", self.donor_capacity), ("device", self.device_capacity)] {
            let is_sane = capacity.is_whole_slabs() && capacity > Bytes::ZERO && capacity <= Bytes::gib(1 << 16);
            if !is_sane {
                return refuse(format!("peers.{name}-capacity = \"{capacity}\"; write whole 2MiB, 64TiB at most"));
            }
        }
        Ok(())
    }
}
