// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A fabric manager: it reads reports, settles, repairs, stores, and sends steps. It may crash between any two of
//! these, and may go on for a while after another one was elected.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::*;
use aquifer_test_support::Random;

use super::{Plant, TIMEOUT_MS, World, Wrong};

/// What an operator asks for.
#[derive(Clone, Debug)]
pub enum Order {
    Adopt,
    Bind(VolumeId, HostId),
    Create(VolumeId, VolumeName, Box<VolumeSpec>),
    DeclareDead(HostId),
    Drain(DonorId, bool),
    Grow(VolumeId, Bytes),
    Release(VolumeId),
    Retire(DonorId),
    Shrink(VolumeId, Bytes),
    Unbind(VolumeId),
}

pub struct Writer {
    pub term: Term,
    pub has_crashed: bool,
    pub observed: Observed,
    pub orders: Vec<Order>,
    /// Whether the last round changed nothing and sent nothing.
    pub is_idle: bool,
    /// Volumes that could not be repaired, or still wait for a grant or something else.
    pub stuck: Vec<VolumeId>,
    /// What is left to do and what is free, kept from round to round.
    backlog: Backlog,
    running: RunningCapacity,
    desired: Desired,
    sequences: BTreeMap<End, u64>,
    /// When each donor and each host was first missed.
    missed: BTreeMap<End, u64>,
}

impl Writer {
    pub fn new(term: Term, desired: Desired, now: u64) -> Writer {
        let desired = Desired { first_member: term.first_member(), ..desired };
        Writer {
            term,
            has_crashed: false,
            observed: Observed { asked_since: Some(Millis(now)), ..Observed::default() },
            orders: Vec::new(),
            is_idle: false,
            stuck: Vec::new(),
            backlog: Backlog::default(),
            running: RunningCapacity::default(),
            desired,
            sequences: BTreeMap::new(),
            missed: BTreeMap::new(),
        }
    }

    /// Runs one round.
    pub fn round(&mut self, world: &mut World) -> Result<(), Wrong> {
        self.read_reports(world);
        let mut desired = self.desired.clone();
        self.settle(world, &mut desired);
        self.change(world, &mut desired)?;
        desired.check().map_err(|corrupt| format!("a change made the desired state corrupt: {corrupt}"))?;
        quotas(&desired, &world.adopted)?;
        self.is_idle = desired == self.desired;
        let crash = |world: &mut World| world.trouble && world.random.one_in(60);
        if world.plant == Some(Plant::ActsBeforeStoring) && !self.is_idle {
            self.act(world, &desired)?;
        }
        if crash(world) {
            self.has_crashed = true;
            return Ok(());
        }
        if !self.is_idle && world.store.term == self.term {
            world.store.desired = desired.clone();
            self.desired = desired;
        }
        if crash(world) {
            self.has_crashed = true;
            return Ok(());
        }
        let desired = self.desired.clone();
        self.act(world, &desired)
    }

    fn act(&mut self, world: &mut World, desired: &Desired) -> Result<(), Wrong> {
        let mut observed = self.observed.clone();
        if world.plant == Some(Plant::SilenceIsConsent) {
            silence_is_consent(desired, &mut observed);
        }
        if world.plant == Some(Plant::CopiesAreNotAwaited) {
            copies_are_done(&mut observed, |_| true);
        }
        if world.plant == Some(Plant::LdsAreNotAwaited) {
            copies_are_done(&mut observed, |lease| matches!(lease.source, Source::LogicalDevice { .. }));
        }
        self.backlog.follow(desired, &observed);
        let round = self.backlog.round();
        same_round(&round, &reconcile(desired, &observed))?;
        self.is_idle &= round.steps.is_empty();
        let is_held_back = round.waiting.iter().any(|waiting| matches!(waiting.reason, Reason::Alike { .. }));
        world.judge.held_back += u64::from(is_held_back);
        for step in round.steps {
            if world.trouble && world.random.one_in(80) {
                self.has_crashed = true;
                return Ok(());
            }
            self.send(world, step)?;
        }
        Ok(())
    }

