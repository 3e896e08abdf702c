// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which run of a donor has granted the leases that related processes share, and which of them forgets these leases
//! after the donor was restarted.
//!
//! Every process that connects finds out that the donor is another one. Only one of them may forget what the donor had:
//! the leases, and the members of places. A process that forgot later would forget what another one has stored in the
//! meantime. So the first one *claims* the restart, forgets, and only then names nobody as the donor's run. Until then
//! all of them refuse to connect, so nothing of the new run is known that could be forgotten.
//!
//! ```text
//!             claimed                 forgotten             a greeting
//!   run 1 ──────────────► run 1, claim ─────────► no run ──────────────► run 2
//!                          │        ▲
//!                          └────────┘ taken over, if it is claimed for too long
//! ```
//!
//! A process may be killed or stopped with a claim. Another one takes the claim over after [`CLAIM_TIMEOUT`] and does
//! all of it again. A process that continues after that has no effect: before each single thing that it forgets, after
//! it has looked at that thing, it checks that the claim is still its own, and it changes only what it has seen.
//!
//! Threads: connections on any, including signal handlers; a restart is claimed on the pager's upkeep thread. Locks
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns, random};
use aquifer_sys::words::Words;

/// The words that related processes share.
pub(crate) const INCARNATION_WORDS: usize = 2;
/// The run of the donor that has granted the leases; 0: there are none, and any run is right.
const RUN: usize = 0;
/// A random number of the process that forgets the leases; 0: none does.
const CLAIM: usize = 1;

/// After this time a claim counts as that of a process that was killed. Forgetting takes a fraction of a second for a
/// million slabs.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// The run of a donor that a family of processes knows.
pub(crate) struct Incarnation {
    words: Words,
    /// The run that this process last found to be over; 0: none.
    over: AtomicU64,
    /// The claim of another process that this one has seen, and since when.
    rival: AtomicU64,
    rival_since_ns: AtomicU64,
}

/// Whose greeting it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeter {
    /// The run that has granted the leases, or the first one.
    Known,
    /// A later run: the donor was restarted.
    Later,
    /// This cannot be known, because another process has changed the run in the meantime. A new greeting will tell.
    Unclear,
}

/// Who forgets what a donor had before its restart.
pub(crate) enum Forgetter<'a> {
    /// This process does it now.
    This(Claim<'a>),
    /// A related process does it now.
    Other,
    /// It has been done.
    Nobody,
}

/// The right to forget what a donor had before its restart.
pub(crate) struct Claim<'a> {
    incarnation: &'a Incarnation,
    own: u64,
    run: u64,
}

impl Incarnation {
    /// No run is known.
    pub(crate) fn new() -> Result<Incarnation, Errno> {
        Ok(Self::in_words(Words::shared(INCARNATION_WORDS)?))
    }

    fn in_words(words: Words) -> Incarnation {
        let zero = || AtomicU64::new(0);
        Incarnation { words, over: zero(), rival: zero(), rival_since_ns: zero() }
    }

    /// The run that has granted the leases; 0 if none has.
    pub(crate) fn run(&self) -> u64 {
        self.words[RUN].load(Ordering::SeqCst)
    }

    /// Uses the words that related processes share from now on. Returns false if they know another run than this
    /// process has met.
    pub(crate) fn follow(&mut self, words: Words) -> bool {
        let met = self.run();
        *self = Self::in_words(words);
        met == 0 || self.meet(0, met) == Greeter::Known
    }

    /// Judges the greeting of a donor's run. `before` was the known run when the connection was begun: what was known
    /// before the donor was asked is older than its answer.
    pub(crate) fn meet(&self, before: u64, greeting: u64) -> Greeter {
        match self.words[RUN].compare_exchange(0, greeting, Ordering::SeqCst, Ordering::SeqCst) {
            Err(known) if known != greeting => self.find_over(before),
            _ => Greeter::Known,
        }
    }

    /// Records that the run which was known when a connection was begun is over, because the donor does not know it any
    /// more.
    pub(crate) fn find_over(&self, before: u64) -> Greeter {
        if before == 0 || self.run() != before {
            return Greeter::Unclear;
        }
        self.over.store(before, Ordering::SeqCst);
        Greeter::Later
    }

