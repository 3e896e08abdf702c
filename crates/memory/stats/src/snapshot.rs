// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The reader's side: all numbers of an instance at about one instant, and their JSON.
//!
//! The numbers are read one after another while the writer continues. Parts are read before the whole, and gauges
//! before their peaks, in the reverse of the order in which they are written, so that they never contradict each other.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use aquifer_sys::shared_segment::SharedView;
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::curve::{self, CurveFigures};
use crate::latency::{BUCKETS, Latencies};
use crate::layout;
use crate::names::{Counter, FaultKind, Gauge, LEVELS, LevelCounter, LevelGauge, Place, TEMPERATURES, Text};
use crate::sequenced::SettleTime;
use crate::text;

/// Why a descriptor is not a readable statistics segment.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotASegment {
    /// The memory belongs to something else.
    Magic,
    /// Shorter than its own layout.
    Size,
    /// Not a sealed memfd, or not mappable.
    Unmappable(io::Error),
    /// Written with another version of the layout.
    Version {
        /// The version in the segment.
        found: u64,
    },
}

impl fmt::Display for NotASegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotASegment::Magic => f.write_str("the memory is not an Aquifer statistics segment"),
            NotASegment::Size => f.write_str("the statistics segment is cut short"),
            NotASegment::Unmappable(error) => write!(f, "the statistics segment cannot be mapped: {error}"),
            NotASegment::Version { found } => write!(
                f,
                "the statistics segment has version {found} and this release knows version {}; \
                 use the release of 'aquifer' that started the program",
                layout::VERSION
            ),
        }
    }
}

impl std::error::Error for NotASegment {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NotASegment::Unmappable(error) => Some(error),
            NotASegment::Magic | NotASegment::Size | NotASegment::Version { .. } => None,
        }
    }
}

/// Reads the segment of a running or finished instance.
pub fn read(descriptor: BorrowedFd<'_>) -> Result<Snapshot, NotASegment> {
    read_in(descriptor, &SettleTime::default())
}

/// As [`read`], for one of several segments that share one time limit.
pub fn read_in(descriptor: BorrowedFd<'_>, timeout: &SettleTime) -> Result<Snapshot, NotASegment> {
    let view = SharedView::open_start(descriptor, layout::WORDS).map_err(NotASegment::Unmappable)?;
    check(view.len(), |index| view.load(index))?;
    Ok(Snapshot::take(|index| view.load(index), timeout))
}

/// Reads only the histogram of all faults. This waits for nothing, whatever the segment contains.
pub fn read_fault_latencies(descriptor: BorrowedFd<'_>) -> Result<Latencies, NotASegment> {
    let view = SharedView::open_start(descriptor, layout::WORDS).map_err(NotASegment::Unmappable)?;
    check(view.len(), |index| view.load(index))?;
    let mut all = Latencies::default();
    FaultKind::ALL.iter().for_each(|kind| all.merge(&latencies(*kind, |index| view.load(index))));
    Ok(all)
}

fn latencies(kind: FaultKind, load: impl Fn(usize) -> u64) -> Latencies {
    let start = layout::latencies(kind);
    Latencies {
        sum_ns: load(start),
        max_ns: load(start + 1),
        buckets: (0..BUCKETS).map(|bucket| load(start + 2 + bucket)).collect(),
    }
}

/// Checks that the words are a segment of this layout.
pub(crate) fn check(words: usize, load: impl Fn(usize) -> u64) -> Result<(), NotASegment> {
    if words <= layout::SIZE_WORD {
        return Err(NotASegment::Size);
    }
    // Pairs with the Release store of the magic in `Counters::create`.
    if load(layout::MAGIC_WORD) != layout::MAGIC {
        return Err(NotASegment::Magic);
    }
    let found = load(layout::VERSION_WORD);
    if found != layout::VERSION {
        return Err(NotASegment::Version { found });
    }
    if words < layout::WORDS || load(layout::SIZE_WORD) != layout::BYTES {
        return Err(NotASegment::Size);
    }
    Ok(())
}

/// Counters that are parts of a counter further down in the table. In all other cases the whole precedes its parts.
const PARTS_OF_LATER_ONES: [Counter; 2] = [Counter::PrefetchHits, Counter::PrefetchWasted];

/// Reads every counter, parts first.
fn counters(load: impl Fn(Counter) -> u64) -> Vec<u64> {
    let first = PARTS_OF_LATER_ONES.map(|counter| (counter, load(counter)));
    let mut read: Vec<u64> = Counter::ALL.iter().rev().map(|counter| load(*counter)).collect();
    read.reverse();
    first.into_iter().for_each(|(counter, count)| read[counter as usize] = count);
    read
}

