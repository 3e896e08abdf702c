// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What concerns several shards of a space: which one has a page, and operations on ranges.
//!
//! The order of the locks: a thread that holds the lock of a shard takes only those of shards with a larger index. A
//! fault holds one lock; registering, discarding and forking hold several. `ShardBudgets` (`shard_budgets.rs`) is
//! locked before any engine.

use std::ops::Range;

use aquifer_core::engine::Advice;
use aquifer_core::map::{Delivery, Mapping};
use aquifer_core::temperature::Histogram;
use aquifer_core::units::{PageIndex, ThreadIndex};
use aquifer_driver::{Access, Brought, Fatal, LockedEngine, Shards};

use crate::pager::Pager;
use crate::recorder::Recorder;
use crate::shard::ShardView;

/// The locked engines of all shards, in order.
pub(crate) type AllLocked<'a> = Vec<LockedEngine<'a, Recorder>>;

impl Pager {
    /// The shards, in the order of their locks.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardView<'_>> {
        self.shards.iter().enumerate().map(|(index, shard)| ShardView { pager: self, shard, index })
    }

    /// The shard of a page.
    pub(crate) fn shard_of(&self, page: PageIndex) -> ShardView<'_> {
        self.shard(self.stripes.shard_of(page))
    }

    /// The only shard of a space that is not divided, as a caller's space never is.
    pub(crate) fn undivided(&self) -> ShardView<'_> {
        debug_assert!(self.shards.len() == 1, "a caller's space has one shard");
        self.shard(0)
    }

    /// The shards that can have pages of `first..last`, in the order of their locks.
    pub(crate) fn involved(&self, first: PageIndex, last: PageIndex) -> Vec<ShardView<'_>> {
        self.stripes.involved(first, last).map(|index| self.shard(index)).collect()
    }

    /// Locks all engines.
    pub(crate) fn lock_all(&self) -> AllLocked<'_> {
        self.shards().map(ShardView::engine).collect()
    }

    /// The parts of `first..last` with their shards, in address order.
    pub(crate) fn parts(
        &self,
        first: PageIndex,
        last: PageIndex,
    ) -> impl Iterator<Item = (ShardView<'_>, PageIndex, PageIndex)> {
        self.stripes.parts(first, last).map(|(index, first, last)| (self.shard(index), first, last))
    }

    /// Passes advice about a range on to the engines, and wakes their workers.
    pub(crate) fn advise(&self, first: PageIndex, last: PageIndex, advice: Advice) {
        for view in self.stripes.involved(first, last).map(|index| self.shard(index)) {
            view.engine().advise(first, last, advice);
            view.wake_worker();
        }
    }

    /// Makes a range resident for this access, except pages that are not managed or lost.
    pub(crate) fn make_resident(
        &self,
        first: PageIndex,
        last: PageIndex,
        thread: ThreadIndex,
        access: Access,
    ) -> Result<Brought, Fatal> {
        let mut whole = Brought::Present;
        for (view, first, last) in self.parts(first, last) {
            match aquifer_driver::bring(&view, first, last, thread, access)? {
                Brought::Present => {}
                Brought::AsFarAsManaged => whole = Brought::AsFarAsManaged,
                Brought::NoRoom => return Ok(Brought::NoRoom),
            }
        }
        Ok(whole)
    }

    /// Calls `each` with the pages and the delivery of each managed part of `first..last`, in no particular order.
    pub(crate) fn each_managed(
        &self,
        first: PageIndex,
        last: PageIndex,
        mut each: impl FnMut(PageIndex, PageIndex, Delivery),
    ) {
        for index in self.stripes.involved(first, last) {
            let engine = self.shard(index).engine();
            let part = |mapping: &Mapping| (mapping.start.max(first), mapping.end.min(last), mapping.delivery);
            engine
                .map()
                .overlapping(first, last)
                .map(part)
                .for_each(|(start, end, delivery)| each(start, end, delivery));
        }
    }

    /// Whether any page of `first..last` is managed in a mapping with a `wanted` delivery.
    pub(crate) fn has_managed(&self, first: PageIndex, last: PageIndex, wanted: impl Fn(Delivery) -> bool) -> bool {
        self.stripes.involved(first, last).any(|index| {
            let engine = self.shard(index).engine();
            engine.map().overlapping(first, last).any(|mapping| wanted(mapping.delivery))
        })
    }

    /// Pages with contents, by temperature, in all shards.
    pub(crate) fn histogram(&self) -> Histogram {
        self.shards().fold(Histogram::default(), |mut sum, view| {
            let engine = view.engine();
            let Histogram { resident, away } = engine.map().temperatures().histogram();
            sum.resident.iter_mut().zip(resident).for_each(|(sum, pages)| *sum += pages);
            sum.away.iter_mut().zip(away).for_each(|(sum, pages)| *sum += pages);
            sum
        })
    }

    /// The addresses of all mappings, in order and joined where they meet: a mapping of the program is divided among
    /// the shards.
    pub(crate) fn spans(engines: &AllLocked<'_>) -> Vec<Range<usize>> {
        let mappings = engines.iter().flat_map(|engine| engine.map().mappings());
        let mut spans: Vec<Range<usize>> = mappings.map(Mapping::addresses).collect();
        spans.sort_unstable_by_key(|span| span.start);
        spans.dedup_by(|next, span| {
            let meets = span.end == next.start;
            span.end = if meets { next.end } else { span.end };
            meets
        });
        spans
    }

    /// Wakes all workers.
    pub(crate) fn wake_workers(&self) {
        self.shards().for_each(ShardView::wake_worker);
    }

    /// Wakes everybody who waits for a report.
    pub(crate) fn signal_all(&self) {
        self.shards.iter().for_each(|shard| shard.progress.signal());
    }

    /// Whether any frame address is in `start..end`.
    pub(crate) fn has_frames_in(&self, start: usize, end: usize) -> bool {
        self.shards.iter().any(|shard| shard.area.overlaps(start, end))
    }
}
