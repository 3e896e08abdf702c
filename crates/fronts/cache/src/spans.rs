// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides where in the log the next record goes, and which part of the log is cleaned or evicted next. Pure.
//!
//! The log consists of spans. Records are appended to the *active* span until it is full. When few spans are free, the
//! cleaner takes the span with the fewest live bytes and moves its live records to the active span. If even that span
//! is mostly live, the log is full: the oldest span is evicted, and only records that were used since they were stored
//! are moved, up to half of the span. Each span that is cleaned frees a quarter of a span, less what is left over at
//! its end where the next record did not fit: at least an eighth. So the cleaner keeps pace if it looks at eight bytes
//! for each byte that is appended.
//!
//! The second chance of used records is that of CLOCK (Corbato 1968), on spans instead of records.

use crate::index::Place;
use crate::record::RECORD_BYTES_MAX;

/// Bytes of a span: eight of the longest records, so that at most an eighth is left over at its end, and whole regions
/// of the pager, so that its discard frees whole slabs of the tier.
pub const SPAN_BYTES: u64 = 8 << 20;
/// Minimum number of spans: one to append to, one to clean, [`FREE_LOW`] free ones, and one with older records.
pub const SPANS_MIN: u64 = 6;
/// Spans that only the cleaner may open: what it moves from one span fits one span.
const RESERVED: usize = 1;
/// The cleaner works while fewer spans than this are free: one to append to while the cleaner fills another.
const FREE_LOW: usize = RESERVED + 2;
/// A span is worth cleaning while no more than this is live.
const LIVE_BYTES_MAX: u64 = SPAN_BYTES / 4 * 3;
/// How much of an evicted span is moved, at most.
const KEPT_BYTES_MAX: u64 = SPAN_BYTES / 2;
const _: () =
    assert!(RECORD_BYTES_MAX as u64 <= SPAN_BYTES / 8 + SPAN_BYTES / 64, "the end of a span that is left over");
/// Bytes that the cleaner looks at for each byte that is appended, at least.
pub const CLEANED_PER_APPENDED: u64 = 8;

/// The number of a span of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIndex(pub usize);

impl SpanIndex {
    /// Returns its bytes in the log.
    pub fn bytes(self) -> std::ops::Range<u64> {
        let start = self.0 as u64 * SPAN_BYTES;
        start..start + SPAN_BYTES
    }
}

/// Why a place in the log is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A client stores a value.
    Append,
    /// The cleaner moves a record.
    Move,
}

/// Which span is cleaned next, and how many bytes of it may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The span that is cleaned.
    pub span: SpanIndex,
    /// Its records end here, counted from its start.
    pub filled_bytes: u64,
    /// Maximum number of bytes to move.
    pub kept_bytes_max: u64,
    /// Whether only used records are moved.
    pub is_evicted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    /// The cleaner works on the span, or has not given it back yet.
    Busy,
    Free,
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    state: State,
    filled_bytes: u64,
    live_bytes: u64,
    /// Greater for a span that was opened later.
    opened: u64,
}

/// The spans of one log.
#[derive(Debug)]
pub struct Spans {
    spans: Vec<Span>,
    free: Vec<SpanIndex>,
    active: Option<SpanIndex>,
    opened: u64,
    live_bytes: u64,
}

impl Spans {
    /// Creates a log of this many spans, all free.
    pub fn new(count: u64) -> Self {
        assert!(count >= SPANS_MIN, "a log has at least {SPANS_MIN} spans");
        let span = Span { state: State::Free, filled_bytes: 0, live_bytes: 0, opened: 0 };
        let free = (0..count as usize).rev().map(SpanIndex).collect();
        Self { spans: vec![span; count as usize], free, active: None, opened: 0, live_bytes: 0 }
    }

    /// Returns the number of spans.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Returns the number of bytes of records that an entry of the index points to.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns whether the cleaner has work.
    pub fn needs_cleaning(&self) -> bool {
        self.free.len() < FREE_LOW
    }

    /// Returns a place for a record, which is live from now on, or `None` if a span must be freed first.
    pub fn place(&mut self, bytes: u32, purpose: Purpose) -> Option<Place> {
        let len = u64::from(bytes);
        assert!(len > 0 && len <= SPAN_BYTES, "a record fits a span");
        let has_room = |active: &SpanIndex| self.spans[active.0].filled_bytes + len <= SPAN_BYTES;
        let active = match self.active.filter(has_room) {
            Some(active) => active,
            None => self.open(purpose)?,
        };
        let span = &mut self.spans[active.0];
        let place = Place { at: active.bytes().start + span.filled_bytes, bytes };
        span.filled_bytes += len;
        span.live_bytes += len;
        self.live_bytes += len;
        Some(place)
    }

    fn open(&mut self, purpose: Purpose) -> Option<SpanIndex> {
        if purpose == Purpose::Append && self.free.len() <= RESERVED {
            return None;
        }
        let new = self.free.pop()?;
        self.seal();
        self.opened += 1;
        self.spans[new.0] = Span { state: State::Active, filled_bytes: 0, live_bytes: 0, opened: self.opened };
        self.active = Some(new);
        Some(new)
    }

    /// Ends the active span: the next record goes to another one.
    pub fn seal(&mut self) {
        if let Some(active) = self.active.take() {
            self.spans[active.0].state = State::Full;
        }
    }

    /// Takes back the last place, to which nothing could be written, and ends its span.
    pub fn withdraw(&mut self, place: Place) {
        self.release(place);
        let span = &mut self.spans[(place.at / SPAN_BYTES) as usize];
        span.filled_bytes -= u64::from(place.bytes);
        assert!(place.at % SPAN_BYTES == span.filled_bytes, "only the last place can be taken back");
        self.seal();
    }

