// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides what to read ahead of a thread's faults: sequential runs in both directions, strides, several of them
//! interleaved, and the majority trend of the remaining faults.
//!
//! Pure, and allocates only in [`Prefetcher::new`]: called with the engine's lock held, on the fault path. Every table
//! has a named size. Random faults yield no advice.
//!
//! Pages are plain numbers here and in the files below: strides are computed with them, and the engine shifts them so
//! that blocks begin at multiples of their size.
//!
//! A stream is found when two faults of one thread are one block apart, or three are equally far apart, or more than
//! half of the latest faults took the same step (`trend.rs`). Its window doubles each time the program has passed half
//! of it, and halves on waste (`stream.rs`). While much of the read-ahead is wasted, or where a fetch costs little, a
//! stream must prove itself first: among random accesses, many are to adjacent pages by chance. And where a graph's
//! neighbours are visited in ascending order, only half of the next pages are wanted, which is not enough.

use crate::areas::{Areas, Evidence};
use crate::units::{PAGE_BYTES, ThreadIndex};

mod stream;
mod trend;

use stream::{Bounds, Step, Stream};
use trend::Trend;

/// Number of threads with their own table; threads with higher numbers share these.
pub const THREADS_MAX: usize = 64;
/// Streams per thread: the STREAM benchmark has at most three, a stencil of 27 points has nine.
pub const STREAMS_MAX: usize = 12;
/// Maximum number of runs in one advice.
pub const RUNS_MAX: usize = 8;
/// Pages with which a stream's window starts, unless two blocks are more: 128 KiB.
pub const WINDOW_MIN: u32 = (128 << 10) / PAGE_BYTES as u32;
/// Maximum number of pages that a stream is read ahead of from one medium: 4 MiB, about 3 ms on a disk that delivers
/// 1.3 GB/s. In a small budget, larger windows push out pages that they have just fetched.
pub const WINDOW_PAGES: u32 = (4 << 20) / PAGE_BYTES as u32;
/// Faults farther apart than this many blocks are not treated as a stride.
pub const STRIDE_BLOCKS_MAX: u64 = 64;
/// A stream that had none of the latest `SILENT_MAX` faults gives way to a new one.
const SILENT_MAX: u64 = 512;
/// Confidence is in 1/1024. A used page raises it by `1 / CONFIDENCE_PART` of the missing confidence, and a wasted page
/// lowers it by the same part of the present confidence. A report of more than `CONFIDENCE_PAGES_MAX` pages counts as
/// that many.
const CONFIDENCE_FULL: u32 = 1024;
const CONFIDENCE_PART: u32 = 1024;
const CONFIDENCE_PAGES_MAX: u32 = 32;
/// Below this confidence, streams must prove themselves first. Betweenness centrality used 60 % of its read-ahead, at a
/// loss even on a disk; breadth-first search used 95 %, and STREAM all of it (`prefetch_hits` and `prefetch_wasted` of
/// `--stats-json`).
const CONFIDENCE_MIN: u32 = CONFIDENCE_FULL * 7 / 8;
/// Pages that a stream must have passed before anything is read ahead of it, while confidence is low or where a fetch
/// costs little: 256 KiB. That is two blocks of the default size, or 64 of the smallest.
const PROOF_PAGES: u32 = (256 << 10) / PAGE_BYTES as u32;
/// Faults between two counts of the streams that share the cap.
const COUNT_INTERVAL: u64 = 64;

/// Pages that should be in memory before the program reaches them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub start: u64,
    /// How many.
    pub pages: u64,
    /// True when the program approaches from above: the last page is wanted first.
    pub descending: bool,
}

/// What to read ahead. Empty for most faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Advice {
    runs: [Run; RUNS_MAX],
    count: usize,
    /// Consecutive times that the stream continued as predicted; saturates.
    pub confidence: u8,
    /// Number of adjacent pages that the fault's stream has passed, even if there is nothing to read now. 0 if the
    /// fault belongs to no stream.
    pub passed_pages: u32,
}

impl Advice {
    /// In the order in which the program will need them.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..self.count]
    }

    /// Pages of all runs.
    pub fn pages(&self) -> u64 {
        self.runs().iter().map(|run| run.pages).sum()
    }

    fn room(&self) -> usize {
        RUNS_MAX - self.count
    }

    fn push(&mut self, run: Run) {
        self.runs[self.count] = run;
        self.count += 1;
    }
}

