// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides the steps from what is observed towards what is desired.
//!
//! Pure and stateless: any fabric manager may call it at any time, after any part of the steps has been carried out.
//! Everything that must be remembered is in the desired state and at the receivers. These repeat a step harmlessly and
//! refuse stale ones (`fencing.rs`), so a wrong order of events costs a round, never a byte.
//!
//! The life of a member: granted, joined, (copied,) in sync; then it leaves at its host, is released at its source,
//! wiped, dropped from the desired state (`settle.rs`), and forgotten by both ends.

mod alike;
mod backlog;
mod establish;
mod give_back;
mod listings;
pub(crate) mod progress;
mod step;
mod waiting;

pub use backlog::Backlog;
pub use step::{End, MemberLease, Step};
pub use waiting::{Reason, Stray, Waiting};

use crate::desired::{Desired, Volume, Why};
use crate::id::{DeviceId, DonorId, HostId, LdId, MemberId, VolumeId};
use crate::observed::{Content, DeviceReport, LdBinding, LdReport, LeaseState, Observed};
use crate::unlisted::{is_unlisted_binding, unlisted_spans};
use crate::volume::Source;
use listings::Listings;

/// The steps to take, the reports that they wait for, and the strays, which are missing from the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Steps, to be carried out in any order, at once.
    pub steps: Vec<Step>,
    /// Volumes that are not yet as desired, and that no step can speed up.
    pub waiting: Vec<Waiting>,
    /// Memory and LDs that are lent or used, and not in the desired state: for [`Edit::adopt`](crate::Edit::adopt).
    pub strays: Vec<Stray>,
}

impl Round {
    /// Returns whether what is observed is what is desired.
    pub fn is_settled(&self) -> bool {
        self.steps.is_empty() && self.waiting.is_empty() && self.strays.is_empty()
    }
}

/// The two states, for the functions below.
#[derive(Clone, Copy)]
pub(crate) struct States<'a> {
    pub(crate) desired: &'a Desired,
    pub(crate) observed: &'a Observed,
    /// Whose reports list a volume.
    pub(crate) listings: &'a Listings,
}

/// Decides the steps from what is observed towards what is desired.
///
/// This looks at everything. [`Backlog`] looks only at what has changed, and decides the same.
pub fn reconcile(desired: &Desired, observed: &Observed) -> Round {
    let listings = Listings::of(observed);
    let states = States { desired, observed, listings: &listings };
    let mut round = Round::default();
    for id in desired.volumes.keys() {
        states.volume(*id, &mut round);
    }
    for (host, report) in &observed.hosts {
        report.volumes.keys().for_each(|id| states.presented(host, *id, &mut round));
    }
    for (host, report) in &observed.hosts {
        report.left.keys().for_each(|id| states.left(host, *id, &mut round));
    }
    for (donor, report) in &observed.donors {
        report.leases.keys().for_each(|id| states.lent(donor, *id, &mut round));
    }
    observed.devices.keys().for_each(|device| states.device(device, &mut round));
    round
}

