// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Recordings: everything that an engine was told, in order, and a digest of everything that it answered.
//!
//! Pure. The pager writes what it tells its engine ([`Told`]) and what that answered ([`Summary`]); the simulator
//! reads it back, tells another engine the same, and compares. An engine is a function of what it is told, so a
//! recording repeats a run, decision by decision, without the program and without its memory's contents.
//!
//! - `told.rs`: the engine's doors, as values, and how to go through them again.
//! - `answer.rs`: what is kept of an answer.
//! - `event.rs`: the bytes of one event: what was told, and what was answered.
//! - `runs.rs`: lists within an event, run by run.
//! - `file.rs`: the bytes of a recording: header, batches of events, checksums.
//!
//! The format is in `docs/recording.md`. Writing allocates nothing and goes byte by byte to a [`Sink`], since it
//! happens on the fault path. Next on the way: `pager/src/recorder.rs`, which writes, and the simulator's
//! `recording.rs`, which reads.

mod answer;
mod event;
mod file;
mod runs;
mod told;

pub use answer::{Digest, Summary};
pub use event::{Event, Sink, put_summary, put_told};
pub use file::{
    BATCH_HEADER_BYTES, BATCH_PAYLOAD_MOST, Damage, End, HEADER_BYTES, Header, Recording, VERSION, batch_header,
    count_events,
};
pub use runs::{GUARD_RUNS_BYTES, Guarded, Runs, guard_runs, push_run};
pub use told::{Answer, Told};
