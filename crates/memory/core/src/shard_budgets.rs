// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the shards of a space divide its budget.
//!
//! Pure, and does not allocate. One undivided list would evict what was not touched for the longest time, wherever it
//! lies. Shards with lists of their own do the same if their blocks stay in DRAM for equally long: if the ratio of
//! budget to evicted pages is the same in all of them. So the shard with the longest stay gives pages to the one with
//! the shortest.
//!
//! A shard receives pages only when the giver has evicted what exceeds its smaller budget: the sum of the budgets and
//! of the [debts](crate::engine::Engine::debt_pages) is never more than the whole budget.

use crate::stripes::SHARDS_MAX;

/// What part of its budget a shard gives at a time.
const GIVEN_PART: u64 = 16;
/// By which factor two stays must differ before pages move. Less would be noise.
const STAYS_RATIO: u64 = 2;
/// Evictions since the last look, as a part of the budget, below which a shard is not short of anything.
const EVICTED_PART: u64 = 64;

/// What is known about a shard at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Pages evicted since the shard began.
    pub evicted_pages: u64,
    /// Pages over its budget that are still resident.
    pub debt_pages: u64,
    /// Pages that it needs at least: what it cannot do without, and what is locked in it.
    pub min_pages: u64,
    /// The most pages that it can use.
    pub max_pages: u64,
}

/// A change of a shard's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The shard.
    pub shard: usize,
    /// Its budget from now on, in pages.
    pub pages: u64,
}

/// Pages on their way from one shard to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    from: usize,
    to: usize,
    pages: u64,
}

/// The division of one budget.
#[derive(Clone, Debug)]
pub struct ShardBudgets {
    shards: usize,
    pages: [u64; SHARDS_MAX],
    evicted: [u64; SHARDS_MAX],
    transfer: Option<Transfer>,
}

