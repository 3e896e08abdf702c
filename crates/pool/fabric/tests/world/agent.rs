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
    /// No fabric manager reaches it, but it reaches donors.
    pub is_cut: bool,
    gate: Gate,
    incarnation: Incarnation,
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
    plant: Option<Plant>,
}

impl SimAgent {
    pub fn new(plant: Option<Plant>) -> SimAgent {
        SimAgent {
            is_on: true,
            is_cut: false,
            gate: Gate::new(Incarnation(1), Term(0)),
            incarnation: Incarnation(1),
            volumes: BTreeMap::new(),
            left: BTreeMap::new(),
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
        match command.step.clone() {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                if !self.volumes.contains_key(&volume) && self.are_new(volume, &members) {
                    let mut view = VolumeReport { name, redundancy, presentation, members: BTreeMap::new() };
                    let half = self.plant == Some(Plant::AgentPresentsHalf);
                    let taken = if half { members.len().div_ceil(2) } else { members.len() };
                    for lease in members.into_iter().take(taken) {
                        view.members.insert(lease.member, MemberReport { lease, state: MemberState::InSync });
                    }
                    self.volumes.insert(volume, view);
                }
            }
            Step::Join { volume, members, .. } => self.join(volume, members),
            Step::Leave { volume, members, why, .. } => {
                members.into_iter().for_each(|member| self.leave(volume, member, why));
            }
            Step::Withdraw { volume, members, .. } => {
                let had = self.volumes.remove(&volume).map(|view| view.members.into_keys()).into_iter().flatten();
                self.left.entry(volume).or_default().extend(had.chain(members));
            }
            Step::ForgetLeft { volume, member, .. } => {
                if let Some(left) = self.left.get_mut(&volume) {
                    left.remove(&member);
                    if left.is_empty() {
                        self.left.remove(&volume);
                    }
                }
            }
            step => return Err(format!("an agent was asked to {step}")),
        }
        Ok(())
    }

    fn are_new(&self, volume: VolumeId, members: &[MemberLease]) -> bool {
        let left = self.left.get(&volume);
        !members.iter().any(|lease| left.is_some_and(|left| left.contains(&lease.member)))
    }

    fn join(&mut self, volume: VolumeId, members: Vec<MemberLease>) {
        if !self.are_new(volume, &members) {
            return;
        }
        let Some(view) = self.volumes.get_mut(&volume) else { return };
        let spans: BTreeSet<SpanId> = view.members.values().map(|member| member.lease.place.span).collect();
        for lease in members {
            let is_new_span = !spans.contains(&lease.place.span);
            let state = if is_new_span { MemberState::InSync } else { MemberState::Copying { left: lease.bytes } };
            view.members.entry(lease.member).or_insert(MemberReport { lease, state });
        }
    }

    /// The agent has the last word: the report that the manager decided on may be old.
    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        if let Some(view) = self.volumes.get_mut(&volume)
            && let Some(report) = view.members.get(&member)
        {
            let trusts = self.plant == Some(Plant::CopiesAreNotAwaited);
            let may_go = trusts || view.may_leave(member, why);
            match why {
                Why::Shrunk if report.state != MemberState::Broken => {
                    let report = view.members.get_mut(&member).expect("it was there");
                    if !matches!(report.state, MemberState::Leaving { .. }) {
                        report.state = MemberState::Leaving { left: report.lease.bytes };
                    }
                    return;
                }
                _ if may_go => drop(view.members.remove(&member)),
                _ => return,
            }
            if view.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }

    /// Programs write, members break if their donors refuse them, and copies proceed.
    pub fn tick(
        &mut self,
        host: &HostId,
        donors: &mut BTreeMap<DonorId, SimDonor>,
        switch: &SimSwitch,
        judge: &mut Judge,
    ) {
        let mut left = Vec::new();
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
                } else {
                    report.state = MemberState::Broken;
                }
            }
            let members: Vec<MemberId> = view.members.keys().copied().collect();
            for member in members {
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
        }
        for (volume, member) in left {
            self.volumes.get_mut(&volume).expect("listed").members.remove(&member);
            self.left.entry(volume).or_default().insert(member);
        }
        self.volumes.retain(|_, view| !view.members.is_empty());
    }
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