/// One fault, as the prefetcher sees it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The page.
    pub page: u64,
    /// Pages of its block.
    pub block_pages: u32,
    /// The program has announced sequential access from here, so that nothing need be proved.
    pub announced: bool,
    /// The block must be fetched now: it does not wait in a frame, and is not on its way.
    pub missed: bool,
}

/// One thread's table.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    streams: [Stream; STREAMS_MAX],
    trend: Trend,
}

/// The part of recent read-ahead that was used, in units of `1 / CONFIDENCE_FULL`.
#[derive(Clone, Copy, Debug)]
struct Confidence(u32);

impl Confidence {
    /// Counts pages that were used, or wasted.
    fn saw(&mut self, pages: u32, are_used: bool) {
        let pages = pages.min(CONFIDENCE_PAGES_MAX);
        if are_used {
            self.0 += (CONFIDENCE_FULL - self.0) * pages / CONFIDENCE_PART;
        } else {
            self.0 -= (self.0 * pages).div_ceil(CONFIDENCE_PART).min(self.0);
        }
    }
}

impl Evidence for Confidence {
    /// Whether read-ahead is worth it without proof.
    fn verdict(&self) -> bool {
        self.0 >= CONFIDENCE_MIN
    }
}

/// The prefetcher: decides what to read ahead of each thread's faults.
pub struct Prefetcher {
    threads: Box<[Thread]>,
    /// Maximum number of pages that all streams together may be ahead.
    ahead_pages_max: u64,
    /// Maximum number of pages that one stream may be ahead.
    window_pages: u32,
    /// Faults seen so far.
    faults: u64,
    /// Among how many streams the cap was divided at the latest count.
    sharers: u64,
    confidence: Areas<Confidence>,
    /// True when every stream must prove itself.
    wary: bool,
}

impl Prefetcher {
    /// Creates an empty table. All streams together will be at most about `ahead_pages_max` pages ahead, and one stream
    /// at most `window_pages`. `wary` means that a fault on a block that was read ahead costs about as much as any
    /// other, so that only streams that have proved themselves gain from it.
    pub fn new(ahead_pages_max: u64, window_pages: u32, wary: bool) -> Prefetcher {
        let threads = vec![Thread::default(); THREADS_MAX].into_boxed_slice();
        Prefetcher {
            threads,
            ahead_pages_max,
            window_pages,
            faults: 0,
            sharers: 1,
            confidence: Areas::new(Confidence(CONFIDENCE_FULL)),
            wary,
        }
    }

    /// Sets a new cap when the budget changes.
    pub fn set_ahead_pages_max(&mut self, ahead_pages_max: u64) {
        self.ahead_pages_max = ahead_pages_max;
    }

    /// Decides what to read ahead after a fault of `thread`. Also call it for faults on blocks that wait on standby:
    /// blocks that were read ahead wait there.
    pub fn fault(&mut self, thread: ThreadIndex, fault: Fault) -> Advice {
        let Fault { page, announced, missed, .. } = fault;
        let mut advice = Advice::default();
        self.faults += 1;
        if self.faults.is_multiple_of(COUNT_INTERVAL) {
            self.count_sharers();
        }
        let is_low = !self.confidence.of(page).verdict();
        let proof = if !announced && (self.wary || is_low) { PROOF_PAGES } else { 0 };
        let bounds = Bounds { limit: self.limit(), window: self.window_pages, proof };
        let (block, heard) = (fault.block_pages.max(1), self.faults);
        let page = page - page % u64::from(block);
        let Thread { streams, trend } = &mut self.threads[usize::from(thread.0) % THREADS_MAX];
        if let Some(stream) = streams.iter_mut().find(|stream| stream.continues_at(page)) {
            advice.passed_pages = stream.advance(Step { page, block, missed, heard }, bounds, &mut advice);
            return advice;
        }
        if announced {
            let oldest = Self::replaced(streams, heard);
            *oldest = Stream::with_step(page, block.into(), block, heard);
            oldest.advance(Step { page, block, missed, heard }, bounds, &mut advice);
            advice.passed_pages = u32::MAX;
            return advice;
        }
        trend.record(page);
        let near = |stream: &&mut Stream| {
            let distance = stream.distance(page);
            stream.heard > 0 && distance > 0 && distance <= STRIDE_BLOCKS_MAX * u64::from(block)
        };
        let unsettled = streams.iter_mut().filter(|stream| !stream.has_step()).filter(near);
        if let Some(stream) = unsettled.min_by_key(|stream| stream.distance(page)) {
            if stream.learn(page, block, heard) {
                advice.passed_pages = stream.advance(Step { page, block, missed, heard }, bounds, &mut advice);
                return advice;
            }
            if let Some(step) = Self::trend_step(trend, block) {
                *stream = Stream::with_step(page, step, block, heard);
                stream.advance(Step { page, block, missed, heard }, bounds, &mut advice);
            }
            return advice;
        }
        let oldest = Self::replaced(streams, heard);
        *oldest = match Self::trend_step(trend, block) {
            Some(step) => Stream::with_step(page, step, block, heard),
            None => Stream::begin(page, heard),
        };
        if oldest.has_step() {
            oldest.advance(Step { page, block, missed, heard }, bounds, &mut advice);
        }
        advice
    }

