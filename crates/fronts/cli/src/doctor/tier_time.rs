// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Measures how long a tier takes to read: the part of a fault's latency that the pager cannot change.
//!
//! Reads one block at a time, as a faulting thread does, from offsets that no read-ahead can predict, into frames that
//! are not in a CPU cache.

use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_sys::{FrameBuffer, direct_io};
use aquifer_terminal::{columns, width};
use aquifer_tiers::{OpenFailure, Tier, TierFailure, TierSpec, open};
use serde::Serialize;

use crate::exit::{ExitCode, Failure};

/// A page, the standard block, the largest block.
const SIZES: [usize; 3] = [4 << 10, 128 << 10, 2 << 20];
/// How much of the tier is read from: more than a CPU cache holds.
const SPAN_BYTES: u64 = 256 << 20;
/// Total size of the frames that the reads use in turn.
const FRAMES_BYTES: usize = 64 << 20;
/// Bounds on the reads of one size: their number and their total time.
const READS_MAX: usize = 16_384;
const TIME_MAX: Duration = Duration::from_secs(2);

/// The measurement for one block size.
#[derive(Debug, Serialize)]
pub struct TierTime {
    tier: &'static str,
    bytes: usize,
    reads: usize,
    read_us_mean: f64,
    read_us_p50: f64,
    read_us_p99: f64,
}

/// Opens the tier, fills a part of it, and reads it back. Also returns the tier's notices to the user.
pub fn measure(spec: &TierSpec) -> Result<(Vec<TierTime>, Vec<String>), Failure> {
    let failure = |failure: TierFailure| Failure::new(ExitCode::Failure, failure.to_string(), "try another tier");
    let refused = |refused: OpenFailure| Failure::new(ExitCode::Failure, format!("--tier: {refused}"), "");
    let tier = open(spec).map_err(refused)?;
    if tier.capacity_bytes() < SIZES[2] as u64 {
        let (has, min) = (ByteSize(tier.capacity_bytes()), ByteSize(SIZES[2] as u64));
        let cause = format!("--tier: a tier of {has} is too small for a read of {min}");
        return Err(Failure::new(ExitCode::Failure, cause, format!("give it at least {min}")));
    }
    let span = tier.capacity_bytes().min(SPAN_BYTES);
    let mut frames: Vec<FrameBuffer> =
        (0..FRAMES_BYTES / SIZES[2]).map(|_| direct_io::lasting_buffer(SIZES[2] / 4096)).collect();
    for (index, place) in (0..span / SIZES[2] as u64).enumerate() {
        let frame = &mut frames[index % (FRAMES_BYTES / SIZES[2])];
        frame.bytes_mut().fill(index as u8 + 1);
        tier.write(place * SIZES[2] as u64, frame).map_err(failure)?;
    }
    tier.flush().map_err(failure)?;
    drop(frames);
    let times = SIZES.into_iter().map(|size| read(&*tier, size, span).map_err(failure)).collect::<Result<_, _>>()?;
    Ok((times, tier.notices().to_vec()))
}

fn read(tier: &dyn Tier, size: usize, span: u64) -> Result<TierTime, TierFailure> {
    let places = (span / size as u64).max(1);
    let mut frames: Vec<FrameBuffer> =
        (0..FRAMES_BYTES / size).map(|_| direct_io::lasting_buffer(size / 4096)).collect();
    // Touches the frames so that they are populated before the measurement starts.
    frames.iter_mut().for_each(|frame| frame.bytes_mut().fill(0));
    let count = frames.len();
    let mut times = Vec::with_capacity(READS_MAX);
    let start = Instant::now();
    let mut place = 0;
    while times.len() < READS_MAX.min(4 * count) && start.elapsed() < TIME_MAX {
        // A large prime step visits every offset, and each is far from the previous one.
        place = (place + 1_000_003) % places;
        let frame = &mut frames[times.len() % count];
        let before = Instant::now();
        tier.read(place * size as u64, frame)?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(TierTime {
        tier: tier.name(),
        bytes: size,
        reads: times.len(),
        read_us_mean: times.iter().sum::<f64>() / times.len() as f64,
        read_us_p50: times[times.len() / 2],
        read_us_p99: times[times.len() * 99 / 100],
    })
}

/// Returns the results as a table.
pub fn page(times: &[TierTime]) -> String {
    let head = ["TIER", "READ OF", "MEAN us", "MEDIAN us", "99 % us"].map(str::to_owned).to_vec();
    let rows = times.iter().map(|time| {
        let mut row = vec![time.tier.to_owned(), ByteSize(time.bytes as u64).to_string()];
        row.extend([time.read_us_mean, time.read_us_p50, time.read_us_p99].map(|us| format!("{us:.1}")));
        row
    });
    columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), width())
}

/// Returns the results as JSON, one object per line and size.
pub fn json_lines(times: &[TierTime]) -> String {
    times.iter().map(|time| serde_json::to_string(time).expect("numbers and words are always JSON") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_read_and_larger_reads_take_longer() {
        let (times, _) = measure(&"dram:size=16MiB".parse().unwrap()).unwrap();
        assert_eq!(times.iter().map(|time| time.bytes).collect::<Vec<_>>(), SIZES);
        assert!(times[2].read_us_p50 > times[0].read_us_p50, "{times:?}");
        assert_eq!(page(&times).lines().count(), 4);
        let line: serde_json::Value = serde_json::from_str(json_lines(&times).lines().next().unwrap()).unwrap();
        assert!(line["bytes"] == 4096 && line["read_us_mean"].as_f64().unwrap() > 0.0);
    }

    /// Such a tier used to be reported as a bug in Aquifer, with a request to report it.
    #[test]
    fn a_tier_that_holds_no_large_block_is_refused() {
        let refused = measure(&"dram:size=1MiB".parse().unwrap()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "--tier: a tier of 1MiB is too small for a read of 2MiB; give it at least 2MiB"
        );
        assert!(measure(&"dram:size=2MiB".parse().unwrap()).is_ok());
    }

    #[test]
    fn a_tier_that_fails_is_reported() {
        assert!(measure(&"failing:after=0:dram:size=16MiB".parse().unwrap()).is_err());
    }
}
