// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What metrics say about the host state: how many volumes, members, devices and users there are, by state. Pure.

use std::collections::BTreeSet;

use aquifer_fabric::MemberState;

use super::HostState;
use super::devices::STAGES;
use crate::processes::Process;

/// The states of members, as metrics name them.
const MEMBER_STATES: [&str; 4] = ["broken", "copying", "in_sync", "leaving"];

/// The numbers of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Volumes that programs can open, and those that were withdrawn and are still in use.
    pub(crate) volumes: [(&'static str, usize); 2],
    /// Members of volumes, by state.
    pub(crate) members: [(&'static str, usize); MEMBER_STATES.len()],
    /// Members on memory devices, by what this host has of them.
    pub(crate) devices: [(&'static str, usize); STAGES.len()],
    /// Programs that are connected and have a volume open.
    pub(crate) programs: usize,
    /// Uses of volumes that are remembered, including those of programs that have disconnected.
    pub(crate) users: usize,
}

impl HostState {
    /// Returns the numbers for metrics.
    pub(crate) fn figures(&self) -> Figures {
        let withdrawn = self.volumes.values().filter(|held| held.is_withdrawn).count();
        let mut members = MEMBER_STATES.map(|state| (state, 0));
        for member in self.volumes.values().flat_map(|held| held.report.members.values()) {
            let state = match member.state {
                MemberState::Broken => 0,
                MemberState::Copying { .. } => 1,
                MemberState::InSync => 2,
                MemberState::Leaving { .. } => 3,
            };
            members[state].1 += 1;
        }
        let mut devices = STAGES.map(|stage| (stage, 0));
        for attachment in self.volumes.values().flat_map(|held| held.attachments.values()) {
            devices[attachment.stage()].1 += 1;
        }
        let programs: BTreeSet<Process> =
            self.users.iter().filter(|user| user.connections > 0).map(|user| user.process).collect();
        Figures {
            volumes: [("bound", self.volumes.len() - withdrawn), ("withdrawn", withdrawn)],
            members,
            devices,
            programs: programs.len(),
            users: self.users.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aquifer_fabric::{
        Bytes, Command, MemberId, MemberLease, Place, Presentation, Redundancy, Source, SpanId, Step, Term, Token,
        VolumeId, Why,
    };

    use super::*;
    use crate::host_state::{Surroundings, UserId};

    const VOLUME: VolumeId = VolumeId(0xa1);

    fn lease(member: u64) -> MemberLease {
        let place = Place { span: SpanId(member as u32), shard: 0 };
        let source = Source::Slabs { donor: format!("d{member}").parse().unwrap() };
        MemberLease { member: MemberId(member), place, source, bytes: Bytes::slabs(8), token: Token(member) }
    }

    fn order(state: &mut HostState, sequence: u64, step: Step) {
        let command = Command { term: Term(1), sequence, incarnation: state.incarnation, step, cause: None };
        state.carry_out(&command).unwrap();
        state.settle();
    }

    #[test]
    fn volumes_members_and_programs_are_counted_by_state() {
        let mut state = HostState::new("boot");
        let host: aquifer_fabric::HostId = "h1".parse().unwrap();
        let (redundancy, presentation) = (Redundancy::None, Presentation::OneRange);
        let members = vec![lease(1), lease(2)];
        let present =
            Step::Present { host: host.clone(), volume: VOLUME, name: None, redundancy, presentation, members };
        order(&mut state, 1, present);
        // One process has opened the volume twice, and another one has disconnected.
        let user = |pid, session| UserId { volume: VOLUME, process: Process { pid, started: 5 }, session };
        let donors = [1, 2].map(|member| (format!("d{member}").parse().unwrap(), ("d:1".to_owned(), "d".to_owned())));
        let donors = BTreeMap::from(donors);
        for id in [user(100, 1), user(100, 2), user(101, 3)] {
            assert!(state.open(id, 0, &[]));
            assert!(state.view(id, &Surroundings { files: None, donors: &donors }).is_some());
        }
        state.disconnect(user(101, 3));
        let figures = state.figures();
        assert_eq!(figures.volumes, [("bound", 1), ("withdrawn", 0)]);
        assert_eq!(figures.members, [("broken", 0), ("copying", 0), ("in_sync", 2), ("leaving", 0)]);
        assert_eq!((figures.programs, figures.users), (1, 3));
        let members = vec![MemberId(1)];
        order(&mut state, 2, Step::Leave { host: host.clone(), volume: VOLUME, members, why: Why::Shrunk });
        assert_eq!(state.figures().members, [("broken", 0), ("copying", 0), ("in_sync", 1), ("leaving", 1)]);
        let members = vec![MemberId(1), MemberId(2)];
        order(&mut state, 3, Step::Withdraw { host, volume: VOLUME, members });
        assert_eq!(state.figures().volumes, [("bound", 0), ("withdrawn", 1)]);
    }
}
