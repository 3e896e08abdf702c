// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counts the requests that were denied, by reason. Pure.

use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_agent_wire::Denial;

/// The reasons, as metrics name them.
const REASONS: [&str; 8] =
    ["ambiguous", "busy", "malformed", "no_metrics", "not_bound", "not_permitted", "not_recorded", "version"];

/// How many requests were denied since the agent's start.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; REASONS.len()]);

// Relaxed throughout: each count is read alone.
impl Refusals {
    pub(crate) fn count(&self, denial: &Denial) {
        let reason = match denial {
            Denial::Ambiguous { .. } => 0,
            Denial::Busy { .. } => 1,
            Denial::Malformed { .. } => 2,
            Denial::NoMetrics => 3,
            Denial::NotBound { .. } => 4,
            Denial::NotPermitted { .. } => 5,
            Denial::NotRecorded { .. } => 6,
            Denial::Version { .. } => 7,
        };
        self.0[reason].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of each reason.
    pub(crate) fn read(&self) -> Vec<(&'static str, u64)> {
        REASONS.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_denial_is_counted_under_its_reason() {
        let refusals = Refusals::default();
        let denials = [
            Denial::Ambiguous { ids: Vec::new() },
            Denial::Busy { programs: 1 },
            Denial::Malformed { why: String::new() },
            Denial::NoMetrics,
            Denial::NotBound { host: String::new() },
            Denial::NotPermitted { uid: 1, gid: 1 },
            Denial::NotRecorded { why: String::new() },
            Denial::Version { version: 1 },
        ];
        for (times, denial) in denials.iter().enumerate() {
            (0..=times).for_each(|_| refusals.count(denial));
        }
        let counts: Vec<u64> = refusals.read().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8]);
        for (denial, (reason, _)) in denials.iter().zip(refusals.read()) {
            let kind = format!("{denial:?}").to_lowercase();
            assert!(kind.starts_with(&reason.replace('_', "")), "{kind} counts as {reason}");
        }
    }
}