/// The numbers of one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    counters: Vec<u64>,
    gauges: Vec<u64>,
    heat: [[u64; TEMPERATURES.len()]; Place::COUNT],
    texts: Vec<String>,
    latencies: Vec<Latencies>,
    levels: Vec<LevelSnapshot>,
    curve: Option<CurveFigures>,
    pid: Option<u32>,
    /// Some text was being written all the time, and is missing.
    is_unsettled: bool,
}

/// The numbers of one level of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelSnapshot {
    /// The kind of tier.
    pub name: String,
    counters: [u64; LevelCounter::COUNT],
    gauges: [u64; LevelGauge::COUNT],
}

impl LevelSnapshot {
    /// `None` when there is no such level. `text` takes the first word of a text and its number of words, and reads it.
    fn take(
        level: usize,
        load: &impl Fn(usize) -> u64,
        text: &impl Fn(usize, usize) -> String,
    ) -> Option<LevelSnapshot> {
        let name = text(layout::level_name(level), layout::LEVEL_NAME_WORDS);
        let counters = std::array::from_fn(|index| load(layout::level_counter(level, LevelCounter::ALL[index])));
        let gauges = std::array::from_fn(|index| load(layout::level_gauge(level, LevelGauge::ALL[index])));
        (!name.is_empty()).then_some(LevelSnapshot { name, counters, gauges })
    }

    /// A counter.
    pub fn counter(&self, counter: LevelCounter) -> u64 {
        self.counters[counter as usize]
    }

    /// A gauge.
    pub fn gauge(&self, gauge: LevelGauge) -> u64 {
        self.gauges[gauge as usize]
    }
}

impl Snapshot {
    pub(crate) fn take(load: impl Fn(usize) -> u64, timeout: &SettleTime) -> Snapshot {
        let is_unsettled = Cell::new(false);
        let text_at = |start: usize, words: usize| {
            let text = text::read(words, |index| load(start + index), timeout);
            is_unsettled.set(is_unsettled.get() || text.is_none());
            text.unwrap_or_default()
        };
        let text = |name: &Text| text_at(layout::text(*name), 2 + name.capacity_bytes() / 8);
        let gauges: Vec<u64> = Gauge::ALL.iter().map(|gauge| load(layout::gauge(*gauge))).collect();
        let pid = u32::try_from(gauges[Gauge::Pid as usize]).ok().filter(|pid| *pid != 0);
        Snapshot {
            counters: counters(|counter| load(layout::counter(counter))),
            gauges,
            pid,
            heat: std::array::from_fn(|place| {
                std::array::from_fn(|class| load(layout::heat(Place::ALL[place], class)))
            }),
            texts: Text::ALL.iter().map(text).collect(),
            latencies: FaultKind::ALL.iter().map(|kind| latencies(*kind, &load)).collect(),
            levels: (0..LEVELS).map_while(|level| LevelSnapshot::take(level, &load, &text_at)).collect(),
            curve: curve::read(|index| load(layout::CURVE_WORD + index), timeout),
            is_unsettled: is_unsettled.get(),
        }
    }

    /// A counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A gauge.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.gauges[gauge as usize]
    }

    /// The process that writes these numbers, by its number in its own PID namespace, or by the one that the reader has
    /// found ([`set_pid`](Self::set_pid)). `None` before a pager has started, and if the reader has found none.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Notes the process's number in the PID namespace of the reader; `None` if it has none there, or nobody knows it.
    pub fn set_pid(&mut self, pid: Option<u32>) {
        self.pid = pid;
    }

    /// The number of bytes of one place in each class of temperature, cold classes first.
    pub fn heat_bytes(&self, place: Place) -> [u64; TEMPERATURES.len()] {
        self.heat[place as usize]
    }

    /// The levels of a chain of tiers, the fastest first. Empty when there is only one tier.
    pub fn levels(&self) -> &[LevelSnapshot] {
        &self.levels
    }

    /// The miss-ratio curve that was measured last. `None` if none was, or if it is being written all the time. It is
    /// not in the JSON: `aquifer stat --mrc` shows it.
    pub fn curve(&self) -> Option<&CurveFigures> {
        self.curve.as_ref()
    }

    /// Whether some text is missing because a write to it did not end: a process was killed during the write, or
    /// somebody has forged the segment.
    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// A text; empty when it was never written.
    pub fn text(&self, text: Text) -> &str {
        &self.texts[text as usize]
    }

    /// The histogram of one kind of fault.
    pub fn latencies(&self, kind: FaultKind) -> &Latencies {
        &self.latencies[kind as usize]
    }

    /// The histogram of all faults.
    pub fn fault_latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        for latencies in &self.latencies {
            all.merge(latencies);
        }
        all
    }

    /// Whether a pager has written to this segment: false when the program never loaded the preload library.
    pub fn is_attached(&self) -> bool {
        self.gauge(Gauge::Pid) != 0
    }

    /// The contents of `--stats-json`: an object over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings under string keys are always JSON")
    }

    /// Prometheus text of only this instance.
    pub fn to_prometheus(&self) -> String {
        crate::prometheus::to_prometheus(std::slice::from_ref(self))
    }
}

