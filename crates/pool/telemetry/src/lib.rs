// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Spans for an OpenTelemetry collector: what the fabric manager and the agents did, when, and for how long.
//!
//! Off unless a collector is named. Then [`Telemetry`] has a thread, which sends finished spans; nothing else waits for
//! the collector, and spans are dropped and counted when it does not keep up. While telemetry is off, an [`Operation`]
//! costs nothing: it takes no memory, reads no clock and has no thread.
//!
//! ```
//! use aquifer_telemetry::{Side, Telemetry};
//!
//! let off = Telemetry::default();
//! let mut operation = off.begin("step", Side::Client, None);
//! operation.note("aquifer.step", || unreachable!("nobody reads it"));
//! assert_eq!(operation.trace_id(), None);
//! ```

#![forbid(unsafe_code)]

mod collector;
mod operation;
mod post;
mod queue;
mod sender;
mod traceparent;

pub use collector::{Collector, NotACollector};
pub use operation::{Operation, Side, Telemetry, TelemetryFailure};
pub use queue::Counts;
