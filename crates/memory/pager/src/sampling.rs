// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Samples how long pages stay untouched, for the miss-ratio curve (`core/src/mrc.rs`), while somebody asks for it.
//!
//! Threads: one of the space, which exists only while touches are sampled; faulting threads, in `touched`; callers. The
//! lock is taken before the engine's. The fault path only tries to take it: a touch that it cannot report is found by
//! the next look at the sample.
//!
//! What a turn may cost is bounded: at [`TURN`], [`EVICTIONS`] blocks go to standby, and the touches of those that are
//! in use are rescues. Nothing runs, and a fault costs one load, while nobody asks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_core::block::State as BlockState;
use aquifer_core::engine::{Advice, Engine};
use aquifer_core::map::Pages;
use aquifer_core::mrc::{Chooser, Curve, POINTS_MAX, SAMPLES_MAX, Samples, Seen};
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_driver::Space as _;
use aquifer_stats::{CURVE_POINTS, CurveFigures, CurvePoint, FaultKind};
use aquifer_sys::raw::now_ns;

use crate::abort::say;
use crate::pager::{Pager, StartFailure};

/// The time between two turns.
const TURN: Duration = Duration::from_millis(50);
/// Blocks of up to [`EVICTION_PAGES`] pages that a turn may move to standby; a larger one counts as several. With a
/// move and a rescue of about 25 us together, that is 0.8 % of one CPU.
const EVICTIONS: i64 = 16;
const EVICTION_PAGES: i64 = 128;
/// Samples that a turn may begin, whose pages have left already or are moved.
const SAMPLES_PER_TURN: usize = 32;
/// Pages that a turn may choose and reject, because they have no contents.
const VAIN_PER_TURN: usize = 64;
/// Samples that a turn looks at.
const LOOKS_PER_TURN: usize = SAMPLES_MAX / 8;
/// Turns between two looks at the list of mappings, and between two publications.
const TURNS_PER_RENEWAL: u32 = 20;

const _: () = assert!(POINTS_MAX == CURVE_POINTS, "a curve fits into the statistics");

/// Samples of one space.
#[derive(Default)]
pub(crate) struct Sampling {
    /// Until when touches are sampled, in nanoseconds of the monotonic clock. 0: they are not.
    until_ns: AtomicU64,
    /// Whether the thread exists, or is being started.
    has_thread: AtomicBool,
    state: Mutex<Option<State>>,
}

/// What is known since sampling began.
struct State {
    samples: Samples,
    chooser: Chooser,
    started_ns: u64,
    /// How long threads had waited for fetches when it began.
    waited_us_before: f64,
    /// What the turns so far have left of their evictions; below zero after a large block.
    evictions_left: i64,
    turns: u32,
}

impl Sampling {
    /// The lock, for a thread that is not resolving a fault.
    pub(crate) fn lock(&self) -> impl Sized + '_ {
        self.state()
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fault brought these pages to their addresses. On the fault path.
    #[inline]
    pub(crate) fn touched(&self, pages: Pages, block_pages: u32) {
        if self.until_ns.load(Ordering::Relaxed) != 0
            && let Ok(mut state) = self.state.try_lock()
            && let Some(state) = &mut *state
        {
            state.samples.touched(pages.start, pages.count, block_pages, now_ns());
        }
    }

    /// After fork(2), in the child, which does not have the thread: nothing is sampled until somebody asks.
    pub(crate) fn forget_in_child(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
        self.has_thread.store(false, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        now_ns() >= self.until_ns.load(Ordering::Relaxed)
    }
}

impl Pager {
    /// Samples touches until `until_ns`. Goes on if they are being sampled already; otherwise begins afresh.
    pub(crate) fn sample_until(&'static self, until_ns: u64) -> Result<(), StartFailure> {
        let mut state = self.sampling.state();
        let was_over = self.sampling.is_over();
        self.sampling.until_ns.store(until_ns, Ordering::Relaxed);
        let has_thread = self.sampling.has_thread.swap(true, Ordering::AcqRel);
        if has_thread && !was_over {
            return Ok(());
        }
        let started_ns = now_ns();
        let mut began = match state.take() {
            Some(mut before) => {
                before.samples.clear();
                before
            }
            None => State {
                samples: Samples::default(),
                chooser: Chooser::new(started_ns),
                started_ns,
                waited_us_before: 0.0,
                evictions_left: 0,
                turns: 0,
            },
        };
        (began.started_ns, began.turns, began.evictions_left) = (started_ns, 0, 0);
        began.waited_us_before = self.counters.snapshot().latencies(FaultKind::Fetch).sum_us();
        *state = Some(began);
        drop(state);
        if has_thread {
            return Ok(());
        }
        self.start_thread(c"aquifer-sample", move || self.sample()).inspect_err(|_| {
            self.sampling.forget_in_child();
        })
    }

