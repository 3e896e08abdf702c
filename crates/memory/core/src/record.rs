// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Recordings: every input of an engine, in order, and a digest of every answer.
//!
//! Pure. The pager writes the inputs of its engine ([`Call`]) and the answers ([`Summary`]). The simulator reads them
//! back, gives another engine the same inputs, and compares. An engine is a function of its inputs, so a recording
//! repeats a run, decision by decision, without the program and without its memory's contents.
//!
//! - `call.rs`: the engine's calls, as values, and how to repeat them.
//! - `answer.rs`: the recorded form of an answer.
//! - `event.rs`: the bytes of one event: the input and the answer.
//! - `runs.rs`: lists within an event, run-length encoded.
//! - `file.rs`: the bytes of a recording: header, batches of events, checksums.
//!
//! `docs/recording.md` describes the format. Writing allocates nothing and goes byte by byte to a [`Sink`], since it
//! happens on the fault path. Next on the path: `pager/src/recorder.rs`, which writes, and the simulator's
//! `recording.rs`, which reads.

mod answer;
mod call;
mod event;
mod file;
mod runs;

pub use answer::{Digest, Summary};
pub use call::{Answer, Call};
pub use event::{Event, Sink, put_call, put_summary};
pub use file::{
    BATCH_HEADER_BYTES, BATCH_PAYLOAD_MAX, Damage, End, HEADER_BYTES, Header, Recording, VERSION, batch_header,
    count_events,
};
pub use runs::{GUARD_RUNS_BYTES, Guarded, Runs, guard_runs, push_run};
