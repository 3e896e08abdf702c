// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One stream of faults that advance by equal steps, and how far ahead of it to read.
//!
//! Blocks that were read ahead wait in their frames, and a fault on one of them installs all that follow it in
//! consecutive frames (`engine/background.rs`). So the stream does not fault on every block, and any fault from its
//! latest page to one step past the advised pages continues it. When a quarter of the window has been passed, as much
//! is advised again, so that most of it is always under way. When half of it has been passed, the window doubles.
//!
//! ```text
//!   latest                                       frontier
//!   |---------------- read ahead -----------------|... next advice starts here
//!     '------------------- window -----------------'
//! ```

use super::{Advice, Run, WINDOW_MIN};

/// Number of misses in a row among advised pages after which the advice is repeated: they were not read.
const MISSED_MAX: u8 = 2;

/// Pages are advised again when this part of the window has been passed: more often costs calls, and less often leaves
/// less of the window under way.
pub(super) const ADVISED_PART: u32 = 4;

/// A fault up to this many blocks beyond the advised reads still continues a stream that skips no blocks. A choice: if
/// half of the blocks are in DRAM, a run of more than this many of them occurs at one place in 16. With twice as many,
/// breadth-first searches fetched 10 to 41 % more (`aquifer-sim --prefetch --block auto --workload bfs`).
const MISSING_MAX: u64 = 4;
/// Number of continuations after which such gaps are allowed: before, accesses that are near each other by chance would
/// form streams.
const SURE: u8 = 2;

/// What one continuation adds to a stream's activity, so that it is remembered for eight counts.
const ACTIVITY_UNIT: u16 = 128;

/// How far ahead of a stream to read, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How far ahead it may be now: its share of what all streams have.
    pub(super) limit: u32,
    /// The greatest window to which it may grow.
    pub(super) window: u32,
    /// How much the stream must have passed before anything is read ahead of it.
    pub(super) proof: u32,
}

/// A fault that continues a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// First page of its block.
    pub(super) page: u64,
    /// Pages of its block.
    pub(super) block: u32,
    /// Whether the block must be fetched now.
    pub(super) missed: bool,
    /// The prefetcher's count of faults.
    pub(super) heard: u64,
}

/// One stream of faults that advance by equal steps. Pages are start pages of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    /// Page of its latest fault.
    latest: u64,
    /// Pages from one block of the stream to the next; 0 until two faults agree.
    step: i64,
    /// Step between the latest two faults while there is no step yet.
    candidate: i64,
    /// First page of the stream that has not been advised yet. Meaningful only with a step.
    frontier: u64,
    /// Pages to keep ahead.
    window: u32,
    /// Pages per block when `step` was learnt.
    block: u32,
    /// Consecutive continuations.
    successes: u8,
    /// Number of pages passed in a row, without those that the stream skips.
    passed: u32,
    /// Number of misses in a row among the advised pages.
    missed: u8,
    /// Pages passed since the window grew.
    since_growth: u32,
    /// Continuations lately, in units of `1 / ACTIVITY_UNIT`: each count of the streams halves it.
    activity: u16,
    /// The prefetcher's count of faults at this stream's latest fault; 0 for never.
    pub(super) heard: u64,
}

impl Stream {
    /// A stream that may begin at `page`.
    pub(super) fn begin(page: u64, heard: u64) -> Stream {
        Stream { latest: page, heard, ..Stream::default() }
    }

    /// A stream at `page` whose step is known.
    pub(super) fn with_step(page: u64, step: i64, block: u32, heard: u64) -> Stream {
        let frontier = page.wrapping_add_signed(step);
        let window = (block * 2).max(WINDOW_MIN);
        Stream { latest: page, step, frontier, window, block, passed: block, heard, ..Stream::default() }
    }

    pub(super) fn has_step(&self) -> bool {
        self.step != 0
    }

    /// Steps from this stream's latest fault to `page`, in its direction; `None` when the stream does not pass that
    /// page.
    fn steps_to(&self, page: u64) -> Option<u64> {
        let delta = page.wrapping_sub(self.latest) as i64;
        (self.step != 0 && delta.signum() == self.step.signum() && delta % self.step == 0)
            .then(|| (delta / self.step).unsigned_abs())
    }

    /// Whether a fault at `page` continues this stream. Blocks in DRAM do not fault, so a few may be missing.
    pub(super) fn continues_at(&self, page: u64) -> bool {
        let to_frontier = self.steps_to(self.frontier).unwrap_or(0);
        let adjoins = self.step.unsigned_abs() == u64::from(self.block);
        let missing = if adjoins && self.successes >= SURE { MISSING_MAX } else { 1 };
        self.steps_to(page).is_some_and(|steps| steps > 0 && steps <= to_frontier + missing)
    }

    /// Whether `page` has been advised and not yet passed.
    pub(super) fn covers(&self, page: u64) -> bool {
        let (low, high) = (self.latest.min(self.frontier), self.latest.max(self.frontier));
        self.step != 0 && (low..=high).contains(&page)
    }

    /// Its activity since the latest counts, of which the next one remembers half.
    pub(super) fn take_activity(&mut self) -> u64 {
        let activity = self.activity;
        self.activity /= 2;
        activity.into()
    }

    /// Whether it goes to higher pages.
    pub(super) fn ascends(&self) -> bool {
        self.step > 0
    }