    /// As `sample_until`, for another process.
    pub(crate) fn sample_as_asked(&'static self, until_ns: u64) {
        if let Err(failure) = self.sample_until(until_ns) {
            say(&["no miss-ratio curve: touches cannot be sampled: ", &failure.to_string()]);
        }
    }

    /// Samples no more. The curve stays as it is.
    pub(crate) fn stop_sampling(&self) {
        let _state = self.sampling.state();
        self.sampling.until_ns.store(0, Ordering::Relaxed);
    }

    /// The curve of what was sampled, and what it was measured under. `None` without samples.
    pub(crate) fn miss_ratio_curve(&self) -> Option<(Curve, CurveFigures)> {
        let latencies = self.counters.snapshot().latencies(FaultKind::Fetch).clone();
        let histogram = self.histogram();
        let pages = histogram.resident.iter().chain(&histogram.away).sum();
        let state = self.sampling.state();
        let state = state.as_ref()?;
        let now_ns = now_ns();
        let curve = state.samples.times().curve(pages, state.samples.idle_ns(now_ns))?;
        let measured_ns = now_ns.saturating_sub(state.started_ns).max(1);
        let (count, waited_us) = (latencies.count(), latencies.sum_us() - state.waited_us_before);
        let bytes = |pages: f64| pages * PAGE_BYTES as f64;
        let points = curve.points().iter().map(|point| CurvePoint {
            bytes: point.pages * PAGE_BYTES,
            bytes_per_s: bytes(point.pages_per_s),
            fetches_per_s: point.fetches_per_s,
        });
        let figures = CurveFigures {
            measured_ns,
            samples: curve.samples(),
            content_bytes: pages * PAGE_BYTES,
            touched_bytes_per_s: bytes(curve.touched_pages_per_s()),
            waited: (waited_us.max(0.0) * 1000.0 / measured_ns as f64).min(1.0),
            fetch_s: if count > 0 { latencies.sum_us() / 1e6 / count as f64 } else { 0.0 },
            points: points.collect(),
        };
        Some((curve, figures))
    }

    /// The thread: takes turns until nobody asks any more.
    fn sample(&self) {
        loop {
            if let Some(state) = &mut *self.sampling.state() {
                if self.sampling.is_over() {
                    self.sampling.has_thread.store(false, Ordering::Release);
                    return;
                }
                self.take_samples(state);
            }
            self.publish_curve_if_due();
            if !self.service.pause(TURN) {
                return;
            }
        }
    }

    fn publish_curve_if_due(&self) {
        let is_due = self.sampling.state().as_ref().is_some_and(|state| state.turns.is_multiple_of(TURNS_PER_RENEWAL));
        if is_due && let Some((_, figures)) = self.miss_ratio_curve() {
            self.counters.write_curve(&figures);
        }
    }

    /// One turn: looks at some samples, and begins others.
    fn take_samples(&self, state: &mut State) {
        let now_ns = now_ns();
        if state.turns.is_multiple_of(TURNS_PER_RENEWAL) {
            let spans = Self::spans(&self.lock_all()).into_iter();
            state.chooser.renew(spans.map(|span| PageIndex::at(span.start)..PageIndex::at(span.end)));
        }
        state.turns += 1;
        state.samples.look(LOOKS_PER_TURN, now_ns, |page| seen(&self.shard_of(page).engine(), page).0);
        // What the program asks for comes first: the engine forgets the oldest of many wishes.
        if self.shards().any(|view| view.engine().has_departures() || view.is_paused()) {
            return;
        }
        state.evictions_left = (state.evictions_left + EVICTIONS).min(EVICTIONS);
        let (mut begun, mut vain, mut wakes) = (0, 0, false);
        while begun < SAMPLES_PER_TURN && vain < VAIN_PER_TURN && state.evictions_left > 0 {
            let Some(page) = state.chooser.draw_page() else { break };
            let view = self.shard_of(page);
            let mut engine = view.engine();
            let (found, pages) = seen(&engine, page);
            match (found, pages) {
                (Seen::Away, _) => state.samples.add(page, now_ns, true),
                (Seen::Resident(_), Some(pages)) if !view.is_paused() && !view.is_pinned(pages) => {
                    engine.advise(pages.start, pages.end(), Advice::Sample);
                    state.samples.add(page, now_ns, false);
                    state.evictions_left -= 1 + i64::from(pages.count) / EVICTION_PAGES;
                    wakes = true;
                }
                _ => {
                    vain += 1;
                    continue;
                }
            }
            begun += 1;
        }
        if wakes {
            self.wake_workers();
        }
    }
}

/// Where a page is, and its block.
fn seen(engine: &Engine, page: PageIndex) -> (Seen, Option<Pages>) {
    let map = engine.map();
    let Some(block) = map.find(page) else { return (Seen::Gone, None) };
    let pages = map.pages(block);
    let seen = match map.block(block).state {
        BlockState::Empty | BlockState::Poisoned => Seen::Gone,
        BlockState::Resident => Seen::Resident(pages.count),
        _ => Seen::Away,
    };
    (seen, Some(pages))
}
