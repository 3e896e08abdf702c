// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a mapping says about its memory, as tuples from which `python/aquifer/_status.py` makes objects.

use aquifer::{CLASSES, Histogram, Status, StatusRun, TemperatureRun};

/// Bytes by class of temperature.
pub type Classes = [u64; CLASSES];

/// Start, stop, name of the state, whether it is known to be clean, level of the chain of tiers.
pub type StatusTuple = (usize, usize, &'static str, Option<bool>, Option<usize>);

/// Start, stop, temperature.
pub type TemperatureTuple = (usize, usize, u8);

pub fn status(run: StatusRun) -> StatusTuple {
    let (state, is_clean, level) = match run.status {
        Status::Empty => ("empty", None, None),
        Status::Fetching => ("fetching", None, None),
        Status::Lost => ("lost", None, None),
        Status::Moving => ("moving", None, None),
        Status::Resident { is_clean } => ("resident", Some(is_clean), None),
        Status::Standby { is_clean } => ("standby", Some(is_clean), None),
        Status::Stored { level } => ("stored", None, Some(level)),
        // The crate may add a status; until it has a name here, it is reported as moving.
        _ => ("moving", None, None),
    };
    (run.range.start, run.range.end, state, is_clean, level)
}

pub fn temperature(run: TemperatureRun) -> TemperatureTuple {
    (run.range.start, run.range.end, run.temperature)
}

/// Returns the resident and the evicted bytes of each class.
pub fn classes(histogram: Histogram) -> (Classes, Classes) {
    (histogram.resident_bytes, histogram.away_bytes)
}
