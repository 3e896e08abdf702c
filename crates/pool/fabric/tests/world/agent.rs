// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A host's agent that keeps its contract, with programs that write to all the memory that they have.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::*;

use super::Plant;
use super::device::SimSwitch;
use super::donor::SimDonor;
use super::judge::Judge;

pub struct SimAgent {
    pub is_on: bool,
    /// Whether no fabric manager reaches it, although it reaches donors.
    pub is_cut: bool,
    gate: Gate,
    incarnation: Incarnation,
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
    /// The LDs of MLDs that have been online here since they were bound. It knows which is which.
    pub known_lds: BTreeSet<Source>,
    /// Members on other LDs, which come online after some ticks.
    coming: BTreeMap<(VolumeId, MemberId), u8>,
    plant: Option<Plant>,
}

/// Ticks until the memory of an LD is online.
const ONLINE_TICKS: u8 = 3;

impl SimAgent {
    pub fn new(plant: Option<Plant>) -> SimAgent {
        SimAgent {
            is_on: true,
            is_cut: false,
            gate: Gate::new(Incarnation(1), Term(0)),
            incarnation: Incarnation(1),
            volumes: BTreeMap::new(),
            left: BTreeMap::new(),
            known_lds: BTreeSet::new(),
            coming: BTreeMap::new(),
            plant,
        }
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Restarts the host: none of its earlier programs runs any more.
    pub fn restart_host(&mut self) {
        self.is_on = true;
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        self.gate = Gate::new(self.incarnation, self.gate.term());
        self.volumes.clear();
        self.left.clear();
        self.coming.clear();
    }

    /// Reports everything to a manager, unless that manager was deposed.
    pub fn report(&mut self, term: Term) -> Option<HostReport> {
        if self.gate.report_to(term).is_err() && self.plant != Some(Plant::GateIsOpen) {
            return None;
        }
        Some(HostReport {
            trouble: BTreeMap::new(),
            incarnation: self.incarnation,
            availability: Availability::Up,
            term: self.gate.term(),
            volumes: self.volumes.clone(),
            left: self.left.clone(),
        })
    }

    /// Carries a command out, if it is not stale.
    pub fn obey(&mut self, command: &Command, judge: &mut Judge) -> Result<(), String> {
        let before = self.gate.term();
        if self.gate.admit(command).is_err() && self.plant != Some(Plant::GateIsOpen) {
            return Ok(());
        }
        judge.term(before, command.term)?;
        let mut step = command.step.clone();
        self.misread(&mut step);
        let is_for_agents = self.presented().carry_out(step);
        self.lds_come_online_later();
        match is_for_agents {
            true => Ok(()),
            false => Err(format!("an agent was asked to {}", command.step)),
        }
    }

    /// Lets LDs that are new here wait. The kernel keeps no copies, so no host has LDs in a volume with redundancy; in
    /// this one, they count as online at once.
    fn lds_come_online_later(&mut self) {
        for (volume, view) in self.volumes.iter_mut().filter(|(_, view)| view.redundancy == Redundancy::None) {
            for (member, report) in &mut view.members {
                let is_new = is_ld_of_mld(&report.lease.source) && !self.known_lds.contains(&report.lease.source);
                if is_new && report.state == MemberState::InSync {
                    report.state = MemberState::Copying { left: report.lease.bytes };
                    self.coming.insert((*volume, *member), ONLINE_TICKS);
                }
            }
        }
    }

    fn presented(&mut self) -> Presented<'_> {
        Presented { volumes: &mut self.volumes, left: &mut self.left }
    }

    /// Plants the bugs of an agent: it takes a half of what it presents, or lets members go before their bytes are
    /// elsewhere.
    fn misread(&mut self, step: &mut Step) {
        match (self.plant, step) {
            (Some(Plant::AgentPresentsHalf), Step::Present { members, .. }) => {
                members.truncate(members.len().div_ceil(2));
            }
            (Some(Plant::CopiesAreNotAwaited), Step::Leave { volume, members, why, .. }) if *why != Why::Shrunk => {
                let view = self.volumes.get_mut(volume).into_iter().flat_map(|view| &mut view.members);
                let leaving = view.filter(|(member, _)| members.contains(member));
                leaving.for_each(|(_, report)| report.state = MemberState::Broken);
            }
            _ => {}
        }
    }

