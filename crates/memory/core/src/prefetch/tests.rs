// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces against the prefetcher. The model program faults on every block, since those that were read ahead wait in
//! frames until they are touched.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 32;
const CAP: u64 = 1 << 16;

/// A fault on a block that has to be fetched.
fn miss(page: u64, block_pages: u32) -> Fault {
    Fault { page, block_pages, announced: false, missed: true }
}

/// The outcome of a trace.
#[derive(Debug, Default)]
struct Outcome {
    visits: usize,
    /// Visits to blocks that had not been read ahead.
    misses: usize,
    /// Faults that yielded advice.
    advices: usize,
    advised: usize,
    unused: usize,
}

/// Plays visits, each a pair of thread and block number.
fn play(visits: impl IntoIterator<Item = (u16, u64)>) -> Outcome {
    let mut prefetcher = Prefetcher::new(CAP, WINDOW_PAGES, false);
    let (mut ahead, mut seen) = (HashSet::new(), HashSet::new());
    let mut outcome = Outcome::default();
    for (thread, number) in visits {
        outcome.visits += 1;
        if !seen.insert(number) {
            continue;
        }
        let missed = !ahead.remove(&number);
        outcome.misses += usize::from(missed);
        let page = number * u64::from(BLOCK) + 7;
        let advice = prefetcher.fault(ThreadIndex(thread), Fault { missed, ..miss(page, BLOCK) });
        outcome.advices += usize::from(advice.pages() > 0);
        for run in advice.runs() {
            assert_eq!((run.start % u64::from(BLOCK), run.pages % u64::from(BLOCK)), (0, 0), "{run:?}");
            for page in (run.start..run.start + run.pages).step_by(BLOCK as usize) {
                let block = page / u64::from(BLOCK);
                if !seen.contains(&block) {
                    outcome.advised += usize::from(ahead.insert(block));
                }
            }
        }
    }
    outcome.unused = ahead.len();
    outcome
}

fn one(blocks: impl Iterator<Item = u64>) -> Outcome {
    play(blocks.map(|block| (0, block)))
}

#[test]
fn regular_traces_miss_only_at_their_start() {
    let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30;
    let triad = (0..1000).flat_map(|i| [(0, 5000 + i), (0, 9000 + i), (0, i)]);
    let parts = (0..500).flat_map(|i| (0..8u16).map(move |thread| (thread, u64::from(thread) * 10_000 + i)));
    let noisy = (0..1000u64).flat_map(move |i| [Some((0, i)), (i % 5 == 0).then(|| (0, (1 << 32) + random(i)))]);
    for (name, outcome, misses_max) in [
        ("sequential", one(0..1000), 2),
        ("reverse", one((2000..3000).rev()), 2),
        ("reverse to zero", one((0..1000).rev()), 2),
        ("stride of 3 blocks", one((0..1000).map(|i| i * 3)), 3),
        ("stride of 3 blocks down", one((0..1000).rev().map(|i| i * 3)), 3),
        ("three interleaved", play(triad), 6),
        ("eight threads, a part each", play(parts), 16),
        ("sequential among noise", play(noisy.flatten()), 210),
    ] {
        assert!(outcome.misses <= misses_max, "{name}: {outcome:?}");
        assert!(outcome.unused * BLOCK as usize <= 8 * WINDOW_PAGES as usize, "{name}: {outcome:?}");
    }
}

#[test]
fn advice_is_rare_once_the_window_has_grown() {
    let outcome = one(0..10_000);
    let per_advice = (WINDOW_PAGES / stream::ADVISED_PART / BLOCK) as usize;
    assert!(outcome.advices <= 10_000 / per_advice + 20, "{outcome:?}");
}

/// Where the pages of a stream lie on several media in turn, all of them have work only if the window is wide, and most
/// of it is under way. Faults on blocks that were read ahead once counted as misses: the advice was repeated before
/// half of the window had been passed, and the window never grew.
#[test]
fn a_wide_window_is_filled_and_moved_before_it_is_empty() {
    let window = 7 * WINDOW_PAGES;
    let mut prefetcher = Prefetcher::new(u64::from(window), window, false);
    let (mut end, least) = (0, u64::from(window - window / stream::ADVISED_PART - BLOCK));
    for page in (0..200 * u64::from(window)).step_by(BLOCK as usize) {
        let advice = prefetcher.fault(ThreadIndex(0), Fault { missed: page >= end, ..miss(page, BLOCK) });
        advice.runs().iter().for_each(|run| end = run.start + run.pages);
        let ahead = end.saturating_sub(page);
        assert!(ahead <= u64::from(window + BLOCK), "{page}: {ahead} pages ahead, of {window}");
        assert!(page < u64::from(4 * window) || ahead >= least, "{page}: {ahead} pages ahead, of {window}");
    }
}

/// The streams of earlier passes have ended, and the next one gets what they had.
#[test]
fn a_stream_that_has_ended_takes_no_share_of_the_cap() {
    let mut prefetcher = Prefetcher::new(u64::from(WINDOW_PAGES), WINDOW_PAGES, false);
    let mut ahead = 0;
    for start in (0..STREAMS_MAX as u64).map(|stream| stream << 30) {
        let mut end = start;
        for page in (start..start + 256 * u64::from(BLOCK)).step_by(BLOCK as usize) {
            let advice = prefetcher.fault(ThreadIndex(0), Fault { missed: page >= end, ..miss(page, BLOCK) });
            advice.runs().iter().for_each(|run| end = run.start + run.pages);
            ahead = end.saturating_sub(page);
        }
    }
    let least = u64::from(WINDOW_PAGES / 2 - BLOCK);
    assert!(ahead >= least, "{ahead} pages ahead, of {WINDOW_PAGES}, when {STREAMS_MAX} streams have ended");
}

