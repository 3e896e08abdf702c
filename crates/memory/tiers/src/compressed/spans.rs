// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The spans of a compressed tier's file: which are free, and how much of each is in use.
//!
//! A span is filled from its start by records. One span is open for new pages and one for what the cleaner moves; a
//! span in which the next record finds no room is closed. A span becomes free when none of its records is live. Nothing
//! is written to a free span, and no span becomes free while a thread works in it, which the thread announces first: so
//! the bytes that an entry points to are those that were written for it.
//!
//! Related processes share these words, and any of them may be killed at any instruction, or overwrite them. A process
//! that is killed while it writes to a span, empties one or cleans one leaves that span unusable beyond the records in
//! it, for as long as its family lives: at most one span for each thread. Contents that make no sense are never
//! followed out of the file, and every loop is bounded.
//!
//! Threads: any, including in a signal handler. Locks nothing.
//!
//! | bits of a span's word | what                                                              |
//! |-----------------------|-------------------------------------------------------------------|
//! | 0–16                  | the units that are filled                                         |
//! | 17–33                 | the units of live records, and of records that are being written  |
//! | 34–45                 | the number of threads that are at work in the span                |
//! | 46–47                 | the state: free, open, closed, or being emptied                   |

use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::PAGE;

use super::entry::UNIT_BYTES;

/// The bytes of a span: long enough that the rest at its end, less than one record, is 1 % on average; short enough
/// that cleaning one takes a fraction of a millisecond.
pub(super) const SPAN_BYTES: usize = 256 << 10;
/// The units of a span.
pub(super) const SPAN_UNITS: u32 = (SPAN_BYTES / UNIT_BYTES) as u32;
/// Spans that only the cleaner may open: without a free one it could not free others.
pub(super) const RESERVE: u64 = 1;
/// How many times a change is tried that another thread may disturb.
const TRIES_MAX: u32 = 1000;

const SHIFT_LIVE: u32 = 17;
const SHIFT_BUSY: u32 = 34;
const SHIFT_STATE: u32 = 46;
const UNITS: u64 = (1 << 17) - 1;
const BUSY: u64 = (1 << 12) - 1;
const STATE: u64 = 3;

/// Words that belong to no span.
const HEADS: usize = 2;
const USED: usize = HEADS;
const FIRST: usize = HEADS + 1;
const TOUCHED: usize = HEADS + 2;
const HEAD_WORDS: usize = HEADS + 3;

/// What happens in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free = 0,
    Open = 1,
    Closed = 2,
    /// A thread is giving its memory back.
    Emptied = 3,
}

/// The contents of a span's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) filled: u32,
    pub(super) live: u32,
    pub(super) busy: u32,
    pub(super) state: State,
}

impl Span {
    const FREE: Span = Span { filled: 0, live: 0, busy: 0, state: State::Free };

    fn of(word: u64) -> Span {
        let field = |shift: u32, mask: u64| (word >> shift & mask) as u32;
        let state = match field(SHIFT_STATE, STATE) {
            0 => State::Free,
            1 => State::Open,
            2 => State::Closed,
            _ => State::Emptied,
        };
        Span {
            filled: field(0, UNITS).min(SPAN_UNITS),
            live: field(SHIFT_LIVE, UNITS).min(SPAN_UNITS),
            busy: field(SHIFT_BUSY, BUSY),
            state,
        }
    }

    fn word(self) -> u64 {
        let Span { filled, live, busy, state } = self;
        u64::from(filled)
            | u64::from(live) << SHIFT_LIVE
            | u64::from(busy) << SHIFT_BUSY
            | (state as u64) << SHIFT_STATE
    }

    /// Whether nothing in it is needed any more.
    fn is_over(self) -> bool {
        self.live == 0 && self.busy == 0 && matches!(self.state, State::Open | State::Closed)
    }

    /// Units that are filled and not live.
    pub(super) fn dead(self) -> u32 {
        self.filled.saturating_sub(self.live)
    }

