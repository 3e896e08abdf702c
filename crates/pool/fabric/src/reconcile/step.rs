// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The steps that a fabric manager takes. Each is for one receiver, may be repeated, and may be lost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::counted::counted;
use crate::desired::Why;
use crate::id::{DeviceId, DonorId, HostId, LdId, MemberId, Token, VolumeId, VolumeName, VppbAddress};
use crate::volume::{Place, Presentation, Redundancy, Source};

/// What an agent must know to use a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberLease {
    /// The member that is lent.
    pub member: MemberId,
    /// Its place in the volume.
    pub place: Place,
    /// Where its bytes are.
    pub source: Source,
    /// The size of what is lent.
    pub bytes: Bytes,
    /// The fencing token that the donor checks; 0 if the source is not a donor.
    pub token: Token,
}

/// One step.
///
/// | step | is taken when | carried out twice |
/// |---|---|---|
/// | `Grant`, `BindVppb`, `AddDynamicCapacity` | a bound volume's member is not lent | the same lease |
/// | `Present` | all members are lent, and no host has the volume | nothing |
/// | `Join` | a span's members are lent, or one that replaces another is | nothing |
/// | `Leave` | the bytes of the place are elsewhere or lost, or its span leaves the volume | nothing |
/// | `Withdraw` | the volume was unbound | nothing |
/// | `Release`, `UnbindVppb`, `ReleaseDynamicCapacity` | the agent has confirmed that the member left | nothing |
/// | `WipeLd` | an LD is unbound, and not wiped | nothing |
/// | `ForgetLease`, `ForgetLeft` | the desired state has dropped the member | nothing |
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Adds dynamic capacity of a device to a host, tagged with volume and member.
    AddDynamicCapacity {
        /// The device that has the capacity.
        device: DeviceId,
        /// The host that gets the capacity.
        host: HostId,
        /// The volume in the tag.
        volume: VolumeId,
        /// The member in the tag.
        member: MemberId,
        /// The amount to add.
        bytes: Bytes,
    },
    /// Binds an LD to a vPPB.
    BindVppb {
        /// The vPPB that is bound.
        vppb: VppbAddress,
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// The donor may stop listing a released lease.
    ForgetLease {
        /// The donor that lists the lease.
        donor: DonorId,
        /// The volume that the lease was for.
        volume: VolumeId,
        /// The member that the lease was for.
        member: MemberId,
    },
    /// The agent may stop listing a member that has left.
    ForgetLeft {
        /// The host whose agent lists it.
        host: HostId,
        /// The volume that the member has left.
        volume: VolumeId,
        /// The member that has left.
        member: MemberId,
    },
    /// The donor lends slabs for a member, all or none, and mints the token.
    Grant {
        /// The donor that lends.
        donor: DonorId,
        /// The host that it lends to.
        host: HostId,
        /// The volume that gets the memory.
        volume: VolumeId,
        /// The member that the slabs are for.
        member: MemberId,
        /// The amount to lend.
        bytes: Bytes,
    },
    /// The agent takes more members into a volume that it has, all or none.
    Join {
        /// The host whose agent has the volume.
        host: HostId,
        /// The volume that gets members.
        volume: VolumeId,
        /// The members: those of a new span, or one that replaces another.
        members: Vec<MemberLease>,
    },
    /// The agent lets members go, and lists them as left when no program uses them any more.
    Leave {
        /// The host whose agent has the volume.
        host: HostId,
        /// The volume that loses members.
        volume: VolumeId,
        /// The members: one, or those of a span.
        members: Vec<MemberId>,
        /// Why the members leave.
        why: Why,
    },
    /// The agent makes a volume usable, with all members or not at all.
    Present {
        /// The host whose programs may use it.
        host: HostId,
        /// The volume that becomes usable.
        volume: VolumeId,
        /// Its name, for people. `None` for an agent that does not know this field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<VolumeName>,
        /// How the volume survives the loss of members.
        redundancy: Redundancy,
        /// What programs see of the volume.
        presentation: Presentation,
        /// All members of the volume, except LDs that are bound only when the host has another one (`alike.rs`).
        members: Vec<MemberLease>,
    },
    /// The donor takes slabs back, wipes them, and lists the lease as released.
    Release {
        /// The donor that has lent them.
        donor: DonorId,
        /// The volume that the lease is for.
        volume: VolumeId,
        /// The member that the lease is for.
        member: MemberId,
    },
    /// Releases dynamic capacity with one tag, and has it sanitized.
    ReleaseDynamicCapacity {
        /// The device that has the capacity.
        device: DeviceId,
        /// The host that has to release it.
        host: HostId,
        /// The volume in the tag.
        volume: VolumeId,
        /// The member in the tag.
        member: MemberId,
    },
    /// Unbinds a vPPB, if this LD is bound to it.
    UnbindVppb {
        /// The vPPB that is unbound.
        vppb: VppbAddress,
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// Sanitizes an LD, unless it is bound.
    WipeLd {
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// The agent takes a volume away from programs as a whole, and lists its members as left.
    Withdraw {
        /// The host whose programs lose it.
        host: HostId,
        /// The volume that is taken away.
        volume: VolumeId,
        /// The volume's members, including those that the agent has never had.
        members: Vec<MemberId>,
    },
}

/// Who carries a step out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The switch of a device.
    Device(DeviceId),
    /// A donor itself.
    Donor(DonorId),
    /// A host's agent.
    Host(HostId),
}

impl Step {
    /// Returns who carries it out.
    pub fn end(&self) -> End {
        match self {
            Self::ForgetLease { donor, .. } | Self::Grant { donor, .. } | Self::Release { donor, .. } => {
                End::Donor(donor.clone())
            }
            Self::ForgetLeft { host, .. }
            | Self::Join { host, .. }
            | Self::Leave { host, .. }
            | Self::Present { host, .. }
            | Self::Withdraw { host, .. } => End::Host(host.clone()),
            Self::AddDynamicCapacity { device, .. }
            | Self::BindVppb { device, .. }
            | Self::ReleaseDynamicCapacity { device, .. }
            | Self::UnbindVppb { device, .. }
            | Self::WipeLd { device, .. } => End::Device(device.clone()),
        }
    }
}

/// A step in words. Its volume has its name if that is given, otherwise its id.
struct Named<'a> {
    step: &'a Step,
    name: Option<&'a VolumeName>,
}

