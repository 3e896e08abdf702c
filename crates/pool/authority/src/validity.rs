// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long certificates are valid, and when they are renewed. Pure: time is an argument, and it may jump.

use aquifer_fabric::Millis;

/// Maximum validity of an end's certificate. A choice: a little more than two years, once the limit of public
/// authorities.
pub const DAYS_MAX: u32 = 825;
/// Maximum difference between the clocks of two machines: a certificate is valid from this long before it was signed,
/// and a token from this long before it was made.
pub const SKEW: Millis = Millis(5 * 60_000);
/// A day in milliseconds.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first instant at which it is valid.
    pub from: Millis,
    /// The last instant at which it is valid.
    pub until: Millis,
}

impl Validity {
    /// Creates the validity of a certificate that is signed now, for `days` days, but not beyond the end of its
    /// authority's validity, `authority`. Returns `None` if the authority has expired or is about to.
    pub fn new(now: Millis, days: u32, authority: Millis) -> Option<Validity> {
        let from = Millis(now.0.saturating_sub(SKEW.0));
        let until = Millis(now.0.saturating_add(u64::from(days.min(DAYS_MAX)) * DAY_MS).min(authority.0));
        (until.0 > now.0).then_some(Validity { from, until })
    }

    /// Returns whether a renewal is due: two thirds of the validity are over. A certificate that is not valid yet is
    /// not renewed: the clock is wrong, and the dates of a new certificate would be as wrong.
    pub const fn is_due(&self, now: Millis) -> bool {
        let whole = self.until.0.saturating_sub(self.from.0);
        now.0 >= self.from.0.saturating_add(whole / 3 * 2)
    }

    /// Returns whether the certificate is valid at this instant.
    pub const fn holds(&self, now: Millis) -> bool {
        self.from.0 <= now.0 && now.0 <= self.until.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_800_000_000_000);

    #[test]
    fn renewal_is_due_after_two_thirds_whichever_way_the_clock_jumps() {
        let validity = Validity::new(NOW, 90, Millis(u64::MAX)).expect("valid");
        for (days, is_due) in [(-400_i64, false), (0, false), (59, false), (61, true), (89, true), (4000, true)] {
            let at = Millis(NOW.0.saturating_add_signed(days * 86_400_000));
            assert_eq!(validity.is_due(at), is_due, "after {days} days");
        }
        assert!(validity.holds(NOW) && validity.holds(Millis(NOW.0 - SKEW.0)));
        assert!(!validity.holds(Millis(NOW.0 - SKEW.0 - 1)) && !validity.holds(Millis(validity.until.0 + 1)));
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let end = Millis(NOW.0 + DAY_MS);
        assert_eq!(Validity::new(NOW, 90, end).expect("a day is left").until, end);
        assert_eq!(Validity::new(end, 90, end), None);
        assert_eq!(Validity::new(Millis(u64::MAX), 90, end), None);
        let most = Validity::new(NOW, u32::MAX, Millis(u64::MAX)).expect("valid");
        assert_eq!(most.until.0 - NOW.0, u64::from(DAYS_MAX) * DAY_MS);
    }
}
