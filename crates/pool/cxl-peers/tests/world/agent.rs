// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A host: its agent keeps the contract of `aquifer_fabric`, and its programs write a stamp to each member and read it
//! back. A member that is new must hold zeros, and one that is joined must keep its stamp.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_cxl_peers::tag_of;
use aquifer_cxl_switch::HostAction;
use aquifer_fabric::*;

use super::wire::Shared;
use super::{World, wire};

/// Bytes of a stamp.
const STAMP: usize = 16;

#[derive(Default)]
pub struct SimAgent {
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    pub left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

impl SimAgent {
    pub fn report(&self) -> HostReport {
        HostReport {
            incarnation: Incarnation(1),
            term: Term(1),
            volumes: self.volumes.clone(),
            left: self.left.clone(),
            ..HostReport::default()
        }
    }

    fn are_new(&self, volume: VolumeId, members: &[MemberLease]) -> bool {
        let left = self.left.get(&volume);
        !members.iter().any(|lease| left.is_some_and(|left| left.contains(&lease.member)))
    }

    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        if let Some(view) = self.volumes.get_mut(&volume) {
            if !view.may_leave(member, why) {
                return;
            }
            view.members.remove(&member);
            if view.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }
}

impl World {
    /// Lets a host carry out a step.
    pub fn obey(&mut self, host: &HostId, step: Step) -> Result<(), String> {
        let agent = self.agents.get_mut(host).ok_or("no such host")?;
        match step {
            Step::Present { volume, redundancy, presentation, members, .. } => {
                if !agent.volumes.contains_key(&volume) && agent.are_new(volume, &members) {
                    let members_now = BTreeMap::new();
                    let view = VolumeReport { name: None, redundancy, presentation, members: members_now };
                    agent.volumes.insert(volume, view);
                    self.join(host, volume, members)?;
                    self.presented += 1;
                }
            }
            Step::Join { volume, members, .. } => {
                if agent.volumes.contains_key(&volume) && agent.are_new(volume, &members) {
                    self.join(host, volume, members)?;
                }
            }
            Step::Leave { volume, members, why, .. } => {
                members.into_iter().for_each(|member| agent.leave(volume, member, why));
            }
            Step::Withdraw { volume, members, .. } => {
                let had = agent.volumes.remove(&volume).map(|view| view.members.into_keys());
                agent.left.entry(volume).or_default().extend(had.into_iter().flatten().chain(members));
            }
            Step::ForgetLeft { volume, member, .. } => {
                if let Some(left) = agent.left.get_mut(&volume) {
                    left.remove(&member);
                }
                agent.left.retain(|_, left| !left.is_empty());
            }
            step => return Err(format!("an agent was asked to {step}")),
        }
        self.note_used_tags();
        Ok(())
    }

    fn join(&mut self, host: &HostId, volume: VolumeId, members: Vec<MemberLease>) -> Result<(), String> {
        for lease in members {
            let key = (volume, lease.member);
            if self.agents[host].volumes[&volume].members.contains_key(&lease.member) {
                continue;
            }
            let state = match self.read(host, key, &lease.source) {
                Ok(bytes) if bytes.iter().any(|byte| *byte != 0) && !self.is_adopted(volume) => {
                    return Err(format!("{host} finds another's bytes in {volume}/{}: {bytes:?}", lease.member));
                }
                Ok(_) => {
                    self.write(host, key, &lease.source)?;
                    self.use_static_memory(host, key, &lease.source)?;
                    self.forgive_no_longer(&lease.source);
                    MemberState::InSync
                }
                // Its device was pulled out, or another manager took it, after the report.
                Err(_) => MemberState::Broken,
            };
            let view =
                self.agents.get_mut(host).and_then(|agent| agent.volumes.get_mut(&volume)).expect("it was found");
            view.members.insert(lease.member, MemberReport { lease, state });
        }
        Ok(())
    }

    /// Returns whether a volume was adopted: then its host keeps what it had before the manager lost its state.
    fn is_adopted(&self, volume: VolumeId) -> bool {
        self.desired.volumes.get(&volume).is_some_and(|volume| volume.name.as_str().starts_with("adopted-"))
    }

    /// Notes the tags of capacity that programs use: it is not given back.
    fn note_used_tags(&mut self) {
        let members = self.agents.values().flat_map(|agent| {
            agent.volumes.iter().flat_map(|(volume, view)| view.members.iter().map(|(id, one)| (*volume, *id, one)))
        });
        let in_use = members.filter(|(_, _, one)| one.state == MemberState::InSync);
        wire::lock(&self.shared).used_tags = in_use.map(|(volume, id, _)| tag_of(volume, id)).collect();
    }