    /// After this process has found that the donor was restarted: who forgets what it had.
    pub(crate) fn claim(&self) -> Forgetter<'_> {
        let run = self.run();
        if run == 0 || run != self.over.load(Ordering::SeqCst) {
            return Forgetter::Nobody;
        }
        let Ok(own) = random() else { return Forgetter::Other };
        let claim = Claim { incarnation: self, own: own | 1, run };
        let word = &self.words[CLAIM];
        if let Err(rival) = word.compare_exchange(0, claim.own, Ordering::SeqCst, Ordering::SeqCst)
            && !(self.is_too_long(rival)
                && word.compare_exchange(rival, claim.own, Ordering::SeqCst, Ordering::SeqCst).is_ok())
        {
            return Forgetter::Other;
        }
        // Another process may have forgotten everything since the run was loaded.
        if self.run() == run { Forgetter::This(claim) } else { Forgetter::Nobody }
    }

    /// Whether another process has had this claim for too long.
    fn is_too_long(&self, rival: u64) -> bool {
        let now = now_ns();
        if self.rival.swap(rival, Ordering::Relaxed) != rival {
            self.rival_since_ns.store(now, Ordering::Relaxed);
        }
        let since = self.rival_since_ns.load(Ordering::Relaxed);
        now.saturating_sub(since) > CLAIM_TIMEOUT.as_nanos() as u64
    }
}

impl Claim<'_> {
    /// Whether this process still has the claim. What it saw before a call that returns true is of the run that is
    /// over.
    pub(crate) fn is_valid(&self) -> bool {
        self.incarnation.run() == self.run && self.incarnation.words[CLAIM].load(Ordering::SeqCst) == self.own
    }

    /// Everything is forgotten: whichever run of the donor greets next is right. Returns false if another process has
    /// taken the claim over, and is not done yet.
    pub(crate) fn finish(self) -> bool {
        let run = &self.incarnation.words[RUN];
        if self.is_valid() {
            let _ = run.compare_exchange(self.run, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        run.load(Ordering::SeqCst) != self.run
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let word = &self.incarnation.words[CLAIM];
        let _ = word.compare_exchange(self.own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes that know run 11, and have both been greeted by run 12.
    fn two() -> [Incarnation; 2] {
        let words = Words::shared(INCARNATION_WORDS).unwrap();
        let all = [Incarnation::in_words(words.clone()), Incarnation::in_words(words)];
        assert!(all.iter().all(|one| one.meet(0, 11) == Greeter::Known));
        assert!(all.iter().all(|one| one.meet(11, 12) == Greeter::Later));
        all
    }

    fn claimed(one: &Incarnation) -> Option<Claim<'_>> {
        match one.claim() {
            Forgetter::This(claim) => Some(claim),
            _ => None,
        }
    }

    #[test]
    fn one_process_forgets_and_the_other_goes_on_with_what_is_new() {
        let [first, second] = two();
        let claim = claimed(&first).expect("it is the first");
        assert!(matches!(second.claim(), Forgetter::Other));
        assert_eq!(second.meet(second.run(), 12), Greeter::Later, "nobody connects meanwhile");
        assert!(claim.is_valid() && claim.finish());
        assert_eq!(first.meet(0, 12), Greeter::Known);
        assert!(matches!(second.claim(), Forgetter::Nobody));
        assert_eq!(second.meet(12, 12), Greeter::Known);
        assert_eq!(second.meet(12, 13), Greeter::Later);
        assert!(claimed(&second).is_some_and(Claim::finish), "the next restart");
    }

    #[test]
    fn a_greeting_that_is_judged_late_is_not_taken_for_a_restart() {
        let [first, second] = two();
        assert!(claimed(&first).is_some_and(Claim::finish));
        assert_eq!(first.meet(0, 12), Greeter::Known);
        // Its connection was begun before the restart, and the answer is of the run before.
        assert_eq!(second.meet(11, 11), Greeter::Unclear);
        assert_eq!(second.meet(0, 11), Greeter::Unclear);
        assert!(matches!(second.claim(), Forgetter::Nobody));
    }

    #[test]
    fn a_claim_of_a_killed_process_is_taken_over_and_one_that_was_stopped_changes_nothing() {
        let [first, second] = two();
        let stopped = claimed(&first).expect("it is the first");
        assert!(matches!(second.claim(), Forgetter::Other));
        second.rival_since_ns.fetch_sub(CLAIM_TIMEOUT.as_nanos() as u64 + 1, Ordering::Relaxed);
        let claim = claimed(&second).expect("the other one has not finished for so long");
        assert!(claim.is_valid() && !stopped.is_valid());
        assert!(!stopped.finish() && claim.is_valid(), "its end changes nothing");
        assert!(claim.finish());
        assert_eq!(second.meet(0, 12), Greeter::Known);
        assert_eq!((first.run(), first.words[CLAIM].load(Ordering::SeqCst)), (12, 0));
    }

    #[test]
    fn a_process_that_was_stopped_between_two_steps_is_too_late_after_the_end() {
        let [first, second] = two();
        let stopped = claimed(&first).expect("it is the first");
        second.claim();
        second.rival_since_ns.fetch_sub(CLAIM_TIMEOUT.as_nanos() as u64 + 1, Ordering::Relaxed);
        assert!(claimed(&second).is_some_and(Claim::finish));
        assert_eq!(second.meet(0, 12), Greeter::Known);
        assert!(!stopped.is_valid() && stopped.finish(), "it is done, by the other one");
        assert_eq!(second.run(), 12);
    }
}
