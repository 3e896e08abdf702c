// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the processes of one tree divide its budget.
//!
//! Pure. Weighted max-min fairness (Bertsekas and Gallager, *Data Networks*, 6.5.2): a process that needs less than its
//! share gets what it needs, and the rest of its share is divided among the others by weight. Budget that no process
//! needs is divided as well, so that a process can grow before it has to ask.

/// The demand of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Its managed pages, resident or evicted.
    pub pages: u64,
    /// Its weight relative to the other processes; at least 1.
    pub weight: u32,
}

/// The pages of `budget` that the process with the needs `needs[own]` may have.
pub fn share(needs: &[Need], own: usize, budget: u64) -> u64 {
    let Need { pages, weight } = needs[own];
    let part = |rest: u64, weights: u64| (u128::from(rest) * u128::from(weight) / u128::from(weights)) as u64;
    let mut level = Level { rest: budget, weights: needs.iter().map(|need| u64::from(need.weight)).sum() };
    loop {
        // Processes that need no more than this level gives them leave the rest to the others, whose level rises.
        let content = needs.iter().filter(|need| level.contents(need));
        let (used, weights) =
            content.fold((0u64, 0u64), |(used, sum), need| (used + need.pages, sum + u64::from(need.weight)));
        let all: u64 = needs.iter().map(|need| u64::from(need.weight)).sum();
        let next = Level { rest: budget.saturating_sub(used), weights: all - weights };
        if next.weights == 0 {
            return pages + part(next.rest, all);
        }
        if next == level {
            return if level.contents(&needs[own]) { pages } else { part(level.rest, level.weights) };
        }
        level = next;
    }
}

/// The budget left for the processes that need more than their share, and the sum of their weights.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Level {
    rest: u64,
    weights: u64,
}

impl Level {
    fn contents(&self, need: &Need) -> bool {
        u128::from(need.pages) * u128::from(self.weights) <= u128::from(self.rest) * u128::from(need.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(needs: &[(u64, u32)], budget: u64) -> Vec<u64> {
        let needs: Vec<Need> = needs.iter().map(|&(pages, weight)| Need { pages, weight }).collect();
        (0..needs.len()).map(|own| share(&needs, own, budget)).collect()
    }

    #[test]
    fn one_process_has_everything() {
        assert_eq!(shares(&[(10, 4)], 1000), [1000]);
        assert_eq!(shares(&[(5000, 1)], 1000), [1000]);
        assert_eq!(shares(&[(0, 1)], 1000), [1000]);
    }

    #[test]
    fn those_that_need_little_leave_the_rest_to_the_others() {
        assert_eq!(shares(&[(100, 4), (5000, 4), (5000, 4)], 1000), [100, 450, 450]);
        assert_eq!(shares(&[(300, 4), (310, 4), (5000, 4)], 1000), [300, 310, 390]);
    }

    #[test]
    fn weights_divide_what_is_wanted_and_what_is_not() {
        assert_eq!(shares(&[(5000, 4), (5000, 1)], 1000), [800, 200]);
        assert_eq!(shares(&[(100, 4), (100, 1)], 1000), [100 + 640, 100 + 160]);
    }

    /// For any needs: all shares together are the budget except for fractions, a process gets less than an equal part
    /// only if it needs less, and the order does not matter.
    #[test]
    fn the_budget_is_divided_whole_and_fairly() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut chance = |max: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % max
        };
        for _ in 0..2000 {
            let mut needs: Vec<(u64, u32)> =
                (0..1 + chance(20)).map(|_| (chance(2000), if chance(2) == 0 { 1 } else { 4 })).collect();
            let budget = 1 + chance(10_000);
            let all = shares(&needs, budget);
            let (sum, count) = (all.iter().sum::<u64>(), needs.len() as u64);
            assert!(sum <= budget && sum + count > budget, "{needs:?} of {budget}: {all:?}");
            let weights: u64 = needs.iter().map(|need| u64::from(need.1)).sum();
            for (need, share) in needs.iter().zip(&all) {
                assert!(*share >= need.0.min(budget * u64::from(need.1) / weights), "{needs:?} of {budget}: {all:?}");
            }
            needs.reverse();
            assert!(shares(&needs, budget).iter().eq(all.iter().rev()));
        }
    }
}
