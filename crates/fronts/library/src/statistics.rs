// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The counters of a space.

use std::fmt;

use aquifer_stats::{Counter, Gauge, Snapshot};

/// Counts of a space since it was opened, and its present sizes. [`to_json`](Self::to_json) has all of them, with
/// latencies.
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use aquifer::Space;
///
/// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
/// let mut mapping = space.map(48 << 20)?;
/// mapping.view_mut::<u8>(..)?.fill(7);
/// let statistics = space.statistics();
/// assert!(statistics.evicted_blocks > 0 && statistics.resident_bytes <= 16 << 20);
/// assert!(statistics.to_json().contains("\"evicted_blocks\""));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Statistics {
    /// Faults resolved, of every kind.
    pub faults: u64,
    /// Bytes read from the tiers, on demand or ahead of it.
    pub fetched_bytes: u64,
    /// Bytes written to the tiers.
    pub written_back_bytes: u64,
    /// Blocks taken out of DRAM.
    pub evicted_blocks: u64,
    /// Bytes of mappings in DRAM now.
    pub resident_bytes: u64,
    /// The maximum of `resident_bytes` so far.
    pub resident_bytes_peak: u64,
    /// Bytes of the tiers in use now.
    pub stored_bytes: u64,
    /// Failures of any kind.
    pub errors: u64,
    snapshot: Snapshot,
}

impl Statistics {
    pub(crate) fn of(snapshot: Snapshot) -> Self {
        Self {
            faults: snapshot.counter(Counter::Faults),
            fetched_bytes: snapshot.counter(Counter::FetchedBytes),
            written_back_bytes: snapshot.counter(Counter::WrittenBackBytes),
            evicted_blocks: snapshot.counter(Counter::EvictedBlocks),
            resident_bytes: snapshot.gauge(Gauge::ResidentBytes),
            resident_bytes_peak: snapshot.gauge(Gauge::ResidentBytesPeak),
            stored_bytes: snapshot.gauge(Gauge::StoredBytes),
            errors: snapshot.counter(Counter::Errors),
            snapshot,
        }
    }

    /// Returns everything that was counted, with the names of `aquifer run --stats-json`.
    pub fn to_json(&self) -> String {
        self.snapshot.to_json()
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}