impl States<'_> {
    /// Decides about a volume of the desired state.
    fn volume(self, id: VolumeId, round: &mut Round) {
        let Some(volume) = self.desired.volumes.get(&id) else { return };
        if let Some(host) = &volume.host {
            self.establish(id, volume, host, round);
        }
        self.give_back(id, volume, round);
    }

    /// Returns whether a member of a volume is in the desired state, in a span or leaving.
    fn knows(self, volume: VolumeId, member: MemberId) -> bool {
        let volume = self.desired.volumes.get(&volume);
        let knows = |volume: &Volume| volume.leaving.contains_key(&member) || volume.member(member).is_some();
        volume.is_some_and(knows)
    }

    /// Returns whether an LD is in a pool.
    fn is_pooled(self, device: &DeviceId, ld_id: LdId) -> bool {
        let source = Source::LogicalDevice { device: device.clone(), ld_id };
        self.desired.pool_of(&source).is_some()
    }

    /// Handles what an agent has of a volume and the desired state does not.
    fn presented(self, host: &HostId, id: VolumeId, round: &mut Round) {
        let report = progress::agent(self.desired, self.observed, host);
        let Some(view) = report.and_then(|report| report.volumes.get(&id)) else { return };
        let Some(volume) = self.desired.volumes.get(&id) else {
            round.strays.push(Stray::Volume { host: host.clone(), volume: id });
            return;
        };
        let unknown = view.members.iter().filter(|(member, _)| !self.knows(id, **member));
        let (lost, others): (Vec<_>, Vec<_>) = unknown.partition(|(_, one)| self.was_taken(host, id, &one.lease));
        // The desired state is older than what the host has, as after a restore.
        let (is_binding, spans) = (is_unlisted_binding(volume, host, view), unlisted_spans(volume, host, view));
        let (strays, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, one)| is_binding || spans.contains(&one.lease.place.span));
        if !strays.is_empty() {
            round.strays.push(Stray::Volume { host: host.clone(), volume: id });
        }
        // Lost: the host was declared dead by mistake, and its memory was given to others. Replaced: another member is
        // desired in its place; the agent lets such a member go when others have its bytes.
        for (members, why) in [(lost, Why::Lost), (others, Why::Replaced)] {
            let members: Vec<MemberId> = members.into_iter().map(|(member, _)| *member).collect();
            if !members.is_empty() {
                round.steps.push(Step::Leave { host: host.clone(), volume: id, members, why });
            }
        }
    }

    /// Returns whether the memory that a host has by a lease is certainly no longer lent to it. That of a device is
    /// assumed to be: an agent lets it go only when it is offline, and nothing is lost.
    fn was_taken(self, host: &HostId, id: VolumeId, lease: &MemberLease) -> bool {
        let Source::Slabs { donor } = &lease.source else { return true };
        if self.desired.retired_donors.contains_key(donor) {
            return true;
        }
        let Some(report) = self.observed.donors.get(donor) else { return false };
        let lent = report.lease(id, lease.member);
        match lent.map(|lent| (lent.state, &lent.host)) {
            Some((LeaseState::Released, _)) => true,
            _ if !report.availability.answers() => false,
            Some((LeaseState::Lent { token }, borrower)) => (token, borrower) != (lease.token, host),
            Some((LeaseState::Wiping { .. }, _)) | None => true,
        }
    }

    /// Handles members that an agent lists as left, and that the desired state has dropped.
    fn left(self, host: &HostId, id: VolumeId, round: &mut Round) {
        let report = progress::agent(self.desired, self.observed, host);
        let left = report.and_then(|report| report.left.get(&id)).into_iter().flatten();
        for member in left.filter(|member| !self.knows(id, **member)) {
            round.steps.push(Step::ForgetLeft { host: host.clone(), volume: id, member: *member });
        }
    }

    /// Handles leases of a volume that a donor lists and the desired state does not.
    fn lent(self, donor: &DonorId, id: VolumeId, round: &mut Round) {
        let Some(report) = self.observed.donors.get(donor) else { return };
        if !report.availability.answers() || self.desired.retired_donors.contains_key(donor) {
            return;
        }
        let leases = report.leases.get(&id).into_iter().flatten();
        for (member, lease) in leases.filter(|(member, _)| !self.knows(id, **member)) {
            let (donor, volume, member) = (donor.clone(), id, *member);
            match lease.state {
                LeaseState::Released => round.steps.push(Step::ForgetLease { donor, volume, member }),
                LeaseState::Lent { .. } => round.strays.push(Stray::Lease { donor, volume, member }),
                LeaseState::Wiping { .. } => {}
            }
        }
    }

    /// Handles what is bound, or was added, and is not in the desired state.
    fn device(self, device: &DeviceId, round: &mut Round) {
        let Some(report) = self.observed.devices.get(device) else { return };
        let tags = report.extents.iter().flat_map(|(volume, tags)| tags.keys().map(|member| (*volume, *member)));
        for (volume, member) in tags.filter(|(volume, member)| !self.knows(*volume, *member)) {
            round.strays.push(Stray::Extent { device: device.clone(), volume, member });
        }
        for (ld_id, ld) in unknown_lds(self.desired, device, report) {
            match (&ld.binding, ld.content) {
                (LdBinding::Bound(_), _) => round.strays.push(Stray::Ld { device: device.clone(), ld_id }),
                // No host has the LD, and the next one must not find old bytes in it. What is in no pool is not
                // ours to wipe.
                (LdBinding::Unbound, Content::Used)
                    if report.availability.answers() && self.is_pooled(device, ld_id) =>
                {
                    round.steps.push(Step::WipeLd { device: device.clone(), ld_id });
                }
                _ => {}
            }
        }
    }
}

/// Returns the LDs of a device that are in no volume.
pub(crate) fn unknown_lds<'a>(
    desired: &Desired,
    device: &DeviceId,
    report: &'a DeviceReport,
) -> Vec<(LdId, &'a LdReport)> {
    let is_known = |ld_id: LdId| {
        let source = Source::LogicalDevice { device: device.clone(), ld_id };
        desired.volumes.on(&source).next().is_some()
    };
    report.lds.iter().map(|(ld_id, ld)| (*ld_id, ld)).filter(|(ld_id, _)| !is_known(*ld_id)).collect()
}
