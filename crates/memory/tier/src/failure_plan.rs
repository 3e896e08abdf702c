// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which operations of a tier fail, for tests of everything above a tier.
//!
//! Pure: the same plan and the same operations in the same order give the same verdicts. These are the rules, as they
//! are written in `--tier failing:RULES:SPEC`:
//!
//! | rule            | meaning                                                                       |
//! |-----------------|-------------------------------------------------------------------------------|
//! | `after=N`       | every operation after the first N fails                                        |
//! | `every=K`       | each K-th operation fails                                                      |
//! | `offsets=A-B`   | only operations that touch these bytes are counted; without `after` and `every`, all of them fail |
//! | `on=read+write` | only these are counted: read, write, discard, flush, queue; by default read and write |
//! | `times=N`       | at most N operations fail                                                      |
//! | `errno=EIO`     | how they fail: EIO (default), ENOSPC, EDQUOT, EAGAIN, ENOMEM, ENODEV             |
//! | `corrupt=K`     | each K-th read that succeeds has one bit changed                               |
//! | `full-after=S`  | writes fail with ENOSPC once S bytes have been written                         |
//! | `delay=200us`   | each read and write takes this much longer                                     |

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::failure::Activity;

/// The longest delay that a plan may request, so that tests end.
pub const DELAY_MAX: Duration = Duration::from_secs(10);

/// The errno values that a plan can return, by name.
pub const ERRNOS: [(&str, i32); 6] = [
    ("EAGAIN", libc::EAGAIN),
    ("EDQUOT", libc::EDQUOT),
    ("EIO", libc::EIO),
    ("ENODEV", libc::ENODEV),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
];

/// What has to fail. The default fails nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePlan {
    /// Only these are counted.
    pub on: Vec<Activity>,
    /// Only operations that touch these bytes are counted.
    pub offsets: Option<Range<u64>>,
    /// Operations that succeed before all others fail.
    pub after: Option<u64>,
    /// Every K-th operation fails.
    pub every: Option<u64>,
    /// The maximum number of operations that fail.
    pub times: u64,
    /// How they fail.
    pub errno: i32,
    /// Every K-th successful read has one bit changed.
    pub corrupt: Option<u64>,
    /// Bytes that can be written before the tier is full.
    pub full_after_bytes: Option<u64>,
    /// How much longer each read and write takes.
    pub delay: Duration,
}

impl Default for FailurePlan {
    fn default() -> Self {
        Self {
            on: vec![Activity::Read, Activity::Write],
            offsets: None,
            after: None,
            every: None,
            times: u64::MAX,
            errno: libc::EIO,
            corrupt: None,
            full_after_bytes: None,
            delay: Duration::ZERO,
        }
    }
}

/// How one operation has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One bit of the bytes read has to be changed.
    Corrupt,
    /// The operation fails with this errno, without touching the tier underneath.
    Fail(i32),
    Pass,
}

/// A plan and its progress. Shared by a tier and its queues.
pub(crate) struct Verdicts {
    plan: FailurePlan,
    counted: AtomicU64,
    failed: AtomicU64,
    reads: AtomicU64,
    written_bytes: AtomicU64,
}

impl Verdicts {
    pub(crate) fn new(plan: FailurePlan) -> Self {
        let zero = || AtomicU64::new(0);
        Self { plan, counted: zero(), failed: zero(), reads: zero(), written_bytes: zero() }
    }

    pub(crate) fn delay(&self) -> Duration {
        self.plan.delay.min(DELAY_MAX)
    }