    /// Records a fault of a stream without a step; returns whether it has one now. `block` is in pages.
    pub(super) fn learn(&mut self, page: u64, block: u32, heard: u64) -> bool {
        let delta = page.wrapping_sub(self.latest) as i64;
        if delta.unsigned_abs() == u64::from(block) || delta == self.candidate {
            *self = Stream::with_step(page, delta, block, heard);
            return true;
        }
        (self.latest, self.candidate, self.heard) = (page, delta, heard);
        false
    }

    /// Distance to a fault that might belong to this stream, for choosing the nearest stream.
    pub(super) fn distance(&self, page: u64) -> u64 {
        self.latest.abs_diff(page)
    }

    /// Records a continuation at `page` and appends what to read ahead now, within these bounds. Returns how many
    /// adjacent pages it has passed; 0 if it has to pass more first.
    pub(super) fn advance(&mut self, step: Step, bounds: Bounds, advice: &mut Advice) -> u32 {
        let Step { page, block, missed, heard } = step;
        let Bounds { limit, window, proof } = bounds;
        if block != self.block && !self.follow_block_size(page, block) {
            *self = Stream::begin(page, heard);
            return 0;
        }
        let steps = u32::try_from(self.steps_to(page).unwrap_or(0)).unwrap_or(u32::MAX);
        let pages = steps.saturating_mul(block);
        (self.passed, self.since_growth) = (self.passed.saturating_add(pages), self.since_growth.saturating_add(pages));
        (self.latest, self.heard) = (page, heard);
        self.activity = self.activity.saturating_add(ACTIVITY_UNIT);
        self.missed = if missed { self.missed.saturating_add(1) } else { 0 };
        if self.missed >= MISSED_MAX || self.beyond(page, self.frontier) || self.passed < proof {
            (self.frontier, self.missed) = (page.wrapping_add_signed(self.step), 0);
        }
        if self.passed < proof {
            return 0;
        }
        if self.successes > 0 && self.since_growth >= self.window / 2 {
            (self.window, self.since_growth) = (self.window.saturating_mul(2).min(window), 0);
        }
        let window = self.window.min(limit);
        if self.ahead(block) > window - window / ADVISED_PART {
            return self.run_pages();
        }
        self.successes = self.successes.saturating_add(1);
        advice.confidence = self.successes;
        self.advise(block, window, advice);
        self.run_pages()
    }

    /// Pages from the latest fault to the frontier, without those that are skipped.
    fn ahead(&self, block: u32) -> u32 {
        let blocks = self.steps_to(self.frontier).unwrap_or(1).saturating_sub(1);
        u32::try_from(blocks * u64::from(block)).unwrap_or(u32::MAX)
    }

    /// Moves the frontier by `pages`, in whole blocks, if it is at `frontier` and ascends block by block.
    pub(super) fn goes_on(&mut self, frontier: u64, pages: u64) -> bool {
        let is_it = self.frontier == frontier && self.step > 0 && self.step.unsigned_abs() == u64::from(self.block);
        if is_it {
            self.frontier += pages;
        }
        is_it
    }

    /// Part of the read-ahead was not used: reads less far ahead, and restarts the stream when too little is left.
    pub(super) fn wasted(&mut self) {
        self.window /= 2;
        (self.successes, self.passed) = (0, 0);
        if self.window < WINDOW_MIN {
            *self = Stream::begin(self.latest, self.heard);
        }
    }

    /// Adjusts to a region with blocks of another size. A stream that visits every block continues block by block; any
    /// other continues if its steps still lead from block to block. Returns false when they do not.
    fn follow_block_size(&mut self, page: u64, block: u32) -> bool {
        if self.step.unsigned_abs() == u64::from(self.block) {
            self.step = i64::from(block) * self.step.signum();
        } else if !self.step.unsigned_abs().is_multiple_of(u64::from(block)) {
            return false;
        }
        self.block = block;
        self.frontier = page.wrapping_add_signed(self.step);
        true
    }

    /// Number of adjacent pages that the stream has passed: one block if it skips blocks.
    fn run_pages(&self) -> u32 {
        if self.step.unsigned_abs() == u64::from(self.block) { self.passed } else { self.block }
    }

    /// `page` is at or past `other` in the stream's direction.
    fn beyond(&self, page: u64, other: u64) -> bool {
        if self.step > 0 { page >= other } else { page <= other }
    }

    /// Appends runs from the frontier to the end of the window.
    fn advise(&mut self, block: u32, window: u32, advice: &mut Advice) {
        // There are no pages below page 0: the frontier wraps there, and the stream ends.
        if self.step < 0 && self.frontier > self.latest {
            return;
        }
        let stride = self.step.unsigned_abs();
        let already = self.steps_to(self.frontier).unwrap_or(1) - 1;
        // Windows count the pages that are read, not those that are skipped.
        let blocks = u64::from(window / block.max(1)).saturating_sub(already);
        let blocks = if stride == u64::from(block) { blocks } else { blocks.min(advice.room() as u64) };
        let blocks = if self.step < 0 { blocks.min(self.frontier / stride + 1) } else { blocks };
        if blocks == 0 {
            return;
        }
        let ahead = |steps: u64| self.frontier.wrapping_add_signed(self.step * steps as i64);
        let end = ahead(blocks);
        if stride == u64::from(block) {
            let start = if self.step > 0 { self.frontier } else { ahead(blocks - 1) };
            advice.push(Run { start, pages: blocks * stride, descending: self.step < 0 });
        } else {
            for steps in 0..blocks {
                let start = ahead(steps);
                advice.push(Run { start, pages: u64::from(block), descending: self.step < 0 });
            }
        }
        self.frontier = end;
    }
}
