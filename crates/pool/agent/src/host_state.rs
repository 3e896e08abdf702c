// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The agent's decisions: which members each volume has, what programs should do with them, and when a member has left.
//! Pure.
//!
//! A member has left when no program has memory there or can get any: every user of the volume that was ever given the
//! member has reported that it left, or has ended. Users are remembered across restarts of the agent, so an agent that
//! has just started does not mistake a program that has not reconnected yet for one that has ended.
//!
//! A member that joins in a place that another member has replaces it: programs move everything from the old one, and
//! the new one counts as being copied until that is done. `order.rs` carries out the manager's steps, `opening.rs`
//! decides who may open which volume, `users.rs` has the users, and `view.rs` says what each of them is to do.
//!
//! Next on the path: `session.rs` sends views to programs; `tiers/src/pool/follower.rs` receives them there.

mod devices;
mod figures;
mod listing;
mod opening;
mod order;
#[cfg(test)]
mod tests;
mod users;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use aquifer_control::Whereabouts;
use aquifer_fabric::{
    Availability, Bytes, Command, DonorId, Gate, HostReport, Incarnation, MemberId, MemberState, Place, SLAB, Term,
    VolumeId, VolumeReport,
};
use serde::{Deserialize, Serialize};

pub(crate) use devices::{Act, Attachment, DeviceTask, Outcome};
use devices::{EarlierPlace, LeftDevice};
pub(crate) use figures::Figures;
pub(crate) use opening::{Opening, Refusal};
use users::User;
pub(crate) use users::{UserId, share_of};
pub(crate) use view::{Surroundings, host_of};

/// A volume of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    report: VolumeReport,
    /// Members that are being replaced by others, and that programs drain.
    replaced: BTreeSet<MemberId>,
    /// Members whose bytes are lost or no longer needed.
    abandoned: BTreeSet<MemberId>,
    /// Whether the manager has withdrawn it.
    is_withdrawn: bool,
    /// The members on memory devices.
    #[serde(default)]
    attachments: BTreeMap<MemberId, Attachment>,
}

impl Held {
    /// Replaces no member of a place any more if the one that was to replace it has left.
    fn keep_the_newest_at(&mut self, place: Place) {
        let newest = self.report.at(place).map(|(member, _)| *member).filter(|it| !self.abandoned.contains(it)).max();
        newest.into_iter().for_each(|newest| _ = self.replaced.remove(&newest));
    }
}

/// What an agent knows about its host: volumes, their users, and where donors are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostState {
    /// The start of the host that this state is from.
    boot: String,
    incarnation: Incarnation,
    term: Term,
    sequence: u64,
    volumes: BTreeMap<VolumeId, Held>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
    /// The memory devices of members that have left, until the manager has forgotten these: it may not have unbound
    /// them yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_devices: Vec<LeftDevice>,
    /// Where the devices of members were before the host was restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier_places: Vec<EarlierPlace>,
    users: Vec<User>,
    /// Where donors are, according to the manager.
    donors: BTreeMap<DonorId, Whereabouts>,
    /// Grows with every change of a view.
    revision: u64,
    /// Whether this agent brings devices that are bound to the host online as memory.
    #[serde(skip)]
    takes_devices: bool,
}

