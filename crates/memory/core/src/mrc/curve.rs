// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A miss-ratio curve, and the answers that it gives.
//!
//! Pure arithmetic. A curve is a list of points, the smallest size first: from one point's size down to that of the
//! point before it, memory is fetched at the point's rates. Beyond the last point nothing is fetched twice, as far as
//! the samples show.

use super::RESOLUTION_NS;
use crate::engine::FRAMES_PART;

/// Maximum number of points of a curve.
pub const POINTS_MAX: usize = 64;

/// One step of the measured working set: what was touched within a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The time.
    pub until_s: f64,
    /// Pages that are touched within it.
    pub pages: f64,
    /// Blocks that were added by this step.
    pub blocks: f64,
}

/// The rates at which memory is fetched with a certain amount of DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Up to this many pages of DRAM.
    pub pages: u64,
    /// Pages fetched each second.
    pub pages_per_s: f64,
    /// Fetches each second: a block is one.
    pub fetches_per_s: f64,
}

/// How often memory would have to be fetched, for each amount of DRAM.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<Point>,
    touched_pages_per_s: f64,
    content_pages: u64,
    samples: u64,
}

/// A straight piece of the working set's growth.
#[derive(Clone, Copy, Debug)]
struct Piece {
    seconds: f64,
    pages: f64,
    blocks: f64,
}

impl Piece {
    fn rate(&self) -> f64 {
        self.pages / self.seconds
    }

    fn with(self, next: Piece) -> Piece {
        Piece {
            seconds: self.seconds + next.seconds,
            pages: self.pages + next.pages,
            blocks: self.blocks + next.blocks,
        }
    }
}

impl Curve {
    /// The curve of a working set that grows by `steps`, of memory of `content_pages`.
    pub(super) fn of(steps: &[Step], content_pages: u64, samples: u64) -> Self {
        let mut pieces: Vec<Piece> = Vec::with_capacity(steps.len());
        let (mut seconds, mut pages) = (0.0, 0.0);
        for step in steps {
            let mut piece = Piece { seconds: step.until_s - seconds, pages: step.pages - pages, blocks: step.blocks };
            (seconds, pages) = (step.until_s, step.pages);
            // The rate never rises with the time: pieces that say otherwise are noise, and become one.
            while let Some(before) = pieces.pop_if(|before| before.rate() <= piece.rate()) {
                piece = before.with(piece);
            }
            pieces.push(piece);
        }
        let touched_pages_per_s = touched(&pieces);
        thin(&mut pieces);
        let mut size = 0.0;
        let points = pieces.iter().map(|piece| {
            size += piece.pages;
            Point {
                pages: (size.round() as u64).min(content_pages),
                pages_per_s: piece.rate(),
                fetches_per_s: piece.blocks / piece.seconds,
            }
        });
        Self { points: points.collect(), touched_pages_per_s, content_pages, samples }
    }

    /// A curve that another process has measured. `None` if the numbers are not those of a curve.
    pub fn from_parts(points: Vec<Point>, touched_pages_per_s: f64, content_pages: u64, samples: u64) -> Option<Self> {
        let is_rate = |rate: f64| rate.is_finite() && rate >= 0.0;
        let are_rates = points.iter().all(|point| is_rate(point.pages_per_s) && is_rate(point.fetches_per_s));
        let falls = points.is_sorted_by(|one, next| one.pages <= next.pages && one.pages_per_s >= next.pages_per_s);
        let fits = points.len() <= POINTS_MAX && points.last().is_none_or(|last| last.pages <= content_pages);
        (are_rates && falls && fits && is_rate(touched_pages_per_s)).then_some(Self {
            points,
            touched_pages_per_s,
            content_pages,
            samples,
        })
    }

    /// The points, the smallest size first, at most [`POINTS_MAX`].
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Pages with contents when the curve was taken.
    pub fn content_pages(&self) -> u64 {
        self.content_pages
    }

