// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A simulated switch with its memory devices, each a single logical device. It carries a step out at once or refuses
//! it.

use std::collections::BTreeMap;

use aquifer_fabric::{
    Content, DeviceId, DeviceReport, HostId, LdBinding, LdReport, MemberId, NO_LD, Source, Step, Topology, VolumeId,
};
use serde::{Deserialize, Serialize};

/// The simulated switch. Its file is this value as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SimulatedSwitch {
    lds: BTreeMap<DeviceId, LdReport>,
    #[serde(skip)]
    topology: Topology,
}

impl SimulatedSwitch {
    /// Plugs in the devices that it does not have yet.
    pub(super) fn add_devices(&mut self, topology: &Topology) {
        self.topology = topology.clone();
        for name in topology.parts().devices.keys() {
            self.lds.entry(name.clone()).or_default();
        }
    }

    pub(super) fn report(&self, device: &DeviceId) -> DeviceReport {
        let lds = self.lds.get(device).map(|ld| (NO_LD, ld.clone())).into_iter().collect();
        DeviceReport { lds, ..DeviceReport::default() }
    }

    pub(super) fn obey(&mut self, step: &Step) -> Result<(), String> {
        let (Step::BindVppb { device, .. } | Step::UnbindVppb { device, .. } | Step::WipeLd { device, .. }) = step
        else {
            return Err(format!("this switch cannot {step}"));
        };
        let is_taken = |vppb: &_| self.lds.values().any(|ld| ld.binding == LdBinding::Bound(Clone::clone(vppb)));
        let takes = matches!(step, Step::BindVppb { vppb, .. } if is_taken(vppb));
        let ld = self.lds.get_mut(device).ok_or_else(|| format!("there is no device {device}"))?;
        match step {
            Step::BindVppb { vppb, .. } if ld.binding == LdBinding::Unbound && !takes => {
                *ld = LdReport { binding: LdBinding::Bound(vppb.clone()), content: Content::Used };
            }
            Step::UnbindVppb { vppb, .. } if ld.binding == LdBinding::Bound(vppb.clone()) => {
                ld.binding = LdBinding::Unbound;
            }
            Step::WipeLd { .. } if ld.binding == LdBinding::Unbound && ld.content == Content::Used => {
                ld.content = Content::Wiping;
            }
            _ => {}
        }
        Ok(())
    }

    /// Sanitizes. Returns whether anything changed.
    pub(super) fn tick(&mut self) -> bool {
        let mut wiping = self.lds.values_mut().filter(|ld| ld.content == Content::Wiping).peekable();
        let changed = wiping.peek().is_some();
        wiping.for_each(|ld| ld.content = Content::Wiped);
        changed
    }

    /// Returns whether a host reaches an LD.
    pub(super) fn is_host_of(&self, source: &Source, host: &HostId, _: (VolumeId, MemberId)) -> bool {
        let Source::LogicalDevice { device, .. } = source else { return false };
        match self.lds.get(device).map(|ld| &ld.binding) {
            Some(LdBinding::Bound(vppb)) => self.topology.host_of(&vppb.switch, vppb.vcs_id) == Some(host),
            _ => false,
        }
    }
}
