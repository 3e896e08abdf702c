// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The ledger of a budget: shared memory that records how much each process of a tree has been given, and how much it
//! needs.
//!
//! It is kept in a segment that `aquifer run` makes, and that forked and executed programs inherit
//! (`Config::ledger_fd`). A process takes only unassigned pages, so the sum never exceeds the budget, except for the
//! minimum that each process needs. `core/src/shares.rs` computes how much each process should have. To get there, a
//! process with more than its share gives the rest back (`share.rs`), and one with less takes pages as they become
//! free.
//!
//! The sum is raised before a process's own number, and lowered after it: a process that is killed in between leaves a
//! part unused for as long as the tree lives, but never a part that two processes use.
//!
//! `aquifer set` changes the budget while the tree runs, and wakes every process that waits for an event.
//!
//! Threads: any. Takes no lock; allocates a list of the processes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::frames::BUDGET_PAGES_MAX;
use aquifer_core::shares::{self, Need};
use aquifer_sys::liveness::Liveness;
use aquifer_sys::raw::now_ns;
use aquifer_sys::shared_segment::{SharedSegment, wait_for_change, wake_all};

use crate::process_table::{PROCESSES_MAX, ProcessTable};

/// Number of words of the segment in use.
pub const WORDS: usize = RECORDS_AT + PROCESSES_MAX * RECORD_WORDS;

/// The sum of all pages given to processes.
pub const GIVEN: usize = 0;
/// A count of events, in the first half of this word. Processes sleep on it.
pub const EVENTS: usize = 1;
/// When a process last found no pages to take, in nanoseconds of the monotonic clock.
const SHORT_AT: usize = 2;
/// Whether an unmanaged program has been reported.
const UNMANAGED_REPORTED: usize = 3;
/// The budget, in pages. `aquifer set` changes it, and then counts an event.
pub const BUDGET: usize = 4;
/// The largest value that the budget can take, in pages.
pub const BUDGET_MAX: usize = 5;
/// Until when touches are to be sampled for the miss-ratio curve, in nanoseconds of the monotonic clock. `aquifer stat
/// --mrc` sets it, and then counts an event.
pub const SAMPLED_UNTIL: usize = 6;
const STATES_AT: usize = 7;
const RECORDS_AT: usize = STATES_AT + PROCESSES_MAX / 2;

/// A process's record: the pages it was given, the pages it needs, and when it joined, in nanoseconds. The lowest bit
/// of the time is set if the process was forked.
const RECORD_WORDS: usize = 3;
const GIVEN_TO: usize = 0;
const NEEDS: usize = 1;
const JOINED: usize = 2;

/// The weight of a share relative to others. A forked child often ends soon, or executes another program.
const WEIGHT: u32 = 4;
const WEIGHT_OF_YOUNG_CHILD: u32 = 1;
/// How long a forked child counts as young.
const YOUTH: Duration = Duration::from_secs(10);
/// How long a shortage is remembered.
const SHORT_LASTS: Duration = Duration::from_secs(2);
/// A process announces a change of its need once the change reaches this fraction of the budget.
const ANNOUNCED_PART: u64 = 64;
/// For how long touches are sampled at the most.
pub const SAMPLED_MAX: Duration = Duration::from_secs(3600);
/// The minimum for a process that cannot be in the ledger, in pages: the smallest `--dram`.
const OUTSIDE_PAGES: u64 = 4096;

/// The ledger of a tree's budget: how many pages each process has been given, and how many it needs.
#[derive(Debug)]
pub struct Ledger {
    words: &'static [AtomicU64],
    halves: &'static [AtomicU32],
    processes: ProcessTable<&'static [AtomicU32]>,
    /// The largest value that the budget can take.
    pages_max: u64,
    /// This process has joined, or the process that forked it had.
    joined: AtomicBool,
    /// The need that was last announced to the others.
    announced: AtomicU64,
}

