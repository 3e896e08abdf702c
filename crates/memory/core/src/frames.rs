// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which frames have pages, which do not, and how much of the DRAM budget is unspent.
//!
//! Pure, and allocation-free except for `new` and `grow`. A frame is an address range outside the program's reach.
//! Pages circulate between frames and the program's mappings, so a frame is either *backed* (it has pages) or
//! *unbacked* (its pages are at the program's address now). The budget holds by construction:
//!
//! `credit + backed frames + frames in use + resident pages = budget`, all counted in pages.
//!
//! Frames come in one class per block size.

use crate::frame_set::FrameSet;
use crate::units::{FrameIndex, Order};

const CLASSES: usize = Order::MAX.exponent() + 1;
const CLASS_SHIFT: u32 = 28;

/// The largest budget whose frames can be numbered, in pages: 1 TiB less one page.
pub const BUDGET_PAGES_MAX: u64 = (1 << CLASS_SHIFT) - 1;

impl FrameIndex {
    /// The frame number `index` of the class for `order`.
    pub fn in_class(order: Order, index: u32) -> FrameIndex {
        debug_assert!(index < 1 << CLASS_SHIFT);
        FrameIndex((order.exponent() as u32) << CLASS_SHIFT | index)
    }

    /// The block size that the frame can hold.
    pub fn order(self) -> Order {
        Order::new((self.0 >> CLASS_SHIFT) as u8).expect("a frame index carries a valid order")
    }

    /// Whether its class is a valid block size. Always true for a frame made by [`in_class`](Self::in_class).
    pub fn has_order(self) -> bool {
        (self.0 >> CLASS_SHIFT) as usize <= Order::MAX.exponent()
    }

    /// The number of the frame within its class.
    pub fn index(self) -> u32 {
        self.0 & ((1 << CLASS_SHIFT) - 1)
    }
}

/// Maximum number of frames that a fault gives back to the kernel at once. One call interrupts the other CPUs once for
/// all of them, which costs as much as moving one page.
pub const BATCH_FRAMES_MAX: usize = 32;

/// Frames to be given back to the kernel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameBatch {
    frames: [FrameIndex; BATCH_FRAMES_MAX],
    count: u8,
}

impl FrameBatch {
    /// This frame alone.
    pub fn of(frame: FrameIndex) -> Self {
        let mut frames = [FrameIndex(0); BATCH_FRAMES_MAX];
        frames[0] = frame;
        Self { frames, count: 1 }
    }

    /// The frames.
    pub fn frames(&self) -> &[FrameIndex] {
        &self.frames[..usize::from(self.count)]
    }

    fn push(&mut self, frame: FrameIndex) {
        self.frames[usize::from(self.count)] = frame;
        self.count += 1;
    }

    fn is_full(&self) -> bool {
        usize::from(self.count) == BATCH_FRAMES_MAX
    }
}

/// A frame that may be used, and whether it has pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The frame.
    pub frame: FrameIndex,
    /// True when it has no pages: those that it gets are zeroed.
    pub fresh: bool,
}

/// All frames of a space, backed and unbacked, and the credit: the part of the budget without pages.
#[derive(Debug)]
pub struct FramePool {
    backed: [FrameSet; CLASSES],
    unbacked: [FrameSet; CLASSES],
    backed_pages: u64,
    credit_pages: u64,
    budget_pages: u64,
    /// The budget for which frames exist: the largest so far.
    room_pages: u64,
    /// For each class, one past the highest frame that was ever in use.
    reached: [u32; CLASSES],
}

impl FramePool {
    /// Frames for a budget of up to `budget_pages`, none of it spent.
    pub fn new(budget_pages: u64) -> Self {
        let frames = |class: usize| Self::frames_in_class(budget_pages, class);
        Self {
            backed: std::array::from_fn(|class| FrameSet::new(frames(class))),
            unbacked: std::array::from_fn(|class| FrameSet::full(frames(class))),
            backed_pages: 0,
            credit_pages: budget_pages,
            budget_pages,
            room_pages: budget_pages,
            reached: [0; CLASSES],
        }
    }

    /// How many frames the class of exponent `class` has: enough for the whole budget.
    pub fn frames_in_class(budget_pages: u64, class: usize) -> u32 {
        u32::try_from((budget_pages >> class) + 1).expect("a budget of less than 1 TiB")
    }

    /// Takes a frame whose pages may be overwritten; `None` when the class has none and too little of the budget is
    /// unspent.
    pub fn take_backed(&mut self, order: Order) -> Option<Taken> {
        self.take_backed_by(order, FrameSet::take)
    }

