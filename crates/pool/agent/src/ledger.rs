// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent's decisions: which members each volume has, what programs should do with them, and when a member has left.
//! Pure.
//!
//! A member has left when no program has memory there or can get any: every user of the volume that was ever given the
//! member has reported that it left, or has ended. Users are remembered across restarts of the agent, so an agent that
//! has just started does not take a program that has not connected again for one that has ended.
//!
//! A member that joins in a place that another member has replaces it: programs move everything from the old one, and
//! the new one counts as being copied until that is done. `order.rs` carries out the manager's steps.

mod devices;
mod listing;
mod order;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use aquifer_agent_wire::{MemberProgress, MemberView, Order, Progress, Redundancy, TenantFiles, View};
use aquifer_control::Whereabouts;
use aquifer_fabric::{
    Availability, Bytes, Command, DonorId, Gate, HostReport, Incarnation, MemberId, MemberReport, MemberState, SLAB,
    Source, Term, VolumeId, VolumeReport,
};
use serde::{Deserialize, Serialize};

use crate::processes::Process;

/// How many looks in a row a user may be missing: at one a second, longer than a forked child takes to connect.
const MISSED_MAX: u32 = 5;
/// The greatest weight of a member, as in an array of donors.
const WEIGHT_MAX: u64 = 16;

pub(crate) use devices::{Act, Attachment, DeviceTask, Outcome};

/// A volume of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    report: VolumeReport,
    /// Members that are being replaced by others, and that programs drain.
    replaced: BTreeSet<MemberId>,
    /// Members whose bytes are lost or not needed any more.
    abandoned: BTreeSet<MemberId>,
    /// The manager has withdrawn it.
    is_withdrawn: bool,
    /// The members on memory devices.
    #[serde(default)]
    attachments: BTreeMap<MemberId, Attachment>,
}

/// A program that uses a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct User {
    volume: VolumeId,
    process: Process,
    session: u64,
    /// Members that it was ever given.
    given: BTreeSet<MemberId>,
    /// Members that it has left.
    left: BTreeSet<MemberId>,
    /// Slabs that it still has at members that drain.
    #[serde(skip)]
    draining: BTreeMap<MemberId, u64>,
    #[serde(skip)]
    is_connected: bool,
    /// How many times in a row it was neither connected nor running.
    #[serde(skip)]
    missed: u32,
}

/// Who uses a volume: a process, and its number for this use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserId {
    pub(crate) volume: VolumeId,
    pub(crate) process: Process,
    pub(crate) session: u64,
}

/// What an agent knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ledger {
    /// The start of the host that this state is from.
    boot: String,
    incarnation: Incarnation,
    term: Term,
    sequence: u64,
    volumes: BTreeMap<VolumeId, Held>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
    users: Vec<User>,
    /// Where donors are, according to the manager.
    donors: BTreeMap<DonorId, Whereabouts>,
    /// Grows with every change of a view.
    revision: u64,
    /// Whether this agent brings devices that are bound to the host online as memory.
    #[serde(skip)]
    takes_devices: bool,
}

/// What a view needs besides the ledger.
pub(crate) struct Surroundings<'a> {
    /// The certificate of this host.
    pub(crate) files: Option<TenantFiles>,
    /// Where donors are, if not where the manager says: address and server name.
    pub(crate) donors: &'a BTreeMap<DonorId, (String, String)>,
}

impl Ledger {
    /// A ledger for a host that has nothing.
    pub(crate) fn new(boot: &str) -> Ledger {
        Ledger {
            boot: boot.to_owned(),
            incarnation: Incarnation(1),
            term: Term(0),
            sequence: 0,
            volumes: BTreeMap::new(),
            left: BTreeMap::new(),
            users: Vec::new(),
            donors: BTreeMap::new(),
            revision: 1,
            takes_devices: false,
        }
    }

    /// Accepts members on memory devices from now on.
    pub(crate) fn take_devices(&mut self) {
        self.takes_devices = true;
    }

    /// Called when the agent starts. After a restart of the host, nothing is left of what it had.
    pub(crate) fn start(&mut self, boot: &str) {
        if self.boot != boot {
            let fresh = Ledger::new(boot);
            let incarnation = Incarnation(self.incarnation.0 + 1);
            let (term, donors) = (self.term, std::mem::take(&mut self.donors));
            *self = Ledger { incarnation, term, donors, takes_devices: self.takes_devices, ..fresh };
        }
    }

