// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor that keeps its contract: it mints tokens, lends what is wiped, and lists what it has released.

use std::collections::BTreeMap;

use aquifer_fabric::*;

use super::Plant;
use super::judge::Judge;

/// One slab, and the truth about it.
#[derive(Clone, Default)]
struct Slab {
    lent_to: Option<(VolumeId, MemberId)>,
    /// Whether it holds bytes of a host that wrote to it.
    is_dirty: bool,
}

struct Lease {
    host: HostId,
    slabs: Vec<usize>,
    state: LeaseState,
}

pub struct SimDonor {
    pub is_on: bool,
    /// Whether no fabric manager reaches it, although hosts do.
    pub is_cut: bool,
    pub is_draining: bool,
    gate: Gate,
    incarnation: Incarnation,
    slabs: Vec<Slab>,
    leases: BTreeMap<(VolumeId, MemberId), Lease>,
    last_token: u64,
    plant: Option<Plant>,
}

impl SimDonor {
    pub fn new(capacity: Bytes, plant: Option<Plant>) -> SimDonor {
        SimDonor {
            is_on: true,
            is_cut: false,
            is_draining: false,
            gate: Gate::new(Incarnation(1), Term(0)),
            incarnation: Incarnation(1),
            slabs: vec![Slab::default(); (capacity.0 / SLAB.0) as usize],
            leases: BTreeMap::new(),
            last_token: 0,
            plant,
        }
    }

    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Restarts the donor's program: it has lost its leases, and everything that it remembered.
    pub fn restart_empty(&mut self) {
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        self.gate = Gate::new(self.incarnation, self.gate.term());
        self.leases.clear();
        self.slabs.fill(Slab::default());
    }

    /// Takes back the leases of a host that has not renewed them.
    pub fn expire(&mut self, host: &HostId) {
        for lease in self.leases.values_mut().filter(|lease| lease.host == *host) {
            if let LeaseState::Lent { .. } = lease.state {
                lease.state = LeaseState::Wiping { left: Bytes::slabs(lease.slabs.len() as u64) };
            }
        }
    }

    /// Reports everything to a manager, unless that manager was deposed.
    pub fn report(&mut self, term: Term) -> Option<DonorReport> {
        if self.gate.report_to(term).is_err() && self.plant != Some(Plant::GateIsOpen) {
            return None;
        }
        let mut leases: BTreeMap<VolumeId, BTreeMap<MemberId, LeaseReport>> = BTreeMap::new();
        for ((volume, member), lease) in &self.leases {
            let (host, bytes) = (lease.host.clone(), Bytes::slabs(lease.slabs.len() as u64));
            let report = LeaseReport { host, bytes, state: lease.state };
            leases.entry(*volume).or_default().insert(*member, report);
        }
        Some(DonorReport {
            incarnation: self.incarnation,
            availability: if self.is_draining { Availability::Draining } else { Availability::Up },
            term: self.gate.term(),
            capacity: Bytes::slabs(self.slabs.len() as u64),
            leases,
        })
    }

    /// Returns whether a command is not stale. A state that was restored lends a member again, while a release of its
    /// earlier lease, by a manager of a smaller term, is still on its way.
    pub fn heeds(&self, command: &Command) -> bool {
        let mut gate = self.gate;
        gate.admit(command).is_ok() || self.plant == Some(Plant::GateIsOpen)
    }

    /// Carries a command out, if it is not stale.
    pub fn obey(&mut self, command: &Command, judge: &mut Judge) -> Result<(), String> {
        let before = self.gate.term();
        if self.gate.admit(command).is_err() && self.plant != Some(Plant::GateIsOpen) {
            return Ok(());
        }
        judge.term(before, command.term)?;
        match command.step.clone() {
            Step::Grant { host, volume, member, bytes, .. } => self.grant(host, (volume, member), bytes, judge)?,
            Step::Release { volume, member, .. } => self.release((volume, member)),
            Step::ForgetLease { volume, member, .. } => {
                if self.leases.get(&(volume, member)).is_some_and(|lease| lease.state == LeaseState::Released) {
                    self.leases.remove(&(volume, member));
                }
            }
            step => return Err(format!("a donor was asked to {step}")),
        }
        Ok(())
    }

