// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The users of volumes: which programs have opened one, what they were given, what they have left, and when they have
//! ended. Pure.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_agent_wire::{MemberProgress, Order, Progress};
use aquifer_fabric::{MemberId, VolumeId};
use serde::{Deserialize, Serialize};

use super::{Held, HostState};
use crate::processes::Process;

/// How many looks in a row a user may be missing: at one a second, longer than a forked child takes to connect.
pub(super) const MISSED_MAX: u32 = 5;

/// Maximum number of times that one program has a volume open.
pub(super) const OPENS_MAX: usize = 64;
/// How many users are remembered for each program that is served at a time: a program may use several volumes, and one
/// that has disconnected is remembered while it runs.
const USERS_PER_PROGRAM: usize = 4;
/// How many quarters of the places one user of the host other than root can take.
const QUARTERS_PER_UID: usize = 3;

/// Returns how many of this many places one user of the host can take.
pub(crate) fn share_of(uid: u32, places: usize) -> usize {
    if uid == 0 { places } else { (places * QUARTERS_PER_UID / 4).max(1) }
}

/// A program that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) volume: VolumeId,
    pub(super) process: Process,
    pub(super) session: u64,
    /// The user of the host that it runs as. States of older agents do not have it.
    #[serde(default)]
    pub(super) uid: u32,
    /// The name or the id by which it has opened the volume. States of older agents do not have it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) opened_as: String,
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

impl User {
    fn is(&self, id: UserId) -> bool {
        (self.volume, self.process, self.session) == (id.volume, id.process, id.session)
    }
}

/// Who uses a volume: a process, and its number for this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserId {
    pub(crate) volume: VolumeId,
    pub(crate) process: Process,
    pub(crate) session: u64,
}

impl HostState {
    /// Returns whether a user can be added, or is there already. Without a limit, one program could make this state
    /// grow by opening a volume again and again.
    pub(crate) fn has_room(&self, id: UserId, uid: u32, programs_max: usize) -> bool {
        let of = |is_counted: &dyn Fn(&&User) -> bool| self.users.iter().filter(is_counted).count();
        let users_max = programs_max * USERS_PER_PROGRAM;
        let opens = of(&|user| (user.volume, user.process) == (id.volume, id.process));
        let is_there = self.users.iter().any(|user| user.is(id));
        let is_within = self.users.len() < users_max && of(&|user| user.uid == uid) < share_of(uid, users_max);
        is_there || opens < OPENS_MAX && is_within
    }

    /// Adds a user that has memory of some members, or notes that it has connected again. Returns false if the volume
    /// is not bound to this host.
    pub(crate) fn open(&mut self, id: UserId, uid: u32, holds: &[u64]) -> bool {
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
            uid,
            opened_as: String::new(),
            given,
            left: BTreeSet::new(),
            draining: BTreeMap::new(),
            is_connected: true,
            missed: 0,
        });
        true
    }

    pub(super) fn user(&mut self, id: UserId) -> Option<&mut User> {
        self.users.iter_mut().find(|user| user.is(id))
    }

    /// Notes that a user's connection has ended. The user itself may still run.
    pub(crate) fn disconnect(&mut self, id: UserId) {
        if let Some(user) = self.user(id) {
            user.is_connected = false;
        }
    }

    /// Notes that a user has closed the volume.
    pub(crate) fn close(&mut self, id: UserId) {
        self.users.retain(|user| !user.is(id));
    }

    /// Notes what a user has done. Returns whether something was noted that must be on disk.
    pub(crate) fn progress(&mut self, id: UserId, members: &[MemberProgress]) -> bool {
        let held = self.volumes.get(&id.volume);
        let is_to_use = |member: MemberId| held.is_some_and(|held| held.order(member) == Order::Use);
        let Some(user) = self.users.iter_mut().find(|user| user.is(id)) else { return false };
        let before = user.left.len();
        for MemberProgress { member, progress } in members {
            let member = MemberId(*member);
            user.draining.remove(&member);
            // Only of what it was given, so that a user cannot make this state grow.
            match progress {
                _ if !user.given.contains(&member) => {}
                // It has left by an earlier view, and takes it again by the newest.
                Progress::Left if is_to_use(member) => {}
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
