// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The writer's side: the calls that the pager makes on the fault path.
//!
//! Threads: any, including signal handlers. Never allocates, locks or waits after `create` or `attach`. Orderings: a
//! cause is counted before its effect, and a peak before its gauge, with Release, so that a reader that reads the
//! effect first never finds more effects than causes. All other accesses are relaxed: each number is valid by itself.
//! Several processes may write to one segment (a program that runs another one): counters add up, and a gauge has the
//! value of its last writer.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_sys::shared_segment::SharedSegment;

use crate::SEGMENT_NAME;
use crate::curve::{self, CurveFigures};
use crate::latency::bucket_of;
use crate::layout;
use crate::names::{Counter, FaultKind, Gauge, LevelCounter, LevelGauge, Place, TEMPERATURES, Text};
use crate::sequenced::SettleTime;
use crate::snapshot::{NotASegment, Snapshot};
use crate::text;

/// The numbers of one instance, for writing.
#[derive(Debug)]
pub struct Counters {
    /// At least [`layout::WORDS`] words.
    segment: SharedSegment,
}

impl Counters {
    /// Creates a new segment, all zero.
    pub fn create() -> io::Result<Counters> {
        let segment = SharedSegment::create(SEGMENT_NAME, layout::WORDS)?;
        segment.words()[layout::VERSION_WORD].store(layout::VERSION, Ordering::Relaxed);
        segment.words()[layout::SIZE_WORD].store(layout::BYTES, Ordering::Relaxed);
        // Stored last, with Release: pairs with the Acquire loads of `snapshot::check`.
        segment.words()[layout::MAGIC_WORD].store(layout::MAGIC, Ordering::Release);
        Ok(Counters { segment })
    }

    /// Maps the segment of an inherited descriptor, `Config::stats_fd`. The descriptor stays open, so that a program
    /// executed by this one finds it too. Returns an error when the descriptor has been closed, or now refers to
    /// something else: the caller then creates a new segment.
    pub fn attach(number: i32) -> Result<Counters, NotASegment> {
        let segment = SharedSegment::attach_inherited(number).map_err(NotASegment::Unmappable)?;
        let words = segment.words();
        crate::snapshot::check(words.len(), |index| words[index].load(Ordering::Acquire))?;
        Ok(Counters { segment })
    }

