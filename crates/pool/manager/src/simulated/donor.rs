// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A simulated donor: it mints tokens, lends only slabs that are free and wiped, and lists what it has released.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{
    Availability, Bytes, Command, DonorReport, Gate, HostId, Incarnation, LeaseReport, LeaseState, MemberId, SLAB,
    Step, Term, Token, VolumeId,
};
use serde::{Deserialize, Serialize};

/// A simulated donor has one incarnation, which survives restarts of the daemon.
const INCARNATION: Incarnation = Incarnation(1);
/// Slabs that are wiped in one round of reports: 64 GiB, so that trying things out is quick.
const WIPED_PER_TICK: usize = 1 << 15;

type Key = (VolumeId, MemberId);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Lease {
    volume: VolumeId,
    member: MemberId,
    host: HostId,
    /// The first slab and the number of slabs of each run.
    runs: Vec<(u64, u64)>,
    state: LeaseState,
}

impl Lease {
    fn slabs(&self) -> u64 {
        self.runs.iter().map(|(_, count)| count).sum()
    }
}

/// A simulated donor. Its file is this value as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SimulatedDonor {
    #[serde(skip)]
    pub(super) capacity: Bytes,
    term: Term,
    sequence: u64,
    last_token: u64,
    leases: Vec<Lease>,
}

/// Asks a gate that is in this state. Returns its state afterwards.
pub(super) fn admit(term: Term, sequence: u64, command: &Command) -> Result<(Term, u64), String> {
    let mut gate = Gate::new(INCARNATION, term);
    // A gate that has admitted `sequence` in this term, which a restart of the simulation must not forget.
    if sequence > 0 {
        let earlier = Command { term, sequence, incarnation: INCARNATION, step: command.step.clone(), cause: None };
        gate.admit(&earlier).map_err(|stale| stale.to_string())?;
    }
    gate.admit(command).map_err(|stale| stale.to_string())?;
    Ok((command.term, command.sequence))
}

/// Checks whether a manager with this term gets a report. Returns the state after it.
pub(super) fn admit_term(term: Term, sequence: u64, asking: Term) -> Result<(Term, u64), Term> {
    match asking.cmp(&term) {
        std::cmp::Ordering::Less => Err(term),
        std::cmp::Ordering::Equal => Ok((term, sequence)),
        std::cmp::Ordering::Greater => Ok((asking, 0)),
    }
}

impl SimulatedDonor {
    /// Notes a manager's term, and returns whether it is new to the donor. The error is the greater term that it has
    /// seen.
    pub(super) fn see(&mut self, term: Term) -> Result<bool, Term> {
        let before = self.term;
        (self.term, self.sequence) = admit_term(self.term, self.sequence, term)?;
        Ok(self.term != before)
    }

    pub(super) fn report(&self) -> DonorReport {
        let mut leases: BTreeMap<VolumeId, BTreeMap<MemberId, LeaseReport>> = BTreeMap::new();
        for lease in &self.leases {
            let report =
                LeaseReport { host: lease.host.clone(), bytes: Bytes::slabs(lease.slabs()), state: lease.state };
            leases.entry(lease.volume).or_default().insert(lease.member, report);
        }
        DonorReport {
            incarnation: INCARNATION,
            availability: Availability::Up,
            term: self.term,
            capacity: self.capacity,
            leases,
        }
    }

    fn lease(&mut self, key: Key) -> Option<&mut Lease> {
        self.leases.iter_mut().find(|lease| (lease.volume, lease.member) == key)
    }

    pub(super) fn obey(&mut self, command: &Command) -> Result<(), String> {
        (self.term, self.sequence) = admit(self.term, self.sequence, command)?;
        match command.step.clone() {
            Step::Grant { host, volume, member, bytes, .. } => self.grant(host, (volume, member), bytes),
            Step::Release { volume, member, .. } => {
                self.release((volume, member));
                Ok(())
            }
            Step::ForgetLease { volume, member, .. } => {
                let is_over = |lease: &Lease| {
                    (lease.volume, lease.member) == (volume, member) && lease.state == LeaseState::Released
                };
                self.leases.retain(|lease| !is_over(lease));
                Ok(())
            }
            step => Err(format!("a donor cannot {step}")),
        }
    }

    fn grant(&mut self, host: HostId, key: Key, bytes: Bytes) -> Result<(), String> {
        if self.lease(key).is_some() {
            return Ok(());
        }
        let runs = self.free_runs(bytes.0 / SLAB.0).ok_or("less is free than is asked for")?;
        self.last_token += 1;
        let state = LeaseState::Lent { token: Token(self.last_token) };
        self.leases.push(Lease { volume: key.0, member: key.1, host, runs, state });
        Ok(())
    }

    /// Runs of free slabs, the first ones there are.
    fn free_runs(&self, mut wanted: u64) -> Option<Vec<(u64, u64)>> {
        let mut taken: Vec<(u64, u64)> = self.leases.iter().flat_map(|lease| lease.runs.iter().copied()).collect();
        taken.sort_unstable();
        taken.push((self.capacity.0 / SLAB.0, 0));
        let (mut next, mut runs) = (0, Vec::new());
        for (first, count) in taken {
            let free = first.saturating_sub(next).min(wanted);
            if free > 0 {
                runs.push((next, free));
                wanted -= free;
            }
            next = next.max(first + count);
        }
        (wanted == 0).then_some(runs)
    }