    /// The number of pages that were sampled.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Pages touched each second, of which each counts once within [`RESOLUTION_NS`].
    pub fn touched_pages_per_s(&self) -> f64 {
        self.touched_pages_per_s
    }

    /// The rates at which memory is fetched with `pages` of DRAM.
    pub fn at(&self, pages: u64) -> Point {
        let found = self.points.iter().find(|point| pages < point.pages);
        found.map_or(Point { pages, ..Point::default() }, |point| Point { pages, ..*point })
    }

    /// The part of the touches that miss with `pages` of DRAM, from 0 to 1.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        let rate = self.at(pages).pages_per_s;
        if rate > 0.0 { (rate / self.touched_pages_per_s).min(1.0) } else { 0.0 }
    }

    /// The part of the time that a program loses to fetches with `pages` of DRAM, if each delays it by `fetch_s`
    /// seconds; from 0 to 1. `waited` is the part of its time that it lost while it was sampled.
    pub fn loss(&self, pages: u64, fetch_s: f64, waited: f64) -> f64 {
        // The rates are those of a program that waited: without waits it would have touched more in the same time.
        let busy = (1.0 - waited).clamp(BUSY_MIN, 1.0);
        let lost = self.at(pages).fetches_per_s * fetch_s / busy;
        // The figures of another process are not trusted.
        if lost.is_finite() { lost / (1.0 + lost) } else { 1.0 }
    }

    /// The least DRAM, in pages, with which the program loses at most `loss` of its time; see [`loss`](Self::loss).
    /// Frames in circulation are included.
    pub fn least_pages(&self, loss: f64, fetch_s: f64, waited: f64) -> u64 {
        let exceeds = |point: &&Point| point.pages > 0 && self.loss(point.pages - 1, fetch_s, waited) > loss;
        let pages = self.points.iter().rev().find(exceeds).map_or(0, |point| point.pages);
        pages + pages / FRAMES_PART
    }

    /// The pages that are touched within a time.
    pub fn working_set_pages(&self, seconds: f64) -> f64 {
        let (mut left, mut size, mut before) = (seconds, 0.0, 0);
        for point in &self.points {
            let pages = (point.pages - before) as f64;
            before = point.pages;
            if pages > left * point.pages_per_s {
                return size + left * point.pages_per_s;
            }
            (left, size) = (left - pages / point.pages_per_s, size + pages);
        }
        size
    }
}

/// The minimum part of the time that a program is assumed to have worked: a measured wait that leaves less than this
/// says that several threads waited at the same time.
const BUSY_MIN: f64 = 0.05;

/// Pages touched each second, from what the first [`RESOLUTION_NS`] show.
fn touched(pieces: &[Piece]) -> f64 {
    let resolution = RESOLUTION_NS as f64 / 1e9;
    let (mut left, mut pages) = (resolution, 0.0);
    for piece in pieces {
        let part = (left / piece.seconds).min(1.0);
        pages += piece.pages * part;
        left -= piece.seconds * part;
    }
    pages / resolution
}

