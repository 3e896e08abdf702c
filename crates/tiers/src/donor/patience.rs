// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long a donor is waited for: long where it alone has the bytes, briefly where another one has them, too.

use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// How long a socket may take to be connected, and how long a donor to greet back.
    pub(crate) connect: Duration,
    /// How long a handshake may take. It is two round trips and some milliseconds of computing at each end; a donor
    /// that many processes come to at once does one after the other.
    pub(crate) handshake: Duration,
    /// How long a donor has for one answer. It has it within a millisecond, or something is wrong with it or the way
    /// there.
    pub(crate) answer: Duration,
    /// How long a fault waits for a donor that is gone, before its bytes are given up.
    pub(crate) loss: Duration,
}

impl Patience {
    /// Where nobody else has the bytes. To give up after five seconds is a choice: longer than a switch takes to find
    /// another way, much shorter than the pager's own patience (120 s) and the least that people wait for.
    pub(crate) const ALONE: Patience = Patience {
        connect: Duration::from_secs(1),
        handshake: Duration::from_secs(2),
        answer: Duration::from_secs(3),
        loss: Duration::from_secs(5),
    };

    /// Where others have the bytes, too. What several donors are asked at once, they have the same 0.4 seconds for. Who
    /// has not answered gets a second chance, which is a new connection, of 0.25 seconds without TLS, one donor after
    /// the other. Waits are cut into pieces (`place.rs`), with which those are 0.6 and 0.4 at the most. Reads ask
    /// those first who did not stand still lately (`array/shards/gather.rs`). Writes that are stored often enough go on
    /// without the others after 0.7 seconds (`array/shards.rs`).
    pub(crate) const AMONG_OTHERS: Patience = Patience {
        connect: Duration::from_millis(250),
        handshake: Duration::from_millis(400),
        answer: Duration::from_millis(400),
        loss: Duration::from_millis(150),
    };

    /// How long a connection may take to come about.
    pub(crate) const fn open(&self) -> Duration {
        Duration::from_millis(2 * self.connect.as_millis() as u64 + self.handshake.as_millis() as u64)
    }

    /// How long somebody waits who waits for another's request: until that one has come to the end of a connection and
    /// an answer, and once more.
    pub(crate) const fn turn(&self) -> Duration {
        Duration::from_millis(2 * (self.open().as_millis() as u64 + self.answer.as_millis() as u64))
    }
}
