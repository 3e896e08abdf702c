// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a donor reclaims memory: which leases are called back, and which of these are revoked when their time is over.
//!
//! Free slabs go first, then slabs that come back by themselves, and only then are borrowers asked: those that have
//! most, so that all keep as much as possible. A lease that is called back stays valid until its time is over, even for
//! writes and new tokens; then it is revoked, unless enough has come back in the meantime.
//!
//! Pure, as `leases.rs` is.

use aquifer_wire::{BorrowerId, LentSlab, RangeIndex};

use super::{Borrower, LeaseTable, State};

/// A lease that is called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The range of the borrower's tier.
    pub range: RangeIndex,
    /// The lease's slab.
    pub slab: LentSlab,
    /// When it ends.
    pub ends_by_ms: u64,
}

impl LeaseTable {
    /// Reclaims `slabs` more slabs, from borrowers within `within_ms`, and lends nothing new until they are reclaimed.
    /// Returns the slabs that are reclaimed immediately.
    pub fn reclaim(&mut self, now_ms: u64, slabs: u32, within_ms: u64) -> Vec<LentSlab> {
        self.expire(now_ms);
        self.wanted = self.wanted.saturating_add(slabs).min(self.slabs() - self.reclaimed);
        let mut taken = Vec::new();
        while self.wanted > 0
            && let Some(slab) = self.free.pop()
        {
            self.take_back(slab);
            taken.push(slab);
        }
        let ends_by_ms = now_ms.saturating_add(within_ms);
        if self.wanted + self.reclaimed == self.slabs() {
            // All slabs are wanted: borrowers that an earlier order gave more time do not keep it.
            let asked = self.borrowers.values_mut().flat_map(|borrower| borrower.leaving.values_mut());
            asked.for_each(|end| *end = ends_by_ms.min(*end));
        }
        self.ask_back(self.wanted.saturating_sub(self.unwiped() + self.asked()), ends_by_ms);
        self.due_ms = self.due_ms.min(ends_by_ms);
        self.expire(now_ms);
        taken
    }

    pub(super) fn take_back(&mut self, slab: LentSlab) {
        self.slabs[slab.index()].state = State::Reclaimed;
        self.reclaimed += 1;
        self.wanted -= 1;
    }

    fn ask_back(&mut self, count: u32, ends_by_ms: u64) {
        let stocks: Vec<u32> = self.borrowers.values().map(stock).collect();
        let (level, mut spare) = level(&stocks, count);
        for borrower in self.borrowers.values_mut() {
            let mut gives = stock(borrower).saturating_sub(level);
            if gives > 0 && spare > 0 {
                (gives, spare) = (gives - 1, spare - 1);
            }
            let stays = |range: &&RangeIndex| !borrower.leaving.contains_key(range);
            let asked: Vec<RangeIndex> =
                borrower.ranges.keys().rev().filter(stays).take(gives as usize).copied().collect();
            for range in asked {
                borrower.called.remove(&range);
                borrower.leaving.insert(range, ends_by_ms);
            }
        }
    }

    /// Revokes leases that were called back and have not been given back, as many as are still wanted. The other leases
    /// stay with their holders, which were asked needlessly.
    pub(super) fn revoke_due(&mut self, now_ms: u64) {
        let of_one = |(who, borrower): (&BorrowerId, &Borrower)| -> Vec<(BorrowerId, RangeIndex)> {
            let due = borrower.leaving.iter().filter(|(_, end)| **end <= now_ms);
            due.map(|(range, _)| (*who, *range)).collect()
        };
        self.borrowers.values_mut().for_each(|borrower| borrower.called.retain(|_, end| *end > now_ms));
        let due: Vec<(BorrowerId, RangeIndex)> = self.borrowers.iter().flat_map(of_one).collect();
        for (who, range) in due {
            if self.unwiped() < self.wanted {
                self.end_one(who, range);
                self.endings.revoked += 1;
            } else if let Some(borrower) = self.borrowers.get_mut(&who) {
                borrower.leaving.remove(&range);
            }
        }
    }

    /// The leases of a borrower that are called back, from a range on.
    pub fn leaving(&self, who: BorrowerId, from: RangeIndex) -> impl Iterator<Item = Leaving> {
        let borrower = self.borrowers.get(&who);
        borrower.into_iter().flat_map(move |Borrower { ranges, leaving, called, .. }| {
            ranges.range(from..).filter_map(move |(range, slab)| {
                let ends_by_ms = *leaving.get(range).or_else(|| called.get(range))?;
                Some(Leaving { range: *range, slab: *slab, ends_by_ms })
            })
        })
    }

    /// When all leases of a borrower end, if all are called back by the same time.
    pub fn leaves_whole(&self, who: BorrowerId) -> Option<u64> {
        let Borrower { ranges, leaving, called, .. } = self.borrowers.get(&who)?;
        let mut ends = leaving.values().chain(called.values());
        let end = *ends.next()?;
        (ranges.len() == leaving.len() + called.len() && ends.all(|other| *other == end)).then_some(end)
    }

    /// How many leases are called back because the donor reclaims memory.
    pub fn asked(&self) -> u32 {
        self.borrowers.values().map(|borrower| borrower.leaving.len() as u32).sum()
    }

    /// How many slabs the donor still wants back.
    pub fn wanted(&self) -> u32 {
        self.wanted
    }

    /// How many slabs it has reclaimed.
    pub fn reclaimed(&self) -> u32 {
        self.reclaimed
    }

    pub(super) fn is_draining(&self) -> bool {
        self.wanted > 0 || self.reclaimed == self.slabs()
    }
}

/// The number of a borrower's slabs that are not called back.
fn stock(borrower: &Borrower) -> u32 {
    (borrower.ranges.len() - borrower.leaving.len()) as u32
}

/// The level to which all stocks have to be reduced to get `count` slabs, and how many of the borrowers above it keep
/// one more.
fn level(stocks: &[u32], count: u32) -> (u32, u64) {
    let above = |level: u32| stocks.iter().map(|stock| u64::from(stock.saturating_sub(level))).sum::<u64>();
    let (mut low, mut high) = (0, stocks.iter().copied().max().unwrap_or(0) + 1);
    assert!(above(low) >= u64::from(count), "no more is asked for than there is");
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if above(middle) >= u64::from(count) { low = middle } else { high = middle }
    }
    (low, above(low) - u64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_borrower_that_has_more_gives_more() {
        for (stocks, count, level_and_spare) in [
            (&[][..], 0, (0, 0)),
            (&[5], 5, (0, 0)),
            (&[5], 2, (3, 0)),
            (&[9, 3, 1], 6, (3, 0)),
            (&[9, 3, 1], 7, (2, 1)),
            (&[4, 4, 4], 1, (3, 2)),
            (&[4, 4, 4], 12, (0, 0)),
        ] {
            assert_eq!(level(stocks, count), level_and_spare, "{stocks:?} {count}");
        }
    }
}
