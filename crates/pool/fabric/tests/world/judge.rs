// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks what is true, whatever the reports say: no slab is lent twice or lost, no volume has two writers, spans are
//! presented as a whole, only wiped memory is lent, nothing that is in use is released or unbound, and terms only grow.
//! (Quotas: `writer.rs`.)

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::*;

use super::World;
use super::device::Taken;

/// What the judge remembers.
#[derive(Default)]
pub struct Judge {
    foreign_writes: u64,
    lost_places: u64,
    /// Spans that a host was seen to have, with its incarnation.
    seen: BTreeSet<(HostId, Incarnation, VolumeId, SpanId)>,
    /// The number of spans that were presented, to show that histories are about something.
    pub presented: u64,
    pub moved: u64,
    /// The number of members of which programs have noticed the loss.
    pub broken: u64,
    /// The number of rounds in which an LD waited for another one that looks like it.
    pub held_back: u64,
}

impl Judge {
    /// Judges the terms before and after a donor or an agent has admitted a command.
    pub fn term(&mut self, before: Term, now: Term) -> Result<(), String> {
        if now < before { Err(format!("a command of term {now} was admitted after one of {before}")) } else { Ok(()) }
    }

    /// Judges whether a slab or an LD that is handed out was wiped.
    pub fn slab_is_clean(&self, is_dirty: bool) -> Result<(), String> {
        if is_dirty { Err("memory was lent that had not been wiped".into()) } else { Ok(()) }
    }

    /// Notes that a host wrote to a lease.
    pub fn writer(&mut self, is_its_own: bool) {
        self.foreign_writes += u64::from(!is_its_own);
    }

    /// Notes that programs have found a member without their bytes, which is an error for them.
    pub fn member_breaks(&mut self) {
        self.broken += 1;
    }

    /// Notes that no member has the bytes of a place any more.
    pub fn bytes_are_lost(&mut self) {
        self.lost_places += 1;
    }
}

impl World {
    /// Returns whether a host's programs count: it is on, and was not declared dead.
    fn counts(&self, host: &HostId) -> bool {
        self.agents[host].is_on && !self.zombies.contains(host)
    }

    /// Checks, before a donor obeys, that nothing that a program uses is released.
    pub fn judge_release(&self, donor: &DonorId, command: &Command) -> Result<(), String> {
        let Step::Release { volume, member, .. } = command.step else { return Ok(()) };
        let donor = &self.donors[donor];
        if command.incarnation != donor.incarnation()
            || !donor.heeds(command)
            || !donor.has_lent((volume, member))
            || !donor.is_on
            || donor.is_cut
        {
            return Ok(());
        }
        let users = self.agents.iter().filter(|(host, agent)| {
            let view = agent.volumes.get(&volume);
            self.counts(host) && view.is_some_and(|view| view.members.contains_key(&member))
        });
        for (host, agent) in users {
            let report = &agent.volumes[&volume].members[&member];
            if donor.admits((volume, member), report.lease.token) && report.state != MemberState::Broken {
                return Err(format!("{volume}/{member} is released while host {host} uses it"));
            }
        }
        Ok(())
    }

    /// Checks, before a switch obeys, that nothing that a program uses is unbound.
    pub fn judge_unbind(&self, step: &Step) -> Result<(), String> {
        let Some(taken) = self.switch.taken_away(step) else { return Ok(()) };
        for (host, agent) in self.agents.iter().filter(|(host, _)| self.counts(host)) {
            for (volume, view) in &agent.volumes {
                let mut members = view.members.iter().filter(|(member, report)| match (&taken, &report.lease.source) {
                    (Taken::Ld(device, ld_id), Source::LogicalDevice { device: used, ld_id: used_ld }) => {
                        (*device, ld_id) == (used, used_ld)
                            && self.switch.is_host_of(&report.lease.source, host, (*volume, **member))
                    }
                    (Taken::Member(of, taken), _) => volume == of && *member == taken,
                    _ => false,
                });
                if members.any(|(_, report)| report.state != MemberState::Broken) {
                    return Err(format!("{step}, while host {host} uses it in {volume}"));
                }
            }
        }
        Ok(())
    }

    /// Checks, before a switch obeys, that the host to which an LD is bound knows all others that it has of that
    /// device: otherwise it could not tell which is which. What is bound for no member is nobody's to wait for.
    pub fn judge_bind(&self, step: &Step) -> Result<(), String> {
        let Some((host, beside)) = self.switch.bound_beside(step) else { return Ok(()) };
        let is_known = |source: &Source| self.agents[host].known_lds.contains(source);
        let is_for_a_member = |source: &Source, vppb: &VppbAddress| {
            let mut volumes = self.store.desired.volumes.on(source).map(|id| &self.store.desired.volumes[&id]);
            let is_it = |member: &Member| member.source == *source && member.vppb.as_ref() == Some(vppb);
            volumes.any(|volume| {
                let leaving = volume.leaving.values().map(|leaving| &leaving.member);
                volume.places().map(|(_, member)| member).chain(leaving).any(is_it)
            })
        };
        match beside.into_iter().find(|(source, vppb)| is_for_a_member(source, vppb) && !is_known(source)) {
            Some((source, _)) => Err(format!("{step}, while host {host} has {source}, which is not online yet")),
            None => Ok(()),
        }
    }