impl HostState {
    /// Creates a host state for a host that has nothing.
    pub(crate) fn new(boot: &str) -> HostState {
        HostState {
            boot: boot.to_owned(),
            incarnation: Incarnation(1),
            term: Term(0),
            sequence: 0,
            volumes: BTreeMap::new(),
            left: BTreeMap::new(),
            left_devices: Vec::new(),
            earlier_places: Vec::new(),
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

    /// Starts the host state with the agent. After a restart of the host, nothing is left of what it had, but bound
    /// devices are where they were.
    pub(crate) fn start(&mut self, boot: &str) {
        if self.boot != boot {
            let fresh = HostState::new(boot);
            let incarnation = Incarnation(self.incarnation.0 + 1);
            let (term, donors) = (self.term, std::mem::take(&mut self.donors));
            let (earlier_places, takes_devices) = (self.places(), self.takes_devices);
            *self = HostState { incarnation, term, donors, earlier_places, takes_devices, ..fresh };
        }
    }

    /// Checks whether a manager of this term gets a report. If not, the error is the greatest term that was seen.
    pub(crate) fn admit_term(&mut self, term: Term) -> Result<(), Term> {
        if term < self.term {
            return Err(self.term);
        }
        if term > self.term {
            (self.term, self.sequence) = (term, 0);
        }
        Ok(())
    }

    /// Checks whether a gate admits a command after the newest one that was stored.
    fn admit(&mut self, command: &Command) -> Result<(), String> {
        let mut gate = Gate::new(self.incarnation, self.term);
        if self.sequence > 0 {
            // The newest command of this term that was admitted before the agent was restarted.
            let (term, sequence, incarnation) = (self.term, self.sequence, self.incarnation);
            let earlier = Command { term, sequence, incarnation, step: command.step.clone(), cause: None };
            gate.admit(&earlier).map_err(|stale| stale.to_string())?;
        }
        gate.admit(command).map_err(|stale| stale.to_string())?;
        (self.term, self.sequence) = (command.term, command.sequence);
        Ok(())
    }

    /// Notes where donors are. Those of members that are here stay known: a manager whose state was lost hears of
    /// donors one after the other, and an older program gives up the members that its view lacks.
    pub(crate) fn learn(&mut self, mut donors: BTreeMap<DonorId, Whereabouts>) {
        let members = self.volumes.values().flat_map(|held| held.report.members.values());
        for donor in members.filter_map(|member| member.lease.source.donor()) {
            if let Some(known) = self.donors.get(donor).filter(|_| !donors.contains_key(donor)) {
                donors.insert(donor.clone(), known.clone());
            }
        }
        if self.donors != donors {
            self.donors = donors;
            self.revision += 1;
        }
    }

    /// Returns the greatest term that was seen.
    pub(crate) fn term(&self) -> Term {
        self.term
    }

    /// Changes whenever a view may have changed.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns what is to be on disk. How far programs and devices are is not: they report it again.
    pub(crate) fn to_store(&self) -> Vec<u8> {
        let mut kept = self.clone();
        for report in kept.volumes.values_mut().flat_map(|held| held.report.members.values_mut()) {
            let bytes = report.lease.bytes;
            if let MemberState::Copying { left } | MemberState::Leaving { left } = &mut report.state {
                *left = bytes;
            }
        }
        serde_json::to_vec(&kept).expect("names and numbers are JSON")
    }

    /// Returns the report to a manager.
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

    /// Returns whether no user of a volume has memory at a member, or can get any.
    fn is_free(&self, volume: VolumeId, member: MemberId) -> bool {
        if !self.volumes.get(&volume).is_none_or(|held| held.is_detached(member)) {
            return false;
        }
        let mut users = self.users.iter().filter(|user| user.volume == volume);
        users.all(|user| !user.given.contains(&member) || user.left.contains(&member))
    }

    /// Derives from what programs and devices have reported which members have left, and which are complete.
    pub(crate) fn settle(&mut self) {
        let before = self.volumes.clone();
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        ids.into_iter().for_each(|volume| self.settle_volume(volume));
        self.revise(&before);
    }

    /// Counts a change of a view since these volumes.
    fn revise(&mut self, before: &BTreeMap<VolumeId, Held>) {
        let looks_same =
            |((id, held), (other, now)): ((&VolumeId, &Held), (&VolumeId, &Held))| id == other && held.looks_like(now);
        if before.len() != self.volumes.len() || !before.iter().zip(&self.volumes).all(looks_same) {
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
                let is_replaced = |other: &MemberId| other < member && held.replaced.contains(other);
                let has_bytes = |other: &MemberId| is_replaced(other) && !self.is_free(volume, *other);
                let old = held.report.at(report.lease.place).map(|(other, _)| other).find(|other| has_bytes(other));
                let copying = |old: &MemberId| MemberState::Copying { left: self.left_at(volume, *old) };
                states.insert(*member, old.map_or(MemberState::InSync, copying));
            }
        }
        let held = self.volumes.get_mut(&volume).expect("it was just found");
        for (member, state) in states {
            held.report.members.get_mut(&member).expect("it was just found").state = state;
        }
        leaves.into_iter().for_each(|member| self.remove(volume, member));
    }

    /// Returns the bytes that programs still have at a member; at least one slab, since it is not free.
    fn left_at(&self, volume: VolumeId, member: MemberId) -> Bytes {
        let users = self.users.iter().filter(|user| user.volume == volume);
        let slabs: u64 =
            users.filter_map(|user| user.draining.get(&member)).fold(0, |sum, slabs| sum.saturating_add(*slabs));
        let lent = self.volumes.get(&volume).and_then(|held| held.report.members.get(&member)).map(|it| it.lease.bytes);
        let max = lent.map_or(1, |bytes| bytes.0 / SLAB.0).max(1);
        Bytes::slabs(slabs.clamp(1, max))
    }

    /// Removes a member that has left for good.
    fn remove(&mut self, volume: VolumeId, member: MemberId) {
        if let Some(held) = self.volumes.get_mut(&volume) {
            let report = held.report.members.remove(&member);
            let place = report.as_ref().map(|report| report.lease.place);
            let attachment = held.attachments.remove(&member);
            let left = report.and_then(|report| LeftDevice::of(volume, &report.lease, attachment.as_ref()));
            self.left_devices.extend(left);
            held.replaced.remove(&member);
            held.abandoned.remove(&member);
            if let Some(place) = place {
                held.keep_the_newest_at(place);
            }
            if held.report.members.is_empty() {
                self.volumes.remove(&volume);
            }
        }
        self.left.entry(volume).or_default().insert(member);
    }
}
