// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A backup of the store: saved at some moment, and restored at a later one, while a donor is down at times.
//!
//! Operators do what docs/operating/managers.md demands: they stop all managers, see that every host answers, start one
//! manager, and have it adopt what is in use.

use aquifer_fabric::*;
use aquifer_test_support::Random;

use super::World;
use super::site;

/// A backup, and when it is saved and restored.
pub struct Backup {
    saved_at: u64,
    restored_at: u64,
    desired: Option<Desired>,
}

impl Backup {
    /// Draws the moments, both within the ticks of trouble.
    fn drawn(random: &mut Random) -> Backup {
        let saved_at = 20 + random.below(80);
        Backup { saved_at, restored_at: saved_at + 1 + random.below(55), desired: None }
    }
}

impl World {
    /// Creates a pool of donors and hosts whose store is once restored from a backup, and a history of trouble ahead.
    pub fn with_a_restore(seed: u64) -> World {
        let mut world = World::at(site::donors_and_hosts(), seed, None);
        world.backup = Some(Backup::drawn(&mut world.random));
        world
    }

    /// Saves the store, or restores it, when that is due.
    pub(super) fn save_or_restore(&mut self) {
        let Some(backup) = &mut self.backup else { return };
        if self.now == backup.saved_at {
            backup.desired = Some(self.store.desired.clone());
        }
        if self.now == backup.restored_at
            && let Some(desired) = backup.desired.take()
        {
            self.restore(desired);
            if self.random.one_in(2) {
                let donors: Vec<DonorId> = self.donors.keys().cloned().collect();
                let down = self.random.pick(&donors).expect("donors").clone();
                self.donors.get_mut(&down).expect("listed").is_on = false;
            }
        }
    }

    /// Restores an older state. All managers have ended, and every host answers. The next term is greater than any that
    /// a donor or an agent has seen, since terms are not less than the time of the election.
    pub fn restore(&mut self, desired: Desired) {
        self.store.desired = desired;
        self.writers.clear();
        self.is_restored = true;
        for agent in self.agents.values_mut() {
            if !agent.is_on {
                agent.restart_host();
            }
            agent.is_cut = false;
        }
    }

    /// Returns whether an operator has the manager adopt in this round.
    pub fn adopts(&mut self) -> bool {
        self.has_lost_state || (self.is_restored && (!self.trouble || self.random.one_in(4)))
    }
}
