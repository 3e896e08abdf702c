// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The switch with its devices. It carries a command out at once or not at all: a newly elected fabric manager waits
//! for as long as an earlier command may take before it sends its first one.

use std::collections::BTreeMap;

use aquifer_fabric::*;

use super::judge::Judge;

struct Extent {
    device: DeviceId,
    host: HostId,
    bytes: Bytes,
    accepted: bool,
}

pub struct SimSwitch {
    pub is_cut: bool,
    topology: Topology,
    lds: BTreeMap<(DeviceId, LdId), LdReport>,
    extents: BTreeMap<(VolumeId, MemberId), Extent>,
}

impl SimSwitch {
    pub fn new(topology: &Topology) -> SimSwitch {
        let devices = topology.parts().devices.iter();
        let lds = devices.flat_map(|(name, device)| {
            device.lds().into_iter().map(|(ld_id, _)| ((name.clone(), ld_id), LdReport::default()))
        });
        SimSwitch { is_cut: false, topology: topology.clone(), lds: lds.collect(), extents: BTreeMap::new() }
    }

    pub fn report(&self, device: &DeviceId) -> DeviceReport {
        let mut report = DeviceReport::default();
        let lds = self.lds.iter().filter(|((of, _), _)| of == device);
        report.lds = lds.map(|((_, ld_id), ld)| (*ld_id, ld.clone())).collect();
        for ((volume, member), extent) in self.extents.iter().filter(|(_, extent)| extent.device == *device) {
            let Extent { host, bytes, accepted, .. } = extent;
            let extent = ExtentReport { host: host.clone(), bytes: *bytes, accepted: *accepted };
            report.extents.entry(*volume).or_default().insert(*member, extent);
        }
        report
    }

    /// Carries a step out. What a device refuses changes nothing.
    pub fn obey(&mut self, step: &Step, judge: &mut Judge) -> Result<(), String> {
        match step.clone() {
            Step::BindVppb { vppb, device, ld_id } => {
                let taken = self.lds.values().any(|ld| ld.binding == LdBinding::Bound(vppb.clone()));
                let ld = self.lds.get_mut(&(device, ld_id)).ok_or("no such LD")?;
                if ld.binding == LdBinding::Unbound && !taken {
                    judge.slab_is_clean(ld.content != Content::Wiped)?;
                    *ld = LdReport { binding: LdBinding::Bound(vppb), content: Content::Used };
                }
            }
            Step::UnbindVppb { vppb, device, ld_id } => {
                let ld = self.lds.get_mut(&(device, ld_id)).ok_or("no such LD")?;
                if ld.binding == LdBinding::Bound(vppb) {
                    ld.binding = LdBinding::Unbound;
                }
            }
            Step::WipeLd { device, ld_id } => {
                let ld = self.lds.get_mut(&(device, ld_id)).ok_or("no such LD")?;
                if ld.binding == LdBinding::Unbound && ld.content == Content::Used {
                    ld.content = Content::Wiping;
                }
            }
            Step::AddDynamicCapacity { device, host, volume, member, bytes } => {
                let used: Bytes = self.extents.values().map(|extent| extent.bytes).sum();
                let free = Bytes::slabs(8).minus(used);
                if bytes <= free {
                    let extent = Extent { device, host, bytes, accepted: false };
                    self.extents.entry((volume, member)).or_insert(extent);
                }
            }
            Step::ReleaseDynamicCapacity { volume, member, .. } => drop(self.extents.remove(&(volume, member))),
            step => return Err(format!("a switch was asked to {step}")),
        }
        Ok(())
    }

    pub fn tick(&mut self) {
        self.extents.values_mut().for_each(|extent| extent.accepted = true);
        for ld in self.lds.values_mut().filter(|ld| ld.content == Content::Wiping) {
            ld.content = Content::Wiped;
        }
    }

    /// Returns whether a host reaches a member's bytes.
    pub fn is_host_of(&self, source: &Source, host: &HostId, key: (VolumeId, MemberId)) -> bool {
        match source {
            Source::LogicalDevice { device, ld_id } => self.host_of(device, *ld_id) == Some(host),
            _ => self.extents.get(&key).is_some_and(|extent| extent.host == *host),
        }
    }

    /// Returns the host to which an LD is bound.
    fn host_of(&self, device: &DeviceId, ld_id: LdId) -> Option<&HostId> {
        match &self.lds[&(device.clone(), ld_id)].binding {
            LdBinding::Bound(vppb) => self.topology.host_of(&vppb.switch, vppb.vcs_id),
            LdBinding::Busy | LdBinding::Unbound => None,
        }
    }

    /// Returns the host to which a step binds an LD of an MLD, and the other LDs of that device that it has, with their
    /// vPPBs. All LDs of a device of the site have one size.
    pub fn bound_beside(&self, step: &Step) -> Option<(&HostId, Vec<(Source, VppbAddress)>)> {
        let Step::BindVppb { vppb, device, ld_id } = step else { return None };
        let host = self.topology.host_of(&vppb.switch, vppb.vcs_id)?;
        let others = self.lds.iter().filter(|((of, other), _)| of == device && other != ld_id);
        let bound = others.filter_map(|((of, other), ld)| match &ld.binding {
            LdBinding::Bound(vppb) if self.host_of(of, *other) == Some(host) => {
                Some((Source::LogicalDevice { device: of.clone(), ld_id: *other }, vppb.clone()))
            }
            _ => None,
        });
        Some((host, bound.collect()))
    }

    /// Returns what a step takes away from a host, if anything.
    pub fn taken_away<'a>(&self, step: &'a Step) -> Option<Taken<'a>> {
        match step {
            Step::UnbindVppb { device, vppb, ld_id }
                if self.lds[&(device.clone(), *ld_id)].binding == LdBinding::Bound(vppb.clone()) =>
            {
                Some(Taken::Ld(device, *ld_id))
            }
            Step::ReleaseDynamicCapacity { volume, member, .. } => Some(Taken::Member(*volume, *member)),
            _ => None,
        }
    }

    pub fn bound(&self) -> impl Iterator<Item = &LdReport> {
        self.lds.values().filter(|ld| ld.binding != LdBinding::Unbound)
    }

    pub fn unwiped(&self) -> usize {
        self.lds.values().filter(|ld| ld.binding == LdBinding::Unbound && ld.content != Content::Wiped).count()
    }

    pub fn tags(&self) -> impl Iterator<Item = &(VolumeId, MemberId)> {
        self.extents.keys()
    }
}

/// What a step takes away from a host.
pub enum Taken<'a> {
    Ld(&'a DeviceId, LdId),
    Member(VolumeId, MemberId),
}
