// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the shards of a space divide its budget.
//!
//! Pure, and does not allocate. One undivided list would evict the block that was not touched for the longest time,
//! wherever it lies. Shards with lists of their own do the same if their blocks stay in DRAM for equally long: if the
//! ratio of budget to evicted pages is the same in all of them. So the shard with the longest stay gives pages to the
//! one with the shortest.
//!
//! A shard receives pages only when the shard that gives them has evicted what exceeds its smaller budget: the sum of
//! the budgets and of the [debts](crate::engine::Engine::debt_pages) is never more than the whole budget.

use crate::stripes::SHARDS_MAX;

/// What part of its budget a shard gives at a time.
const GIVEN_PART: u64 = 16;
/// By which factor two stays must differ before pages move. Less would be noise.
const STAYS_RATIO: u64 = 2;
/// Evictions since the last look, as a part of the budget, below which a shard is not short of anything.
const EVICTED_PART: u64 = 64;
/// Looks without progress after which a giver need not pay any more, and keeps its pages: it cannot evict.
const LOOKS_UNPAID_MAX: u32 = 40;

/// What is known about a shard at one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Pages evicted since the shard began.
    pub evicted_pages: u64,
    /// Pages over its budget that are still resident.
    pub debt_pages: u64,
    /// Pages that it needs at least: those that it cannot do without, and those that are locked.
    pub min_pages: u64,
    /// Maximum number of pages that it can use.
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
    /// The giver's debt at the last look that saw it fall, and the looks since.
    debt_pages: u64,
    looks: u32,
}

/// What became of a request for pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Asked {
    /// There is none.
    #[default]
    Not,
    /// For this many pages.
    For(u64),
    /// No shard can give any.
    Refused,
}

/// The division of one budget.
#[derive(Clone, Debug)]
pub struct ShardBudgets {
    shards: usize,
    pages: [u64; SHARDS_MAX],
    evicted: [u64; SHARDS_MAX],
    transfer: Option<Transfer>,
    asked: [Asked; SHARDS_MAX],
}

