// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Medians, spreads, and ratios of medians. Pure.

use serde::Serialize;

/// Whether a larger figure is better, as the program reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// A summary of measurements of the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

impl Spread {
    /// None when there are no values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min: first, max: last, count: sorted.len() })
    }
}

/// How many times as fast one side is as the other: 2 means twice as fast, whether larger or smaller figures are
/// better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the medians.
    pub ratio: f64,
    /// The smallest and the largest ratio within one round, in which both sides ran on the machine in the same state.
    pub min: f64,
    pub max: f64,
}

/// Compares two series of `(round, figure)`.
pub fn compare(ours: &[(u32, f64)], theirs: &[(u32, f64)], better: Better) -> Option<Ratio> {
    let speedup = |ours: f64, theirs: f64| match better {
        Better::Higher => ours / theirs,
        Better::Lower => theirs / ours,
    };
    let figures = |series: &[(u32, f64)]| series.iter().map(|(_, figure)| *figure).collect::<Vec<_>>();
    let ratio = speedup(Spread::of(&figures(ours))?.median, Spread::of(&figures(theirs))?.median);
    let mut rounds = Vec::new();
    for (round, figure) in ours {
        rounds.extend(theirs.iter().filter(|(other, _)| other == round).map(|(_, other)| speedup(*figure, *other)));
    }
    // If one side failed early, no round has both; then only the medians can be compared.
    let spread = Spread::of(&rounds);
    Some(Ratio { ratio, min: spread.map_or(ratio, |s| s.min), max: spread.map_or(ratio, |s| s.max) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_even_and_odd_counts() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 }));
        assert_eq!(Spread::of(&[4.0, 1.0]).unwrap().median, 2.5);
    }

    #[test]
    fn a_ratio_above_one_is_always_faster() {
        let ours = [(0, 10.0), (1, 20.0), (2, 30.0)];
        let theirs = [(0, 5.0), (1, 5.0), (2, 10.0)];
        let higher = compare(&ours, &theirs, Better::Higher).unwrap();
        assert_eq!((higher.ratio, higher.min, higher.max), (4.0, 2.0, 4.0));
        let lower = compare(&ours, &theirs, Better::Lower).unwrap();
        assert_eq!((lower.ratio, lower.min, lower.max), (0.25, 0.25, 0.5));
    }

    #[test]
    fn a_side_without_figures_has_no_ratio() {
        assert_eq!(compare(&[], &[(0, 1.0)], Better::Higher), None);
        let lone = compare(&[(0, 2.0)], &[(1, 1.0)], Better::Higher).unwrap();
        assert_eq!((lone.ratio, lone.min, lone.max), (2.0, 2.0, 2.0));
    }
}