    /// Whether a manager of this term gets a report. If not, the error is the greatest term that was seen.
    pub(crate) fn admit_term(&mut self, term: Term) -> Result<(), Term> {
        if term < self.term {
            return Err(self.term);
        }
        if term > self.term {
            (self.term, self.sequence) = (term, 0);
        }
        Ok(())
    }

    /// Asks a gate in the ledger's state whether it admits a command.
    fn admit(&mut self, command: &Command) -> Result<(), String> {
        let mut gate = Gate::new(self.incarnation, self.term);
        if self.sequence > 0 {
            // The newest command of this term that was admitted before the agent was restarted.
            let (term, sequence, incarnation) = (self.term, self.sequence, self.incarnation);
            let earlier = Command { term, sequence, incarnation, step: command.step.clone() };
            gate.admit(&earlier).map_err(|stale| stale.to_string())?;
        }
        gate.admit(command).map_err(|stale| stale.to_string())?;
        (self.term, self.sequence) = (command.term, command.sequence);
        Ok(())
    }

    /// Notes where donors are.
    pub(crate) fn learn(&mut self, donors: BTreeMap<DonorId, Whereabouts>) {
        if self.donors != donors {
            self.donors = donors;
            self.revision += 1;
        }
    }

    /// The greatest term that was seen.
    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// Changes whenever a view may have changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The report to a manager.
    pub(crate) fn report(&self) -> HostReport {
        HostReport {
            incarnation: self.incarnation,
            availability: Availability::Up,
            term: self.term,
            volumes: self.volumes.iter().map(|(id, held)| (*id, held.report.clone())).collect(),
            left: self.left.clone(),
            trouble: self.trouble(),
        }
    }

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

    /// A user's connection has ended. The user itself may still run.
    pub(crate) fn disconnect(&mut self, id: UserId) {
        if let Some(user) = self.user(id) {
            user.is_connected = false;
        }
    }

    /// A user has closed the volume.
    pub(crate) fn close(&mut self, id: UserId) {
        self.users.retain(|user| (user.volume, user.process, user.session) != (id.volume, id.process, id.session));
    }

    /// What a user has done. Returns whether something was noted that must be on disk.
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

    /// The volume for a user, and notes which members the user is given. `None` if it is no user.
    pub(crate) fn view(&mut self, id: UserId, surroundings: &Surroundings<'_>) -> Option<View> {
        let revision = self.revision;
        let donors = &self.donors;
        let held = self.volumes.get(&id.volume);
        let is_it = |user: &&mut User| (user.volume, user.process, user.session) == (id.volume, id.process, id.session);
        let user = self.users.iter_mut().find(is_it)?;
        let Some(held) = held else {
            // The view has no members: the volume has left this host.
            let redundancy = Redundancy::None;
            return Some(View { revision, redundancy, files: None, members: Vec::new(), is_withdrawn: true });
        };
        let largest = held.report.members.values().map(|member| member.lease.bytes.0).max().unwrap_or(1).max(1);
        let mut members = Vec::new();
        for (member, report) in &held.report.members {
            let order = held.order(*member);
            if order != Order::Use && !user.given.contains(member) {
                continue;
            }
            let Some((address, server_name)) = whereabouts(report, donors, surroundings.donors) else { continue };
            user.given.insert(*member);
            members.push(MemberView {
                member: member.0,
                address,
                server_name,
                weight: (report.lease.bytes.0.saturating_mul(WEIGHT_MAX) / largest).clamp(1, WEIGHT_MAX) as u32,
                slabs: report.lease.bytes.0 / SLAB.0,
                reservation: report.lease.token.0,
                order,
            });
        }
        let redundancy = redundancy(held.report.redundancy);
        let (files, is_withdrawn) = (surroundings.files.clone(), held.is_withdrawn);
        Some(View { revision, redundancy, files, members, is_withdrawn })
    }

    /// Whether no user of a volume has memory at a member, or can get any.
    fn is_free(&self, volume: VolumeId, member: MemberId) -> bool {
        if !self.volumes.get(&volume).is_none_or(|held| held.is_detached(member)) {
            return false;
        }
        let mut users = self.users.iter().filter(|user| user.volume == volume);
        users.all(|user| !user.given.contains(&member) || user.left.contains(&member))
    }

    fn is_used(&self, volume: VolumeId) -> bool {
        self.users.iter().any(|user| user.volume == volume)
    }

    /// Looks which users have ended. They are forgotten when they have been missing for [`MISSED_MAX`] looks: a forked
    /// child that goes on with their memory connects before that.
    pub(crate) fn look(&mut self, runs: impl Fn(Process) -> bool) {
        for user in &mut self.users {
            user.missed = if user.is_connected || runs(user.process) { 0 } else { user.missed + 1 };
        }
        self.users.retain(|user| user.missed <= MISSED_MAX);
    }