    /// The descriptor to pass to a child. `None` for attached counters.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.segment.descriptor()
    }

    /// Adds `amount` to a counter. Release: a reader of the new count also sees everything counted before it; see
    /// `Snapshot::take`.
    pub fn add(&self, counter: Counter, amount: u64) {
        if amount > 0 {
            self.word(layout::counter(counter)).fetch_add(amount, Ordering::Release);
        }
    }

    /// The count so far.
    pub fn count(&self, counter: Counter) -> u64 {
        self.word(layout::counter(counter)).load(Ordering::Relaxed)
    }

    /// Sets a gauge.
    pub fn set(&self, gauge: Gauge, value: u64) {
        self.word(layout::gauge(gauge)).store(value, Ordering::Relaxed);
    }

    /// Raises a gauge to `value` if it is lower: for peaks.
    pub fn raise(&self, gauge: Gauge, value: u64) {
        let word = self.word(layout::gauge(gauge));
        // The value is almost never higher: read before taking the cache line.
        if value > word.load(Ordering::Relaxed) {
            word.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Raises the peak, then sets the gauge, so that no reader finds the gauge above its peak.
    pub fn set_with_peak(&self, gauge: Gauge, peak: Gauge, value: u64) {
        self.raise(peak, value);
        self.word(layout::gauge(gauge)).store(value, Ordering::Release);
    }

    /// Makes a gauge `amount` larger.
    pub fn increase(&self, gauge: Gauge, amount: u64) {
        self.word(layout::gauge(gauge)).fetch_add(amount, Ordering::Relaxed);
    }

    /// Makes a gauge `amount` smaller.
    pub fn decrease(&self, gauge: Gauge, amount: u64) {
        self.word(layout::gauge(gauge)).fetch_sub(amount, Ordering::Relaxed);
    }

    /// A gauge's value.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.word(layout::gauge(gauge)).load(Ordering::Relaxed)
    }

    /// Sets the resident bytes, and their peak.
    pub fn set_resident_bytes(&self, bytes: u64) {
        self.set_with_peak(Gauge::ResidentBytes, Gauge::ResidentBytesPeak, bytes);
    }

    /// Sets the number of bytes of one place in each class of temperature.
    pub fn set_heat(&self, place: Place, bytes: [u64; TEMPERATURES.len()]) {
        for (class, bytes) in bytes.into_iter().enumerate() {
            self.word(layout::heat(place, class)).store(bytes, Ordering::Relaxed);
        }
    }

    /// Stores the name of the tier at a level of a chain.
    pub fn write_level(&self, level: usize, name: &str) {
        let start = layout::level_name(level);
        text::write(&self.segment.words()[start..start + layout::LEVEL_NAME_WORDS], name);
    }

    /// Adds `amount` to a counter of a level of a chain.
    pub fn add_level(&self, level: usize, counter: LevelCounter, amount: u64) {
        self.word(layout::level_counter(level, counter)).fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets a gauge of a level of a chain.
    pub fn set_level(&self, level: usize, gauge: LevelGauge, value: u64) {
        self.word(layout::level_gauge(level, gauge)).store(value, Ordering::Relaxed);
    }

    /// Counts one resolved fault of `kind` in its histogram. [`Counter::Faults`] is counted separately.
    pub fn record(&self, kind: FaultKind, nanoseconds: u64) {
        let sum = layout::latencies(kind);
        self.word(sum).fetch_add(nanoseconds, Ordering::Relaxed);
        let max = self.word(sum + 1);
        // Almost no fault is the slowest one: read before taking the cache line.
        if nanoseconds > max.load(Ordering::Relaxed) {
            max.fetch_max(nanoseconds, Ordering::Relaxed);
        }
        self.word(sum + 2 + bucket_of(nanoseconds)).fetch_add(1, Ordering::Relaxed);
    }

    /// Writes a text, cut to its capacity. The text is lost when another write of the same text is in progress.
    pub fn write(&self, name: Text, text: &str) {
        let start = layout::text(name);
        text::write(&self.segment.words()[start..start + 2 + name.capacity_bytes() / 8], text);
    }

    /// Stores a miss-ratio curve. It is lost when another write of it is in progress.
    pub fn write_curve(&self, figures: &CurveFigures) {
        let words = &self.segment.words()[layout::CURVE_WORD..layout::CURVE_WORD + layout::CURVE_WORDS];
        curve::write(words, figures);
    }

    /// The present value of all numbers. Allocates: not for the fault path.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(|index| self.word(index).load(Ordering::Acquire), &SettleTime::default())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.segment.words()[index]
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn counters_written_by_one_process_are_read_by_another() {
        let mine = Counters::create().unwrap();
        let theirs = Counters::attach(mine.descriptor().unwrap().as_raw_fd()).unwrap();
        theirs.add(Counter::FetchedBytes, 4096);
        theirs.add(Counter::FetchedBytes, 4096);
        theirs.set_resident_bytes(300);
        theirs.set_resident_bytes(200);
        theirs.increase(Gauge::RegisteredMappingsSignal, 3);
        theirs.decrease(Gauge::RegisteredMappingsSignal, 1);
        theirs.set_heat(Place::Away, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        theirs.write(Text::LastMessage, "disk full");
        theirs.write_level(1, "flash");
        theirs.add_level(1, LevelCounter::Reads, 7);
        theirs.set_level(1, LevelGauge::UsedBytes, 2 << 20);
        theirs.record(FaultKind::Fetch, 9000);

        let snapshot = mine.snapshot();
        assert_eq!(snapshot.counter(Counter::FetchedBytes), 8192);
        assert_eq!(snapshot.gauge(Gauge::ResidentBytes), 200);
        assert_eq!(snapshot.gauge(Gauge::ResidentBytesPeak), 300);
        assert_eq!(snapshot.gauge(Gauge::RegisteredMappingsSignal), 2);
        assert_eq!(snapshot.heat_bytes(Place::Away), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(snapshot.heat_bytes(Place::Resident), [0; 9]);
        assert_eq!(snapshot.text(Text::LastMessage), "disk full");
        assert!(snapshot.levels().is_empty(), "there is no second level without a first");
        theirs.write_level(0, "dram");
        let snapshot = mine.snapshot();
        assert_eq!(snapshot.levels().iter().map(|level| &*level.name).collect::<Vec<_>>(), ["dram", "flash"]);
        assert_eq!(snapshot.levels()[1].counter(LevelCounter::Reads), 7);
        assert_eq!(snapshot.levels()[1].gauge(LevelGauge::UsedBytes), 2 << 20);
        assert_eq!(snapshot.latencies(FaultKind::Fetch).count(), 1);
        assert_eq!(snapshot.latencies(FaultKind::Fetch).max_us(), 9.0);
        assert!(theirs.descriptor().is_none());
    }

    #[test]
    fn a_number_that_is_something_else_is_refused() {
        assert!(Counters::attach(-1).is_err());
        let foreign = SharedSegment::create(c"foreign", layout::WORDS).unwrap();
        let number = foreign.descriptor().unwrap().as_raw_fd();
        assert!(matches!(Counters::attach(number), Err(NotASegment::Magic)));
        foreign.words()[layout::MAGIC_WORD].store(layout::MAGIC, Ordering::Relaxed);
        foreign.words()[layout::VERSION_WORD].store(99, Ordering::Relaxed);
        assert!(matches!(Counters::attach(number), Err(NotASegment::Version { found: 99 })));
        let short = SharedSegment::create(c"foreign", 4).unwrap();
        assert!(Counters::attach(short.descriptor().unwrap().as_raw_fd()).is_err());
    }

    #[test]
    fn threads_lose_no_count() {
        let counters = Counters::create().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for nanoseconds in 0..10_000 {
                        counters.add(Counter::Faults, 1);
                        counters.record(FaultKind::Wait, nanoseconds);
                    }
                });
            }
        });
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.counter(Counter::Faults), 40_000);
        assert_eq!(snapshot.latencies(FaultKind::Wait).count(), 40_000);
        assert_eq!(snapshot.latencies(FaultKind::Wait).max_us(), 9.999);
    }
}
