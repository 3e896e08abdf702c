// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The lease of each range of the tier, and whether this process may write with it.
//!
//! The leases are one word for each slab, in memory that related processes share as they share the tier's slabs: when
//! one of them moves a slab here, all can read it. Tokens grow with every grant, so the greater of two words is the
//! newer one.
//!
//! Whether this process may write is a separate question: something that was sent with the same token may still be on
//! its way, and arrive later. The donor refuses it once it has granted a newer token, to any process. So
//! a process writes only with tokens that were granted to itself, and with which none of its own requests is in doubt.
//! This shuts out whatever a related process has sent to a slab that it held before, even a related process that was
//! killed.
//!
//! If related processes write to different parts of one slab (`array.rs`, with parity), they would take the token from
//! each other forever. In that case all related processes share a token, and they share the doubt in it: each knows the
//! newest token with which a request of any of them may be on its way. What a killed related process has just sent is
//! not known, and may arrive after another's write to the same place: the pager's guard detects this.
//!
//! Threads: any, including signal handlers. Locks nothing.
//!
//! | bits  | what                                                                       |
//! |-------|----------------------------------------------------------------------------|
//! | 0     | 1 in a lease that this process may write with; 0 in shared memory          |
//! | 1–24  | the donor's slab                                                           |
//! | 25–63 | the token; 0 where there is no lease                                       |

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_wire::{LentSlab, RangeIndex};

const SLAB_BITS: u32 = 24;
const TOKEN_SHIFT: u32 = SLAB_BITS + 1;
const MAY_WRITE: u64 = 1;

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease(u64);

impl Lease {
    /// A lease that was granted. `None` if the numbers are out of range for a donor.
    pub(crate) fn granted(lease: u64, token: u64) -> Option<Lease> {
        let fits = lease < 1 << SLAB_BITS && token > 0 && token < 1 << (64 - TOKEN_SHIFT);
        fits.then_some(Lease(token << TOKEN_SHIFT | lease << 1 | MAY_WRITE))
    }

    /// The lease as one word.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// The lease of such a word.
    pub(crate) fn of_word(word: u64) -> Lease {
        Lease(word)
    }

    pub(crate) fn slab(self) -> LentSlab {
        LentSlab((self.0 >> 1 & ((1 << SLAB_BITS) - 1)) as u32)
    }

    pub(crate) fn token(self) -> u64 {
        self.0 >> TOKEN_SHIFT
    }

    pub(crate) fn may_write(self) -> bool {
        self.0 & MAY_WRITE != 0
    }
}

/// The leases of all ranges of a tier.
#[derive(Debug)]
pub(crate) struct Ranges {
    leases: Words,
    right: Right,
    /// Ranges that the donor reclaims, as far as this process was notified. A range that has no lease any more may
    /// still have its bit set.
    leaving: Box<[AtomicU64]>,
    /// True: there may be such ranges.
    any_leaving: AtomicBool,
    /// When the first of their leases ends, by the monotonic clock.
    leave_by_ns: AtomicU64,
}

/// Which processes of a family write to one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// One at a time.
    One,
    /// Several, each to parts of its own.
    Several,
}

/// For each range, what decides whether this process may write.
#[derive(Debug)]
enum Right {
    /// The lease that was granted to this process and is not in doubt; 0 if there is none.
    Granted(Box<[AtomicU64]>),
    /// The newest lease with which a related process's request may be on its way; 0 if there is none.
    Doubted(Words),
}

const BITS: u64 = u64::BITS as u64;