    /// Reports that advice which ended at `frontier`, for a stream of `thread`, is followed for `pages` more, because
    /// as many of its pages are resident. False if no stream is advised from there: then the advice must not be
    /// followed beyond its end.
    pub fn goes_on(&mut self, thread: ThreadIndex, frontier: u64, pages: u64) -> bool {
        let Thread { streams, .. } = &mut self.threads[usize::from(thread.0) % THREADS_MAX];
        streams.iter_mut().any(|stream| stream.goes_on(frontier, pages))
    }

    /// Reports that `pages` read-ahead pages, the first of them at `page`, were asked for. `waits_before` and
    /// `waits_behind` say whether the neighbour on that side was read ahead, too, and has not been asked for yet.
    ///
    /// A stream uses its read-ahead in order. Random accesses also use nearly all of the read-ahead sooner or later,
    /// but out of order, and no more often than they would have used the blocks that it displaced. Such use counts as
    /// waste.
    pub fn used(&mut self, page: u64, pages: u32, waits_before: bool, waits_behind: bool) {
        let mut streams = self.threads.iter().flat_map(|thread| &thread.streams);
        let Some(stream) = streams.find(|stream| stream.covers(page)) else { return };
        let in_order = if stream.ascends() { !waits_before } else { !waits_behind };
        self.confidence.saw(page, in_order, |confidence| confidence.saw(pages, in_order));
    }

    /// Reports that a block of `pages` that was read ahead at `page` was evicted unused.
    pub fn wasted(&mut self, page: u64, pages: u32) {
        self.confidence.saw(page, false, |confidence| confidence.saw(pages, false));
        let streams = self.threads.iter_mut().flat_map(|thread| &mut thread.streams);
        if let Some(stream) = streams.into_iter().find(|stream| stream.covers(page)) {
            stream.wasted();
        }
    }

    /// The stream that a new one replaces: the oldest stream without a step or without a recent fault, so that a stream
    /// of large blocks survives many scattered faults; if there is none, the oldest of all.
    fn replaced(streams: &mut [Stream; STREAMS_MAX], now: u64) -> &mut Stream {
        let is_alive = |stream: &Stream| stream.has_step() && stream.heard + SILENT_MAX > now;
        streams.iter_mut().min_by_key(|stream| (is_alive(stream), stream.heard)).expect("a thread has streams")
    }

    /// Maximum number of pages that one stream may be ahead: its share of the cap.
    fn limit(&self) -> u32 {
        let share = self.ahead_pages_max / self.sharers;
        u32::try_from(share).unwrap_or(u32::MAX).min(self.window_pages)
    }

    /// Counts the streams by their activity, those that are half as active as the busiest one as halves. Streams of
    /// large blocks fault rarely, so hundreds of faults can pass before it is certain that one has ended; until then it
    /// must not take a whole share of the cap from those that go on.
    fn count_sharers(&mut self) {
        let (mut sum, mut max) = (0, 1);
        for stream in self.threads.iter_mut().flat_map(|thread| &mut thread.streams) {
            let activity = stream.take_activity();
            (sum, max) = (sum + activity, max.max(activity));
        }
        self.sharers = sum.div_ceil(max).max(1);
    }

    /// The majority's step, if blocks of this size can follow it.
    fn trend_step(trend: &Trend, block: u32) -> Option<i64> {
        let step = trend.majority()?;
        let near = step.unsigned_abs() <= STRIDE_BLOCKS_MAX * u64::from(block);
        (near && step.unsigned_abs() % u64::from(block) == 0).then_some(step)
    }
}

#[cfg(test)]
mod tests;
