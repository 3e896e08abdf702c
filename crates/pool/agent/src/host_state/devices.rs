// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Members on memory devices: decides when their memory comes online at this host, and when it goes offline. Pure.
//!
//! The kernel manages this memory, and any program may use it, so the users of the volume have no say. A member is
//! `Copying` until its memory is online, and it has left only when its region is destroyed; only after that does the
//! manager unbind the device. `crate::cxl` carries the tasks out.

use std::collections::BTreeMap;

use aquifer_agent_wire::Order;
use aquifer_cxl_host::Identity;
use aquifer_fabric::{
    Bytes, DeviceId, LdId, MemberId, MemberLease, MemberReport, MemberState, Presentation, Source, VolumeId,
};
use serde::{Deserialize, Serialize};

use super::{Held, HostState};

/// The state of a member on a memory device at this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attachment {
    /// The name of its region, recorded before the region is created.
    region: Option<String>,
    /// The place of its device, if that is an LD, recorded with the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pci_path: Option<String>,
    stage: Stage,
    /// The bytes that are not online yet, or not offline yet, once known.
    #[serde(skip)]
    left: Option<Bytes>,
    /// Why it is not online yet, or not offline yet, in one line.
    #[serde(skip)]
    trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Stage {
    /// Its memory is online.
    Attached,
    /// It has no memory at this host.
    Detached,
    /// Its memory was online, and its device has disappeared.
    Lost,
    /// Its memory is not online yet.
    #[default]
    Waiting,
}

/// The stages, as metrics name them.
pub(super) const STAGES: [&str; 4] = ["attached", "detached", "lost", "waiting"];

impl Attachment {
    /// Creates the state of a member whose device was at this place when the host was last started.
    pub(super) fn at(pci_path: Option<String>) -> Attachment {
        Attachment { pci_path, ..Attachment::default() }
    }

    /// Returns what tells its device from others that look like it.
    fn identity(&self) -> Identity {
        Identity { region: self.region.clone(), pci_path: self.pci_path.clone() }
    }

    /// Returns the index of its stage in [`STAGES`].
    pub(super) fn stage(&self) -> usize {
        match self.stage {
            Stage::Attached => 0,
            Stage::Detached => 1,
            Stage::Lost => 2,
            Stage::Waiting => 3,
        }
    }

    /// Returns whether both are equally far, but for the bytes that are left.
    pub(super) fn is_as_far_as(&self, other: &Attachment) -> bool {
        self.stage == other.stage
    }
}

/// A memory device whose member has left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftDevice {
    volume: VolumeId,
    member: MemberId,
    device: DeviceId,
    bytes: Bytes,
    /// Its place, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pci_path: Option<String>,
}

impl LeftDevice {
    /// Returns the device of a member; `None` if the member is at a donor.
    pub(super) fn of(volume: VolumeId, lease: &MemberLease, attachment: Option<&Attachment>) -> Option<LeftDevice> {
        let Source::LogicalDevice { device, .. } = &lease.source else { return None };
        let pci_path = attachment.and_then(|it| it.pci_path.clone());
        Some(LeftDevice { volume, member: lease.member, device: device.clone(), bytes: lease.bytes, pci_path })
    }

    pub(super) fn is_of(&self, volume: VolumeId, member: MemberId) -> bool {
        (self.volume, self.member) == (volume, member)
    }
}

/// The place where the device of a member was before the host was restarted. The device is still bound there if the
/// manager presents the member again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EarlierPlace {
    volume: VolumeId,
    member: MemberId,
    pci_path: String,
}

/// Maximum number of places that are remembered. A choice: more than the devices of a host.
const EARLIER_PLACES_MAX: usize = 1024;

/// What to do for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Attach,
    Detach,
}

/// A member, and what to do for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceTask {
    pub(crate) volume: VolumeId,
    pub(crate) member: MemberId,
    pub(crate) device: DeviceId,
    pub(crate) ld_id: LdId,
    pub(crate) bytes: u64,
    /// What tells its device from others that look like it.
    pub(crate) identity: Identity,
    pub(crate) act: Act,
    /// Whether the volume asks for a node of its own for each device, whatever the agent is set to.
    pub(crate) has_own_node: bool,
}

/// The outcome of a task, or its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The device is not present.
    Absent(String),
    /// The task is done: the memory is online, or the region is destroyed.
    Done,
    /// The task failed; it is tried again.
    Hindered(String),
    /// The device is known, and its region is about to be created, or used.
    Makes(Identity),
    /// These bytes are left.
    Left(Bytes),
}

impl Held {
    /// Returns whether the kernel of this host has no memory of a member. Always true for members at donors.
    pub(super) fn is_detached(&self, member: MemberId) -> bool {
        self.attachments.get(&member).is_none_or(|it| it.stage == Stage::Detached)
    }

    /// Returns the state of a member on a memory device; `None` for others.
    pub(super) fn state_of_device(&self, member: MemberId, report: &MemberReport) -> Option<MemberState> {
        let attachment = self.attachments.get(&member)?;
        let left = attachment.left.unwrap_or(report.lease.bytes);
        if self.act(member) == Act::Detach {
            let is_leaving = matches!(report.state, MemberState::Leaving { .. });
            // A member that is being replaced keeps its state until the manager releases it.
            return Some(if is_leaving { MemberState::Leaving { left } } else { report.state });
        }
        Some(match attachment.stage {
            Stage::Attached => MemberState::InSync,
            Stage::Lost => MemberState::Broken,
            Stage::Waiting | Stage::Detached => MemberState::Copying { left },
        })
    }