    fn grant(
        &mut self,
        host: HostId,
        key: (VolumeId, MemberId),
        bytes: Bytes,
        judge: &mut Judge,
    ) -> Result<(), String> {
        if self.is_draining || (self.leases.contains_key(&key) && self.plant != Some(Plant::DonorGrantsTwice)) {
            return Ok(());
        }
        let wipes = self.plant != Some(Plant::DonorDoesNotWipe);
        let free =
            self.slabs.iter().enumerate().filter(|(_, slab)| slab.lent_to.is_none() && !(wipes && slab.is_dirty));
        let wanted = (bytes.0 / SLAB.0) as usize;
        let slabs: Vec<usize> = free.map(|(index, _)| index).take(wanted).collect();
        if slabs.len() < wanted {
            return Ok(());
        }
        for index in &slabs {
            let slab = &mut self.slabs[*index];
            judge.slab_is_clean(slab.is_dirty)?;
            slab.lent_to = Some(key);
        }
        self.last_token += 1;
        let state = LeaseState::Lent { token: Token(self.last_token) };
        self.leases.insert(key, Lease { host, slabs, state });
        Ok(())
    }

    fn release(&mut self, key: (VolumeId, MemberId)) {
        match self.leases.get_mut(&key) {
            None => {
                // List the lease as released, so that a grant that is still on its way is refused.
                let host = "nobody".parse().expect("a name");
                self.leases.insert(key, Lease { host, slabs: Vec::new(), state: LeaseState::Released });
            }
            Some(lease) => {
                if let LeaseState::Lent { .. } = lease.state {
                    lease.state = LeaseState::Wiping { left: Bytes::slabs(lease.slabs.len() as u64) };
                }
            }
        }
    }

    /// Wipes one slab of each lease that was given back.
    pub fn tick(&mut self) {
        for lease in self.leases.values_mut() {
            let LeaseState::Wiping { left } = lease.state else { continue };
            if let Some(index) = lease.slabs.pop() {
                let wipes = self.plant != Some(Plant::DonorDoesNotWipe);
                self.slabs[index] = Slab { lent_to: None, is_dirty: !wipes && self.slabs[index].is_dirty };
            }
            let left = left.minus(SLAB);
            lease.state = if lease.slabs.is_empty() { LeaseState::Released } else { LeaseState::Wiping { left } };
        }
    }

    /// Returns whether a token is valid for a member's lease.
    pub fn admits(&self, key: (VolumeId, MemberId), token: Token) -> bool {
        self.leases.get(&key).is_some_and(|lease| lease.state == LeaseState::Lent { token })
    }

    /// Lets a host write to all of a lease.
    pub fn write(&mut self, host: &HostId, key: (VolumeId, MemberId), judge: &mut Judge) {
        let lease = &self.leases[&key];
        judge.writer(lease.host == *host);
        for index in &lease.slabs {
            self.slabs[*index].is_dirty = true;
        }
    }

    /// Returns the number of lent slabs of each lease, and the number of lent slabs that no lease lists.
    pub fn lent(&self) -> (BTreeMap<(VolumeId, MemberId), usize>, usize) {
        let mut lent = BTreeMap::new();
        let mut lost = 0;
        for (index, slab) in self.slabs.iter().enumerate() {
            match slab.lent_to {
                Some(key) if self.leases.get(&key).is_some_and(|lease| lease.slabs.contains(&index)) => {
                    *lent.entry(key).or_default() += 1;
                }
                Some(_) => lost += 1,
                None => {}
            }
        }
        (lent, lost)
    }

    pub fn has_lent(&self, key: (VolumeId, MemberId)) -> bool {
        self.leases.get(&key).is_some_and(|lease| matches!(lease.state, LeaseState::Lent { .. }))
    }
}
