// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A simulated host's agent: it joins members, copies their bytes, and decides last whether a member may leave.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Availability, Bytes, Command, HostId, HostReport, Incarnation, MemberId, MemberLease, MemberReport, MemberState,
    Place, SpanId, Step, Term, VolumeId, VolumeReport, Why,
};
use serde::{Deserialize, Serialize};

use super::donor::{admit, admit_term};

/// Bytes that are copied or moved in one round of reports.
const COPIED_PER_TICK: Bytes = Bytes::gib(64);

/// An agent. Its file is this as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SimulatedAgent {
    term: Term,
    sequence: u64,
    volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

impl SimulatedAgent {
    /// Whether a manager's term is new to the agent. The error is the greater term that it has seen.
    pub(super) fn see(&mut self, term: Term) -> Result<bool, Term> {
        let before = self.term;
        (self.term, self.sequence) = admit_term(self.term, self.sequence, term)?;
        Ok(self.term != before)
    }

    pub(super) fn report(&self) -> HostReport {
        HostReport {
            trouble: BTreeMap::new(),
            incarnation: Incarnation(1),
            availability: Availability::Up,
            term: self.term,
            volumes: self.volumes.clone(),
            left: self.left.clone(),
        }
    }

    pub(super) fn obey(&mut self, command: &Command) -> Result<(), String> {
        (self.term, self.sequence) = admit(self.term, self.sequence, command)?;
        match command.step.clone() {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                if !self.volumes.contains_key(&volume) && self.are_new(volume, &members) {
                    let members = members.into_iter();
                    let members =
                        members.map(|lease| (lease.member, MemberReport { lease, state: MemberState::InSync }));
                    let view = VolumeReport { name, redundancy, presentation, members: members.collect() };
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
            step => return Err(format!("an agent cannot {step}")),
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

    /// The report that the manager decided on may be old, so the agent asks again whether the member may leave.
    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        if let Some(view) = self.volumes.get_mut(&volume)
            && view.members.contains_key(&member)
        {
            let may_leave = view.may_leave(member, why);
            let report = view.members.get_mut(&member).expect("it was found");
            if why == Why::Shrunk && report.state != MemberState::Broken {
                if !matches!(report.state, MemberState::Leaving { .. }) {
                    report.state = MemberState::Leaving { left: report.lease.bytes };
                }
                return;
            }
            if !may_leave {
                return;
            }
            view.members.remove(&member);
            if view.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }

    /// Copies and moves bytes; a member whose source refuses its token is broken. Returns whether anything changed.
    pub(super) fn tick(
        &mut self,
        host: &HostId,
        is_valid: impl Fn(&HostId, (VolumeId, MemberId), &MemberLease) -> bool,
    ) -> bool {
        let (mut changed, mut left) = (false, Vec::new());
        for (volume, view) in &mut self.volumes {
            let sources: BTreeSet<Place> = view
                .members
                .values()
                .filter(|one| matches!(one.state, MemberState::InSync | MemberState::Leaving { .. }))
                .map(|one| one.lease.place)
                .collect();
            let needed = view.redundancy.members_needed();
            for (member, report) in &mut view.members {
                let before = report.state;
                let place = report.lease.place;
                let reached = sources.iter().filter(|of| of.span == place.span).count();
                let can_copy = sources.contains(&place) || reached >= needed;
                report.state = match report.state {
                    _ if !is_valid(host, (*volume, *member), &report.lease) => MemberState::Broken,
                    MemberState::Copying { left } if can_copy => match left.minus(COPIED_PER_TICK) {
                        Bytes::ZERO => MemberState::InSync,
                        left => MemberState::Copying { left },
                    },
                    MemberState::Leaving { left } => MemberState::Leaving { left: left.minus(COPIED_PER_TICK) },
                    state => state,
                };
                if let MemberState::Leaving { left: Bytes::ZERO } = report.state {
                    left.push((*volume, *member));
                }
                changed |= report.state != before;
            }
        }
        for (volume, member) in left {
            if let Some(view) = self.volumes.get_mut(&volume) {
                view.members.remove(&member);
            }
            self.left.entry(volume).or_default().insert(member);
        }
        self.volumes.retain(|_, view| !view.members.is_empty());
        changed
    }

    /// The members that it has, by volume.
    pub(super) fn members(&self) -> BTreeMap<VolumeId, Vec<MemberId>> {
        self.volumes.iter().map(|(volume, view)| (*volume, view.members.keys().copied().collect())).collect()
    }
}
