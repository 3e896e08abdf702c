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
            self.users.iter().filter(|user| user.is_connected).map(|user| user.process).collect();
        Figures {
            volumes: [("bound", self.volumes.len() - withdrawn), ("withdrawn", withdrawn)],
            members,
            devices,
            programs: programs.len(),
            users: self.users.len(),
        }
    }
}