    fn send(&mut self, world: &mut World, step: Step) -> Result<(), String> {
        let end = step.end();
        let incarnation = match &end {
            End::Donor(name) => self.observed.donors.get(name).map(|report| report.incarnation),
            End::Host(name) => self.observed.hosts.get(name).map(|report| report.incarnation),
            End::Device(name) => {
                // Read it again before the next step: the earlier report is out of date.
                self.observed.devices.remove(name);
                let is_lost = world.switch.is_cut || (world.trouble && world.random.one_in(8));
                if world.store.term == self.term && !is_lost {
                    world.judge_unbind(&step)?;
                    world.judge_bind(&step)?;
                    if world.traces {
                        println!("{:4} term {} at the switch: {step}", world.now, self.term);
                    }
                    return world.switch.obey(&step, &mut world.judge);
                }
                return Ok(());
            }
        };
        let sequence = self.sequences.entry(end.clone()).or_default();
        *sequence += 1;
        let incarnation = incarnation.unwrap_or_default();
        let command = Command { term: self.term, sequence: *sequence, incarnation, step, cause: None };
        world.send(end, command);
        Ok(())
    }

    /// Reads the newest report of each donor, host and device that answers. Some do not answer this time.
    fn read_reports(&mut self, world: &mut World) {
        let now = world.now;
        // A manager begins by hearing all ends that answer.
        let hears_all = world.is_restored && self.observed.donors.is_empty() && self.observed.hosts.is_empty();
        let late = |random: &mut Random, trouble: bool| trouble && !hears_all && random.one_in(4);
        for (name, donor) in &mut world.donors {
            let end = End::Donor(name.clone());
            if !donor.is_on || donor.is_cut {
                let since = Millis(*self.missed.entry(end).or_insert(now));
                if let Some(report) = self.observed.donors.value_mut(name) {
                    report.availability = Availability::Gone { since };
                }
            } else if !late(&mut world.random, world.trouble)
                && let Some(report) = donor.report(self.term)
            {
                self.missed.remove(&end);
                self.observed.donors.insert(name.clone(), report);
            }
        }
        for (name, agent) in &mut world.agents {
            let end = End::Host(name.clone());
            if !agent.is_on || agent.is_cut {
                let since = Millis(*self.missed.entry(end).or_insert(now));
                if let Some(report) = self.observed.hosts.value_mut(name) {
                    report.availability = Availability::Gone { since };
                }
            } else if !late(&mut world.random, world.trouble)
                && let Some(report) = agent.report(self.term)
            {
                self.missed.remove(&end);
                self.observed.hosts.insert(name.clone(), report);
            }
        }
        for name in world.topology.parts().devices.keys() {
            if !world.switch.is_cut && !late(&mut world.random, world.trouble) {
                self.observed.devices.insert(name.clone(), world.switch.report(name));
            }
        }
    }

    fn settle(&mut self, world: &World, desired: &mut Desired) {
        pass_over_ids_in_use(desired, &self.observed);
        settle(desired, &self.observed, Millis(world.now));
        if world.plant == Some(Plant::DropsWithoutConfirmation) {
            let all: Vec<VolumeId> = desired.volumes.keys().copied().collect();
            for id in all {
                desired.volumes.change(id, |volume| volume.leaving.clear());
            }
            desired.volumes.retain(|_, volume| !volume.released);
        }
    }

