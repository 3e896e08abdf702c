// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries the manager's steps out in the ledger. Pure. Each step may be repeated.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Command, MemberId, MemberLease, MemberReport, MemberState, Source, SpanId, Step, VolumeId, VolumeReport, Why,
};

use super::{Held, Ledger};

/// Volumes of one host, with their members, at most. A choice: the state stays a few megabytes.
const VOLUMES_MAX: usize = 4096;

impl Ledger {
    /// Carries a command out, or says in one line why not.
    pub(crate) fn carry_out(&mut self, command: &Command) -> Result<(), String> {
        self.admit(command)?;
        let before = self.volumes.clone();
        let outcome = self.step(command.step.clone());
        if before != self.volumes {
            self.revision += 1;
        }
        outcome
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Present { volume, redundancy, presentation, members, .. } => {
                if self.volumes.contains_key(&volume) || !self.are_new(volume, &members) {
                    return Ok(());
                }
                are_donors(&members)?;
                if self.volumes.len() >= VOLUMES_MAX {
                    return Err(format!("this host has {VOLUMES_MAX} volumes; unbind some"));
                }
                let members = members.into_iter();
                let members = members.map(|lease| (lease.member, MemberReport { lease, state: MemberState::InSync }));
                let report = VolumeReport { redundancy, presentation, members: members.collect() };
                let (replaced, abandoned) = (BTreeSet::new(), BTreeSet::new());
                self.volumes.insert(volume, Held { report, replaced, abandoned, is_withdrawn: false });
            }
            Step::Join { volume, members, .. } => {
                are_donors(&members)?;
                self.join(volume, members);
            }
            Step::Leave { volume, members, why, .. } => {
                members.into_iter().for_each(|member| self.leave(volume, member, why));
            }
            Step::Withdraw { volume, members, .. } => self.withdraw(volume, members),
            Step::ForgetLeft { volume, member, .. } => {
                if let Some(left) = self.left.get_mut(&volume) {
                    left.remove(&member);
                    if left.is_empty() {
                        self.left.remove(&volume);
                    }
                }
            }
            step => return Err(format!("an agent cannot {step}; send it to its donor or switch")),
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
        let Some(held) = self.volumes.get_mut(&volume).filter(|held| !held.is_withdrawn) else { return };
        let spans: BTreeSet<SpanId> = held.report.members.values().map(|member| member.lease.place.span).collect();
        for lease in members {
            if held.report.members.contains_key(&lease.member) {
                continue;
            }
            let is_new_span = !spans.contains(&lease.place.span);
            let state = if is_new_span { MemberState::InSync } else { MemberState::Copying { left: lease.bytes } };
            held.replaced.extend(held.report.at(lease.place).map(|(old, _)| *old));
            held.report.members.insert(lease.member, MemberReport { lease, state });
        }
    }

    /// The manager has decided on an older report, so the ledger asks again whether the member may leave.
    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        let is_free = self.is_free(volume, member);
        let is_used = self.is_used(volume);
        let Some(held) = self.volumes.get_mut(&volume).filter(|held| held.report.members.contains_key(&member)) else {
            self.left.entry(volume).or_default().insert(member);
            return;
        };
        let may_leave = held.report.may_leave(member, why);
        let report = held.report.members.get_mut(&member).expect("it was just found");
        match why {
            Why::Shrunk if report.state != MemberState::Broken => {
                if !matches!(report.state, MemberState::Leaving { .. }) {
                    report.state = MemberState::Leaving { left: report.lease.bytes };
                }
            }
            Why::Unbound => {
                // Programs that use the volume may go on; the member leaves when they have ended.
                held.is_withdrawn |= is_used;
                if !is_used {
                    self.remove(volume, member);
                }
            }
            Why::Replaced if !may_leave || !is_free => {}
            _ if !may_leave => {}
            // Its memory is lost, or nobody has any there.
            Why::Lost | Why::Replaced | Why::Shrunk => _ = held.abandoned.insert(member),
        }
    }

    fn withdraw(&mut self, volume: VolumeId, members: Vec<MemberId>) {
        let is_used = self.is_used(volume);
        let mut had = BTreeMap::new();
        if let Some(held) = self.volumes.get_mut(&volume) {
            held.is_withdrawn = true;
            had = held.report.members.clone();
        }
        let never_had = members.into_iter().filter(|member| !had.contains_key(member)).collect::<Vec<_>>();
        if !never_had.is_empty() {
            self.left.entry(volume).or_default().extend(never_had);
        }
        if !is_used {
            had.into_keys().for_each(|member| self.remove(volume, member));
        }
    }
}

/// Refuses members that are not memory of donors: a host has those as devices, and needs no agent to read them.
fn are_donors(members: &[MemberLease]) -> Result<(), String> {
    match members.iter().find(|lease| !matches!(lease.source, Source::Slabs { .. })) {
        None => Ok(()),
        Some(lease) => Err(format!(
            "member {} is on {}, and programs reach members at donors alone; place the volume in a pool of donors",
            lease.member, lease.source
        )),
    }
}
