// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries the manager's steps out in the host state. Pure. Each step may be repeated.
//!
//! Next on the path: `users.rs`, who uses a member; `view.rs`, what programs are sent.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Command, MemberId, MemberLease, MemberReport, MemberState, Presentation, Redundancy, Source, SpanId, Step,
    VolumeId, VolumeReport, Why,
};

use super::{Attachment, Held, HostState};

/// Maximum number of volumes of one host, with their members. A choice: the state stays a few megabytes.
const VOLUMES_MAX: usize = 4096;

impl HostState {
    /// Carries a command out, or says in one line why not.
    pub(crate) fn carry_out(&mut self, command: &Command) -> Result<(), String> {
        self.admit(command)?;
        let before = self.volumes.clone();
        let outcome = self.step(command.step.clone());
        self.revise(&before);
        outcome
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                if self.volumes.contains_key(&volume) || !self.are_new(volume, &members) {
                    return Ok(());
                }
                self.are_usable(&members, redundancy, &presentation)?;
                if self.volumes.len() >= VOLUMES_MAX {
                    return Err(format!("this host has {VOLUMES_MAX} volumes; unbind some"));
                }
                let attachments = self.attachments(volume, &members);
                let members = members.into_iter().map(|lease| {
                    let left = lease.bytes;
                    let is_here = !attachments.contains_key(&lease.member);
                    let state = if is_here { MemberState::InSync } else { MemberState::Copying { left } };
                    (lease.member, MemberReport { lease, state })
                });
                let report = VolumeReport { name, redundancy, presentation, members: members.collect() };
                let (replaced, abandoned) = (BTreeSet::new(), BTreeSet::new());
                self.volumes.insert(volume, Held { report, replaced, abandoned, is_withdrawn: false, attachments });
            }
            Step::Join { volume, members, .. } => {
                let report = self.volumes.get(&volume).map(|held| &held.report);
                let of = |report: &VolumeReport| (report.redundancy, report.presentation.clone());
                let (redundancy, presentation) = report.map(of).unwrap_or_default();
                self.are_usable(&members, redundancy, &presentation)?;
                self.are_of_one_kind(volume, &members)?;
                self.join(volume, members);
            }
            Step::Leave { volume, members, why, .. } => {
                members.into_iter().for_each(|member| self.leave(volume, member, why));
            }
            Step::Withdraw { volume, members, .. } => self.withdraw(volume, members),
            Step::ForgetLeft { volume, member, .. } => {
                self.left_devices.retain(|left| !left.is_of(volume, member));
                let _ = self.take_place(volume, member);
                if let Some(left) = self.left.get_mut(&volume) {
                    left.remove(&member);
                    if left.is_empty() {
                        self.left.remove(&volume);
                    }
                }
            }
            step => return Err(format!("an agent cannot {step}; send it to its donor or switch")),
        }
        Ok(())
    }

    fn are_new(&self, volume: VolumeId, members: &[MemberLease]) -> bool {
        let left = self.left.get(&volume);
        !members.iter().any(|lease| left.is_some_and(|left| left.contains(&lease.member)))
    }

    fn join(&mut self, volume: VolumeId, members: Vec<MemberLease>) {
        if !self.are_new(volume, &members) {
            return;
        }
        if self.volumes.get(&volume).is_none_or(|held| held.is_withdrawn) {
            return;
        }
        let mut on_devices = self.attachments(volume, &members);
        let held = self.volumes.get_mut(&volume).expect("it was just found");
        let spans: BTreeSet<SpanId> = held.report.members.values().map(|member| member.lease.place.span).collect();
        for lease in members {
            if held.report.members.contains_key(&lease.member) {
                continue;
            }
            let on_device = on_devices.remove_entry(&lease.member);
            let is_new_span = !spans.contains(&lease.place.span) && on_device.is_none();
            held.attachments.extend(on_device);
            let state = if is_new_span { MemberState::InSync } else { MemberState::Copying { left: lease.bytes } };
            held.replaced.extend(held.report.at(lease.place).map(|(old, _)| *old));
            held.report.members.insert(lease.member, MemberReport { lease, state });
        }
    }

    /// Lets a member leave, if it may: the manager decided on an older report, so this checks again.
    fn leave(&mut self, volume: VolumeId, member: MemberId, why: Why) {
        let is_free = self.is_free(volume, member);
        let is_used = self.is_used(volume) || !self.volumes.get(&volume).is_none_or(|held| held.is_detached(member));
        let Some(held) = self.volumes.get_mut(&volume).filter(|held| held.report.members.contains_key(&member)) else {
            self.left.entry(volume).or_default().insert(member);
            return;
        };
        let may_leave = held.report.may_leave(member, why);
        let report = held.report.members.get_mut(&member).expect("it was just found");
        match why {
            Why::Shrunk if report.state != MemberState::Broken => {
                if !matches!(report.state, MemberState::Leaving { .. }) {
                    report.state = MemberState::Leaving { left: report.lease.bytes };
                }
            }
            Why::Unbound => {
                // Programs that use the volume may go on; the member leaves when they have ended.
                held.is_withdrawn |= is_used;
                if !is_used {
                    self.remove(volume, member);
                }
            }
            Why::Replaced if !may_leave || !is_free => {}
            // Programs cannot miss the bytes of a lost member that none of them has.
            Why::Lost if !may_leave && !is_free => {}
            // Its memory is lost, or nobody has any there. Memory of a device must be offline first.
            Why::Lost | Why::Replaced | Why::Shrunk => {
                if why == Why::Lost {
                    // No other member may leave because this one has its bytes.
                    report.state = MemberState::Broken;
                }
                held.abandoned.insert(member);
            }
        }
    }

    fn withdraw(&mut self, volume: VolumeId, members: Vec<MemberId>) {
        let is_used = self.is_used(volume);
        let mut had = BTreeMap::new();
        if let Some(held) = self.volumes.get_mut(&volume) {
            held.is_withdrawn = true;
            had = held.report.members.clone();
        }
        let stays = |member: &MemberId| self.volumes.get(&volume).is_some_and(|held| !held.is_detached(*member));
        let staying: BTreeSet<MemberId> = had.keys().filter(|member| stays(member)).copied().collect();
        let never_had = members.into_iter().filter(|member| !had.contains_key(member)).collect::<Vec<_>>();
        if !never_had.is_empty() {
            self.left.entry(volume).or_default().extend(never_had);
        }
        if !is_used {
            let going = had.into_keys().filter(|member| !staying.contains(member));
            going.for_each(|member| self.remove(volume, member));
        }
    }

    /// Refuses members that programs of this host could not use.
    fn are_usable(
        &self,
        members: &[MemberLease],
        redundancy: Redundancy,
        presentation: &Presentation,
    ) -> Result<(), String> {
        let of = |lease: &MemberLease| format!("member {} is on {}", lease.member, lease.source);
        for lease in members {
            match &lease.source {
                Source::Slabs { .. } => {}
                Source::DynamicCapacity { .. } => {
                    return Err(format!(
                        "{}, and Linux supports no dynamic capacity yet; place the volume on logical devices or donors",
                        of(lease)
                    ));
                }
                Source::LogicalDevice { .. } if !self.takes_devices => {
                    return Err(format!(
                        "{}, and this agent brings no devices online; write [cxl] into its configuration, or place \
                         the volume in a pool of donors",
                        of(lease)
                    ));
                }
                Source::LogicalDevice { .. } if redundancy != Redundancy::None => {
                    return Err(format!(
                        "{}, whose memory the kernel manages, and the kernel keeps no {redundancy}; place the volume \
                         without redundancy, or in a pool of donors",
                        of(lease)
                    ));
                }
                Source::LogicalDevice { .. } if !presentation.weights().is_empty() => {
                    return Err(format!(
                        "{}, whose memory the kernel interleaves, so that the volume's weights have no effect; leave \
                         them out, and set those of the host with 'aquifer tiering apply --weights'",
                        of(lease)
                    ));
                }
                Source::LogicalDevice { .. } => {}
            }
        }
        Ok(())
    }
}

impl HostState {
    /// Returns the initial state of the members on memory devices.
    fn attachments(&mut self, volume: VolumeId, members: &[MemberLease]) -> BTreeMap<MemberId, Attachment> {
        let on_devices = members.iter().filter(|lease| matches!(lease.source, Source::LogicalDevice { .. }));
        on_devices.map(|lease| (lease.member, Attachment::at(self.take_place(volume, lease.member)))).collect()
    }

    /// Refuses to replace a donor's member by a device: programs could not move its bytes there.
    fn are_of_one_kind(&self, volume: VolumeId, members: &[MemberLease]) -> Result<(), String> {
        let Some(held) = self.volumes.get(&volume) else { return Ok(()) };
        let of_device = |lease: &&MemberLease| matches!(lease.source, Source::LogicalDevice { .. });
        for lease in members.iter().filter(of_device) {
            let mut there = held.report.at(lease.place).filter(|(member, _)| **member != lease.member);
            if let Some((member, old)) = there.find(|(_, old)| matches!(old.lease.source, Source::Slabs { .. })) {
                return Err(format!(
                    "{} cannot take the place of member {member} on {}, whose bytes programs have; move it to a donor",
                    lease.source, old.lease.source
                ));
            }
        }
        Ok(())
    }
}