    /// Lets time pass: programs write, members break if their donors refuse them, and copies proceed.
    pub fn tick(
        &mut self,
        host: &HostId,
        donors: &mut BTreeMap<DonorId, SimDonor>,
        switch: &SimSwitch,
        judge: &mut Judge,
    ) {
        let mut left = Vec::new();
        self.known_lds.retain(|source| switch.is_host_of(source, host, (VolumeId(0), MemberId(0))));
        let volumes = &self.volumes;
        self.coming.retain(|(volume, member), _| {
            let report = volumes.get(volume).and_then(|view| view.members.get(member));
            report.is_some_and(|report| matches!(report.state, MemberState::Copying { .. }))
        });
        for (volume, view) in &mut self.volumes {
            let mut readable = BTreeSet::new();
            for (member, report) in &mut view.members {
                let key = (*volume, *member);
                let works = match &report.lease.source {
                    Source::Slabs { donor } => {
                        let donor = donors.get_mut(donor).expect("a donor of the site");
                        if !donor.is_on {
                            continue;
                        }
                        let admitted = donor.admits(key, report.lease.token);
                        if admitted && report.state != MemberState::Broken {
                            donor.write(host, key, judge);
                        }
                        admitted
                    }
                    source => switch.is_host_of(source, host, key),
                };
                if works {
                    readable.insert(*member);
                } else if report.state != MemberState::Broken {
                    report.state = MemberState::Broken;
                    judge.member_breaks();
                }
            }
            let members: Vec<MemberId> = view.members.keys().copied().collect();
            for member in members {
                let is_copying = matches!(view.members[&member].state, MemberState::Copying { .. });
                if let Some(ticks) = self.coming.get_mut(&(*volume, member)).filter(|_| is_copying) {
                    *ticks -= 1;
                    if *ticks == 0 {
                        self.coming.remove(&(*volume, member));
                        view.members.get_mut(&member).expect("listed").state = MemberState::InSync;
                    }
                    continue;
                }
                match view.members[&member].state {
                    MemberState::Copying { left } => copy(view, member, left, &readable, judge),
                    MemberState::Leaving { left: rest } => {
                        let rest = rest.minus(SLAB);
                        view.members.get_mut(&member).expect("listed").state = MemberState::Leaving { left: rest };
                        if rest == Bytes::ZERO {
                            left.push((*volume, member));
                        }
                    }
                    MemberState::Broken | MemberState::InSync => {}
                }
            }
            let online = view.members.values().filter(|report| report.state == MemberState::InSync);
            let sources = online.map(|report| &report.lease.source).filter(|source| is_ld_of_mld(source));
            self.known_lds.extend(sources.cloned());
        }
        left.into_iter().for_each(|(volume, member)| self.presented().let_go(volume, member));
    }
}

fn is_ld_of_mld(source: &Source) -> bool {
    matches!(source, Source::LogicalDevice { ld_id, .. } if *ld_id != NO_LD)
}

/// Gives a member one more slab, from a member in the same place or from as many others as are enough to rebuild it.
/// Waits while enough members have the bytes but cannot be reached. If too few have them, the bytes are lost: the
/// member starts empty, and programs get an error.
fn copy(view: &mut VolumeReport, member: MemberId, left: Bytes, readable: &BTreeSet<MemberId>, judge: &mut Judge) {
    let place = view.members[&member].lease.place;
    let others = view.members.iter().filter(|(other, report)| {
        let has_bytes = matches!(report.state, MemberState::InSync | MemberState::Leaving { .. });
        **other != member && report.lease.place.span == place.span && has_bytes
    });
    let having: BTreeSet<Place> = others.clone().map(|(_, report)| report.lease.place).collect();
    let reached: BTreeSet<Place> =
        others.filter(|(other, _)| readable.contains(other)).map(|(_, report)| report.lease.place).collect();
    let enough = |places: &BTreeSet<Place>| places.contains(&place) || places.len() >= view.redundancy.members_needed();
    let (can_read, can_wait) = (enough(&reached), enough(&having));
    let report = view.members.get_mut(&member).expect("listed");
    if can_read {
        let left = left.minus(SLAB);
        report.state = if left == Bytes::ZERO { MemberState::InSync } else { MemberState::Copying { left } };
    } else if !can_wait {
        judge.bytes_are_lost();
        report.state = MemberState::InSync;
    }
}
