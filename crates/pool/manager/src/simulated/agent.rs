// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A simulated host's agent: it joins members, copies their bytes, and decides last whether a member may leave.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Availability, Bytes, Command, HostId, HostReport, Incarnation, MemberId, MemberLease, MemberState, Place,
    Presented, Term, VolumeId, VolumeReport,
};
use serde::{Deserialize, Serialize};

use super::donor::{admit, admit_term};

/// Bytes that are copied or moved in one round of reports.
const COPIED_PER_TICK: Bytes = Bytes::gib(64);

/// A simulated agent. Its file is this value as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SimulatedAgent {
    term: Term,
    sequence: u64,
    volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

impl SimulatedAgent {
    /// Notes a manager's term, and returns whether it is new to the agent. The error is the greater term that it has
    /// seen.
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
        match self.presented().carry_out(command.step.clone()) {
            true => Ok(()),
            false => Err(format!("an agent cannot {}", command.step)),
        }
    }

    fn presented(&mut self) -> Presented<'_> {
        Presented { volumes: &mut self.volumes, left: &mut self.left }
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
        left.into_iter().for_each(|(volume, member)| self.presented().let_go(volume, member));
        changed
    }

    /// Returns the members that it has, by volume.
    pub(super) fn members(&self) -> BTreeMap<VolumeId, Vec<MemberId>> {
        self.volumes.iter().map(|(volume, view)| (*volume, view.members.keys().copied().collect())).collect()
    }
}