    /// As [`take_backed`](Self::take_backed), but prefers the frame that was given back last, which the processor's
    /// cache is likely to hold. Its neighbours need not be free.
    pub fn take_warm(&mut self, order: Order) -> Option<Taken> {
        self.take_backed_by(order, FrameSet::take_newest)
    }

    fn take_backed_by(&mut self, order: Order, take: fn(&mut FrameSet) -> Option<u32>) -> Option<Taken> {
        let pages = u64::from(order.pages());
        if let Some(index) = take(&mut self.backed[order.exponent()]) {
            self.backed_pages -= pages;
            return Some(Taken { frame: FrameIndex::in_class(order, index), fresh: false });
        }
        if self.credit_pages < pages {
            return None;
        }
        let frame = self.take_unbacked(order)?;
        self.credit_pages -= pages;
        Some(Taken { frame, fresh: true })
    }

    /// Gives a frame with its pages back.
    pub fn put_backed(&mut self, frame: FrameIndex) {
        self.backed[frame.order().exponent()].insert(frame.index());
        self.backed_pages += u64::from(frame.order().pages());
    }

    /// Takes an address range without pages, to move a resident block's pages into.
    pub fn take_unbacked(&mut self, order: Order) -> Option<FrameIndex> {
        let index = self.unbacked[order.exponent()].take()?;
        let reached = &mut self.reached[order.exponent()];
        *reached = (*reached).max(index + 1);
        Some(FrameIndex::in_class(order, index))
    }

    /// Gives `frame` back without its pages, which are at the program's address now.
    pub fn put_unbacked(&mut self, frame: FrameIndex) {
        self.unbacked[frame.order().exponent()].insert(frame.index());
    }

    /// Takes a backed frame of another class, to be emptied so that `order` can use its pages.
    pub fn take_to_empty(&mut self, order: Order) -> Option<FrameIndex> {
        self.take_from(|class| class != order.exponent())
    }

    /// Takes a backed frame of any class, to be emptied.
    pub fn take_any(&mut self) -> Option<FrameIndex> {
        self.take_from(|_| true)
    }

    /// Takes backed frames, to be emptied: as many as one batch has, but at most half of their pages, and never the
    /// last frame for `order`. `None` if they have fewer than `pages_min`.
    pub fn take_batch(&mut self, order: Order, pages_min: u64) -> Option<FrameBatch> {
        if self.backed_pages < pages_min {
            return None;
        }
        let keep = self.backed_pages / 2;
        let mut batch = FrameBatch::of(self.take_but_last(order)?);
        while !batch.is_full() && self.backed_pages > keep {
            let Some(frame) = self.take_but_last(order) else { break };
            batch.push(frame);
        }
        Some(batch)
    }

    fn take_but_last(&mut self, order: Order) -> Option<FrameIndex> {
        let is_last = self.backed[order.exponent()].len() == 1;
        self.take_from(|class| !is_last || class != order.exponent())
    }

    /// Takes a backed frame from the class that holds the most pages, among the wanted classes.
    fn take_from(&mut self, wanted: impl Fn(usize) -> bool) -> Option<FrameIndex> {
        let class = (0..CLASSES).filter(|class| wanted(*class)).max_by_key(|class| {
            let order = Order::new(*class as u8).expect("a class is an order");
            self.backed[*class].len() as u64 * u64::from(order.pages())
        })?;
        let index = self.backed[class].take()?;
        let frame = FrameIndex::in_class(Order::new(class as u8).expect("a class is an order"), index);
        self.backed_pages -= u64::from(frame.order().pages());
        Some(frame)
    }

    /// Returns `pages` to the unspent budget, for example because the program unmapped them.
    pub fn credit(&mut self, pages: u64) {
        self.credit_pages += pages;
        assert!(self.credit_pages <= self.budget_pages, "more credit than budget");
    }

    /// Spends `pages`, if that many are unspent.
    pub fn reserve(&mut self, pages: u64) -> bool {
        let granted = pages <= self.credit_pages;
        self.credit_pages -= if granted { pages } else { 0 };
        granted
    }

    /// Enlarges the budget by `pages`, all unspent. May allocate.
    pub fn grow(&mut self, pages: u64) {
        self.budget_pages += pages;
        self.credit_pages += pages;
        if self.budget_pages <= self.room_pages {
            return;
        }
        for class in 0..CLASSES {
            let frames = |pages| Self::frames_in_class(pages, class);
            self.backed[class].make_room(frames(self.budget_pages));
            self.unbacked[class].extend(frames(self.room_pages), frames(self.budget_pages));
        }
        self.room_pages = self.budget_pages;
    }

