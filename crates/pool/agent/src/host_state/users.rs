// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The users of volumes: which programs have opened one, what they were given, what they have left, and when they have
//! ended. Pure.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_agent_wire::{MemberProgress, Progress};
use aquifer_fabric::{MemberId, VolumeId};
use serde::{Deserialize, Serialize};

use super::{Held, HostState};
use crate::processes::Process;

/// How many looks in a row a user may be missing: at one a second, longer than a forked child takes to connect.
pub(super) const MISSED_MAX: u32 = 5;

/// A program that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) volume: VolumeId,
    pub(super) process: Process,
    pub(super) session: u64,
    /// Members that it was ever given.
    pub(super) given: BTreeSet<MemberId>,
    /// Members that it has left.
    pub(super) left: BTreeSet<MemberId>,
    /// Slabs that it still has at members that drain.
    #[serde(skip)]
    pub(super) draining: BTreeMap<MemberId, u64>,
    #[serde(skip)]
    pub(super) is_connected: bool,
    /// How many times in a row it was neither connected nor running.
    #[serde(skip)]
    pub(super) missed: u32,
}

/// Who uses a volume: a process, and its number for this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserId {
    pub(crate) volume: VolumeId,
    pub(crate) process: Process,
    pub(crate) session: u64,
}

impl HostState {
    /// Adds a user that has memory of some members, or notes that it has connected again. Returns false if the volume
    /// is not bound to this host.
    pub(crate) fn open(&mut self, id: UserId, holds: &[u64]) -> bool {
        if let Some(user) = self.user(id) {
            (user.is_connected, user.missed) = (true, 0);
            return true;
        }
        // A program that has memory already may go on, even if the volume has been withdrawn since.
        let may_open = |held: &&Held| !held.is_withdrawn || !holds.is_empty();
        let Some(held) = self.volumes.get(&id.volume).filter(may_open) else { return false };
        let holds = holds.iter().copied().map(MemberId);
        let given = holds.filter(|member| held.report.members.contains_key(member)).collect();
        self.users.push(User {
            volume: id.volume,
            process: id.process,
            session: id.session,
            given,
            left: BTreeSet::new(),
            draining: BTreeMap::new(),
            is_connected: true,
            missed: 0,
        });
        true
    }

    fn user(&mut self, id: UserId) -> Option<&mut User> {
        let is_it = |user: &&mut User| (user.volume, user.process, user.session) == (id.volume, id.process, id.session);
        self.users.iter_mut().find(is_it)
    }

    /// Notes that a user's connection has ended. The user itself may still run.
    pub(crate) fn disconnect(&mut self, id: UserId) {
        if let Some(user) = self.user(id) {
            user.is_connected = false;
        }
    }

    /// Notes that a user has closed the volume.
    pub(crate) fn close(&mut self, id: UserId) {
        self.users.retain(|user| (user.volume, user.process, user.session) != (id.volume, id.process, id.session));
    }

    /// Notes what a user has done. Returns whether something was noted that must be on disk.
    pub(crate) fn progress(&mut self, id: UserId, members: &[MemberProgress]) -> bool {
        let Some(user) = self.user(id) else { return false };
        let before = user.left.len();
        for MemberProgress { member, progress } in members {
            let member = MemberId(*member);
            user.draining.remove(&member);
            // Only of what it was given, so that a user cannot make this state grow.
            match progress {
                _ if !user.given.contains(&member) => {}
                Progress::Left => _ = user.left.insert(member),
                Progress::Draining { slabs, .. } => {
                    user.left.remove(&member);
                    user.draining.insert(member, *slabs);
                }
                Progress::Lost | Progress::Present => _ = user.left.remove(&member),
            }
        }
        user.left.len() != before
    }

    pub(super) fn is_used(&self, volume: VolumeId) -> bool {
        self.users.iter().any(|user| user.volume == volume)
    }

    /// Checks which users have ended. They are forgotten when they have been missing for [`MISSED_MAX`] looks: a forked
    /// child that goes on with their memory connects before that.
    pub(crate) fn look(&mut self, runs: impl Fn(Process) -> bool) {
        for user in &mut self.users {
            user.missed = if user.is_connected || runs(user.process) { 0 } else { user.missed + 1 };
        }
        self.users.retain(|user| user.missed <= MISSED_MAX);
    }
}
