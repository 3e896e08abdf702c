// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counters in shared memory: the pager inside the program writes them, and any process with the descriptor can read
//! them while the program runs and after it has died.
//!
//! The writer is [`Counters`]: atomics, no allocation, no lock, safe in a signal handler. The reader takes a
//! [`Snapshot`] and prints it as JSON or as Prometheus text. One table holds the names (`names.rs`), another the places
//! of the words (`layout.rs`); golden tests pin both.
//!
//! ```
//! use aquifer_stats::{Counter, Counters, FaultKind, Gauge, Text};
//!
//! let counters = Counters::create()?;
//! counters.add(Counter::Faults, 1);
//! counters.set_resident_bytes(4096);
//! counters.record(FaultKind::Fetch, 9_300);
//! counters.write(Text::Policy, "s3fifo");
//!
//! let snapshot = counters.snapshot();
//! assert_eq!(snapshot.counter(Counter::Faults), 1);
//! assert_eq!(snapshot.gauge(Gauge::ResidentBytesPeak), 4096);
//! assert!(snapshot.to_json().contains("\"policy\": \"s3fifo\""));
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod counters;
mod curve;
mod latency;
mod layout;
mod names;
mod prometheus;
mod sequenced;
mod snapshot;
mod text;

pub use counters::Counters;
pub use curve::{CURVE_POINTS, CurveFigures, CurvePoint};
pub use latency::Latencies;
pub use layout::{MAGIC, VERSION};
pub use names::{Counter, FaultKind, Gauge, LEVELS, LevelCounter, LevelGauge, Place, TEMPERATURES, Text};
pub use prometheus::{to_prometheus, to_prometheus_of_units};
pub use sequenced::SettleTime;
pub use snapshot::{LevelSnapshot, NotASegment, Snapshot, read, read_fault_latencies, read_in};

/// The name of the segment's memfd, as `/proc/PID/fd` shows it after `memfd:`.
pub const SEGMENT_NAME: &std::ffi::CStr = c"aquifer-stats";
