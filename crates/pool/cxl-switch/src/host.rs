// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What hosts do: they read and write what is bound to them, answer offers of capacity, and give it back.
//!
//! A host is named by a vPPB of its virtual CXL switch. It reaches what the vPPB is bound to, and nothing else.

use std::fmt;
use std::ops::Range;

use crate::context::Context;
use crate::memory::MemoryFailure;
use crate::outcome::Outcome;
use crate::switch::Switch;

/// Maximum number of bytes of one access.
const READ_BYTES_MAX: usize = 1 << 20;

/// What a host does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAction {
    /// Answers the oldest offer of capacity: accepts these addresses of it and refuses the rest. As Add Dynamic
    /// Capacity Response (4802h).
    AnswerOffer {
        /// The accepted addresses; if empty, all of the offer is refused.
        accepted: Vec<Range<u64>>,
    },
    /// The host reads memory.
    Read {
        /// The first address that is read.
        address: u64,
        /// The number of bytes, at most 1 MiB.
        bytes: usize,
    },
    /// The host gives capacity back, as by Release Dynamic Capacity (4803h).
    ReleaseCapacity {
        /// The addresses that are given back.
        ranges: Vec<Range<u64>>,
    },
    /// The host sets the secret value of its virtual CXL switch, once, as by Set Domain Validation SV (5105h).
    SetDomainSv {
        /// The secret value.
        secret: [u8; 16],
    },
    /// The host writes memory.
    Write {
        /// The first address that is written.
        address: u64,
        /// The bytes to write.
        bytes: Vec<u8>,
    },
}

/// What a host's action led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAnswer {
    /// What was read, or why nothing was done.
    pub result: Result<Vec<u8>, HostFailure>,
    /// What followed, from the action and from the time that has passed.
    pub outcome: Outcome,
}

/// Why a host's action failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFailure {
    /// The address is beyond the memory, or one access is of more than 1 MiB.
    Beyond,
    /// The device cannot track more extents, or more written pages.
    Full,
    /// The link is down, or the device is gone.
    LinkDown,
    /// There is no offer to answer.
    NoOffer,
    /// The vPPB is not bound to memory.
    NotBound,
    /// The host does not have this capacity.
    NotHeld,
    /// This capacity, or this part of shared capacity, was not offered.
    NotOffered,
    /// The secret value is set already.
    SecretIsSet,
}

impl fmt::Display for HostFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Beyond => "the address is beyond the memory; stay within its size, and below 1 MiB at a time",
            Self::Full => "the device cannot track more; release some capacity, or write to fewer pages",
            Self::LinkDown => "the link to the device is down; wait for it, or put the device back",
            Self::NoOffer => "no capacity is on offer; add some first (5604h)",
            Self::NotBound => "the vPPB is not bound to memory; bind it first (5201h)",
            Self::NotHeld => "the host does not have this capacity; name blocks that it has accepted",
            Self::NotOffered => "this was not offered; name blocks of the oldest offer, all of them if they are shared",
            Self::SecretIsSet => "the secret value is set once; it stays",
        })
    }
}

impl std::error::Error for HostFailure {}

impl From<MemoryFailure> for HostFailure {
    fn from(failure: MemoryFailure) -> Self {
        match failure {
            MemoryFailure::Beyond => Self::Beyond,
            MemoryFailure::Full => Self::Full,
        }
    }
}

impl Switch {
    /// Carries out an action of the host behind a vPPB.
    pub fn host(&mut self, now_ns: u64, vcs_id: u8, vppb_id: u8, action: &HostAction) -> HostAnswer {
        let mut context = self.begin(now_ns);
        let result = self.act(&mut context, vcs_id, vppb_id, action);
        HostAnswer { result, outcome: self.end(context) }
    }

    /// Returns the addresses of the oldest offer that a host of dynamic capacity has not answered.
    pub fn oldest_offer(&self, device: usize, host_id: u16) -> Option<Vec<Range<u64>>> {
        self.devices.get(device)?.capacity.as_ref()?.oldest_offer(host_id)
    }

    /// Returns the vPPB by which a host of dynamic capacity reaches a device: its virtual CXL switch, and its number
    /// there.
    pub fn vppb_of_host(&self, device: usize, host_id: u16) -> Option<(u8, u8)> {
        let device = self.devices.get(device)?;
        let vcss =
            (0..self.vppbs.len()).flat_map(|vcs| (0..self.vppbs[vcs].len()).map(move |vppb| (vcs as u8, vppb as u8)));
        let reaches = |(vcs_id, vppb_id): &(u8, u8)| {
            let target = self.bound_to(*vcs_id, *vppb_id);
            target.is_some_and(|target| {
                device.head_at(target.port_id).is_some() && device.host_id(target.port_id, target.ld_id) == host_id
            })
        };
        vcss.into_iter().find(reaches)
    }

    fn act(
        &mut self,
        context: &mut Context,
        vcs_id: u8,
        vppb_id: u8,
        action: &HostAction,
    ) -> Result<Vec<u8>, HostFailure> {
        if let HostAction::SetDomainSv { secret } = action {
            let kept = self.domain_svs.get_mut(usize::from(vcs_id)).ok_or(HostFailure::NotBound)?;
            return match kept.replace(*secret) {
                None => Ok(Vec::new()),
                set => {
                    *kept = set;
                    Err(HostFailure::SecretIsSet)
                }
            };
        }
        let target = self.bound_to(vcs_id, vppb_id).ok_or(HostFailure::NotBound)?;
        let device = self.device_at(target.port_id).ok_or(HostFailure::LinkDown)?;
        if !self.link_is_up(target.port_id) {
            return Err(HostFailure::LinkDown);
        }
        let device = &mut self.devices[device];
        if device.is_mld() != target.ld_id.is_some() {
            return Err(HostFailure::NotBound);
        }
        let host_id = device.host_id(target.port_id, target.ld_id);
        let (address, length) = match action {
            HostAction::Read { address, bytes } => (*address, *bytes),
            HostAction::Write { address, bytes } => (*address, bytes.len()),
            HostAction::AnswerOffer { accepted } => {
                let capacity = device.capacity.as_mut().ok_or(HostFailure::NoOffer)?;
                return capacity.answer_offer(context, &mut device.component, host_id, accepted).map(|()| Vec::new());
            }
            HostAction::ReleaseCapacity { ranges } => {
                let capacity = device.capacity.as_mut().ok_or(HostFailure::NotHeld)?;
                return capacity.give_back(context, &mut device.component, host_id, ranges).map(|()| Vec::new());
            }
            HostAction::SetDomainSv { .. } => return Ok(Vec::new()),
        };
        if length > READ_BYTES_MAX {
            return Err(HostFailure::Beyond);
        }
        let end = address.checked_add(length as u64).ok_or(HostFailure::Beyond)?;
        let (memory, at) = match &mut device.capacity {
            Some(capacity) if address >= capacity.first_address() => capacity.memory_of(host_id, &(address..end))?,
            _ => {
                let ld = device.lds.get_mut(usize::from(target.ld_id.unwrap_or_default()));
                (&mut ld.ok_or(HostFailure::NotBound)?.memory, address)
            }
        };
        match action {
            HostAction::Write { bytes, .. } => memory.write(at, bytes).map(|()| Vec::new()),
            _ => memory.read(at, length),
        }
        .map_err(HostFailure::from)
    }
}