/// Joins neighbours until at most [`POINTS_MAX`] are left: each time the two whose join changes the curve least.
fn thin(pieces: &mut Vec<Piece>) {
    while pieces.len() > POINTS_MAX {
        let change = |pair: &[Piece]| (pair[0].rate() - pair[1].rate()) * pair[0].pages.min(pair[1].pages);
        let pairs = pieces.windows(2).map(change).enumerate();
        let Some((least, _)) = pairs.min_by(|one, other| one.1.total_cmp(&other.1)) else { return };
        let next = pieces.remove(least + 1);
        pieces[least] = pieces[least].with(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(working_set: &[(f64, f64)]) -> Vec<Step> {
        let mut before = 0.0;
        let step = |&(until_s, pages): &(f64, f64)| {
            let blocks = pages - before;
            before = pages;
            Step { until_s, pages, blocks }
        };
        working_set.iter().map(step).collect()
    }

    #[test]
    fn a_size_is_fetched_at_the_rate_of_what_does_not_fit() {
        // 100 pages in the first second, 50 more in the next ten.
        let curve = Curve::of(&steps(&[(1.0, 100.0), (11.0, 150.0)]), 200, 9);
        assert_eq!([0, 99, 100, 149, 150, 1000].map(|pages| curve.at(pages).pages_per_s), [100., 100., 5., 5., 0., 0.]);
        assert_eq!(curve.miss_ratio(120), 0.05);
        assert_eq!(curve.working_set_pages(6.0), 125.0);
        assert_eq!(curve.points().len(), 2);
    }

    #[test]
    fn noise_becomes_one_piece_and_the_rate_never_rises() {
        let curve = Curve::of(&steps(&[(1.0, 10.0), (2.0, 60.0), (3.0, 70.0), (4.0, 100.0)]), 100, 9);
        let rates: Vec<f64> = curve.points().iter().map(|point| point.pages_per_s).collect();
        assert_eq!(rates, [30.0, 20.0]);
        let many: Vec<(f64, f64)> = (1..1000).map(|at| (f64::from(at), 1e6 * f64::from(at).ln_1p())).collect();
        let curve = Curve::of(&steps(&many), 10_000_000, 9);
        assert_eq!(curve.points().len(), POINTS_MAX);
        assert!(curve.points().is_sorted_by(|one, next| one.pages_per_s >= next.pages_per_s));
        assert_eq!(curve.points().last().map(|last| last.pages), Some(6_907_755));
    }

    #[test]
    fn the_least_dram_is_where_the_loss_passes_the_limit() {
        let curve = Curve::of(&steps(&[(1.0, 1000.0), (11.0, 1500.0), (111.0, 1600.0)]), 2000, 9);
        // 50 fetches of 1 ms each second lose 4.8 % of the time; 1000 lose half of it.
        let with_frames = |pages: u64| pages + pages / FRAMES_PART;
        assert_eq!(curve.least_pages(0.05, 0.001, 0.0), with_frames(1000));
        assert_eq!(curve.least_pages(0.04, 0.001, 0.0), with_frames(1500));
        assert_eq!(curve.least_pages(0.0005, 0.001, 0.0), with_frames(1600));
        assert_eq!(curve.least_pages(0.6, 0.001, 0.0), 0);
        assert!((curve.loss(0, 0.001, 0.0) - 0.5).abs() < 1e-9);
        // A program that waited half of the time while it was sampled touches twice as much without.
        assert!((curve.loss(1200, 0.001, 0.5) - 0.1 / 1.1).abs() < 1e-9);
        assert!(curve.loss(1200, 0.001, 17.0) < 1.0);
        assert_eq!((curve.loss(1200, f64::INFINITY, 0.0), curve.loss(1200, 0.001, f64::NAN)), (1.0, 1.0));
    }

    #[test]
    fn numbers_that_are_no_curve_are_refused() {
        let curve = Curve::of(&steps(&[(1.0, 100.0), (11.0, 150.0)]), 200, 9);
        let parts = |points: &[Point]| Curve::from_parts(points.to_vec(), curve.touched_pages_per_s(), 200, 9);
        assert_eq!(parts(curve.points()), Some(curve.clone()));
        let point = |pages, pages_per_s| Point { pages, pages_per_s, fetches_per_s: 1.0 };
        for bad in [
            vec![point(10, f64::NAN)],
            vec![point(10, -1.0)],
            vec![point(10, 1.0), point(9, 1.0)],
            vec![point(10, 1.0), point(11, 2.0)],
            vec![point(201, 1.0)],
            vec![point(1, 1.0); POINTS_MAX + 1],
        ] {
            assert_eq!(parts(&bad), None, "{bad:?}");
        }
        assert_eq!(Curve::from_parts(Vec::new(), f64::INFINITY, 1, 1), None);
    }
}