impl ShardBudgets {
    /// Divides `total` pages equally.
    pub fn new(shards: usize, total: u64) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX);
        let mut pages = [0; SHARDS_MAX];
        pages[..shards].fill(1);
        let mut budgets = Self { shards, pages, evicted: [0; SHARDS_MAX], transfer: None };
        budgets.set_total(total);
        budgets
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// The budget of one shard.
    pub fn pages(&self, shard: usize) -> u64 {
        self.pages[shard]
    }

    /// The budgets of all shards, and what is on its way.
    pub fn total(&self) -> u64 {
        self.pages.iter().sum::<u64>() + self.moving().map_or(0, |(_, pages)| pages)
    }

    /// The shard that gives pages now, and how many.
    pub fn moving(&self) -> Option<(usize, u64)> {
        self.transfer.map(|transfer| (transfer.from, transfer.pages))
    }

    /// Divides `total` pages in the proportion of the present budgets. What is on its way stays so.
    pub fn set_total(&mut self, total: u64) {
        let moving = self.transfer.map_or(0, |transfer| transfer.pages.min(total / 2));
        if let Some(transfer) = &mut self.transfer {
            transfer.pages = moving;
        }
        let total = total - moving;
        let before: u128 = self.pages.iter().map(|pages| u128::from(*pages)).sum();
        for pages in &mut self.pages[..self.shards] {
            *pages = (u128::from(total) * u128::from(*pages) / before) as u64;
        }
        // What the division leaves over, fewer pages than there are shards.
        self.pages[0] += total - self.pages.iter().sum::<u64>();
    }

    /// The budget changes that `observed`, one for each shard, calls for: at most one.
    pub fn look(&mut self, observed: &[Observed]) -> Option<Change> {
        let evicted = self.evicted_since(observed);
        if let Some(arrived) = self.arrive(observed) {
            return arrived;
        }
        if let Some(short) = (0..self.shards).find(|shard| self.pages[*shard] < observed[*shard].min_pages) {
            let wanted = observed[short].min_pages - self.pages[short];
            return self.take_for(short, wanted, observed, &evicted);
        }
        let shortest = (0..self.shards).min_by_key(|shard| self.stay(*shard, &evicted))?;
        let longest = (0..self.shards).max_by_key(|shard| self.stay(*shard, &evicted))?;
        let is_short = evicted[shortest] > self.pages[shortest] / EVICTED_PART;
        let differ = self.stay(longest, &evicted) > self.stay(shortest, &evicted).saturating_mul(STAYS_RATIO);
        if !is_short || !differ {
            return None;
        }
        self.take_for(shortest, self.pages[longest] / GIVEN_PART, observed, &evicted)
    }

    /// A shard has no room because what it holds is pinned: begins to take pages from another shard for it.
    pub fn lend(&mut self, to: usize, observed: &[Observed]) -> Option<Change> {
        let evicted = self.evicted_since(observed);
        if let Some(arrived) = self.arrive(observed) {
            return arrived;
        }
        self.take_for(to, self.pages[to] / 4, observed, &evicted)
    }

    /// Ends the transfer in progress if the giver has paid. `None` if there is none; `Some(None)` if it has not paid.
    fn arrive(&mut self, observed: &[Observed]) -> Option<Option<Change>> {
        let Transfer { from, to, pages } = self.transfer?;
        if observed[from].debt_pages > 0 {
            return Some(None);
        }
        self.transfer = None;
        self.pages[to] += pages;
        Some(Some(Change { shard: to, pages: self.pages[to] }))
    }

    /// Begins to take up to `wanted` pages for a shard from the one whose blocks stay for the longest time and that can
    /// give any.
    fn take_for(
        &mut self,
        to: usize,
        wanted: u64,
        observed: &[Observed],
        evicted: &[u64; SHARDS_MAX],
    ) -> Option<Change> {
        let spare = |shard: usize| self.pages[shard].saturating_sub(observed[shard].min_pages);
        let more = observed[to].max_pages.saturating_sub(self.pages[to]);
        let from = (0..self.shards)
            .filter(|shard| *shard != to && spare(*shard) > 0 && self.pages[*shard] >= 4)
            .max_by_key(|shard| self.stay(*shard, evicted))?;
        let pages = wanted.min(spare(from)).min(self.pages[from] / 4).min(more);
        if pages == 0 {
            return None;
        }
        self.pages[from] -= pages;
        self.transfer = Some(Transfer { from, to, pages });
        Some(Change { shard: from, pages: self.pages[from] })
    }

    /// Pages evicted in each shard since the last look.
    fn evicted_since(&mut self, observed: &[Observed]) -> [u64; SHARDS_MAX] {
        let mut since = [0; SHARDS_MAX];
        for ((since, before), now) in since.iter_mut().zip(&mut self.evicted).zip(observed) {
            *since = now.evicted_pages.saturating_sub(*before);
            *before = now.evicted_pages;
        }
        since
    }

    /// How long blocks stay in a shard, in intervals between two looks, times 2^16.
    fn stay(&self, shard: usize, evicted: &[u64; SHARDS_MAX]) -> u64 {
        (self.pages[shard] << 16) / (evicted[shard] + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Observed = Observed { evicted_pages: 0, debt_pages: 0, min_pages: 0, max_pages: u64::MAX };

    fn whole(budgets: &ShardBudgets) -> u64 {
        budgets.total()
    }

    /// Shards with cyclic scans of `sizes` pages, which miss whenever they exceed the budget.
    fn scan(budgets: &mut ShardBudgets, sizes: &[u64], turns: usize) {
        let mut observed = vec![Observed { min_pages: 100, ..SEEN }; sizes.len()];
        for _ in 0..turns {
            for (shard, size) in sizes.iter().enumerate() {
                observed[shard].evicted_pages += if *size > budgets.pages(shard) { 1000 } else { 0 };
            }
            let before = whole(budgets);
            budgets.look(&observed);
            assert_eq!(whole(budgets), before);
        }
    }

    #[test]
    fn the_budget_is_divided_equally_at_first() {
        let budgets = ShardBudgets::new(3, 1000);
        assert_eq!([0, 1, 2].map(|shard| budgets.pages(shard)), [334, 333, 333]);
    }

    #[test]
    fn a_shard_that_evicts_gets_the_pages_of_one_that_does_not() {
        let mut budgets = ShardBudgets::new(4, 40_000);
        scan(&mut budgets, &[5000, 5000, 5000, 22_000], 400);
        assert!(budgets.pages(3) > 22_000, "{budgets:?}");
        assert_eq!(whole(&budgets), 40_000);
    }

    #[test]
    fn equal_shards_keep_equal_parts() {
        let mut budgets = ShardBudgets::new(4, 40_000);
        scan(&mut budgets, &[50_000; 4], 400);
        assert!((0..4).all(|shard| budgets.pages(shard) == 10_000), "{budgets:?}");
    }

    #[test]
    fn pages_arrive_only_when_the_giver_has_paid() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let mut observed = [SEEN; 2];
        observed[1].evicted_pages = 5000;
        let given = budgets.look(&observed).expect("one evicts, the other does not");
        assert_eq!((given.shard, budgets.pages(1)), (0, 1000));
        observed[0].debt_pages = 7;
        for _ in 0..10 {
            assert_eq!(budgets.look(&observed), None);
            assert_eq!((budgets.pages(0), budgets.pages(1)), (given.pages, 1000));
        }
        observed[0].debt_pages = 0;
        assert_eq!(budgets.look(&observed), Some(Change { shard: 1, pages: 2000 - given.pages }));
    }

    #[test]
    fn no_shard_goes_below_what_it_needs_and_one_below_gets_more() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let mut observed = [Observed { min_pages: 900, ..SEEN }; 2];
        for _ in 0..100 {
            observed[1].evicted_pages += 5000;
            budgets.look(&observed);
            assert!(budgets.pages(0) >= 900);
        }
        (observed[0].min_pages, observed[1].min_pages) = (1500, 100);
        for _ in 0..100 {
            budgets.look(&observed);
        }
        assert!(budgets.pages(0) >= 1500, "{budgets:?}");
        assert_eq!(whole(&budgets), 2000);
    }

    #[test]
    fn a_new_total_keeps_the_proportions() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let observed = [SEEN, Observed { evicted_pages: 5000, ..SEEN }];
        budgets.look(&observed);
        budgets.look(&observed);
        let before = budgets.pages(1);
        budgets.set_total(4000);
        assert_eq!((budgets.pages(1), whole(&budgets)), (2 * before, 4000));
    }

    #[test]
    fn a_shard_full_of_pins_borrows() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let observed = [SEEN; 2];
        assert!(matches!(budgets.lend(1, &observed), Some(Change { shard: 0, .. })));
        assert!(budgets.moving().is_some());
        assert!(matches!(budgets.lend(1, &observed), Some(Change { shard: 1, .. })));
        assert_eq!((budgets.pages(1), whole(&budgets)), (1250, 2000));
    }

    #[test]
    fn no_shard_gets_more_than_it_can_use() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let mut observed = [Observed { max_pages: 1100, ..SEEN }; 2];
        for _ in 0..100 {
            observed[1].evicted_pages += 5000;
            budgets.look(&observed);
        }
        assert_eq!((budgets.pages(1), whole(&budgets)), (1100, 2000));
    }
}
