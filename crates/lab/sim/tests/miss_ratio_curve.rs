// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Is the sampled miss-ratio curve that of LRU, for programs of every kind?
//!
//! The exact curve comes from the stack distance of every visit (Mattson 1970). The sampled one sees what a pager can:
//! for some pages, chosen at random moments, when they are touched next. They are compared as papers on such curves do,
//! by the mean of the difference over all sizes. The largest difference is at cliffs, which a shift of the size by 3 %
//! of all may not hide; it is printed.

use aquifer_core::mrc::{Chooser, Curve, RESOLUTION_NS, Samples};
use aquifer_core::units::PageIndex;
use aquifer_sim::workload::{Trace, Workload};

/// The memory of each workload, in blocks.
const BLOCKS: u32 = 4096;
/// Samples that are begun: as many as a program gives in a minute.
const SAMPLES: usize = 16_384;
/// The mean difference that is allowed, in points of the miss ratio.
const MEAN_POINTS_MAX: f64 = 2.0;

/// The visits of a workload after its warm-up, three times over: once to fill the memory, once to be counted, and once
/// so that the touches are seen that end the last samples.
struct Visits {
    blocks: Vec<u32>,
    counted: std::ops::Range<usize>,
    memory: u32,
}

impl Visits {
    fn of(trace: &Trace) -> Self {
        let once = trace.touches[trace.warm..].iter().map(|touch| touch.block());
        let len = trace.touches.len() - trace.warm;
        let blocks = once.clone().chain(once.clone()).chain(once).collect();
        Self { blocks, counted: len..2 * len, memory: trace.blocks }
    }
}

/// How many visits miss with each number of blocks of DRAM, under LRU.
fn exact(all: &Visits) -> Vec<f64> {
    let (blocks, visits) = (all.memory as usize, all.counted.end);
    // A Fenwick tree over the visits, in which only the last visit of each block counts.
    let (mut tree, mut last) = (vec![0_i32; visits + 1], vec![usize::MAX; blocks]);
    let add = |tree: &mut Vec<i32>, at: usize, change: i32| {
        let mut at = at + 1;
        while at < tree.len() {
            tree[at] += change;
            at += at & at.wrapping_neg();
        }
    };
    let before = |tree: &[i32], end: usize| {
        let (mut at, mut sum) = (end, 0);
        while at > 0 {
            sum += tree[at];
            at &= at - 1;
        }
        sum as usize
    };
    let mut distances = vec![0_u64; blocks + 1];
    let mut counted = 0;
    for (visit, block) in all.blocks[..visits].iter().enumerate() {
        let block = *block as usize;
        let previous = std::mem::replace(&mut last[block], visit);
        if previous != usize::MAX {
            if all.counted.contains(&visit) {
                let distance = before(&tree, visit) - before(&tree, previous);
                distances[distance] += 1;
                counted += 1;
            }
            add(&mut tree, previous, -1);
        }
        add(&mut tree, visit, 1);
    }
    let mut misses = counted;
    distances
        .iter()
        .map(|count| {
            misses -= count;
            misses as f64 / counted as f64
        })
        .collect()
}

/// The curve that sampling sees, with one visit in each [`RESOLUTION_NS`].
fn sampled(all: &Visits, seed: u64) -> Curve {
    let (mut samples, mut chooser) = (Samples::default(), Chooser::new(seed));
    chooser.renew(std::iter::once(PageIndex(0)..PageIndex(all.memory.into())));
    let now = |visit: usize| visit as u64 * RESOLUTION_NS;
    let mut visited = vec![false; all.memory as usize];
    let every = (all.counted.len() / SAMPLES).max(1);
    for (visit, block) in all.blocks.iter().enumerate() {
        visited[*block as usize] = true;
        samples.touched(PageIndex((*block).into()), 1, 1, now(visit));
        if all.counted.contains(&visit) && visit % every == 0 {
            let page = chooser.draw_page().expect("there is memory");
            if visited[page.0 as usize] {
                // After this visit, before the next one.
                samples.add(page, now(visit), true);
            }
        }
    }
    let contents = visited.iter().filter(|visited| **visited).count() as u64;
    samples.times().curve(contents, samples.idle_ns(now(all.blocks.len()))).expect("samples")
}

/// The sampled part of the visits that miss, for each number of blocks.
fn ratios(curve: &Curve, blocks: u32) -> Vec<f64> {
    let visits_per_s = 1e9 / RESOLUTION_NS as f64;
    (0..=u64::from(blocks)).map(|size| curve.at(size).pages_per_s / visits_per_s).collect()
}

/// The mean and the largest difference, in points; the latter as it is after a shift of the size by up to 3 % of all.
fn differences(exact: &[f64], sampled: &[f64]) -> (f64, f64) {
    let differs = |one: f64, other: f64| 100.0 * (one - other).abs();
    let mean = exact.iter().zip(sampled).map(|(one, other)| differs(*one, *other)).sum::<f64>() / exact.len() as f64;
    let shift = exact.len() * 3 / 100;
    let largest = (1..exact.len()).map(|size| {
        let near = &sampled[size.saturating_sub(shift)..(size + shift).min(sampled.len())];
        near.iter().map(|other| differs(exact[size], *other)).fold(f64::INFINITY, f64::min)
    });
    (mean, largest.fold(0.0, f64::max))
}

#[test]
fn the_sampled_curve_is_within_two_points_of_the_exact_one() {
    let mut reports = Vec::new();
    // The graphs have their own size, a hundred times that of the others.
    let workloads =
        Workload::ALL.into_iter().filter(|it| !matches!(it, Workload::Bc | Workload::Bfs | Workload::PageRank));
    for workload in workloads {
        let visits = Visits::of(&workload.trace(BLOCKS, 1));
        let exact = exact(&visits);
        let curve = sampled(&visits, 7);
        let (mean, largest) = differences(&exact, &ratios(&curve, visits.memory));
        println!("{workload}: mean {mean:.2} points, largest {largest:.2}, {} samples", curve.samples());
        reports.push((workload, mean, largest));
    }
    let off: Vec<_> = reports.iter().filter(|(_, mean, _)| *mean > MEAN_POINTS_MAX).collect();
    assert!(off.is_empty(), "{off:?}");
}
