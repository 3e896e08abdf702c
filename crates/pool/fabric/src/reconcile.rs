// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides the steps from what is observed towards what is desired.
//!
//! Pure and stateless: any fabric manager may call it at any time, after any part of the steps has been carried out.
//! Everything that must be remembered is in the desired state and at the receivers. These repeat a step harmlessly and
//! refuse stale ones (`gate.rs`), so a wrong order of events costs a round, never a byte.
//!
//! The life of a member: granted, joined, (copied,) in sync; then it leaves at its host, is released at its source,
//! wiped, dropped from the desired state (`settle.rs`), and forgotten by both ends.

mod establish;
mod give_back;
pub(crate) mod progress;
mod step;
mod waiting;

pub use step::{End, MemberLease, Step};
pub use waiting::{Reason, Stray, Waiting};

use crate::desired::{Desired, Volume};
use crate::id::{DeviceId, LdId, MemberId, VolumeId};
use crate::observed::{Content, LdBinding, LeaseState, Observed};
use crate::volume::Source;

/// The steps to take, what is waited for, and what is missing from the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Steps, to be carried out in any order, at once.
    pub steps: Vec<Step>,
    /// Volumes that are not yet as desired, and that no step can speed up.
    pub waiting: Vec<Waiting>,
    /// What is lent or used, and not in the desired state: for [`Edit::adopt`](crate::Edit::adopt).
    pub strays: Vec<Stray>,
}

impl Round {
    /// Whether what is observed is what is desired.
    pub fn is_settled(&self) -> bool {
        self.steps.is_empty() && self.waiting.is_empty() && self.strays.is_empty()
    }
}

/// The two states, for the functions below.
#[derive(Clone, Copy)]
pub(crate) struct States<'a> {
    pub(crate) desired: &'a Desired,
    pub(crate) observed: &'a Observed,
}

/// Decides the steps from what is observed towards what is desired.
pub fn reconcile(desired: &Desired, observed: &Observed) -> Round {
    let states = States { desired, observed };
    let mut round = Round::default();
    for (id, volume) in &desired.volumes {
        if let Some(host) = &volume.host {
            states.establish(*id, volume, host, &mut round);
        }
        states.give_back(*id, volume, &mut round);
    }
    states.tidy_hosts(&mut round);
    states.tidy_donors(&mut round);
    states.tidy_devices(&mut round);
    round
}

impl States<'_> {
    /// Whether a member of a volume is in the desired state, in a span or leaving.
    fn knows(self, volume: VolumeId, member: MemberId) -> bool {
        let volume = self.desired.volumes.get(&volume);
        let knows = |volume: &Volume| volume.leaving.contains_key(&member) || volume.member(member).is_some();
        volume.is_some_and(knows)
    }

    /// Whether an LD is in a pool.
    fn is_pooled(self, device: &DeviceId, ld_id: LdId) -> bool {
        let source = Source::LogicalDevice { device: device.clone(), ld_id };
        self.desired.pool_of(&source).is_some()
    }

    /// Handles what agents list and the desired state does not.
    fn tidy_hosts(self, round: &mut Round) {
        for host in self.observed.hosts.keys() {
            let Some(report) = progress::agent(self.desired, self.observed, host) else { continue };
            for (volume, view) in &report.volumes {
                if !self.desired.volumes.contains_key(volume) {
                    round.strays.push(Stray::Volume { host: host.clone(), volume: *volume });
                    continue;
                }
                // The host was declared dead by mistake: its memory was given to others.
                let members: Vec<MemberId> =
                    view.members.keys().filter(|member| !self.knows(*volume, **member)).copied().collect();
                if !members.is_empty() {
                    let why = crate::desired::Why::Lost;
                    round.steps.push(Step::Leave { host: host.clone(), volume: *volume, members, why });
                }
            }
            let left = report.left.iter().flat_map(|(volume, left)| left.iter().map(|member| (*volume, *member)));
            for (volume, member) in left.filter(|(volume, member)| !self.knows(*volume, *member)) {
                round.steps.push(Step::ForgetLeft { host: host.clone(), volume, member });
            }
        }
    }

    /// Handles what donors list and the desired state does not.
    fn tidy_donors(self, round: &mut Round) {
        for (donor, report) in &self.observed.donors {
            if !report.availability.answers() || self.desired.retired_donors.get(donor) == Some(&report.incarnation) {
                continue;
            }
            let leases = report.leases.iter().flat_map(|(volume, leases)| leases.iter().map(move |one| (*volume, one)));
            for (volume, (member, lease)) in leases.filter(|(volume, (member, _))| !self.knows(*volume, **member)) {
                let (donor, member) = (donor.clone(), *member);
                match lease.state {
                    LeaseState::Released => round.steps.push(Step::ForgetLease { donor, volume, member }),
                    LeaseState::Lent { .. } => round.strays.push(Stray::Lease { donor, volume, member }),
                    LeaseState::Wiping { .. } => {}
                }
            }
        }
    }

    /// Handles what is bound, or was added, and is not in the desired state.
    fn tidy_devices(self, round: &mut Round) {
        for (device, report) in &self.observed.devices {
            let tags = report.extents.iter().flat_map(|(volume, tags)| tags.keys().map(|member| (*volume, *member)));
            for (volume, member) in tags.filter(|(volume, member)| !self.knows(*volume, *member)) {
                round.strays.push(Stray::Extent { device: device.clone(), volume, member });
            }
            for (ld_id, ld) in self.unknown_lds(device, report) {
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
}
