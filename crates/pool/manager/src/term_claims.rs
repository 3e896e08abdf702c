// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Claims of donors and hosts that they have seen a greater term than this manager's: which are accepted. Pure.
//!
//! Anybody with a certificate of the pool's authority can say that it has seen any term. So nobody's word ends a
//! leadership: only the store knows whether another manager has taken a greater term (`writer/hearing.rs` looks there).
//!
//! A claim is needed for one thing: a manager whose state was lost, or restored from an old backup, must take a term
//! that is greater than those that ends have seen. So the claim of an end that this manager meets for the first time
//! is accepted, once, and only if the term is one that a manager can have taken. All other claims are rejected, and
//! the end counts as silent until it reports.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{End, Millis, Term};

/// How far ahead of this manager's clock a term may be. Terms are milliseconds since 1970, at least those of the
/// election, so a greater one was taken by a manager whose clock was wrong, or by none. A day is more than the clocks
/// of two managers differ, and far less than would use terms up.
const AHEAD_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// What a claim means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// No manager takes such a term.
    Absurd,
    /// The end has reported before, or its claim was accepted before: another manager was elected, or the end lies.
    Contradicts,
    /// The end is met for the first time. There need not be another manager: this one's state may have been lost.
    Outruns,
}

impl Claim {
    /// Returns the message for a claim that is rejected, with the remedy.
    pub(crate) fn rejection(self, end: &str, seen: Term) -> String {
        let revoke = "revoke its certificate and examine its machine";
        match self {
            Self::Absurd => format!(
                "{end} says that it has seen term {seen}, which is more than a day ahead of this manager's clock: it \
                 counts as silent; set the clocks of all managers, and if they were right, {revoke}"
            ),
            Self::Contradicts | Self::Outruns => format!(
                "{end} says that it has seen term {seen}, but no other manager has taken a term in this manager's \
                 store: it counts as silent; if another manager with a store of its own runs, stop that one and \
                 restart this one, otherwise {revoke}"
            ),
        }
    }
}

/// The claims of all ends so far.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Ends for which this manager has taken a greater term.
    followed: BTreeSet<End>,
    /// Ends whose claim was rejected and that have not reported since.
    rejected: BTreeSet<End>,
}

impl Claims {
    /// Returns what a claim means. `has_reported`: the end has reported to this manager before.
    pub(crate) fn judge(&self, end: &End, has_reported: bool, seen: Term, now: Millis) -> Claim {
        if seen.0 > now.0.saturating_add(AHEAD_MS_MAX) {
            return Claim::Absurd;
        }
        match has_reported || self.followed.contains(end) {
            true => Claim::Contradicts,
            false => Claim::Outruns,
        }
    }

    /// Notes that this manager has taken a greater term for these ends.
    pub(crate) fn follow(&mut self, outrun_by: BTreeMap<End, Term>) {
        self.followed.extend(outrun_by.into_keys());
    }

    /// Notes that an end's claim is rejected. Returns whether this is the first time since it last reported.
    pub(crate) fn reject(&mut self, end: End) -> bool {
        self.rejected.insert(end)
    }

    /// Notes that an end has reported.
    pub(crate) fn reported(&mut self, end: &End) {
        self.rejected.remove(end);
    }

    /// Returns the ends whose claims are rejected.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = &End> {
        self.rejected.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_accepted_once_and_only_within_a_day_of_the_clock() {
        let (mut claims, now) = (Claims::default(), Millis(1_000_000_000));
        let (one, other) = (End::Donor("d1".parse().expect("a name")), End::Host("h1".parse().expect("a name")));
        let day = Term(now.0 + AHEAD_MS_MAX);
        assert_eq!(claims.judge(&one, false, day, now), Claim::Outruns);
        assert_eq!(claims.judge(&one, false, Term(day.0 + 1), now), Claim::Absurd);
        assert_eq!(claims.judge(&one, true, Term(u64::MAX), Millis(u64::MAX)), Claim::Contradicts, "nothing wraps");
        claims.follow([(one.clone(), day)].into());
        assert_eq!(claims.judge(&one, false, day, now), Claim::Contradicts, "it has said already what it has seen");
        assert_eq!(claims.judge(&other, false, day, now), Claim::Outruns);
        assert_eq!(claims.judge(&other, true, Term(1), now), Claim::Contradicts);
        assert!(claims.reject(one.clone()) && !claims.reject(one.clone()), "it is said once");
        claims.reported(&one);
        assert!(claims.rejected().next().is_none() && claims.reject(one));
    }

    #[test]
    fn every_line_has_a_remedy() {
        for claim in [Claim::Absurd, Claim::Contradicts, Claim::Outruns] {
            let line = claim.rejection("host h1", Term(u64::MAX));
            assert!(line.contains("; ") && line.contains("revoke its certificate"), "{line}");
        }
    }
}
