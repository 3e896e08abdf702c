// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long and how often the client waits. Every wait and every retry ends by one of these.

use std::time::Duration;

/// The bounds of a client's waits and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long connecting may take.
    pub connect: Duration,
    /// How long the answer to one message may take. MCTP and mailboxes allow 2 s (CXL 3.1, 9.20.2 and 8.2.8.4).
    pub answer: Duration,
    /// The minimum pause between the answer to a command and the next command, for devices that need it.
    pub gap: Duration,
    /// How often a command is resent because of its return code.
    pub busy_retries: u32,
    /// The first wait before that; it doubles each time, up to [`Limits::busy_pause_max`].
    pub busy_pause: Duration,
    /// The longest of these waits.
    pub busy_pause_max: Duration,
    /// How often a command that only reads is resent because its answer was lost.
    pub lost_retries: u32,
    /// How many messages may arrive that are not the awaited answer.
    pub strays: u32,
    /// How long a background operation may take.
    pub background: Duration,
    /// The pause between two requests for its status.
    pub background_poll: Duration,
    /// How many requests read one list, piece by piece.
    pub pieces: u32,
}

impl Default for Limits {
    /// Returns limits for switches: twelve resends, 5 s in all, outlast a bind; a background operation may take a
    /// minute, which is longer than any that was seen (4 s); a list has at most 256 pieces, one for each port or vPPB.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(2),
            gap: Duration::ZERO,
            busy_retries: 12,
            busy_pause: Duration::from_millis(10),
            busy_pause_max: Duration::from_millis(1000),
            lost_retries: 2,
            strays: 64,
            background: Duration::from_secs(60),
            background_poll: Duration::from_millis(10),
            pieces: 256,
        }
    }
}

impl Limits {
    /// Returns the wait before the n-th resend.
    pub fn busy_pause(&self, n: u32) -> Duration {
        self.busy_pause.saturating_mul(1 << n.min(16)).min(self.busy_pause_max)
    }

    /// Returns the longest time that one exchange of one command can take, without a background operation: every
    /// attempt, lost or busy, with its waits. Tests hold the client to it.
    pub fn command_max(&self) -> Duration {
        let pauses: Duration = (0..self.busy_retries).map(|n| self.busy_pause(n)).sum();
        // Sending and receiving each have the time of an answer.
        (self.answer * 2 + self.gap) * (self.busy_retries + self.lost_retries + 1) + pauses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_limit() {
        let limits = Limits::default();
        let pauses: Vec<u128> = (0..9).map(|n| limits.busy_pause(n).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(limits.busy_pause(u32::MAX), limits.busy_pause_max);
        assert!(limits.command_max() < Duration::from_secs(70), "{:?}", limits.command_max());
    }
}