    /// Draws the conclusions: which members have left, and which are complete.
    pub(crate) fn settle(&mut self) {
        let before = self.volumes.clone();
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        ids.into_iter().for_each(|volume| self.settle_volume(volume));
        if before != self.volumes {
            self.revision += 1;
        }
    }

    fn settle_volume(&mut self, volume: VolumeId) {
        let is_used = self.is_used(volume);
        let Some(held) = self.volumes.get(&volume) else { return };
        let mut leaves = BTreeSet::new();
        let mut states = BTreeMap::new();
        for (member, report) in &held.report.members {
            let is_free = self.is_free(volume, *member);
            let is_leaving = matches!(report.state, MemberState::Leaving { .. });
            let may_go = held.is_withdrawn && !is_used && held.is_detached(*member);
            if is_free && (is_leaving || held.abandoned.contains(member)) || may_go {
                leaves.insert(*member);
            } else if let Some(state) = held.state_of_device(*member, report) {
                states.insert(*member, state);
            } else if is_leaving {
                states.insert(*member, MemberState::Leaving { left: self.left_at(volume, *member) });
            } else if matches!(report.state, MemberState::Copying { .. }) {
                let old = held.report.at(report.lease.place).find(|(other, _)| held.replaced.contains(*other));
                let state = match old {
                    Some((old, _)) if !self.is_free(volume, *old) => {
                        MemberState::Copying { left: self.left_at(volume, *old) }
                    }
                    _ => MemberState::InSync,
                };
                states.insert(*member, state);
            }
        }
        let held = self.volumes.get_mut(&volume).expect("it was just found");
        for (member, state) in states {
            held.report.members.get_mut(&member).expect("it was just found").state = state;
        }
        leaves.into_iter().for_each(|member| self.remove(volume, member));
    }

    /// The bytes that programs still have at a member; at least one slab, since it is not free.
    fn left_at(&self, volume: VolumeId, member: MemberId) -> Bytes {
        let users = self.users.iter().filter(|user| user.volume == volume);
        let slabs: u64 =
            users.filter_map(|user| user.draining.get(&member)).fold(0, |sum, slabs| sum.saturating_add(*slabs));
        let lent = self.volumes.get(&volume).and_then(|held| held.report.members.get(&member)).map(|it| it.lease.bytes);
        let max = lent.map_or(1, |bytes| bytes.0 / SLAB.0).max(1);
        Bytes::slabs(slabs.clamp(1, max))
    }

    /// A member has left for good.
    fn remove(&mut self, volume: VolumeId, member: MemberId) {
        if let Some(held) = self.volumes.get_mut(&volume) {
            held.report.members.remove(&member);
            held.replaced.remove(&member);
            held.abandoned.remove(&member);
            held.attachments.remove(&member);
            if held.report.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }
}

impl Held {
    fn order(&self, member: MemberId) -> Order {
        let is_leaving = |report: &MemberReport| matches!(report.state, MemberState::Leaving { .. });
        match self.report.members.get(&member) {
            None => Order::Leave,
            Some(_) if self.abandoned.contains(&member) => Order::Leave,
            Some(report) if is_leaving(report) || self.replaced.contains(&member) => Order::Drain,
            Some(_) => Order::Use,
        }
    }
}

/// Where a member's donor is: its address and the name in its certificate. `None` while nobody has said so.
fn whereabouts(
    report: &MemberReport,
    known: &BTreeMap<DonorId, Whereabouts>,
    set: &BTreeMap<DonorId, (String, String)>,
) -> Option<(String, String)> {
    let Source::Slabs { donor } = &report.lease.source else { return None };
    if let Some(found) = set.get(donor) {
        return Some(found.clone());
    }
    let whereabouts = known.get(donor)?;
    let address = whereabouts.addresses.first()?;
    // A certificate that is for a URI or a person is checked for the host of the address.
    let name = whereabouts.identity.strip_prefix("dns:").map_or_else(|| host_of(address), str::to_owned);
    Some((address.clone(), name))
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
pub(crate) fn host_of(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn redundancy(of: aquifer_fabric::Redundancy) -> Redundancy {
    match of {
        aquifer_fabric::Redundancy::Mirror { copies } => Redundancy::Mirror { copies },
        aquifer_fabric::Redundancy::None => Redundancy::None,
        aquifer_fabric::Redundancy::Parity { data, parity } => Redundancy::Parity { data, parity },
    }
}