#[test]
fn random_visits_yield_almost_nothing() {
    let mut state = 1u64;
    let random = std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 20_000
    });
    let outcome = one(random.take(10_000));
    assert!(outcome.advised * 50 < outcome.misses, "{outcome:?}");
}

#[test]
fn where_a_fetch_costs_little_a_stream_proves_itself_first() {
    for (wary, block, silent) in [(true, 1, 64), (true, BLOCK, 2), (false, 1, 1)] {
        let mut prefetcher = Prefetcher::new(CAP, WINDOW_PAGES, wary);
        let mut fault = |turn: u64| prefetcher.fault(ThreadIndex(0), miss(turn * u64::from(block), block));
        let first = (0..200).find(|turn| fault(*turn).pages() > 0);
        assert_eq!(first, Some(silent), "wary: {wary}, {block} pages a block");
    }
}

/// A program that asks for read-ahead pages in order was predicted. Pages from the middle of the read-ahead would have
/// been requested at some time anyway, so a request for them predicts nothing: after it, a stream must prove itself.
#[test]
fn prefetched_blocks_used_out_of_order_are_no_evidence_of_a_stream() {
    let (up, down) = (1i64, -1i64);
    for (step, waits_before, waits_behind, reads) in [
        (up, false, false, true),
        (up, false, true, true),
        (up, true, false, false),
        (up, true, true, false),
        (down, true, false, true),
        (down, false, true, false),
    ] {
        let mut prefetcher = Prefetcher::new(CAP, WINDOW_PAGES, false);
        let fault = |prefetcher: &mut Prefetcher, turn: i64, start: u64| {
            prefetcher.fault(ThreadIndex(0), miss(start.wrapping_add_signed(turn * step), 1))
        };
        fault(&mut prefetcher, 0, 1 << 20);
        let advice = fault(&mut prefetcher, 1, 1 << 20);
        let page = advice.runs().first().expect("two neighbours are a stream").start;
        (0..400).for_each(|_| prefetcher.used(page, 1, waits_before, waits_behind));
        fault(&mut prefetcher, 0, 1 << 30);
        let read = fault(&mut prefetcher, 1, 1 << 30).pages() > 0;
        assert_eq!(read, reads, "step {step}, before {waits_before}, after {waits_behind}");
    }
}

#[test]
fn all_streams_together_respect_the_cap() {
    let mut prefetcher = Prefetcher::new(2048, WINDOW_PAGES, false);
    let mut frontier = [0u64; 16];
    for turn in 0..4000u64 {
        for (thread, frontier) in frontier.iter_mut().enumerate() {
            let base = thread as u64 * 1_000_000;
            let page = base + turn * u64::from(BLOCK);
            let advice = prefetcher.fault(ThreadIndex(thread as u16), miss(page, BLOCK));
            advice.runs().iter().for_each(|run| *frontier = (run.start + run.pages - base).max(*frontier));
        }
        let ahead: u64 = frontier.iter().map(|end| end.saturating_sub((turn + 1) * u64::from(BLOCK))).sum();
        // The first streams may have grown before the others were known.
        assert!(turn < 200 || ahead <= 2048, "turn {turn}: {ahead} pages ahead");
    }
}

#[test]
fn waste_shrinks_the_window_until_the_stream_is_forgotten() {
    let mut prefetcher = Prefetcher::new(CAP, WINDOW_PAGES, false);
    let mut end = 0;
    for number in 0..100u64 {
        let advice = prefetcher.fault(ThreadIndex(0), miss(number * 32, BLOCK));
        end = advice.runs().iter().map(|run| run.start + run.pages).max().unwrap_or(end);
    }
    (0..12).for_each(|_| prefetcher.wasted(end - 32, BLOCK));
    assert_eq!(prefetcher.fault(ThreadIndex(0), miss(100 * 32 + 64 * 32 * 3, BLOCK)).pages(), 0);
    assert!(prefetcher.threads[0].streams.iter().all(|stream| !stream.has_step()));
}

proptest! {
    #[test]
    fn any_faults_give_bounded_advice(
        faults in proptest::collection::vec((any::<u16>(), prop_oneof![0..5000u64, any::<u64>()], 0..10u32), 0..500),
        cap in 0..100_000u64,
    ) {
        let mut prefetcher = Prefetcher::new(cap, WINDOW_PAGES, false);
        for (thread, page, order) in faults {
            let page = page >> 12;
            let advice = prefetcher.fault(ThreadIndex(thread), miss(page, 1 << order));
            prop_assert!(advice.pages() <= u64::from(WINDOW_PAGES).min(cap));
            for run in advice.runs() {
                prop_assert!(run.pages > 0 && run.start.checked_add(run.pages).is_some());
                prop_assert!(page < run.start || page >= run.start + run.pages);
            }
            if order == 3 {
                prefetcher.wasted(page, BLOCK);
            }
        }
    }
}
