// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides by which time volumes expire when the wall clock of the manager jumps. Pure.
//!
//! A volume expires at an instant of the wall clock, and is then released, bound or not. If that clock is set forward
//! by mistake, all of these volumes would be released at once, and programs would lose them. So expiry follows a jump
//! only after a while, in which somebody can set the clock right. Other clocks are compared nowhere: a manager that
//! starts with a wrong clock believes it.

use crate::id::Millis;

/// The longest time by which the wall clock may get ahead of the monotonic one between two rounds without being a jump:
/// more than a clock that is adjusted, or a manager that is paused for a moment, and less than a person's `12h`.
const JUMP_MS_MAX: u64 = 5 * 60 * 1000;
/// How long expiry does not follow a jump: time for somebody who is called at night.
const GRACE_MS: u64 = 60 * 60 * 1000;

/// The wall clock has jumped forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// By how much.
    pub by_ms: u64,
    /// For how long volumes do not expire by it.
    pub grace_ms: u64,
}

/// What is remembered of both clocks from round to round.
#[derive(Clone, Debug, Default)]
pub struct ExpiryClock {
    /// The wall clock and the monotonic clock of the last round.
    last: Option<(Millis, u64)>,
    /// How far the wall clock is ahead of the time by which volumes expire.
    held_ms: u64,
    /// The monotonic time from which on expiry follows the wall clock again.
    until: u64,
}

impl ExpiryClock {
    /// Returns the time by which volumes expire in this round, and the jump, if the wall clock has just jumped.
    pub fn follow(&mut self, wall: Millis, monotonic_ms: u64) -> (Millis, Option<Jump>) {
        let (then, at) = self.last.replace((wall, monotonic_ms)).unwrap_or((wall, monotonic_ms));
        if monotonic_ms >= self.until {
            self.held_ms = 0;
        }
        let expected = then.0.saturating_add(monotonic_ms.saturating_sub(at));
        let (ahead, behind) = (wall.0.saturating_sub(expected), expected.saturating_sub(wall.0));
        let jump = (ahead > JUMP_MS_MAX).then_some(Jump { by_ms: ahead, grace_ms: GRACE_MS });
        if jump.is_some() {
            self.held_ms = self.held_ms.saturating_add(ahead);
            self.until = monotonic_ms.saturating_add(GRACE_MS);
        } else if behind > JUMP_MS_MAX {
            // Set right, or set back by another mistake: volumes live longer, and nothing is lost.
            self.held_ms = self.held_ms.saturating_sub(behind);
        }
        (Millis(wall.0.saturating_sub(self.held_ms)), jump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_700_000_000_000;
    const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1000;

    fn followed(steps: &[(u64, u64)]) -> Vec<(u64, bool)> {
        let mut clock = ExpiryClock::default();
        let mut one = |(wall, monotonic): &(u64, u64)| {
            let (by, jump) = clock.follow(Millis(*wall), *monotonic);
            (by.0, jump.is_some())
        };
        steps.iter().map(&mut one).collect()
    }

    #[test]
    fn a_clock_that_goes_on_or_is_adjusted_is_followed() {
        let steps = [(T, 0), (T + 1000, 1000), (T + 2000 + JUMP_MS_MAX, 2000), (T + 3000, 3000)];
        assert_eq!(followed(&steps), steps.map(|(wall, _)| (wall, false)));
        assert_eq!(followed(&[(T, 0), (T + YEAR_MS, YEAR_MS)])[1], (T + YEAR_MS, false), "a year without a round");
    }

    #[test]
    fn a_jump_is_followed_when_its_grace_is_over() {
        let (wall, end) = (T + YEAR_MS, GRACE_MS + 1000);
        let steps = [(T, 0), (wall + 1000, 1000), (wall + 2000, 2000), (wall + end - 1, end - 1), (wall + end, end)];
        let expected = [(T, false), (T + 1000, true), (T + 2000, false), (T + end - 1, false), (wall + end, false)];
        assert_eq!(followed(&steps), expected);
    }

    #[test]
    fn a_jump_that_is_set_right_in_time_has_no_effect() {
        let steps = [(T, 0), (T + YEAR_MS + 1000, 1000), (T + 2000, 2000), (T + GRACE_MS * 2, GRACE_MS * 2)];
        assert_eq!(followed(&steps)[1..], [(T + 1000, true), (T + 2000, false), (T + GRACE_MS * 2, false)]);
        // A second jump in the grace of the first begins another grace.
        let steps = [(T, 0), (T + YEAR_MS, 0), (T + 2 * YEAR_MS + GRACE_MS - 1, GRACE_MS - 1)];
        assert_eq!(followed(&steps)[2], (T + GRACE_MS - 1, true));
    }

    #[test]
    fn nothing_wraps() {
        let steps = [(0, 0), (u64::MAX, 1), (0, u64::MAX), (u64::MAX, u64::MAX)];
        assert_eq!(followed(&steps).len(), 4);
    }
}
