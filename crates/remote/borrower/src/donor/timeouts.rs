// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long to wait for a donor: long if no other donor has the bytes, briefly if another has them, too.

use std::time::Duration;

/// How long to wait for a donor, for each kind of operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// How long a socket may take to connect, and a donor to answer a greeting.
    pub(crate) connect: Duration,
    /// How long a handshake may take. It is two round trips and some milliseconds of computing at each end; a donor to
    /// which many processes connect at the same time handles one after the other.
    pub(crate) handshake: Duration,
    /// How long a donor has for one answer. A healthy donor answers within a millisecond over a healthy path.
    pub(crate) answer: Duration,
    /// How long a fault waits for a donor that does not answer before its bytes are given up.
    pub(crate) loss: Duration,
}

impl Timeouts {
    /// If no other donor has the bytes. To give up after five seconds is a choice: longer than a switch takes to find
    /// another path, and much shorter than the pager's own timeout (120 s) and than the time after which people give
    /// up.
    pub(crate) const ALONE: Timeouts = Timeouts {
        connect: Duration::from_secs(1),
        handshake: Duration::from_secs(2),
        answer: Duration::from_secs(3),
        loss: Duration::from_secs(5),
    };

    /// If others have the bytes, too. Several donors that are asked at the same time share the same 0.4 seconds. A
    /// donor that has not answered gets a second chance: a new connection, which may take 0.25 seconds without TLS.
    /// Donors get their second chances one after the other. Waits are cut into pieces (`endpoint.rs`), so these limits
    /// become at most 0.6 and 0.4 seconds. Reads first ask donors that did not hang recently
    /// (`array/shards/gather.rs`). Writes that enough donors have stored continue without the others after 0.7 seconds
    /// (`array/shards.rs`).
    pub(crate) const AMONG_OTHERS: Timeouts = Timeouts {
        connect: Duration::from_millis(250),
        handshake: Duration::from_millis(400),
        answer: Duration::from_millis(400),
        loss: Duration::from_millis(150),
    };

    /// How long it may take to establish a connection.
    pub(crate) const fn open(&self) -> Duration {
        Duration::from_millis(2 * self.connect.as_millis() as u64 + self.handshake.as_millis() as u64)
    }

    /// How long a thread waits for another thread's request: twice as long as that request may take to connect and to
    /// get its answer.
    pub(crate) const fn other_request(&self) -> Duration {
        Duration::from_millis(2 * (self.open().as_millis() as u64 + self.answer.as_millis() as u64))
    }
}