impl Ledger {
    /// Opens the ledger in an inherited descriptor, for a tree that begins with `budget_pages`.
    pub fn attach(descriptor: i32, budget_pages: u64) -> io::Result<Self> {
        let segment: &'static SharedSegment = Box::leak(Box::new(SharedSegment::attach_inherited(descriptor)?));
        if segment.words().len() < WORDS {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let error = |errno: aquifer_sys::raw::Errno| io::Error::from_raw_os_error(errno.0);
        let (words, halves) = (segment.words(), segment.halves());
        let liveness = Liveness::of(descriptor).map_err(error)?;
        let processes = ProcessTable::new(&halves[STATES_AT * 2..][..PROCESSES_MAX], Some(liveness)).map_err(error)?;
        let (joined, announced) = (AtomicBool::new(false), AtomicU64::new(0));
        // The launcher has set it, unless the launcher is of another release.
        let _ = words[BUDGET].compare_exchange(0, budget_pages, Ordering::Relaxed, Ordering::Relaxed);
        let pages_max = words[BUDGET_MAX].load(Ordering::Relaxed).min(BUDGET_PAGES_MAX).max(budget_pages);
        Ok(Self { words, halves, processes, pages_max, joined, announced })
    }

    /// The budget of the tree, in pages.
    pub fn budget_pages(&self) -> u64 {
        self.words[BUDGET].load(Ordering::Relaxed).min(self.pages_max)
    }

    /// The largest value that the budget of the tree can take, in pages.
    pub fn pages_max(&self) -> u64 {
        self.pages_max
    }

    /// Until when touches are to be sampled, in nanoseconds of the monotonic clock. `None` if they are not to be now.
    pub fn sampled_until_ns(&self) -> Option<u64> {
        // Somebody else may have set it: nothing is sampled for longer than a command can ask for.
        let (until, now) = (self.words[SAMPLED_UNTIL].load(Ordering::Relaxed), now_ns());
        (until > now).then(|| until.min(now + SAMPLED_MAX.as_nanos() as u64))
    }

    fn of(&self, entry: usize, what: usize) -> &AtomicU64 {
        &self.words[RECORDS_AT + entry * RECORD_WORDS + what]
    }

    fn own(&self, what: usize) -> Option<&AtomicU64> {
        self.processes.own().map(|entry| self.of(entry, what))
    }

    /// Enters this process in the ledger, if it is not there. False if there are too many processes.
    pub fn join(&self) -> bool {
        if self.processes.own().is_some() {
            return true;
        }
        let Some(setup) = self.processes.prepare(|entry| self.clear(entry)) else { return false };
        let forked = self.joined.swap(true, Ordering::Relaxed);
        self.of(setup.entry, JOINED).store(now_ns() & !1 | u64::from(forked), Ordering::Relaxed);
        // If no process can find out whether this process has exited, its part is lost to the tree.
        let _ = self.processes.occupy_own(setup);
        self.notify();
        true
    }

    /// Frees the part of a process that has exited.
    fn clear(&self, entry: usize) {
        self.of(entry, NEEDS).store(0, Ordering::Relaxed);
        let given = self.of(entry, GIVEN_TO).swap(0, Ordering::AcqRel);
        self.words[GIVEN].fetch_sub(given, Ordering::AcqRel);
    }

    /// Frees the parts of all processes that have exited.
    pub fn clear_ended(&self) {
        self.processes.clear(|entry| self.clear(entry));
    }

    /// The pages that this process was given.
    pub fn given(&self) -> u64 {
        self.own(GIVEN_TO).map_or(0, |given| given.load(Ordering::Relaxed))
    }

    /// Takes up to `pages` unassigned pages. Returns how many this process has now.
    pub fn take(&self, pages: u64) -> u64 {
        let Some(own) = self.own(GIVEN_TO) else { return 0 };
        let (mut taken, budget) = (0, self.budget_pages());
        let _ = self.words[GIVEN].fetch_update(Ordering::AcqRel, Ordering::Relaxed, |given| {
            taken = budget.saturating_sub(given).min(pages);
            Some(given + taken)
        });
        own.fetch_add(taken, Ordering::AcqRel) + taken
    }

    /// Takes pages until this process has `pages`, even beyond the budget: the minimum that a process needs.
    pub fn take_min(&self, pages: u64) {
        let Some(own) = self.own(GIVEN_TO) else { return };
        let lacking = pages.saturating_sub(own.load(Ordering::Relaxed));
        self.words[GIVEN].fetch_add(lacking, Ordering::AcqRel);
        own.fetch_add(lacking, Ordering::AcqRel);
    }

    /// Gives back all but `pages`.
    pub fn keep(&self, pages: u64) {
        let Some(own) = self.own(GIVEN_TO) else { return };
        let given = own.load(Ordering::Relaxed);
        if given <= pages {
            return;
        }
        own.store(pages, Ordering::Release);
        self.words[GIVEN].fetch_sub(given - pages, Ordering::AcqRel);
        if self.is_short() {
            self.notify();
        }
    }

    /// The pages that this process has under management.
    pub fn need(&self) -> u64 {
        self.own(NEEDS).map_or(0, |needs| needs.load(Ordering::Relaxed))
    }

    /// Sets the pages that this process has under management.
    pub fn set_need(&self, pages: u64) {
        let Some(own) = self.own(NEEDS) else { return };
        own.store(pages, Ordering::Release);
        if self.announced.load(Ordering::Relaxed).abs_diff(pages) > self.budget_pages() / ANNOUNCED_PART {
            self.announced.store(pages, Ordering::Relaxed);
            self.notify();
        }
    }

    /// For a process without a pager: takes and gives back pages so that it has what it needs. False if it cannot have
    /// that much, or should not, since others have too little.
    pub fn reserve(&self, pages: u64) -> bool {
        if !self.join() {
            return pages <= OUTSIDE_PAGES;
        }
        self.set_need(pages);
        self.keep(pages);
        let lacking = |given: u64| pages.saturating_sub(given);
        if lacking(self.given()) > 0 && lacking(self.take(lacking(self.given()))) > 0 {
            self.clear_ended();
            if lacking(self.take(lacking(self.given()))) > 0 {
                self.say_short();
                return false;
            }
        }
        !self.is_short() || pages <= self.share()
    }

    /// The pages that this process should have.
    pub fn share(&self) -> u64 {
        let own = self.processes.own();
        let now = now_ns();
        let entries: Vec<usize> = self.processes.taken().collect();
        let needs: Vec<Need> = entries
            .iter()
            .map(|entry| {
                let joined = self.of(*entry, JOINED).load(Ordering::Relaxed);
                let young = joined & 1 != 0 && now.saturating_sub(joined) < YOUTH.as_nanos() as u64;
                let weight = if young { WEIGHT_OF_YOUNG_CHILD } else { WEIGHT };
                Need { pages: self.of(*entry, NEEDS).load(Ordering::Acquire), weight }
            })
            .collect();
        let index = own.and_then(|own| entries.iter().position(|entry| *entry == own));
        let budget = self.budget_pages();
        index.map_or(OUTSIDE_PAGES.min(budget), |index| shares::share(&needs, index, budget))
    }

    /// Whether this process needs more than it was given, and other processes have the rest.
    pub fn is_contended(&self) -> bool {
        self.need() > self.given() && self.processes.taken().nth(1).is_some()
    }

    /// Whether the budget is enough for every process to have `min` pages, or its need if that is less.
    pub fn has_room_for(&self, min: u64) -> bool {
        let needs = self.processes.taken().map(|entry| self.of(entry, NEEDS).load(Ordering::Acquire));
        needs.map(|pages| pages.min(min)).sum::<u64>() <= self.budget_pages()
    }

    /// Records that some process has less than it should.
    pub fn say_short(&self) {
        let first = !self.is_short();
        self.words[SHORT_AT].store(now_ns(), Ordering::Release);
        if first {
            self.notify();
        }
    }

    /// Whether some process has less than it should, or had so recently.
    pub fn is_short(&self) -> bool {
        let at = self.words[SHORT_AT].load(Ordering::Acquire);
        at != 0 && now_ns().saturating_sub(at) < SHORT_LASTS.as_nanos() as u64
    }

    /// Whether this call is the first in the tree to report an unmanaged program.
    pub fn is_first_to_report_unmanaged(&self) -> bool {
        self.words[UNMANAGED_REPORTED].swap(1, Ordering::Relaxed) == 0
    }

    fn events(&self) -> &AtomicU32 {
        &self.halves[EVENTS * 2]
    }

    fn notify(&self) {
        self.events().fetch_add(1, Ordering::SeqCst);
        wake_all(self.events());
    }

    /// The count of events, for a later [`wait`](Self::wait).
    pub fn ticket(&self) -> u32 {
        self.events().load(Ordering::SeqCst)
    }

    /// Sleeps until an event has been counted since `ticket`, or for `limit`.
    pub fn wait(&self, ticket: u32, limit: Duration) {
        wait_for_change(self.events(), ticket, limit);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Two views of one ledger, as two processes have them: each attaches by itself.
    fn two() -> [Ledger; 2] {
        let segment = Box::leak(Box::new(SharedSegment::create(c"ledger", WORDS).expect("a memfd")));
        let number = segment.descriptor().expect("made here").as_raw_fd();
        std::array::from_fn(|_| Ledger::attach(number, 1000).expect("a segment"))
    }

    #[test]
    fn the_sum_is_never_more_than_the_budget_but_for_the_minimum() {
        let [one, other] = two();
        assert!(one.reserve(700) && !other.reserve(400));
        assert_eq!((one.given(), other.given()), (700, 300));
        other.take_min(350);
        assert_eq!((one.take(100), other.given()), (700, 350));
        other.keep(100);
        assert_eq!(one.take(1000), 900);
    }

    #[test]
    fn a_budget_that_changes_is_everybodys_at_once() {
        let [one, other] = two();
        assert!(one.reserve(700) && !other.reserve(400));
        one.words[BUDGET].store(1200, Ordering::Relaxed);
        assert_eq!(other.budget_pages(), 1000, "the launcher allowed no larger budget");
        one.words[BUDGET].store(800, Ordering::Relaxed);
        assert_eq!((other.take(100), one.share() + other.share()), (300, 800));
        assert!(one.share() < one.given(), "it has to give back");
    }

    #[test]
    fn a_process_over_its_share_is_notified_when_another_lacks_pages() {
        let [one, other] = two();
        assert!(one.reserve(900) && one.reserve(900));
        let ticket = one.ticket();
        assert!(!other.reserve(400));
        assert_ne!(one.ticket(), ticket);
        assert!(!one.reserve(900), "it has more than its share now");
        assert_eq!((one.share(), other.share()), (600, 400));
    }
}