impl Step {
    /// Returns the step in words for a person, who knows its volume by this name.
    pub fn with_name(&self, name: Option<&VolumeName>) -> String {
        Named { step: self, name }.to_string()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named { step: self, name: None }.fmt(f)
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A step names one volume at most.
        let named = |id: &VolumeId| self.name.map_or_else(|| id.to_string(), ToString::to_string);
        match self.step {
            Step::AddDynamicCapacity { device, host, volume, member, bytes } => {
                write!(
                    f,
                    "add {bytes} of dynamic capacity of device {device} to host {host} for {}/{member}",
                    named(volume)
                )
            }
            Step::BindVppb { vppb, device, ld_id } => write!(f, "bind {vppb} to LD {ld_id} of device {device}"),
            Step::ForgetLease { donor, volume, member } => {
                write!(f, "donor {donor} forgets lease {}/{member}", named(volume))
            }
            Step::ForgetLeft { host, volume, member } => {
                write!(f, "host {host} forgets that {}/{member} left", named(volume))
            }
            Step::Grant { donor, host, volume, member, bytes } => {
                write!(f, "donor {donor} lends {bytes} to host {host} for {}/{member}", named(volume))
            }
            Step::Join { host, volume, members } => {
                write!(f, "host {host} takes {} into {}", counted(members.len(), "member"), named(volume))
            }
            Step::Leave { host, volume, members, why } => {
                write!(f, "host {host} lets {} of {} go ({why})", counted(members.len(), "member"), named(volume))
            }
            Step::Present { host, volume, name, members, .. } => {
                write!(f, "host {host} presents {}", named(volume))?;
                name.iter().filter(|_| self.name.is_none()).try_for_each(|name| write!(f, " ({name})"))?;
                write!(f, " with {}", counted(members.len(), "member"))
            }
            Step::Release { donor, volume, member } => {
                write!(f, "donor {donor} takes {}/{member} back and wipes it", named(volume))
            }
            Step::ReleaseDynamicCapacity { device, host, volume, member } => {
                write!(f, "release dynamic capacity of device {device} at host {host} of {}/{member}", named(volume))
            }
            Step::UnbindVppb { vppb, device, ld_id } => write!(f, "unbind {vppb} from LD {ld_id} of device {device}"),
            Step::WipeLd { device, ld_id } => write!(f, "wipe LD {ld_id} of device {device}"),
            Step::Withdraw { host, volume, .. } => write!(f, "host {host} withdraws {}", named(volume)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_its_volumes_name_for_people_and_its_id_otherwise() {
        let (donor, host, volume, member) =
            ("d1".parse().unwrap(), "h1".parse::<HostId>().unwrap(), VolumeId(0xa1), MemberId(0));
        let name: VolumeName = "db".parse().unwrap();
        let present = |name: Option<&VolumeName>| Step::Present {
            host: host.clone(),
            volume,
            name: name.cloned(),
            redundancy: Redundancy::None,
            presentation: Presentation::default(),
            members: Vec::new(),
        };
        let release = Step::Release { donor, volume, member };
        let withdraw = Step::Withdraw { host: host.clone(), volume, members: Vec::new() };
        for (step, with_id, with_name) in [
            (release, "donor d1 takes 00000000000000a1/0 back and wipes it", "donor d1 takes db/0 back and wipes it"),
            (withdraw, "host h1 withdraws 00000000000000a1", "host h1 withdraws db"),
            (
                present(Some(&name)),
                "host h1 presents 00000000000000a1 (db) with 0 members",
                "host h1 presents db with 0 members",
            ),
        ] {
            assert_eq!((step.to_string().as_str(), step.with_name(Some(&name)).as_str()), (with_id, with_name));
            assert_eq!(step.with_name(None), with_id);
        }
    }
}
