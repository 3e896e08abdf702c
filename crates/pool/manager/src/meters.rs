// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counters of the daemon since its start, for Prometheus. `exposition.rs` writes them as text.
//!
//! Threads: the writer and those that answer requests. Each lock is held for one addition or one copy.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_telemetry::Counts;

/// Upper limits of the buckets of a duration, in microseconds: the lowest is for a write to memory, the highest for a
/// cluster that elects a leader.
pub(crate) const BUCKETS_US: [u64; 10] =
    [500, 1000, 2500, 5000, 10_000, 25_000, 100_000, 500_000, 2_500_000, 10_000_000];

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durations {
    /// How many fell into each bucket, without those below it; the last bucket has no limit.
    pub(crate) buckets: [u64; BUCKETS_US.len() + 1],
    pub(crate) sum_us: u64,
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.iter().position(|limit| us <= *limit).unwrap_or(BUCKETS_US.len());
        self.buckets[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
    }
}

/// A method, the path of a route, and a status. Their number is bounded by the table of routes.
type Answered = (&'static str, &'static str, u16);

/// The counters that metrics show.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    answered: Mutex<BTreeMap<Answered, u64>>,
    rounds: Mutex<Durations>,
    commits: Mutex<Durations>,
    commits_failed: AtomicU64,
    steps: AtomicU64,
    steps_failed: AtomicU64,
    terms: AtomicU64,
    claims_rejected: AtomicU64,
    /// `true` after the audit log was found to be damaged.
    is_audit_damaged: AtomicBool,
}

/// A copy of the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) answered: BTreeMap<Answered, u64>,
    pub(crate) rounds: Durations,
    pub(crate) commits: Durations,
    pub(crate) commits_failed: u64,
    pub(crate) steps: u64,
    pub(crate) steps_failed: u64,
    pub(crate) terms: u64,
    pub(crate) claims_rejected: u64,
    pub(crate) is_audit_damaged: bool,
    /// The counts of spans, which telemetry itself keeps.
    pub(crate) spans: Counts,
}

// Relaxed throughout: each counter is read alone, and nothing depends on the order of two of them.
impl Meters {
    /// Counts a request that was answered. Those without a route count as one.
    pub(crate) fn count_answer(&self, method: &'static str, path: &'static str, status: u16) {
        *self.answered.lock().expect("no holder of this lock panics").entry((method, path, status)).or_default() += 1;
    }

    /// Counts a transaction of the store that has ended.
    pub(crate) fn count_commit(&self, took: Duration, is_committed: bool) {
        self.commits.lock().expect("no holder of this lock panics").add(took);
        self.commits_failed.fetch_add(u64::from(!is_committed), Ordering::Relaxed);
    }

    /// Counts a round of the writer that has ended.
    pub(crate) fn count_round(&self, took: Duration) {
        self.rounds.lock().expect("no holder of this lock panics").add(took);
    }

    /// Counts steps that were sent.
    pub(crate) fn count_steps(&self, sent: usize, failed: usize) {
        self.steps.fetch_add(sent as u64, Ordering::Relaxed);
        self.steps_failed.fetch_add(failed as u64, Ordering::Relaxed);
    }

    /// Counts a term: this manager began to lead.
    pub(crate) fn count_term(&self) {
        self.terms.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts claims of greater terms that were rejected.
    pub(crate) fn count_rejected_claims(&self, claims: usize) {
        self.claims_rejected.fetch_add(claims as u64, Ordering::Relaxed);
    }

    /// Notes the result of a check of the audit log.
    pub(crate) fn note_audit(&self, is_damaged: bool) {
        self.is_audit_damaged.store(is_damaged, Ordering::Relaxed);
    }

    /// Returns a copy of all, with the counts of telemetry.
    pub(crate) fn read(&self, spans: Counts) -> Readings {
        let durations = |of: &Mutex<Durations>| of.lock().expect("no holder of this lock panics").clone();
        Readings {
            answered: self.answered.lock().expect("no holder of this lock panics").clone(),
            rounds: durations(&self.rounds),
            commits: durations(&self.commits),
            commits_failed: self.commits_failed.load(Ordering::Relaxed),
            steps: self.steps.load(Ordering::Relaxed),
            steps_failed: self.steps_failed.load(Ordering::Relaxed),
            terms: self.terms.load(Ordering::Relaxed),
            claims_rejected: self.claims_rejected.load(Ordering::Relaxed),
            is_audit_damaged: self.is_audit_damaged.load(Ordering::Relaxed),
            spans,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_bucket_that_has_it() {
        let mut durations = Durations::default();
        for us in [1, 500, 501, 20_000_000] {
            durations.add(Duration::from_micros(us));
        }
        assert_eq!(durations.buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(durations.sum_us, 20_001_002);
    }
}