/// The place of a range in a bitmap: the word, and the bit in it.
fn bit(RangeIndex(range): RangeIndex) -> (usize, u64) {
    ((range / BITS) as usize, 1 << (range % BITS))
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Ranges {
    pub(crate) fn new(count: usize, writers: Writers) -> Result<Ranges, Errno> {
        let doubted = match writers {
            Writers::One => None,
            Writers::Several => Some(Words::shared(count)?),
        };
        Ok(Ranges::over(Words::shared(count)?, doubted))
    }

    /// Ranges whose leases are in these words, one for each; `doubted` is there where several processes write to one
    /// slab.
    pub(crate) fn over(leases: Words, doubted: Option<Words>) -> Ranges {
        let count = leases.len();
        let right = doubted.map_or_else(|| Right::Granted(zeros(count)), Right::Doubted);
        Ranges {
            leases,
            right,
            leaving: zeros(count.div_ceil(BITS as usize)),
            any_leaving: AtomicBool::new(false),
            leave_by_ns: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.leases.len()
    }

    fn known(&self, range: RangeIndex) -> &AtomicU64 {
        &self.leases[range.index()]
    }

    pub(crate) fn lease(&self, range: RangeIndex) -> Option<Lease> {
        let word = self.known(range).load(Ordering::Acquire);
        let may_write = match &self.right {
            Right::Granted(own) => own[range.index()].load(Ordering::Acquire) == word,
            Right::Doubted(doubted) => doubted[range.index()].load(Ordering::Acquire) < word,
        };
        (word != 0).then_some(Lease(word | if may_write { MAY_WRITE } else { 0 }))
    }

    /// Records a new lease, granted to this process.
    pub(crate) fn learn(&self, range: RangeIndex, lease: Lease) {
        let word = lease.0 & !MAY_WRITE;
        if let Right::Granted(own) = &self.right {
            own[range.index()].store(word, Ordering::Release);
        }
        // Of two grants at the same time, the donor accepts the greater token.
        let before = Lease(self.known(range).fetch_max(word, Ordering::AcqRel));
        if let Right::Doubted(doubted) = &self.right {
            // Tokens grow, so a greater word in doubt was sent to another run of the donor, and does not arrive.
            let is_of_another = |doubted: u64| (doubted > before.0.max(word)).then_some(0);
            let doubted = &doubted[range.index()];
            let _ = doubted.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_of_another);
        }
        if before.0 == 0 || before.slab() != lease.slab() {
            self.stays(range);
        }
    }

    /// The donor has refused `old` as stale, and then granted `new`. If `new` is the smaller one, `old` was granted by
    /// another run of the donor, and was learned after [`forget_all`](Self::forget_all).
    pub(crate) fn correct(&self, range: RangeIndex, old: Lease, new: Lease) {
        let (old, new) = (old.0 & !MAY_WRITE, new.0 & !MAY_WRITE);
        if self.known(range).compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && let Right::Doubted(doubted) = &self.right
        {
            let _ = doubted[range.index()].compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// A request that was sent with this lease may still arrive. Before this process writes again, it needs a new
    /// token, which makes the donor refuse the old one.
    pub(crate) fn doubt(&self, range: RangeIndex, lease: Lease) {
        let (word, range) = (lease.0 & !MAY_WRITE, range.index());
        match &self.right {
            Right::Granted(own) => _ = own[range].compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed),
            Right::Doubted(doubted) => _ = doubted[range].fetch_max(word, Ordering::AcqRel),
        }
    }

    /// Records that the lease has ended.
    pub(crate) fn forget(&self, range: RangeIndex, lease: Lease) {
        self.doubt(range, lease);
        let word = lease.0 & !MAY_WRITE;
        let _ = self.known(range).compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
        self.stays(range);
    }

    /// Records that any lease of the range has ended.
    pub(crate) fn forget_range(&self, range: RangeIndex) {
        if let Some(lease) = self.lease(range) {
            self.forget(range, lease);
        }
    }

    /// Called in a forked child: its parent's requests count as on their way.
    pub(crate) fn doubt_all(&self) {
        match &self.right {
            Right::Granted(own) => own.iter().for_each(|word| word.store(0, Ordering::Release)),
            Right::Doubted(doubted) => {
                for (doubted, known) in doubted.iter().zip(self.leases.iter()) {
                    doubted.fetch_max(known.load(Ordering::Acquire), Ordering::AcqRel);
                }
            }
        }
    }

    /// Forgets the leases of a run of the donor that is over. Nothing that was sent before arrives at the next one.
    /// `is_valid` is asked about each word after it was read: whether it is of that run.
    pub(crate) fn forget_all(&self, is_valid: &dyn Fn() -> bool) {
        let forget = |word: &AtomicU64| {
            let known = word.load(Ordering::Acquire);
            if known != 0 && is_valid() {
                let _ = word.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        };
        if let Right::Doubted(doubted) = &self.right {
            doubted.iter().for_each(forget);
        }
        self.leases.iter().for_each(forget);
    }

    /// Forgets what only this process knows of the leases of a run of the donor that is over.
    pub(crate) fn forget_own(&self) {
        if let Right::Granted(own) = &self.right {
            own.iter().for_each(|word| word.store(0, Ordering::Release));
        }
        self.none_leaves();
    }

    /// Records that the donor reclaims the slab of a range, by `leave_by_ns` at the latest. Ignores a slab that is not
    /// leased to us any more.
    pub(crate) fn ask_back(&self, slab: LentSlab, range: RangeIndex, now_ns: u64, leave_by_ns: u64) {
        let word = self.leases.get(range.index()).map_or(0, |word| word.load(Ordering::Acquire));
        if word != 0 && Lease(word).slab() == slab {
            let (word, bit) = bit(range);
            self.leaving[word].fetch_or(bit, Ordering::AcqRel);
            // The end of an earlier reclaim that is over does not apply to this one.
            let first = |before: u64| Some(if before < now_ns { leave_by_ns } else { before.min(leave_by_ns) });
            let _ = self.leave_by_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, first);
            self.any_leaving.store(true, Ordering::Release);
        }
    }

    /// Records that the donor reclaims all slabs.
    pub(crate) fn ask_back_every(&self, now_ns: u64, leave_by_ns: u64) {
        for (range, word) in RangeIndex::all(self.count()).zip(self.leases.iter()) {
            let word = word.load(Ordering::Acquire);
            if word != 0 {
                self.ask_back(Lease(word).slab(), range, now_ns, leave_by_ns);
            }
        }
    }

    fn stays(&self, range: RangeIndex) {
        if self.any_leaving.load(Ordering::Acquire) {
            let (word, bit) = bit(range);
            self.leaving[word].fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// The first range at or after `from` that the donor reclaims, and by when.
    pub(crate) fn leaving(&self, from: RangeIndex) -> Option<(RangeIndex, u64)> {
        if !self.any_leaving.load(Ordering::Acquire) {
            return None;
        }
        let mut from = from.0;
        while let Some(bits) = self.leaving.get((from / BITS) as usize) {
            let rest = bits.load(Ordering::Acquire) >> (from % BITS);
            if rest == 0 {
                from = (from / BITS + 1) * BITS;
                continue;
            }
            from += u64::from(rest.trailing_zeros());
            if self.lease(RangeIndex(from)).is_some() {
                return Some((RangeIndex(from), self.leave_by_ns.load(Ordering::Acquire)));
            }
            from += 1;
        }
        None
    }

    /// Called when the time of all reclaimed ranges is over: the donor manages without those that are still leased
    /// then.
    pub(crate) fn none_leaves(&self) {
        self.any_leaving.store(false, Ordering::Release);
        self.leaving.iter().for_each(|bits| bits.store(0, Ordering::Release));
        self.leave_by_ns.store(u64::MAX, Ordering::Release);
    }

    /// Whether there is any lease.
    pub(crate) fn any(&self) -> bool {
        self.leases.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: RangeIndex = RangeIndex(0);

    #[test]
    fn numbers_come_back_and_the_newest_token_stays() {
        let (slab, token) = ((1 << 24) - 1, (1 << 39) - 1);
        let lease = Lease::granted(slab, token).unwrap();
        assert_eq!((lease.slab().lease(), lease.token(), lease.may_write()), (slab, token, true));
        assert!(Lease::granted(1 << 24, 1).is_none() && Lease::granted(1, 1 << 39).is_none());
        assert!(Lease::granted(1, 0).is_none());
        for writers in [Writers::One, Writers::Several] {
            let ranges = Ranges::new(1, writers).unwrap();
            let (old, new) = (Lease::granted(9, 1).unwrap(), Lease::granted(3, 2).unwrap());
            ranges.learn(RANGE, old);
            ranges.learn(RANGE, new);
            assert_eq!(ranges.lease(RANGE), Some(new));
            ranges.doubt(RANGE, old);
            assert!(ranges.lease(RANGE).unwrap().may_write(), "what is on its way with an old one is refused");
            ranges.doubt_all();
            assert!(!ranges.lease(RANGE).unwrap().may_write());
            ranges.learn(RANGE, old);
            let known = ranges.lease(RANGE).unwrap();
            assert_eq!(known.token(), new.token());
            assert!(!known.may_write(), "a token that is not the last one is not a right");
            ranges.forget(RANGE, old);
            assert!(ranges.any());
            ranges.forget(RANGE, new);
            assert!(!ranges.any());
        }
    }

    /// Changes the shared words as a related process of this process would.
    fn a_relative_learns(ranges: &Ranges, lease: Lease) {
        ranges.leases[0].store(lease.0 & !MAY_WRITE, Ordering::Relaxed);
    }

    #[test]
    fn the_token_of_a_related_process_is_a_right_only_where_several_write() {
        let (first, second) = (Lease::granted(7, 3).unwrap(), Lease::granted(7, 4).unwrap());
        for (writers, may_write) in [(Writers::One, false), (Writers::Several, true)] {
            let ranges = Ranges::new(1, writers).unwrap();
            ranges.learn(RANGE, first);
            a_relative_learns(&ranges, second);
            assert_eq!(ranges.lease(RANGE).unwrap().may_write(), may_write, "{writers:?}");
            ranges.doubt(RANGE, second);
            assert!(!ranges.lease(RANGE).unwrap().may_write(), "what a related process has in doubt is in doubt");
            a_relative_learns(&ranges, Lease(0));
            ranges.learn(RANGE, first);
            assert!(ranges.lease(RANGE).unwrap().may_write(), "a restarted donor begins with small numbers");
        }
    }

    #[test]
    fn a_lease_of_another_run_that_is_learned_late_does_not_stay() {
        let (old, new, newer) = (Lease::granted(7, 300), Lease::granted(5, 1), Lease::granted(5, 2));
        let (old, new, newer) = (old.unwrap(), new.unwrap(), newer.unwrap());
        for writers in [Writers::One, Writers::Several] {
            let ranges = Ranges::new(1, writers).unwrap();
            ranges.forget_all(&|| true);
            ranges.learn(RANGE, old);
            // The lease is used, and refused as stale.
            ranges.doubt(RANGE, old);
            ranges.learn(RANGE, new);
            ranges.correct(RANGE, old, new);
            assert_eq!(ranges.lease(RANGE), Some(new), "{writers:?}");
            ranges.learn(RANGE, newer);
            ranges.correct(RANGE, new, newer);
            assert_eq!(ranges.lease(RANGE), Some(newer), "{writers:?}: in the same run there is nothing to correct");
        }
    }

    #[test]
    fn reclaimed_ranges_are_found_until_they_are_given_back() {
        let ranges = Ranges::new(200, Writers::One).unwrap();
        let lease = |slab| Lease::granted(slab, slab + 1).unwrap();
        [3, 64, 130, 199].into_iter().for_each(|range| ranges.learn(RangeIndex(range), lease(range + 1000)));
        let all = || {
            let next = |from: &mut RangeIndex| ranges.leaving(*from).inspect(|(range, _)| *from = range.next());
            let mut from = RangeIndex(0);
            std::iter::from_fn(|| next(&mut from)).map(|(range, by_ns)| (range.0, by_ns)).collect::<Vec<_>>()
        };
        assert!(all().is_empty());
        ranges.ask_back(LentSlab(1064), RangeIndex(64), 10, 900);
        ranges.ask_back(LentSlab(1003), RangeIndex(64), 10, 100);
        ranges.ask_back(LentSlab(7), RangeIndex(1 << 40), 10, 100);
        assert_eq!(all(), [(64, 900)], "a word about another slab is no word about this one");
        ranges.ask_back_every(10, 500);
        assert_eq!(all(), [(3, 500), (64, 500), (130, 500), (199, 500)]);
        ranges.forget(RangeIndex(3), lease(1003));
        ranges.learn(RangeIndex(64), Lease::granted(1064, 5000).unwrap());
        ranges.learn(RangeIndex(130), Lease::granted(77, 5000).unwrap());
        assert_eq!(all(), [(64, 500), (199, 500)], "a new token is for the same slab, and a new slab stays");
        ranges.ask_back(LentSlab(1199), RangeIndex(199), 501, 800);
        assert_eq!(all(), [(64, 800), (199, 800)], "what is over says nothing about what comes later");
        ranges.none_leaves();
        assert!(all().is_empty());
    }
}