impl ShardBudgets {
    /// Divides `total` pages equally.
    pub fn new(shards: usize, total: u64) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX);
        let mut pages = [0; SHARDS_MAX];
        pages[..shards].fill(1);
        let mut budgets =
            Self { shards, pages, evicted: [0; SHARDS_MAX], transfer: None, asked: [Asked::Not; SHARDS_MAX] };
        budgets.set_total(total, &[0; SHARDS_MAX]);
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

    /// The budgets of all shards, and the pages on their way from one to another.
    pub fn total(&self) -> u64 {
        self.pages.iter().sum::<u64>() + self.moving().map_or(0, |(_, pages)| pages)
    }

    /// The shard that gives pages now, and how many.
    pub fn moving(&self) -> Option<(usize, u64)> {
        self.transfer.map(|transfer| (transfer.from, transfer.pages))
    }

    /// Divides `total` pages: each shard gets the pages that it needs at least, and of the rest a part in proportion to
    /// what it had in excess of them. What is on its way stays so, as far as it fits.
    pub fn set_total(&mut self, total: u64, min_pages: &[u64; SHARDS_MAX]) {
        let mins = &min_pages[..self.shards];
        // With too little for all of them, nobody gets more than another.
        let whole: u64 = mins.iter().sum();
        let min = |shard: usize| if whole <= total { mins[shard] } else { total / self.shards as u64 };
        let floors: [u64; SHARDS_MAX] = std::array::from_fn(|shard| if shard < self.shards { min(shard) } else { 0 });
        let rest = total - floors.iter().sum::<u64>();
        let moving = self.transfer.map_or(0, |transfer| transfer.pages.min(rest / 2));
        if let Some(transfer) = &mut self.transfer {
            transfer.pages = moving;
        }
        let rest = rest - moving;
        let excess = |shard: usize| self.pages[shard].saturating_sub(floors[shard]);
        let all: u128 = (0..self.shards).map(|shard| u128::from(excess(shard))).sum();
        let part = |shard: usize| match all {
            0 => rest / self.shards as u64,
            all => (u128::from(rest) * u128::from(excess(shard)) / all) as u64,
        };
        let pages = |shard: usize| if shard < self.shards { floors[shard] + part(shard) } else { 0 };
        self.pages = std::array::from_fn(pages);
        // What the division leaves over, fewer pages than there are shards.
        self.pages[0] += total - moving - self.pages.iter().sum::<u64>();
    }

    /// A shard asks for pages, because it has no room. [`look`](Self::look) answers.
    pub fn ask(&mut self, shard: usize, pages: u64) {
        self.asked[shard] = Asked::For(pages);
    }

    /// Whether the last request of a shard was refused, which is said once.
    pub fn take_refusal(&mut self, shard: usize) -> bool {
        let is_refused = self.asked[shard] == Asked::Refused;
        if is_refused {
            self.asked[shard] = Asked::Not;
        }
        is_refused
    }

    /// Moves unspent pages, of which there are `unspent_pages`, to shards with debts. Needs no payment.
    pub fn settle(&mut self, unspent_pages: &mut [u64; SHARDS_MAX], observed: &[Observed]) {
        for (to, shard) in observed.iter().enumerate() {
            let mut wanted = shard.debt_pages.min(shard.max_pages.saturating_sub(self.pages[to]));
            for from in 0..self.shards {
                let floor = observed[from].min_pages;
                let pages = wanted.min(unspent_pages[from]).min(self.pages[from].saturating_sub(floor));
                unspent_pages[from] -= pages;
                self.pages[from] -= pages;
                self.pages[to] += pages;
                wanted -= pages;
            }
        }
    }

    /// The budget change that `observed`, one entry for each shard, calls for, if any.
    pub fn look(&mut self, observed: &[Observed]) -> Option<Change> {
        let evicted = self.evicted_since(observed);
        if let Some(arrived) = self.arrive(observed) {
            return arrived;
        }
        if let Some((shard, pages)) = self.first_asked() {
            let given = self.take_for(shard, pages, observed, &evicted);
            self.asked[shard] = if given.is_some() { Asked::Not } else { Asked::Refused };
            return given;
        }
        let lacks = |shard: usize| observed[shard].min_pages.min(observed[shard].max_pages) > self.pages[shard];
        if let Some(short) = (0..self.shards).find(|shard| lacks(*shard)) {
            let wanted = observed[short].min_pages - self.pages[short];
            return self.take_for(short, wanted, observed, &evicted);
        }
        let can_take = |shard: &usize| self.pages[*shard] < observed[*shard].max_pages;
        let shortest = (0..self.shards).filter(can_take).min_by_key(|shard| self.stay(*shard, &evicted))?;
        let longest = self.giver(shortest, observed, &evicted)?;
        let is_short = evicted[shortest] > self.pages[shortest] / EVICTED_PART;
        let differ = self.stay(longest, &evicted) > self.stay(shortest, &evicted).saturating_mul(STAYS_RATIO);
        if !is_short || !differ {
            return None;
        }
        self.take_for(shortest, self.pages[longest] / GIVEN_PART, observed, &evicted)
    }

    fn first_asked(&self) -> Option<(usize, u64)> {
        self.asked.iter().enumerate().find_map(|(shard, asked)| match asked {
            Asked::For(pages) => Some((shard, *pages)),
            Asked::Not | Asked::Refused => None,
        })
    }

    /// Ends the transfer in progress if the giver has paid, or cannot pay. `None` if there is none; `Some(None)` if it
    /// goes on.
    fn arrive(&mut self, observed: &[Observed]) -> Option<Option<Change>> {
        let transfer = self.transfer.as_mut()?;
        let Transfer { from, to, pages, .. } = *transfer;
        let debt_pages = observed[from].debt_pages;
        let progresses = debt_pages < transfer.debt_pages;
        transfer.debt_pages = debt_pages;
        transfer.looks = if progresses { 0 } else { transfer.looks + 1 };
        let receiver = match debt_pages {
            0 => to,
            _ if transfer.looks > LOOKS_UNPAID_MAX => from,
            _ => return Some(None),
        };
        self.transfer = None;
        self.pages[receiver] += pages;
        Some(Some(Change { shard: receiver, pages: self.pages[receiver] }))
    }

    /// The shard whose blocks stay for the longest time of those that can give pages to `to`.
    fn giver(&self, to: usize, observed: &[Observed], evicted: &[u64; SHARDS_MAX]) -> Option<usize> {
        let can_give = |shard: &usize| self.pages[*shard] > observed[*shard].min_pages && self.pages[*shard] >= 4;
        let others = (0..self.shards).filter(|shard| *shard != to);
        others.filter(can_give).max_by_key(|shard| self.stay(*shard, evicted))
    }

    /// Begins to take up to `wanted` pages for a shard.
    fn take_for(
        &mut self,
        to: usize,
        wanted: u64,
        observed: &[Observed],
        evicted: &[u64; SHARDS_MAX],
    ) -> Option<Change> {
        let from = self.giver(to, observed, evicted)?;
        let spare = self.pages[from] - observed[from].min_pages;
        let more = observed[to].max_pages.saturating_sub(self.pages[to]);
        let pages = wanted.min(spare).min(self.pages[from] / 4).min(more);
        if pages == 0 {
            return None;
        }
        self.pages[from] -= pages;
        self.transfer = Some(Transfer { from, to, pages, debt_pages: u64::MAX, looks: 0 });
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
        budgets.set_total(4000, &[0; SHARDS_MAX]);
        assert_eq!((budgets.pages(1), whole(&budgets)), (2 * before, 4000));
    }

    #[test]
    fn a_shard_that_asks_gets_pages_or_a_refusal() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let mut observed = [SEEN; 2];
        budgets.ask(1, 250);
        assert!(matches!(budgets.look(&observed), Some(Change { shard: 0, pages: 750 })));
        assert!(matches!(budgets.look(&observed), Some(Change { shard: 1, pages: 1250 })));
        assert_eq!((whole(&budgets), budgets.take_refusal(1)), (2000, false));
        observed[0].min_pages = 750;
        budgets.ask(1, 250);
        assert_eq!(budgets.look(&observed), None);
        assert!(budgets.take_refusal(1) && !budgets.take_refusal(1));
        assert_eq!(budgets.look(&observed), None);
    }

    #[test]
    fn a_giver_that_cannot_pay_keeps_its_pages() {
        let mut budgets = ShardBudgets::new(2, 2000);
        let mut observed = [SEEN; 2];
        budgets.ask(1, 250);
        budgets.look(&observed);
        observed[0].debt_pages = 250;
        let end = (0..1000).find_map(|_| budgets.look(&observed)).expect("it ends");
        assert_eq!(end, Change { shard: 0, pages: 1000 });
        assert_eq!(whole(&budgets), 2000);
    }

    #[test]
    fn a_smaller_total_leaves_each_shard_what_it_needs() {
        let mut budgets = ShardBudgets::new(4, 40_000);
        scan(&mut budgets, &[5, 5, 5, 39_000], 400);
        let before = budgets.pages(3);
        let mut mins = [0; SHARDS_MAX];
        mins[..4].fill(800);
        budgets.set_total(8_000, &mins);
        assert!((0..4).all(|shard| budgets.pages(shard) >= 800), "{budgets:?}");
        assert!(budgets.pages(3) > 8_000 / 2 && before > 30_000, "{budgets:?}");
        assert_eq!(whole(&budgets), 8_000);
        let once = budgets.clone();
        budgets.set_total(8_000, &mins);
        assert!((0..4).all(|shard| budgets.pages(shard).abs_diff(once.pages(shard)) <= 4), "{once:?} {budgets:?}");
        budgets.set_total(100, &mins);
        assert_eq!((0..4).map(|shard| budgets.pages(shard)).collect::<Vec<_>>(), [25; 4]);
    }

    #[test]
    fn unspent_pages_pay_the_debts_of_other_shards() {
        let mut budgets = ShardBudgets::new(3, 3000);
        let mut observed = [Observed { min_pages: 100, ..SEEN }; 3];
        observed[0].debt_pages = 1500;
        let mut unspent = [0; SHARDS_MAX];
        (unspent[1], unspent[2]) = (1000, 400);
        budgets.settle(&mut unspent, &observed);
        assert_eq!([0, 1, 2].map(|shard| budgets.pages(shard)), [2300, 100, 600]);
        assert_eq!(whole(&budgets), 3000);
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