    /// The bytes of the file's pages that it fills.
    fn bytes(self) -> u64 {
        (self.filled as usize * UNIT_BYTES).next_multiple_of(PAGE) as u64
    }
}

/// Who may append to an open span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Cleaner = 0,
    Writers = 1,
}

/// Room that a thread has taken, and says when it is [done](Spans::done) with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) span: u32,
    /// The first unit, counted from the start of the file.
    pub(super) unit: u64,
    pub(super) units: u32,
}

/// All spans together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Spans that are not free.
    pub(super) used: u64,
    /// The bytes of the file's pages that they fill.
    pub(super) bytes: u64,
    /// The bytes of live records, with their headers.
    pub(super) live_bytes: u64,
    /// The span with the most dead units, of those that may be cleaned.
    pub(super) victim: Option<(u32, Span)>,
}

/// Gives the memory of a range of the file back: offset and length.
pub(super) type Punch<'a> = &'a dyn Fn(u64, u64);

/// The spans of a file: which are free, and how much of each is filled and live.
#[derive(Debug)]
pub(super) struct Spans {
    words: Words,
    /// The open spans, each plus one; the number of spans that are not free; the first that may be free; and the number
    /// of spans from the start that were ever used.
    heads: Words,
    /// How many spans this process's writers may bring into use.
    limit: AtomicU64,
}

impl Spans {
    /// The words that `count` spans need.
    pub(super) const fn words(count: u32) -> usize {
        HEAD_WORDS + count as usize
    }

    /// Spans that are all free, in words that are zero.
    pub(super) fn new(count: u32) -> Result<Spans, Errno> {
        let (heads, words) = Words::shared(Self::words(count))?.split_at(HEAD_WORDS);
        Ok(Spans { words, heads, limit: AtomicU64::new(u64::MAX) })
    }

    /// The number of spans.
    pub(super) fn count(&self) -> u32 {
        self.words.len() as u32
    }

    /// The span of a unit of the file, if there is such a unit.
    pub(super) fn of_unit(&self, unit: u64) -> Option<u32> {
        let span = unit / u64::from(SPAN_UNITS);
        (span < self.words.len() as u64).then_some(span as u32)
    }

    fn change(&self, span: u32, next: impl Fn(Span) -> Option<Span>) -> Option<(Span, Span)> {
        let word = &self.words[span as usize];
        for _ in 0..TRIES_MAX {
            let seen = word.load(Ordering::Acquire);
            let before = Span::of(seen);
            let after = next(before)?;
            if word.compare_exchange(seen, after.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some((before, after));
            }
        }
        None
    }

    /// Takes room at a head. `fit` gets the units that an open span has left, and returns how many of them to take; 0
    /// closes the span. `None`: there is no free span.
    pub(super) fn reserve(&self, head: Head, fit: &dyn Fn(u32) -> u32, punch: Punch<'_>) -> Option<Room> {
        let open = &self.heads[head as usize];
        for _ in 0..TRIES_MAX {
            let seen = open.load(Ordering::Acquire);
            let span = seen.checked_sub(1).filter(|span| *span < self.words.len() as u64);
            if let Some(room) = span.and_then(|span| self.take(span as u32, fit, punch)) {
                return Some(room);
            }
            let fresh = self.claim(head)?;
            if open.compare_exchange(seen, u64::from(fresh) + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // Another thread has opened one.
                self.release(fresh, 0, punch);
            }
        }
        None
    }

    /// Takes room in a span. `None`: it is not open, or is closed now.
    fn take(&self, span: u32, fit: &dyn Fn(u32) -> u32, punch: Punch<'_>) -> Option<Room> {
        let left = |span: Span| SPAN_UNITS - span.filled;
        let (before, after) = self.change(span, |now| {
            let units = if now.busy < BUSY as u32 { fit(left(now)).min(left(now)) } else { 0 };
            let filled = Span {
                filled: now.filled + units,
                live: (now.live + units).min(SPAN_UNITS),
                busy: now.busy + 1,
                ..now
            };
            let next = if units == 0 { Span { state: State::Closed, ..now } } else { filled };
            (now.state == State::Open).then_some(next)
        })?;
        if after.state == State::Closed {
            self.release(span, 0, punch);
            return None;
        }
        let unit = u64::from(span) * u64::from(SPAN_UNITS) + u64::from(before.filled);
        Some(Room { span, unit, units: after.filled - before.filled })
    }

