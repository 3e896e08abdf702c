// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve in the segment: figures that belong together, written as a whole (`sequenced.rs`).
//!
//! Any process with the descriptor may have written the words, so a reader assumes nothing about them: they are
//! numbers. Numbers that form no curve are refused where a curve is made of them (`Curve::from_parts` in
//! `core/src/mrc/`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{CURVE_HEAD_WORDS, CURVE_POINT_WORDS};
use crate::sequenced::{self, SettleTime};

/// Maximum number of points of a curve.
pub const CURVE_POINTS: usize = 64;

/// A miss-ratio curve, and what it was measured under.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CurveFigures {
    /// How long the program was sampled, in nanoseconds.
    pub measured_ns: u64,
    /// Pages that were sampled.
    pub samples: u64,
    /// Bytes with contents.
    pub content_bytes: u64,
    /// Bytes touched each second.
    pub touched_bytes_per_s: f64,
    /// The time that threads waited for fetches meanwhile, as a part of the whole.
    pub waited: f64,
    /// How long a fetch took on average, in seconds. 0 if there was none.
    pub fetch_s: f64,
    /// The points, at most [`CURVE_POINTS`].
    pub points: Vec<CurvePoint>,
}

/// One point of a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurvePoint {
    /// Up to this much DRAM.
    pub bytes: u64,
    /// Bytes fetched each second.
    pub bytes_per_s: f64,
    /// Fetches each second.
    pub fetches_per_s: f64,
}

/// Writes a curve. `words` are sequence, number of points, figures, points.
pub(crate) fn write(words: &[AtomicU64], figures: &CurveFigures) -> bool {
    let count = figures.points.len().min((words.len() - CURVE_HEAD_WORDS) / CURVE_POINT_WORDS);
    sequenced::write(words, |words| {
        let head = [
            count as u64,
            figures.measured_ns,
            figures.samples,
            figures.content_bytes,
            figures.touched_bytes_per_s.to_bits(),
            figures.waited.to_bits(),
            figures.fetch_s.to_bits(),
        ];
        let points = figures.points[..count].iter();
        let points = points.flat_map(|point| [point.bytes, point.bytes_per_s.to_bits(), point.fetches_per_s.to_bits()]);
        let values = head.into_iter().chain(points);
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    })
}

/// Reads a curve. `None` if there is none, or while it is being written.
pub(crate) fn read(load: impl Fn(usize) -> u64, timeout: &SettleTime) -> Option<CurveFigures> {
    let rate = |index: usize| f64::from_bits(load(index));
    let take = || CurveFigures {
        measured_ns: load(2),
        samples: load(3),
        content_bytes: load(4),
        touched_bytes_per_s: rate(5),
        waited: rate(6),
        fetch_s: rate(7),
        points: (0..load(1).min(CURVE_POINTS as u64) as usize)
            .map(|point| CURVE_HEAD_WORDS + point * CURVE_POINT_WORDS)
            .map(|at| CurvePoint { bytes: load(at), bytes_per_s: rate(at + 1), fetches_per_s: rate(at + 2) })
            .collect(),
    };
    sequenced::read(&load, take, timeout).filter(|figures| figures.samples > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;
    use crate::layout::CURVE_WORDS;

    fn figures(points: usize) -> CurveFigures {
        let point = |index: usize| CurvePoint {
            bytes: index as u64 * 4096,
            bytes_per_s: 1e9 / (index + 1) as f64,
            fetches_per_s: 0.25,
        };
        CurveFigures {
            measured_ns: 7,
            samples: 3,
            content_bytes: 1 << 40,
            touched_bytes_per_s: 2e9,
            waited: 0.125,
            fetch_s: 80e-6,
            points: (0..points).map(point).collect(),
        }
    }

    #[test]
    fn a_curve_reads_back_and_a_long_one_is_cut() {
        let counters = Counters::create().unwrap();
        assert_eq!(counters.snapshot().curve(), None, "none was measured");
        for points in [0, 1, CURVE_POINTS] {
            counters.write_curve(&figures(points));
            assert_eq!(counters.snapshot().curve(), Some(&figures(points)));
        }
        counters.write_curve(&figures(CURVE_POINTS + 9));
        assert_eq!(counters.snapshot().curve(), Some(&figures(CURVE_POINTS)));
    }

    #[test]
    fn a_write_that_does_not_end_and_numbers_without_meaning_are_no_curve() {
        let words: Vec<AtomicU64> = (0..CURVE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let read = || read(|index| words[index].load(Ordering::Acquire), &SettleTime::default());
        assert!(write(&words, &figures(2)));
        words[0].fetch_add(1, Ordering::Relaxed);
        assert_eq!((read(), write(&words, &figures(1))), (None, false));
        words.iter().for_each(|word| word.store(u64::MAX - 1, Ordering::Relaxed));
        assert_eq!(read().map(|figures| figures.points.len()), Some(CURVE_POINTS));
    }
}