    /// Judges the whole world after each tick.
    pub fn judge_all(&mut self) -> Result<(), String> {
        if self.judge.foreign_writes > 0 {
            return Err("a host wrote to what was lent to another one".into());
        }
        if self.donors_keep_memory && self.judge.lost_places > 0 {
            return Err("bytes were lost though no donor lost its memory".into());
        }
        self.judge_donors()?;
        self.judge_writers()
    }

    fn judge_donors(&self) -> Result<(), String> {
        for (name, donor) in &self.donors {
            let (_, lost) = donor.lent();
            if lost > 0 {
                return Err(format!("donor {name} has lent {lost} slabs twice for one member, and forgot them"));
            }
        }
        Ok(())
    }

    /// Checks that at most one host can write to a volume.
    fn judge_writers(&self) -> Result<(), String> {
        let mut writers: BTreeMap<VolumeId, &HostId> = BTreeMap::new();
        for (host, agent) in self.agents.iter().filter(|(host, _)| self.counts(host)) {
            for volume in agent.volumes.keys() {
                if let Some(other) = writers.insert(*volume, host) {
                    return Err(format!("hosts {other} and {host} both have volume {volume}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that a host that first has a span has all places of the span.
    pub fn judge_views(&mut self, host: &HostId) -> Result<(), String> {
        if let Some(agent) = self.agents.get(host) {
            for (volume, view) in &agent.volumes {
                let mut spans: BTreeMap<SpanId, BTreeSet<u8>> = BTreeMap::new();
                for member in view.members.values() {
                    let Place { span, shard } = member.lease.place;
                    spans.entry(span).or_default().insert(shard);
                    self.judge.moved += u64::from(matches!(member.state, MemberState::Copying { .. }));
                }
                let wanted = self.store.desired.volumes.get(volume).map(|volume| volume.spans.len());
                let is_first =
                    !self.judge.seen.iter().any(|(at, incarnation, of, _)| {
                        at == host && *incarnation == agent.incarnation() && of == volume
                    });
                // A volume that was grown a moment ago may have been presented with the spans that it had before, but
                // never without any.
                if is_first && spans.is_empty() && wanted.is_some_and(|wanted| wanted > 0) {
                    return Err(format!("host {host} has volume {volume} without a span"));
                }
                for (span, shards) in spans {
                    let key = (host.clone(), agent.incarnation(), *volume, span);
                    if self.judge.seen.insert(key) {
                        self.judge.presented += 1;
                        if shards.len() != view.redundancy.members() {
                            return Err(format!("host {host} has {} members of span {span} of {volume}", shards.len()));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether the elected writer observes what is desired, and no step, wait or stray is left.
    pub fn is_settled(&self) -> Result<bool, String> {
        let Some(writer) = self.writers.iter().find(|writer| writer.term == self.store.term) else { return Ok(false) };
        let has_all = writer.observed.donors.len() == self.donors.len()
            && writer.observed.hosts.len() == self.agents.len()
            && writer.observed.devices.len() == self.topology.parts().devices.len();
        let round = reconcile(&self.store.desired, &writer.observed);
        let leaving = self.store.desired.volumes.values().any(|volume| !volume.leaving.is_empty() || volume.released);
        Ok(has_all && writer.is_idle && round.is_settled() && !leaving)
    }

    /// Checks at the end that what is lent is what is desired, slab by slab, and that hosts have what is bound to them.
    pub fn check_nothing_is_lost(&self) -> Result<(), String> {
        let mut desired: BTreeMap<(VolumeId, MemberId), &Member> = BTreeMap::new();
        for (id, volume) in self.store.desired.volumes.iter().filter(|(_, volume)| volume.host.is_some()) {
            desired.extend(volume.places().map(|(_, member)| ((*id, member.id), member)));
        }
        for (name, donor) in &self.donors {
            let lent = donor.lent().0.into_iter();
            for (key, slabs) in lent.filter(|(key, _)| donor.has_lent(*key)) {
                let member = desired.get(&key).ok_or(format!("donor {name} lends {key:?}, which nobody wants"))?;
                if Bytes::slabs(slabs as u64) != member.bytes
                    || member.source != (Source::Slabs { donor: name.clone() })
                {
                    return Err(format!("donor {name} lends {slabs} slabs for {member:?}"));
                }
            }
        }
        let wanted = |want: fn(&Source) -> bool| desired.values().filter(|member| want(&member.source)).count();
        let lds = wanted(|source| matches!(source, Source::LogicalDevice { .. }));
        if self.switch.bound().count() != lds || self.switch.unwiped() > 0 {
            return Err(format!("{} LDs are bound, {lds} are desired", self.switch.bound().count()));
        }
        if let Some(key) = self.switch.tags().find(|key| !desired.contains_key(*key)) {
            return Err(format!("dynamic capacity {key:?} is in use, which nobody wants"));
        }
        for (id, volume) in &self.store.desired.volumes {
            for (host, agent) in &self.agents {
                let has: BTreeSet<MemberId> =
                    agent.volumes.get(id).map(|view| view.members.keys().copied().collect()).unwrap_or_default();
                let is_bound = volume.host.as_ref() == Some(host);
                let wanted = volume.places().filter(|_| is_bound).map(|(_, member)| member.id).collect();
                if has != wanted {
                    return Err(format!("host {host} has members {has:?} of {id}, and should have {wanted:?}"));
                }
            }
        }
        Ok(())
    }
}
