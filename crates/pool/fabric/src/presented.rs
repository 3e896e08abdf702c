// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an agent has of each volume, and how the steps of a manager change it, without programs and donors. Pure.
//!
//! Both simulated agents keep their state by it, so that they differ in how bytes move and not in what a step means:
//! `manager/src/simulated/agent.rs` in a rack for trying the manager out, `tests/world/agent.rs` in the histories. The
//! real one, `agent/src/host_state.rs`, has programs to wait for.

use std::collections::{BTreeMap, BTreeSet};

use crate::{MemberId, MemberLease, MemberReport, MemberState, SpanId, Step, VolumeId, VolumeReport, Why};

/// The part of an agent's state that steps change.
#[derive(Debug)]
pub struct Presented<'a> {
    /// The volumes that programs can use.
    pub volumes: &'a mut BTreeMap<VolumeId, VolumeReport>,
    /// The members that have left, until the manager has them forgotten.
    pub left: &'a mut BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

impl Presented<'_> {
    /// Carries a step out; a second time it changes nothing. Returns whether it is a step for agents.
    pub fn carry_out(&mut self, step: Step) -> bool {
        match step {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                if !self.volumes.contains_key(&volume) && self.are_new(volume, &members) {
                    let in_sync =
                        |lease: MemberLease| (lease.member, MemberReport { lease, state: MemberState::InSync });
                    let members = members.into_iter().map(in_sync).collect();
                    self.volumes.insert(volume, VolumeReport { name, redundancy, presentation, members });
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
            _ => return false,
        }
        true
    }

    /// Lets a member go. A volume without members is gone.
    pub fn let_go(&mut self, volume: VolumeId, member: MemberId) {
        if let Some(view) = self.volumes.get_mut(&volume) {
            view.members.remove(&member);
            if view.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }

    /// Returns whether none of these members has left: then an old step would bring it back.
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

    /// Lets a member leave, if it may: the report that the manager decided on may be old, so the agent checks again.
    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        if let Some(view) = self.volumes.get_mut(&volume)
            && let Some(state) = view.members.get(&member).map(|report| report.state)
        {
            if why == Why::Shrunk && state != MemberState::Broken {
                let report = view.members.get_mut(&member).expect("it was found");
                if !matches!(state, MemberState::Leaving { .. }) {
                    report.state = MemberState::Leaving { left: report.lease.bytes };
                }
                return;
            }
            if !view.may_leave(member, why) {
                return;
            }
        }
        self.let_go(volume, member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, HostId, Place, Presentation, Redundancy, Source, Token};

    const VOLUME: VolumeId = VolumeId(7);

    fn host() -> HostId {
        "h0".parse().expect("a name")
    }

    fn lease(member: u64, span: u32) -> MemberLease {
        let place = Place { span: SpanId(span), shard: 0 };
        let source = Source::Slabs { donor: "d0".parse().expect("a name") };
        MemberLease { member: MemberId(member), place, source, bytes: Bytes::gib(1), token: Token(1) }
    }

    fn present(members: &[MemberLease]) -> Step {
        let (redundancy, presentation) = (Redundancy::None, Presentation::default());
        Step::Present { host: host(), volume: VOLUME, name: None, redundancy, presentation, members: members.to_vec() }
    }

    fn join(lease: MemberLease) -> Step {
        Step::Join { host: host(), volume: VOLUME, members: vec![lease] }
    }

    fn leave(member: u64, why: Why) -> Step {
        Step::Leave { host: host(), volume: VOLUME, members: vec![MemberId(member)], why }
    }

    /// Returns the states of the members after each step, of which each is sent twice, and the members that have left.
    fn after(steps: &[Step]) -> (Vec<(u64, MemberState)>, Vec<u64>) {
        let (mut volumes, mut left) = (BTreeMap::new(), BTreeMap::new());
        for step in steps {
            let mut presented = Presented { volumes: &mut volumes, left: &mut left };
            assert!(presented.carry_out(step.clone()), "{step}");
            let once = (volumes.clone(), left.clone());
            Presented { volumes: &mut volumes, left: &mut left }.carry_out(step.clone());
            assert_eq!((&volumes, &left), (&once.0, &once.1), "{step} is carried out twice");
        }
        let members = volumes.get(&VOLUME).into_iter().flat_map(|view: &VolumeReport| &view.members);
        let gone = left.get(&VOLUME).into_iter().flatten();
        (members.map(|(id, report)| (id.0, report.state)).collect(), gone.map(|id: &MemberId| id.0).collect())
    }

    #[test]
    fn a_replacement_copies_before_the_other_member_leaves() {
        let copying = MemberState::Copying { left: Bytes::gib(1) };
        let steps = [present(&[lease(1, 0)]), join(lease(2, 0)), leave(1, Why::Replaced)];
        assert_eq!(after(&steps), (vec![(1, MemberState::InSync), (2, copying)], vec![]));
        // A new span has nothing to copy.
        assert_eq!(after(&[present(&[lease(1, 0)]), join(lease(2, 1))]).0[1], (2, MemberState::InSync));
    }

    #[test]
    fn what_has_left_comes_back_with_no_old_step() {
        let steps = [present(&[lease(1, 0)]), leave(1, Why::Unbound), present(&[lease(1, 0)])];
        assert_eq!(after(&steps), (vec![], vec![1]));
        let forget = Step::ForgetLeft { host: host(), volume: VOLUME, member: MemberId(1) };
        assert_eq!(after(&[&steps[..], &[forget]].concat()), (vec![], vec![]));
        let withdraw = Step::Withdraw { host: host(), volume: VOLUME, members: vec![MemberId(3)] };
        assert_eq!(after(&[present(&[lease(1, 0)]), withdraw, join(lease(3, 1))]), (vec![], vec![1, 3]));
    }

    #[test]
    fn a_span_that_leaves_keeps_its_members_until_their_bytes_are_elsewhere() {
        let leaving = MemberState::Leaving { left: Bytes::gib(1) };
        let steps = [present(&[lease(1, 0), lease(2, 1)]), leave(2, Why::Shrunk)];
        assert_eq!(after(&steps), (vec![(1, MemberState::InSync), (2, leaving)], vec![]));
        let (mut volumes, mut left) = (BTreeMap::new(), BTreeMap::new());
        let mut presented = Presented { volumes: &mut volumes, left: &mut left };
        assert!(!presented.carry_out(Step::ForgetLease {
            donor: "d0".parse().expect("a name"),
            volume: VOLUME,
            member: MemberId(1)
        }));
        steps.into_iter().for_each(|step| assert!(presented.carry_out(step)));
        // The same step again does not restart it.
        let moved = MemberState::Leaving { left: Bytes::gib(0) };
        let view = presented.volumes.get_mut(&VOLUME).expect("it is presented");
        view.members.get_mut(&MemberId(2)).expect("it is there").state = moved;
        assert!(presented.carry_out(leave(2, Why::Shrunk)));
        assert_eq!(presented.volumes[&VOLUME].members[&MemberId(2)].state, moved);
        presented.let_go(VOLUME, MemberId(2));
        presented.let_go(VOLUME, MemberId(1));
        assert!(volumes.is_empty());
        assert_eq!(left[&VOLUME].len(), 2);
    }
}