    /// How many spans writers may bring into use.
    fn most(&self) -> u64 {
        (self.words.len() as u64).saturating_sub(RESERVE).min(self.limit.load(Ordering::Relaxed))
    }

    /// Sets how many spans this process's writers may bring into use.
    pub(super) fn limit(&self, spans: u64) {
        self.limit.store(spans, Ordering::Relaxed);
    }

    /// Opens a free span.
    fn claim(&self, head: Head) -> Option<u32> {
        let count = self.words.len() as u64;
        let most = if head == Head::Writers { self.most() } else { count };
        if self.heads[USED].load(Ordering::Relaxed) >= most {
            return None;
        }
        let first = self.heads[FIRST].load(Ordering::Relaxed).min(count);
        let found = (first as u32..self.count()).find(|span| {
            let open = |now: Span| (now.state == State::Free).then_some(Span { state: State::Open, ..Span::FREE });
            self.change(*span, open).is_some()
        });
        let next = found.map_or(count, |span| u64::from(span) + 1);
        // Only a hint: `give_back` lowers it again.
        let _ = self.heads[FIRST].compare_exchange(first, next, Ordering::Relaxed, Ordering::Relaxed);
        if let Some(span) = found {
            self.heads[USED].fetch_add(1, Ordering::Relaxed);
            self.heads[TOUCHED].fetch_max(u64::from(span) + 1, Ordering::Relaxed);
        }
        found
    }

    /// This many units of a span are no longer live.
    pub(super) fn release(&self, span: u32, units: u32, punch: Punch<'_>) {
        self.end_use(span, units, 0, punch);
    }

    /// Ends the work in this room. `dead` of its units hold no live record.
    pub(super) fn done(&self, room: Room, dead: u32, punch: Punch<'_>) {
        self.end_use(room.span, dead, 1, punch);
    }

    fn end_use(&self, span: u32, dead: u32, workers: u32, punch: Punch<'_>) {
        let changed = self.change(span, |now| {
            let live = now.live.saturating_sub(dead);
            let next = Span { live, busy: now.busy.saturating_sub(workers), ..now };
            let is_over = next.is_over();
            Some(if is_over { Span { state: State::Emptied, ..next } } else { next })
        });
        if let Some((before, after)) = changed
            && after.state == State::Emptied
            && before.state != State::Emptied
        {
            self.give_back(span, after, punch);
        }
    }

    /// Frees a span that this thread has marked as being emptied.
    fn give_back(&self, span: u32, emptied: Span, punch: Punch<'_>) {
        if emptied.filled > 0 {
            punch(u64::from(span) * SPAN_BYTES as u64, emptied.bytes());
        }
        self.words[span as usize].store(Span::FREE.word(), Ordering::Release);
        let used = |used: u64| Some(used.saturating_sub(1));
        let _ = self.heads[USED].fetch_update(Ordering::Relaxed, Ordering::Relaxed, used);
        self.heads[FIRST].fetch_min(span.into(), Ordering::Relaxed);
    }

    /// Begins to clean a span: it cannot become free, and nothing is added to it, until the returned room is done.
    /// `None`: somebody is at work in it.
    pub(super) fn begin_cleaning(&self, span: u32) -> Option<(Room, Span)> {
        let begun = |now: Span| {
            let may = now.busy == 0 && now.live > 0 && matches!(now.state, State::Open | State::Closed);
            may.then_some(Span { state: State::Closed, busy: 1, ..now })
        };
        let (_, now) = self.change(span, begun)?;
        Some((Room { span, unit: u64::from(span) * u64::from(SPAN_UNITS), units: now.filled }, now))
    }

