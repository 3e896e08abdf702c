// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a command is carried out with: the time, who asks, how long the answer may be, and where results go.

use aquifer_fmapi::{Dialect, Response, ReturnCode};

use crate::orders::Ordered;
use crate::outcome::{Effect, Event, Outcome};

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Its number; replies carry it.
    pub id: u32,
    /// The port by which it comes; 0 for a management network.
    pub ingress_port_id: u8,
    /// The dialect in which it writes.
    pub dialect: &'static Dialect,
}

/// The answer to a command. `ReturnCode::BACKGROUND_STARTED` is an error here, because it has no payload.
pub(crate) type Answer = Result<Response, ReturnCode>;

/// The context of one command: the time, the requester, the longest answer, and where results go.
#[derive(Debug)]
pub(crate) struct Context {
    /// The time of the command.
    pub now_ns: u64,
    /// The connection by which the request came.
    pub connection: Connection,
    /// Bytes that the payload of an answer may have. A tunnel subtracts the bytes that it needs itself.
    pub room: usize,
    /// The results of the command so far.
    pub outcome: Outcome,
    /// Set by a command whose answer waits for the driver: what it orders. The answer that it returns is not sent.
    pub ordered: Option<Ordered>,
}

impl Context {
    /// Returns a context without a request: time passes, a host acts, or a failure is injected.
    pub fn of_nobody(now_ns: u64) -> Self {
        let connection = Connection { id: 0, ingress_port_id: 0, dialect: &Dialect::STANDARD };
        Self { now_ns, connection, room: 0, outcome: Outcome::default(), ordered: None }
    }

    /// Adds an effect, for the driver to carry out.
    pub fn effect(&mut self, effect: Effect) {
        self.outcome.effects.push(effect);
    }

    /// Adds a record that was written or lost to the outcome.
    pub fn event(&mut self, event: Event) {
        self.outcome.events.push(event);
    }

    /// Returns how many entries of a list fit after its fixed fields.
    pub fn entries(&self, fixed: usize, entry: usize) -> usize {
        self.room.saturating_sub(fixed) / entry
    }
}