    fn release(&mut self, key: Key) {
        match self.lease(key) {
            None => {
                // Listed as released, so that a grant that is still on its way is refused.
                let host = "nobody".parse().expect("a name");
                let state = LeaseState::Released;
                self.leases.push(Lease { volume: key.0, member: key.1, host, runs: Vec::new(), state });
            }
            Some(lease) => {
                if let LeaseState::Lent { .. } = lease.state {
                    lease.state = LeaseState::Wiping { left: Bytes::slabs(lease.slabs()) };
                }
            }
        }
    }

    /// Wipes. Returns whether anything changed.
    pub(super) fn tick(&mut self) -> bool {
        let mut budget = WIPED_PER_TICK as u64;
        let mut changed = false;
        for lease in &mut self.leases {
            let LeaseState::Wiping { .. } = lease.state else { continue };
            changed = true;
            while budget > 0
                && let Some((_, count)) = lease.runs.last_mut()
            {
                let wiped = (*count).min(budget);
                *count -= wiped;
                budget -= wiped;
                if *count == 0 {
                    lease.runs.pop();
                }
            }
            let left = Bytes::slabs(lease.slabs());
            lease.state = if left == Bytes::ZERO { LeaseState::Released } else { LeaseState::Wiping { left } };
        }
        changed
    }

    pub(super) fn admits(&self, key: Key, token: Token) -> bool {
        let lease = self.leases.iter().find(|lease| (lease.volume, lease.member) == key);
        lease.is_some_and(|lease| lease.state == LeaseState::Lent { token })
    }

    /// Returns the slabs of each lease that is lent, and how many slabs are in two leases or outside the donor.
    pub(super) fn slabs_lent(&self) -> (BTreeMap<Key, Vec<u64>>, usize) {
        let (mut lent, mut seen, mut lost) = (BTreeMap::new(), BTreeSet::new(), 0);
        for lease in &self.leases {
            let slabs: Vec<u64> = lease.runs.iter().flat_map(|(first, count)| *first..first + count).collect();
            lost += slabs.iter().filter(|slab| !seen.insert(**slab) || **slab >= self.capacity.0 / SLAB.0).count();
            if let LeaseState::Lent { .. } = lease.state {
                lent.insert((lease.volume, lease.member), slabs);
            }
        }
        (lent, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(sequence: u64, step: Step) -> Command {
        Command { term: Term(1), sequence, incarnation: INCARNATION, step, cause: None }
    }

    fn grant(sequence: u64, member: u64, slabs: u64) -> Command {
        let (donor, host) = ("d0".parse().expect("a name"), "h0".parse().expect("a name"));
        let (volume, member) = (VolumeId(1), MemberId(member));
        command(sequence, Step::Grant { donor, host, volume, member, bytes: Bytes::slabs(slabs) })
    }

    #[test]
    fn slabs_are_lent_once_and_wiped_before_the_next_time() {
        let mut donor = SimulatedDonor { capacity: Bytes::slabs(4), ..SimulatedDonor::default() };
        donor.obey(&grant(1, 1, 3)).expect("lent");
        donor.obey(&grant(2, 1, 3)).expect("the same lease again");
        assert!(donor.obey(&grant(3, 2, 2)).is_err(), "one slab is free");
        let name: aquifer_fabric::DonorId = "d0".parse().expect("a name");
        let release = Step::Release { donor: name.clone(), volume: VolumeId(1), member: MemberId(1) };
        donor.obey(&command(4, release)).expect("released");
        assert!(donor.obey(&grant(5, 2, 2)).is_err(), "it is not wiped yet");
        assert!(donor.tick() && !donor.tick());
        donor.obey(&grant(6, 2, 4)).expect("lent");
        assert_eq!(donor.slabs_lent(), ([((VolumeId(1), MemberId(2)), vec![0, 1, 2, 3])].into(), 0));
        assert!(donor.obey(&grant(7, 1, 1)).is_ok() && donor.leases.len() == 2, "released leases are not lent again");
    }

    #[test]
    fn stale_commands_are_refused_after_a_restart_too() {
        let mut donor = SimulatedDonor { capacity: Bytes::slabs(4), ..SimulatedDonor::default() };
        donor.obey(&grant(5, 1, 1)).expect("lent");
        let text = serde_json::to_string(&donor).expect("JSON");
        let mut donor: SimulatedDonor = serde_json::from_str(&text).expect("the same");
        assert!(donor.obey(&grant(5, 2, 1)).expect_err("overtaken").contains("newer command"));
        assert_eq!(donor.see(Term(3)), Ok(true));
        assert!(donor.obey(&grant(6, 2, 1)).expect_err("deposed").contains("term 3"));
        assert_eq!(donor.see(Term(2)), Err(Term(3)));
    }
}