    /// Takes every span that is not free. None of their records is pointed to any more.
    pub fn take_all(&mut self) -> Vec<SpanIndex> {
        (self.active, self.live_bytes) = (None, 0);
        let taken = self.spans.iter_mut().enumerate().filter(|(_, span)| span.state != State::Free);
        let taken = taken.map(|(index, span)| {
            (span.state, span.live_bytes) = (State::Busy, 0);
            SpanIndex(index)
        });
        taken.collect()
    }

    /// Notes that a record is no longer pointed to.
    pub fn release(&mut self, place: Place) {
        let span = &mut self.spans[(place.at / SPAN_BYTES) as usize];
        let len = u64::from(place.bytes);
        assert!(span.live_bytes >= len, "a record is released once");
        span.live_bytes -= len;
        self.live_bytes -= len;
    }

    /// Returns the span to clean next: the one with the least live bytes if that is worth it, otherwise the oldest.
    pub fn next_victim(&mut self) -> Option<Victim> {
        let full = || (0..).zip(&self.spans).filter(|(_, span)| span.state == State::Full);
        let (index, span) = full().min_by_key(|(_, span)| (span.live_bytes, span.opened))?;
        let span_live = span.live_bytes;
        if span_live <= LIVE_BYTES_MAX {
            return Some(self.take(index, span_live, false));
        }
        let (index, _) = full().min_by_key(|(_, span)| span.opened)?;
        Some(self.take(index, KEPT_BYTES_MAX, true))
    }

    /// Returns the oldest span, of which nothing is kept, or the active one if there is no other.
    pub fn next_evicted(&mut self) -> Option<Victim> {
        let is_full = |span: &&Span| span.state == State::Full;
        if !self.spans.iter().any(|span| is_full(&span)) {
            self.seal();
        }
        let full = (0..).zip(&self.spans).filter(|(_, span)| is_full(span));
        let (index, _) = full.min_by_key(|(_, span)| span.opened)?;
        Some(self.take(index, 0, true))
    }

    fn take(&mut self, index: usize, kept_bytes_max: u64, is_evicted: bool) -> Victim {
        let span = &mut self.spans[index];
        span.state = State::Busy;
        Victim { span: SpanIndex(index), filled_bytes: span.filled_bytes, kept_bytes_max, is_evicted }
    }

    /// Makes a span free that the cleaner has emptied and given back.
    pub fn put_back(&mut self, span: SpanIndex) {
        let emptied = &mut self.spans[span.0];
        assert!(emptied.live_bytes == 0, "a span is free when none of its records is live");
        assert!(emptied.state == State::Busy, "a span is given back once");
        emptied.state = State::Free;
        self.free.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 64 << 10;

    fn fill(spans: &mut Spans) -> Vec<Place> {
        std::iter::from_fn(|| spans.place(LEN, Purpose::Append)).collect()
    }

    #[test]
    fn records_follow_each_other_and_one_span_is_left_for_the_cleaner() {
        let mut spans = Spans::new(SPANS_MIN);
        let places = fill(&mut spans);
        assert_eq!(places.len() as u64, (SPANS_MIN - 1) * SPAN_BYTES / u64::from(LEN));
        let expected = (0..places.len() as u64).map(|index| index * u64::from(LEN));
        assert!(places.iter().map(|place| place.at).eq(expected));
        assert!(spans.needs_cleaning() && spans.place(LEN, Purpose::Append).is_none());
        assert_eq!(spans.place(LEN, Purpose::Move).map(|place| place.at), Some((SPANS_MIN - 1) * SPAN_BYTES));
    }

    #[test]
    fn the_deadest_span_is_cleaned_and_the_oldest_evicted_when_all_live() {
        let mut spans = Spans::new(SPANS_MIN);
        let places = fill(&mut spans);
        let victim = spans.next_victim().unwrap();
        assert_eq!((victim.span, victim.is_evicted, victim.kept_bytes_max), (SpanIndex(0), true, SPAN_BYTES / 2));
        let (in_third, rest): (Vec<Place>, Vec<Place>) =
            places.iter().partition(|place| SpanIndex(3).bytes().contains(&place.at));
        in_third.iter().take(40).for_each(|place| spans.release(*place));
        let victim = spans.next_victim().unwrap();
        assert_eq!((victim.span, victim.is_evicted), (SpanIndex(3), false));
        assert_eq!(victim.kept_bytes_max, SPAN_BYTES - 40 * u64::from(LEN));
        in_third[40..].iter().for_each(|place| spans.release(*place));
        spans.put_back(SpanIndex(3));
        assert_eq!(spans.live_bytes(), rest.len() as u64 * u64::from(LEN));
        assert_eq!(spans.place(LEN, Purpose::Append).map(|place| place.at), Some(3 * SPAN_BYTES));
    }

    #[test]
    fn eviction_for_keys_takes_the_active_span_when_there_is_no_other() {
        let mut spans = Spans::new(SPANS_MIN);
        assert_eq!(spans.next_evicted(), None);
        let place = spans.place(16, Purpose::Append).unwrap();
        assert_eq!(spans.next_victim(), None, "the active span is not cleaned");
        let victim = spans.next_evicted().unwrap();
        assert_eq!((victim.span, victim.filled_bytes, victim.kept_bytes_max), (SpanIndex(0), 16, 0));
        spans.release(place);
        spans.put_back(SpanIndex(0));
        assert_eq!(spans.place(16, Purpose::Append), Some(place));
    }
}