    /// The verdict on one operation, which is counted. Relaxed: each counter is independent.
    pub(crate) fn judge(&self, activity: Activity, offset: u64, len: u64) -> Verdict {
        let plan = &self.plan;
        if self.is_due(activity, offset, len) && self.failed.fetch_add(1, Ordering::Relaxed) < plan.times {
            return Verdict::Fail(plan.errno);
        }
        match activity {
            Activity::Write => {
                let before = self.written_bytes.fetch_add(len, Ordering::Relaxed);
                let full = plan.full_after_bytes.is_some_and(|limit| before.saturating_add(len) > limit);
                if full { Verdict::Fail(libc::ENOSPC) } else { Verdict::Pass }
            }
            Activity::Read => {
                let count = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
                let corrupt = plan.corrupt.is_some_and(|every| count.is_multiple_of(every));
                if corrupt { Verdict::Corrupt } else { Verdict::Pass }
            }
            _ => Verdict::Pass,
        }
    }

    fn is_due(&self, activity: Activity, offset: u64, len: u64) -> bool {
        let plan = &self.plan;
        let touches = |range: &Range<u64>| offset < range.end && offset.saturating_add(len) > range.start;
        if !plan.on.contains(&activity) || plan.offsets.as_ref().is_some_and(|range| !touches(range)) {
            return false;
        }
        let count = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let all_in_range = plan.offsets.is_some() && plan.after.is_none() && plan.every.is_none();
        all_in_range
            || plan.after.is_some_and(|after| count > after)
            || plan.every.is_some_and(|every| count.is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(plan: FailurePlan, operations: &[(Activity, u64)]) -> Vec<Verdict> {
        let verdicts = Verdicts::new(plan);
        operations.iter().map(|(activity, offset)| verdicts.judge(*activity, *offset, 4096)).collect()
    }

    const READ: (Activity, u64) = (Activity::Read, 0);
    const WRITE: (Activity, u64) = (Activity::Write, 0);
    const EIO: Verdict = Verdict::Fail(libc::EIO);

    #[test]
    fn nothing_fails_by_default() {
        assert_eq!(verdicts(FailurePlan::default(), &[READ, WRITE, READ]), [Verdict::Pass; 3]);
    }

    #[test]
    fn after_every_and_times_count_operations() {
        let plan = FailurePlan { after: Some(1), ..FailurePlan::default() };
        assert_eq!(verdicts(plan.clone(), &[READ, WRITE, READ]), [Verdict::Pass, EIO, EIO]);
        let once = FailurePlan { times: 1, ..plan };
        assert_eq!(verdicts(once, &[READ, WRITE, READ]), [Verdict::Pass, EIO, Verdict::Pass]);
        let plan = FailurePlan { every: Some(2), errno: libc::ENODEV, ..FailurePlan::default() };
        assert_eq!(verdicts(plan, &[READ, READ]), [Verdict::Pass, Verdict::Fail(libc::ENODEV)]);
    }

    #[test]
    fn only_chosen_activities_and_places_are_counted() {
        let plan = FailurePlan { on: vec![Activity::Write], after: Some(0), ..FailurePlan::default() };
        assert_eq!(verdicts(plan, &[READ, WRITE]), [Verdict::Pass, EIO]);
        let plan = FailurePlan { offsets: Some(4096..8192), ..FailurePlan::default() };
        let operations = [READ, (Activity::Read, 4096), (Activity::Read, 8192)];
        assert_eq!(verdicts(plan, &operations), [Verdict::Pass, EIO, Verdict::Pass]);
    }

    #[test]
    fn full_tiers_refuse_writes_only_and_bits_change_on_reads_only() {
        let plan = FailurePlan { full_after_bytes: Some(8192), ..FailurePlan::default() };
        let full = Verdict::Fail(libc::ENOSPC);
        assert_eq!(verdicts(plan, &[WRITE, READ, WRITE, WRITE]), [Verdict::Pass, Verdict::Pass, Verdict::Pass, full]);
        let plan = FailurePlan { corrupt: Some(2), ..FailurePlan::default() };
        assert_eq!(verdicts(plan, &[READ, WRITE, READ]), [Verdict::Pass, Verdict::Pass, Verdict::Corrupt]);
    }
}
