// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The length of the standby list, not an eviction policy: long where victims are touched again, short elsewhere.
//!
//! Pure. Hits on resident blocks are invisible, so every policy evicts hot blocks now and then. The standby list makes
//! such a mistake cheap, if the list is long enough for a hot block to be touched while it waits. In a cyclic scan no
//! block is touched in time, and DRAM on standby is DRAM that could keep a part of the scan.
//!
//! So the length follows the evidence. Blocks that refault so soon that a longer list would have caught them are
//! evidence for a longer list: each cost a fetch. Rescued blocks are evidence against it: each was hot, cost two
//! exchanges and a fault, and would have stayed if the list had not taken the room. A list that grows with its own
//! rescues ends by rescuing everything (`docs/decisions/0005-standby-follows-the-evidence.md`). Where a fetch costs no
//! more than a rescue, the list stays at its shortest.

/// The longest list is `1 / LONGEST_PART` of the budget. Beyond a third, the resident set suffers.
const LONGEST_PART: u64 = 3;
/// The shortest list is `1 / SHORTEST_PART` of the budget, which still catches a block that is touched all the time.
const SHORTEST_PART: u64 = 32;
/// A refault within `1 / NEAR_PART` of the budget would have been caught by a list of about that length.
const NEAR_PART: u64 = 4;
/// The length is reconsidered each time that `1 / EPOCH_PART` of the budget has been evicted.
const EPOCH_PART: u64 = 8;
/// Limits for the share of evicted pages that are wanted again, in 1/64: the list grows only at or above the first, and
/// shrinks below the second.
const GROW_AT: u64 = 4;
const SHRINK_BELOW: u64 = 1;

/// The length of the standby list, and what decides it. All quantities are pages, except the cost.
#[derive(Clone, Copy, Debug)]
pub struct StandbyLength {
    budget: u64,
    /// Cost of a fetch, in rescues.
    fetch_cost: u64,
    target: u64,
    evicted: u64,
    rescued: u64,
    refaulted: u64,
}

impl StandbyLength {
    /// Starts with the shortest list. A fetch costs as much as `fetch_cost` rescues.
    pub fn new(budget: u64, fetch_cost: u64) -> Self {
        let target = (budget / SHORTEST_PART).max(64);
        Self { budget, fetch_cost, target, evicted: 0, rescued: 0, refaulted: 0 }
    }

    /// Adjusts to a new budget.
    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
        let shortest = (budget / SHORTEST_PART).max(64);
        self.target = self.target.clamp(shortest, shortest.max(budget / LONGEST_PART));
    }

    /// How many pages should wait on standby.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// A block of `pages` was touched on standby.
    pub fn rescued(&mut self, pages: u64) {
        self.rescued += pages;
    }

    /// A block of `pages` was fetched again, after `distance` other pages had been evicted.
    pub fn refaulted(&mut self, pages: u64, distance: u64) {
        if distance <= self.budget / NEAR_PART {
            self.refaulted += pages;
        }
    }

    /// Another `pages` pages were evicted. Returns true when the target has changed.
    pub fn evicted(&mut self, pages: u64) -> bool {
        self.evicted += pages;
        if self.evicted < self.budget / EPOCH_PART {
            return false;
        }
        let before = self.target;
        let missed = self.refaulted * self.fetch_cost;
        if self.fetch_cost > 1 && missed > self.rescued && self.refaulted * 64 >= self.evicted * GROW_AT {
            self.target = (self.target * 3 / 2).min(self.budget / LONGEST_PART);
        } else if missed * 2 < self.rescued || (self.rescued + self.refaulted) * 64 < self.evicted * SHRINK_BELOW {
            self.target = (self.target * 3 / 4).max((self.budget / SHORTEST_PART).max(64));
        }
        (self.evicted, self.rescued, self.refaulted) = (0, 0, 0);
        self.target != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 100_000;

    fn after(epochs: u64, came_back: impl Fn(&mut StandbyLength)) -> u64 {
        let mut chance = StandbyLength::new(BUDGET, 2);
        for _ in 0..epochs {
            came_back(&mut chance);
            chance.evicted(BUDGET / EPOCH_PART);
        }
        chance.target()
    }

    #[test]
    fn a_scan_keeps_the_list_short() {
        assert_eq!(after(100, |chance| chance.refaulted(10_000, 2 * BUDGET)), BUDGET / SHORTEST_PART);
    }

    #[test]
    fn blocks_that_come_back_make_it_long() {
        assert_eq!(after(20, |chance| chance.refaulted(2_000, BUDGET / 10)), BUDGET / LONGEST_PART);
        let both = |chance: &mut StandbyLength| {
            chance.rescued(2_000);
            chance.refaulted(2_000, BUDGET / 10);
        };
        assert_eq!(after(20, both), BUDGET / LONGEST_PART);
    }

    #[test]
    fn it_is_of_no_use_where_a_fetch_costs_no_more_than_a_rescue() {
        let mut chance = StandbyLength::new(BUDGET, 1);
        for _ in 0..20 {
            chance.refaulted(2_000, BUDGET / 10);
            chance.evicted(BUDGET / EPOCH_PART);
        }
        assert_eq!(chance.target(), BUDGET / SHORTEST_PART);
    }

    #[test]
    fn rescues_alone_do_not_feed_it() {
        assert_eq!(after(20, |chance| chance.rescued(12_000)), BUDGET / SHORTEST_PART);
    }

    #[test]
    fn it_shrinks_again_when_they_stop() {
        let mut chance = StandbyLength::new(BUDGET, 2);
        for _ in 0..20 {
            chance.refaulted(2_000, BUDGET / 10);
            chance.evicted(BUDGET / EPOCH_PART);
        }
        for _ in 0..60 {
            chance.evicted(BUDGET / EPOCH_PART);
        }
        assert_eq!(chance.target(), BUDGET / SHORTEST_PART);
    }
}