    /// Lets programs read what they have. Only what was on a device that was pulled out, or was taken by another
    /// manager, is lost.
    pub fn use_all(&mut self) -> Result<(), String> {
        let mut broken = Vec::new();
        for (host, agent) in &self.agents {
            for (volume, view) in &agent.volumes {
                for (id, member) in view.members.iter().filter(|(_, one)| one.state == MemberState::InSync) {
                    let key = (*volume, *id);
                    match self.read(host, key, &member.lease.source) {
                        Ok(bytes) if bytes == tag_of(*volume, *id) => {}
                        _ if self.is_excused(&member.lease.source) => broken.push((host.clone(), *volume, *id)),
                        Err(why) if why.contains("the link to the device is down") => {}
                        other => {
                            return Err(format!("{host} has lost {volume}/{id} of {}: {other:?}", member.lease.source));
                        }
                    }
                }
            }
        }
        for (host, volume, id) in broken {
            let view =
                self.agents.get_mut(&host).and_then(|agent| agent.volumes.get_mut(&volume)).expect("it was found");
            view.members.get_mut(&id).expect("it was found").state = MemberState::Broken;
            self.broken += 1;
        }
        self.note_used_tags();
        Ok(())
    }

    /// Returns where a member's bytes are, as its host sees it: vPPB and address.
    fn place(&self, host: &HostId, (volume, member): (VolumeId, MemberId), source: &Source) -> Option<(u8, u8, u64)> {
        let state = wire::lock(&self.shared);
        let vcs_id = self.vcs_of[host];
        let (index, ld_id) = self.index_of(source)?;
        // An SLD is its own LD 0; of an MLD, the host is numbered by its LD.
        let (vcs, vppb) = state.switch.vppb_of_host(index, ld_id)?;
        if vcs != vcs_id {
            return None;
        }
        match source {
            Source::DynamicCapacity { .. } => {
                let start = state.given.get(&(index, tag_of(volume, member)));
                start.map(|start| (vcs, vppb, *start))
            }
            _ => Some((vcs, vppb, 0)),
        }
    }

    /// Lets a host that has dynamic capacity use the memory besides it, from address 0 of the device on: it must find
    /// nobody else's bytes there.
    fn use_static_memory(&self, host: &HostId, key: (VolumeId, MemberId), source: &Source) -> Result<(), String> {
        let Source::DynamicCapacity { .. } = source else { return Ok(()) };
        let (vcs_id, vppb_id, _) = self.place(host, key, source).ok_or("it is not bound to this host")?;
        let own = [0xa0 + vcs_id; STAMP];
        let at = |action| act(&self.shared, self.clock.now_ns(), (vcs_id, vppb_id), &action);
        let found = at(HostAction::Read { address: 0, bytes: STAMP })?;
        if found != own && found.iter().any(|byte| *byte != 0) {
            return Err(format!(
                "{host} finds another's bytes in the memory of {source} besides its capacity: {found:?}"
            ));
        }
        at(HostAction::Write { address: 0, bytes: own.to_vec() }).map(drop)
    }

    fn read(&self, host: &HostId, key: (VolumeId, MemberId), source: &Source) -> Result<Vec<u8>, String> {
        let (vcs_id, vppb_id, address) = self.place(host, key, source).ok_or("it is not bound to this host")?;
        act(&self.shared, self.clock.now_ns(), (vcs_id, vppb_id), &HostAction::Read { address, bytes: STAMP })
    }

    fn write(&self, host: &HostId, key: (VolumeId, MemberId), source: &Source) -> Result<(), String> {
        let (vcs_id, vppb_id, address) = self.place(host, key, source).ok_or("it is not bound to this host")?;
        let action = HostAction::Write { address, bytes: tag_of(key.0, key.1).to_vec() };
        act(&self.shared, self.clock.now_ns(), (vcs_id, vppb_id), &action).map(drop)
    }
}

/// Lets a host act by a vPPB.
pub fn act(shared: &Shared, now_ns: u64, (vcs_id, vppb_id): (u8, u8), action: &HostAction) -> Result<Vec<u8>, String> {
    let mut state = wire::lock(shared);
    let answer = state.switch.host(now_ns, vcs_id, vppb_id, action);
    state.take(now_ns, answer.outcome);
    answer.result.map_err(|failure| failure.to_string())
}