    /// Looks at all spans. Corrects the number of used ones, which a killed process may have left wrong.
    pub(super) fn census(&self) -> Census {
        let touched = self.heads[TOUCHED].load(Ordering::Relaxed).min(self.words.len() as u64) as usize;
        let counted = self.heads[USED].load(Ordering::Relaxed);
        let mut census = Census::default();
        for (index, word) in self.words[..touched].iter().enumerate() {
            let span = Span::of(word.load(Ordering::Relaxed));
            if span.state == State::Free {
                continue;
            }
            census.used += 1;
            census.bytes += span.bytes();
            census.live_bytes += u64::from(span.live) * UNIT_BYTES as u64;
            // An open span is left to its head until a good part of it is dead.
            let may = span.busy == 0
                && (span.state == State::Closed || span.state == State::Open && span.dead() > SPAN_UNITS / 8);
            if may && census.victim.is_none_or(|(_, worst)| worst.dead() < span.dead()) {
                census.victim = Some((index as u32, span));
            }
        }
        let _ = self.heads[USED].compare_exchange(counted, census.used, Ordering::Relaxed, Ordering::Relaxed);
        census
    }

    /// The bytes of spans that writers can still open.
    pub(super) fn free_bytes(&self) -> u64 {
        self.most().saturating_sub(self.heads[USED].load(Ordering::Relaxed)) * SPAN_BYTES as u64
    }

    /// The number of spans from the start that were ever used.
    pub(super) fn touched(&self) -> u64 {
        self.heads[TOUCHED].load(Ordering::Relaxed).min(self.words.len() as u64)
    }

    /// Every word, as related processes can change them.
    #[cfg(test)]
    pub(super) fn all_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.words.iter().chain(self.heads.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn all(_: u32) -> u32 {
        100
    }

    #[test]
    fn words_hold_what_was_put_into_them() {
        for state in [State::Free, State::Open, State::Closed, State::Emptied] {
            let span = Span { filled: SPAN_UNITS, live: 3, busy: BUSY as u32, state };
            assert_eq!(Span::of(span.word()), span);
        }
    }

    #[test]
    fn a_span_is_free_again_when_nothing_in_it_is_live_and_nobody_is_at_work() {
        let punched = RefCell::new(Vec::new());
        let punch: Punch<'_> = &|offset, len| punched.borrow_mut().push((offset, len));
        let spans = Spans::new(3).unwrap();
        let one = spans.reserve(Head::Writers, &all, punch).unwrap();
        let two = spans.reserve(Head::Writers, &all, punch).unwrap();
        assert_eq!((one.unit, two.unit, one.units), (0, 100, 100));
        assert_eq!(spans.census().live_bytes, 800);
        spans.done(one, 0, punch);
        spans.done(two, 100, punch);
        assert_eq!((spans.census().used, spans.census().live_bytes), (1, 400));
        let (cleaned, _) = spans.begin_cleaning(0).unwrap();
        assert_eq!(spans.begin_cleaning(0), None);
        spans.release(0, 100, punch);
        assert_eq!((spans.census().used, punched.borrow().len()), (1, 0), "the cleaner is at work");
        spans.done(cleaned, 0, punch);
        assert_eq!((spans.census().used, &punched.borrow()[..]), (0, &[(0, 4096)][..]));
    }

    #[test]
    fn writers_leave_a_span_to_the_cleaner() {
        let punch: Punch<'_> = &|_, _| ();
        let spans = Spans::new(3).unwrap();
        let whole = |head| spans.reserve(head, &|left| if left == SPAN_UNITS { left } else { 0 }, punch);
        assert_eq!(whole(Head::Writers).unwrap().span, 0);
        assert_eq!(whole(Head::Writers).unwrap().span, 1);
        assert_eq!((whole(Head::Writers), spans.free_bytes()), (None, 0));
        assert_eq!(whole(Head::Cleaner).unwrap().span, 2);
        assert_eq!(whole(Head::Cleaner), None);
    }
}
