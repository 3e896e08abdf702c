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
    /// Its connections. When it connects again, the end of the earlier connection may be noticed only afterwards.
    #[serde(skip)]
    pub(super) connections: u32,
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
            (user.connections, user.missed) = (user.connections.saturating_add(1), 0);
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
            connections: 1,
            missed: 0,
        });
        true
    }

    pub(super) fn user(&mut self, id: UserId) -> Option<&mut User> {
        self.users.iter_mut().find(|user| user.is(id))
    }

    /// Notes that one of a user's connections has ended. The user itself may still run.
    pub(crate) fn disconnect(&mut self, id: UserId) {
        if let Some(user) = self.user(id) {
            user.connections = user.connections.saturating_sub(1);
        }
    }

    /// Takes an opening back that cannot be stored. A user that was given members may have memory there, as one that
    /// has connected again: it is forgotten only when it has ended.
    pub(crate) fn take_back(&mut self, id: UserId) {
        let may_have_memory = self.user(id).is_some_and(|user| !user.given.is_empty());
        if may_have_memory { self.disconnect(id) } else { self.close(id) }
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
            user.missed = if user.connections > 0 || runs(user.process) { 0 } else { user.missed + 1 };
        }
        self.users.retain(|user| user.missed <= MISSED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use aquifer_fabric::{
        Bytes, Command, MemberLease, Place, Presentation, Redundancy, Source, SpanId, Step, Term, Token,
    };

    use super::*;
    use crate::host_state::Surroundings;

    const VOLUME: VolumeId = VolumeId(0xa1);

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
        name.parse().expect("a name")
    }

    fn order(state: &mut HostState, sequence: u64, step: Step) {
        let command = Command { term: Term(1), sequence, incarnation: state.incarnation, step, cause: None };
        state.carry_out(&command).expect("it is admitted");
        state.settle();
    }

    fn user(session: u64, pid: u32) -> UserId {
        UserId { volume: VOLUME, process: Process { pid, started: 5 }, session }
    }

    /// Creates a host with a volume of one member, which this user was given.
    fn given(to: UserId) -> HostState {
        let mut state = HostState::new("boot");
        let (place, source) = (Place { span: SpanId(0), shard: 0 }, Source::Slabs { donor: id("d") });
        let lease = MemberLease { member: MemberId(1), place, source, bytes: Bytes::slabs(8), token: Token(1) };
        let (redundancy, presentation, members) = (Redundancy::None, Presentation::OneRange, vec![lease]);
        let host = id("web-1");
        order(&mut state, 1, Step::Present { host, volume: VOLUME, name: None, redundancy, presentation, members });
        assert!(state.open(to, 0, &[]));
        let donors = BTreeMap::from([(id("d"), ("d:1".to_owned(), "d".to_owned()))]);
        assert!(state.view(to, &Surroundings { files: None, donors: &donors }).is_some());
        state
    }

    /// Returns whether the member has left after so many looks at programs that do not run, once the volume was
    /// withdrawn.
    fn leaves(state: &mut HostState, sequence: u64, looks: u32) -> bool {
        let members = vec![MemberId(1)];
        order(state, sequence, Step::Withdraw { host: id("web-1"), volume: VOLUME, members });
        (0..looks).for_each(|_| state.look(|_| false));
        state.settle();
        state.report().has_left(VOLUME, MemberId(1))
    }

    /// The agent's disk was full, and a program that connected again was denied: it was forgotten with the members that
    /// it had memory of, which left.
    #[test]
    fn a_user_that_was_given_members_is_not_forgotten_when_it_cannot_be_stored() {
        let (one, other) = (user(1, 7), user(2, 7));
        let mut state = given(one);
        state.disconnect(one);
        assert!(state.open(one, 0, &[1]) && state.open(other, 0, &[]));
        [one, other].into_iter().for_each(|user| state.take_back(user));
        assert!(state.user(other).is_none(), "it has no memory");
        assert!(!leaves(&mut state, 2, 0), "the first one has");
        assert!(leaves(&mut state, 3, MISSED_MAX + 1), "it has ended");
    }

    /// A program that the agent cannot see was forgotten, and its members left, when the end of its first connection
    /// was noticed after it had connected again.
    #[test]
    fn a_user_is_connected_until_the_last_of_its_connections_has_ended() {
        let hidden = user(1, 0);
        let mut state = given(hidden);
        assert!(state.open(hidden, 0, &[1]), "it connects again");
        state.disconnect(hidden);
        assert!(!leaves(&mut state, 2, MISSED_MAX + 1), "the earlier connection has ended");
        state.disconnect(hidden);
        assert!(leaves(&mut state, 3, MISSED_MAX + 1));
    }
}