    /// Shrinks the budget by `pages`; returns how many of them were already spent.
    pub fn shrink(&mut self, pages: u64) -> u64 {
        let missing = self.spend(pages);
        self.budget_pages -= pages;
        missing
    }

    /// Spends up to `pages`, as far as they are unspent; returns how many were missing.
    pub fn spend(&mut self, pages: u64) -> u64 {
        let spent = pages.min(self.credit_pages);
        self.credit_pages -= spent;
        pages - spent
    }

    /// Whether a frame for `order` has pages and may be used.
    pub fn has_backed(&self, order: Order) -> bool {
        self.backed[order.exponent()].len() > 0
    }

    /// Pages of the frames that may be used.
    pub fn backed_pages(&self) -> u64 {
        self.backed_pages
    }

    /// Pages of the budget that are unspent.
    pub fn credit_pages(&self) -> u64 {
        self.credit_pages
    }

    /// Pages available without evicting anything.
    pub fn free_pages(&self) -> u64 {
        self.backed_pages + self.credit_pages
    }

    /// Frames that were ever in use, and the pages of addresses that they cover: the kernel has page tables for these,
    /// with or without pages.
    pub fn reached(&self) -> (u64, u64) {
        let each = || self.reached.iter().enumerate();
        (
            each().map(|(_, frames)| u64::from(*frames)).sum(),
            each().map(|(class, frames)| u64::from(*frames) << class).sum(),
        )
    }

    /// Bytes of the sets of frames: two bits for each frame, and one word in 64 above them.
    pub fn set_bytes(&self) -> u64 {
        let sets = self.backed.iter().chain(&self.unbacked);
        sets.map(FrameSet::bytes).sum()
    }

    /// The whole budget.
    pub fn budget_pages(&self) -> u64 {
        self.budget_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_of_a_larger_budget_has_a_frame() {
        let mut pool = FramePool::new(100);
        pool.shrink(40);
        pool.grow(140);
        let frames: Vec<_> = std::iter::from_fn(|| pool.take_backed(Order::MIN)).map(|taken| taken.frame).collect();
        assert_eq!(frames.len(), 200);
        let distinct: std::collections::BTreeSet<u32> = frames.iter().map(|frame| frame.index()).collect();
        assert_eq!(distinct.len(), 200, "no frame is taken twice");
        frames.into_iter().for_each(|frame| pool.put_backed(frame));
        assert_eq!(pool.free_pages(), 200);
    }

    #[test]
    fn a_budget_is_spent_once_and_comes_back() {
        let order = Order::DEFAULT;
        let mut pool = FramePool::new(64);
        let first = pool.take_backed(order).expect("budget for two");
        let second = pool.take_backed(order).expect("budget for two");
        assert!(first.fresh && second.fresh && first.frame != second.frame);
        assert_eq!(pool.take_backed(order), None);
        pool.put_backed(first.frame);
        assert_eq!(pool.take_backed(order), Some(Taken { frame: first.frame, fresh: false }));
    }

    #[test]
    fn pages_change_their_class_through_credit() {
        let mut pool = FramePool::new(32);
        let big = pool.take_backed(Order::DEFAULT).expect("budget for one");
        pool.put_backed(big.frame);
        assert_eq!(pool.take_backed(Order::MIN), None);
        let frame = pool.take_to_empty(Order::MIN).expect("the big one");
        pool.put_unbacked(frame);
        pool.credit(u64::from(frame.order().pages()));
        for _ in 0..32 {
            assert!(pool.take_backed(Order::MIN).is_some());
        }
        assert_eq!(pool.take_backed(Order::MIN), None);
    }

    #[test]
    fn frames_keep_their_order_so_that_runs_stay_adjacent() {
        let mut pool = FramePool::new(512);
        let frames: Vec<_> = (0..8).map(|_| pool.take_unbacked(Order::DEFAULT).expect("unbacked")).collect();
        assert_eq!(frames.iter().map(|frame| frame.index()).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        for frame in [frames[5], frames[3], frames[4]] {
            pool.put_unbacked(frame);
        }
        while pool.take_unbacked(Order::DEFAULT).expect("unbacked").index() != 3 {}
        assert_eq!(pool.take_unbacked(Order::DEFAULT).map(|frame| frame.index()), Some(4));
    }
}