    /// Makes the changes that operators ask for, and repairs.
    fn change(&mut self, world: &mut World, desired: &mut Desired) -> Result<(), Wrong> {
        let topology = std::sync::Arc::clone(&world.topology);
        let counted = Capacity::new(&topology, desired, &self.observed);
        let capacity = self.running.follow(&topology, desired, &self.observed);
        same_capacity(capacity, &counted)?;
        let mut edit = Edit { topology: &topology, desired, capacity };
        if world.adopts() {
            self.orders.push(Order::Adopt);
        }
        for order in std::mem::take(&mut self.orders) {
            let random = &mut world.random;
            // A refusal needs no handling here; the check that follows shows that the state stays consistent.
            let _ = match order {
                Order::Adopt => {
                    let before = edit.desired.volumes.clone();
                    edit.adopt(&self.observed, || VolumeId(random.bits()));
                    world.adopted.extend(before.differences(&edit.desired.volumes));
                    Ok(())
                }
                Order::Bind(volume, host) => edit.bind(volume, &host),
                Order::Create(id, name, spec) => edit.create(id, name, *spec),
                Order::DeclareDead(host) => {
                    edit.declare_dead(&host, &self.observed);
                    Ok(())
                }
                Order::Drain(donor, draining) => {
                    edit.drain(&donor, draining);
                    Ok(())
                }
                Order::Grow(volume, size) => edit.grow(volume, size),
                Order::Release(volume) => edit.unbind(volume).and_then(|()| edit.release(volume)),
                Order::Retire(donor) => {
                    edit.retire(&donor, &self.observed);
                    Ok(())
                }
                Order::Shrink(volume, size) => edit.shrink(volume, size),
                Order::Unbind(volume) => edit.unbind(volume),
            };
        }
        self.backlog.follow(desired, &self.observed);
        let mut all = desired.clone();
        let capacity = self.running.follow(&topology, desired, &self.observed);
        let mut edit = Edit { topology: &topology, desired, capacity };
        let ailing = self.backlog.ailing();
        let unrepaired = edit.repair_these(ailing, &self.observed, Millis(world.now), TIMEOUT_MS, usize::MAX);
        let mut capacity = Capacity::new(&topology, &all, &self.observed);
        let mut of_all = Edit { topology: &topology, desired: &mut all, capacity: &mut capacity };
        if unrepaired != of_all.repair(&self.observed, Millis(world.now), TIMEOUT_MS) || all != *edit.desired {
            return Err(Wrong::Mismatch("a repair of the volumes that ail is not the repair of all".into()));
        }
        self.stuck = unrepaired.into_iter().map(|one| one.volume).collect();
        let waiting = reconcile(desired, &self.observed);
        let grants = waiting.steps.iter().filter_map(|step| match step {
            Step::Grant { volume, .. } | Step::AddDynamicCapacity { volume, .. } => Some(*volume),
            _ => None,
        });
        // An LD that waits for another one must get its turn without an operator's help.
        let others = waiting.waiting.iter().filter(|waiting| !matches!(waiting.reason, Reason::Alike { .. }));
        self.stuck.extend(grants.chain(others.map(|waiting| waiting.volume)));
        Ok(())
    }
}

/// Checks that what was decided about changes alone is what is decided about everything.
fn same_round(kept: &Round, whole: &Round) -> Result<(), Wrong> {
    match kept == whole {
        true => Ok(()),
        false => {
            let what = format!("a backlog has {kept:#?}\nand a look at everything decides {whole:#?}");
            Err(Wrong::Mismatch(what))
        }
    }
}

/// Checks that what was counted from changes alone is what is counted from everything.
fn same_capacity(running: &Capacity, counted: &Capacity) -> Result<(), Wrong> {
    match running == counted {
        true => Ok(()),
        false => {
            let what = format!("the running capacity is {running:#?}\nand a count of everything gives {counted:#?}");
            Err(Wrong::Mismatch(what))
        }
    }
}

/// Checks that the volumes of a zone do not take more than its quota, unless one of them was adopted.
fn quotas(desired: &Desired, adopted: &BTreeSet<VolumeId>) -> Result<(), String> {
    for (name, zone) in &desired.zones {
        let volumes = desired.volumes.iter().filter(|(_, volume)| volume.spec.zone == *name);
        let used: Bytes = volumes.clone().map(|(_, volume)| volume.raw_bytes()).sum();
        if used > zone.quota && !volumes.clone().any(|(id, _)| adopted.contains(id)) {
            return Err(format!("zone {name} takes {used} of {}", zone.quota));
        }
    }
    Ok(())
}

/// Plants a bug: an agent that does not answer is mistaken for one that has let go.
fn silence_is_consent(desired: &Desired, observed: &mut Observed) {
    for (id, volume) in &desired.volumes {
        for leaving in volume.leaving.values() {
            let mut report = observed.hosts.get(&leaving.host).cloned().unwrap_or_default();
            if !report.availability.answers() || report.volumes.is_empty() {
                report.left.entry(*id).or_default().insert(leaving.member.id);
            }
            observed.hosts.insert(leaving.host.clone(), report);
        }
    }
}

/// Plants a bug: a copy that has begun is mistaken for one that is done.
fn copies_are_done(observed: &mut Observed, is_it: fn(&MemberLease) -> bool) {
    let hosts: Vec<HostId> = observed.hosts.keys().cloned().collect();
    for report in hosts.iter() {
        let Some(report) = observed.hosts.value_mut(report) else { continue };
        for member in report.volumes.values_mut().flat_map(|view| view.members.values_mut()) {
            if matches!(member.state, MemberState::Copying { .. }) && is_it(&member.lease) {
                member.state = MemberState::InSync;
            }
        }
    }
}