impl Serialize for Snapshot {
    /// One object: texts, gauges, counters, then temperatures, levels and latencies, each in the order of its table.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for text in Text::ALL {
            map.serialize_entry(text.name(), self.text(*text))?;
        }
        for gauge in Gauge::ALL {
            match gauge {
                Gauge::Pid => map.serialize_entry(gauge.name(), &self.pid)?,
                _ => map.serialize_entry(gauge.name(), &self.gauge(*gauge))?,
            }
        }
        for counter in Counter::ALL {
            map.serialize_entry(counter.name(), &self.counter(*counter))?;
        }
        map.serialize_entry("temperature_bytes", &ByPlace(self))?;
        map.serialize_entry("levels", &self.levels)?;
        map.serialize_entry("fault_latency_us", &self.fault_latencies())?;
        map.serialize_entry("fault_latency_us_by_kind", &ByKind(self))?;
        map.end()
    }
}

impl Serialize for LevelSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        for gauge in LevelGauge::ALL {
            map.serialize_entry(gauge.name(), &self.gauge(*gauge))?;
        }
        for counter in LevelCounter::ALL {
            map.serialize_entry(counter.name(), &self.counter(*counter))?;
        }
        map.end()
    }
}

struct ByPlace<'a>(&'a Snapshot);

impl Serialize for ByPlace<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Place::ALL.iter().map(|place| (place.name(), ByClass(self.0.heat_bytes(*place)))))
    }
}

struct ByClass([u64; TEMPERATURES.len()]);

impl Serialize for ByClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(TEMPERATURES.iter().zip(self.0))
    }
}

struct ByKind<'a>(&'a Snapshot);

impl Serialize for ByKind<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(FaultKind::ALL.iter().map(|kind| (kind.name(), self.0.latencies(*kind))))
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("count", &self.count())?;
        map.serialize_entry("sum", &self.sum_us())?;
        map.serialize_entry("p50", &self.quantile_us(0.5))?;
        map.serialize_entry("p99", &self.quantile_us(0.99))?;
        map.serialize_entry("p999", &self.quantile_us(0.999))?;
        map.serialize_entry("max", &self.max_us())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    use aquifer_sys::shared_segment::SharedSegment;

    use super::*;
    use crate::Counters;

    #[test]
    fn the_contract_of_stats_json_is_kept() {
        let counters = Counters::create().unwrap();
        counters.add(Counter::Faults, 3);
        counters.record(FaultKind::Fetch, 10_000);
        let value: serde_json::Value = serde_json::from_str(&counters.snapshot().to_json()).unwrap();
        for name in ["faults", "fetched_bytes", "written_back_bytes", "evicted_blocks", "resident_bytes_peak", "errors"]
        {
            assert!(value[name].is_u64(), "{name}");
        }
        for name in ["p50", "p99", "max"] {
            assert!(value["fault_latency_us"][name].is_f64(), "{name}");
        }
        assert_eq!(value["faults"], 3);
        assert_eq!(value["fault_latency_us"]["max"], 10.0);
    }

    #[test]
    fn names_of_the_json_are_pinned() {
        let counters = Counters::create().unwrap();
        counters.write(Text::Tier, "dram:size=1GiB flash:/var/tmp/far,size=4GiB");
        counters.write_level(0, "dram");
        counters.write_level(1, "flash");
        let json = counters.snapshot().to_json() + "\n";
        let golden = include_str!("../tests/golden/stats.json");
        assert!(json == golden, "the JSON is not the golden one any more; it is now:\n{json}");
    }

    #[test]
    fn another_process_can_read_the_segment() {
        let counters = Counters::create().unwrap();
        counters.add(Counter::Errors, 2);
        counters.record(FaultKind::Fetch, 9000);
        counters.record(FaultKind::Wait, 700);
        let snapshot = read(counters.descriptor().unwrap()).unwrap();
        assert_eq!(snapshot, counters.snapshot());
        assert_eq!(read_fault_latencies(counters.descriptor().unwrap()).unwrap(), snapshot.fault_latencies());
        assert_eq!(snapshot.fault_latencies().sum_ns(), 9700);
        assert!(!snapshot.is_attached() && !snapshot.is_unsettled());
    }

    #[test]
    fn a_write_that_does_not_end_is_reported() {
        let counters = Counters::create().unwrap();
        counters.write(Text::Program, "program");
        counters.write(Text::Policy, "policy");
        let same = SharedSegment::attach_inherited(counters.descriptor().unwrap().as_raw_fd()).unwrap();
        same.words()[layout::text(Text::Policy)].fetch_add(1, Ordering::Relaxed);
        let snapshot = counters.snapshot();
        assert!(snapshot.is_unsettled());
        assert_eq!((snapshot.text(Text::Program), snapshot.text(Text::Policy)), ("program", ""));
    }
}