    /// Decides what to do for a member. One that is being replaced keeps its memory until all its replacements are
    /// online, because the kernel migrates its pages to them. If it was never online, it has none to keep: it must not
    /// wait, because it may look like its replacement, which then could not come online.
    fn act(&self, member: MemberId) -> Act {
        let waits = || {
            let was_online = self.attachments.get(&member).is_some_and(|it| it.stage != Stage::Waiting);
            let is_leaving =
                self.report.members.get(&member).is_some_and(|it| matches!(it.state, MemberState::Leaving { .. }));
            let mut others = self.attachments.iter().filter(|(other, _)| **other != member);
            was_online
                && self.replaced.contains(&member)
                && !self.abandoned.contains(&member)
                && !is_leaving
                && others.any(|(other, it)| self.order(*other) == Order::Use && it.stage == Stage::Waiting)
        };
        match self.is_withdrawn || self.order(member) != Order::Use && !waits() {
            true => Act::Detach,
            false => Act::Attach,
        }
    }
}

impl HostState {
    /// Returns the tasks for members on memory devices, repeated until they are done. Attached members have one, too:
    /// their device may have disappeared.
    pub(crate) fn device_tasks(&self) -> Vec<DeviceTask> {
        let mut tasks = Vec::new();
        for (volume, held) in &self.volumes {
            for (member, attachment) in &held.attachments {
                let Some(report) = held.report.members.get(member) else { continue };
                let Source::LogicalDevice { device, ld_id } = &report.lease.source else { continue };
                let act = held.act(*member);
                if act == Act::Detach && attachment.stage == Stage::Detached {
                    continue;
                }
                tasks.push(DeviceTask {
                    volume: *volume,
                    member: *member,
                    device: device.clone(),
                    ld_id: *ld_id,
                    bytes: report.lease.bytes.0,
                    identity: attachment.identity(),
                    act,
                    has_own_node: held.report.presentation != Presentation::OneRange,
                });
            }
        }
        // Detach first, to make room for members to attach.
        tasks.sort_by_key(|task| task.act == Act::Attach);
        tasks
    }

    /// Returns what is known of the other devices that look like that of a task: logical devices of the same device
    /// with the same size.
    pub(crate) fn twins(&self, task: &DeviceTask) -> Vec<Identity> {
        let of_held = self.volumes.iter().flat_map(|(volume, held)| {
            held.attachments.iter().filter_map(|(member, attachment)| {
                let device = LeftDevice::of(*volume, &held.report.members.get(member)?.lease, None)?;
                Some((device, attachment.identity()))
            })
        });
        let of_left = self.left_devices.iter().map(|left| {
            let identity = Identity { region: None, pci_path: left.pci_path.clone() };
            (left.clone(), identity)
        });
        let is_twin = |device: &LeftDevice| {
            (&device.device, device.bytes.0) == (&task.device, task.bytes) && !device.is_of(task.volume, task.member)
        };
        of_held.chain(of_left).filter(|(device, _)| is_twin(device)).map(|(_, identity)| identity).collect()
    }

    /// Returns the places of all devices, for the next start of the host.
    pub(super) fn places(&self) -> Vec<EarlierPlace> {
        let of_held = self.volumes.iter().flat_map(|(volume, held)| {
            held.attachments.iter().filter_map(|(member, attachment)| {
                let pci_path = attachment.pci_path.clone()?;
                Some(EarlierPlace { volume: *volume, member: *member, pci_path })
            })
        });
        let mut places: Vec<EarlierPlace> = self.earlier_places.iter().cloned().chain(of_held).collect();
        places.drain(..places.len().saturating_sub(EARLIER_PLACES_MAX));
        places
    }

    /// Takes the place that the device of a member had before the host was restarted.
    pub(super) fn take_place(&mut self, volume: VolumeId, member: MemberId) -> Option<String> {
        let is_of = |place: &EarlierPlace| (place.volume, place.member) == (volume, member);
        let at = self.earlier_places.iter().position(is_of)?;
        Some(self.earlier_places.remove(at).pci_path)
    }

    /// Notes a task's outcome. Ignored if the member has gone, or has another task by now.
    pub(crate) fn note(&mut self, task: &DeviceTask, outcome: Outcome) {
        let Some(held) = self.volumes.get_mut(&task.volume) else { return };
        let is_current = held.act(task.member) == task.act;
        let Some(attachment) = held.attachments.get_mut(&task.member) else { return };
        match outcome {
            Outcome::Makes(Identity { region, pci_path }) => {
                (attachment.region, attachment.pci_path) = (region, pci_path);
            }
            _ if !is_current => attachment.left = None,
            Outcome::Absent(why) => {
                if matches!(attachment.stage, Stage::Attached | Stage::Lost) {
                    attachment.stage = Stage::Lost;
                }
                attachment.trouble = Some(why);
            }
            Outcome::Done => {
                attachment.stage = if task.act == Act::Attach { Stage::Attached } else { Stage::Detached };
                (attachment.left, attachment.trouble) = (None, None);
            }
            Outcome::Hindered(why) => attachment.trouble = Some(why),
            Outcome::Left(bytes) => attachment.left = Some(bytes),
        }
    }

    /// Returns the trouble of members on memory devices.
    pub(super) fn trouble(&self) -> BTreeMap<VolumeId, BTreeMap<MemberId, String>> {
        let of = |held: &Held| -> BTreeMap<MemberId, String> {
            let of_member = |(member, it): (&MemberId, &Attachment)| Some((*member, it.trouble.clone()?));
            held.attachments.iter().filter_map(of_member).collect()
        };
        let all = self.volumes.iter().map(|(volume, held)| (*volume, of(held)));
        all.filter(|(_, trouble)| !trouble.is_empty()).collect()
    }
}
