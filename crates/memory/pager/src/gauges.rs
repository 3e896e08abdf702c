// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sets the gauges from the state of the engines.
//!
//! A gauge is of the whole space. Each shard keeps its own figures here when its engine is locked, and the sum over all
//! shards is set: a reader sees figures of different moments added up, as it would without shards. One thread at a time
//! adds up and sets, so that no older sum replaces a newer one. The lock for that is taken last, with an engine locked:
//! so nobody has it when all engines are locked, as for fork(2).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aquifer_core::engine::{Engine, Tables};
use aquifer_core::temperature::{CLASSES, Histogram};
use aquifer_core::units::{PAGE_BYTES, REGION_BYTES};
use aquifer_stats::{Counter, Counters, Gauge, LEVELS, LevelCounter, LevelGauge, Place};
use aquifer_tiers::LevelFigures;

use crate::pager::Pager;
use crate::shard::ShardView;

/// How far the published pages in DRAM may be from the true number, as a part of it, and how many reports on the fault
/// path may go unpublished. Choices.
const PUBLISHED_PART: u64 = 256;
const REPORTS_UNPUBLISHED_MAX: u64 = 32;

/// How many pages of a mapped tier the kernel maps when one is read. Measured on Linux 6.18: 65 for each of the first
/// reads. The tier's file has large folios, which the kernel seems to map whole; of small ones it maps 64 KiB around
/// the page, its `fault_around_bytes`.
const MAPPED_AROUND: u64 = 64;

/// What a shard last said about itself. In cache lines of its own, since each shard writes to its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Published {
    /// At the program's addresses and on standby. One number, so that a sum never counts a page in both.
    dram_pages: AtomicU64,
    standby_pages: AtomicU64,
    unwritable_pages: AtomicU64,
    free_pages: AtomicU64,
    slabs: AtomicU64,
    /// How many more pages would halve the fetches. 0: nobody knows.
    wanted_pages: AtomicU64,
    heat: [[AtomicU64; CLASSES]; 2],
    /// Bytes of tables: block map, guards, policy, frames; and reserved addresses.
    tables: [AtomicU64; 5],
    /// Bytes that were installed from where a mapped tier has them.
    pub(crate) in_place_bytes: AtomicU64,
    /// How many reports on the fault path have published nothing since.
    unpublished_reports: AtomicU64,
    /// How much of the engine's counts was added to the counters.
    hits: AtomicU64,
    wasted: AtomicU64,
    clean: AtomicU64,
}

/// What all shards of a space last said about themselves.
#[derive(Debug)]
pub(crate) struct AllPublished {
    shards: Box<[Published]>,
    setting: Mutex<()>,
}

impl AllPublished {
    /// Nothing, of this many shards.
    pub(crate) fn new(shards: usize) -> Self {
        Self { shards: (0..shards).map(|_| Published::default()).collect(), setting: Mutex::new(()) }
    }

    /// What one shard has said.
    pub(crate) fn of(&self, shard: usize) -> &Published {
        &self.shards[shard]
    }

    /// Adds up what the shards have said, and has `set` set gauges. One thread at a time does so, for about as long as
    /// an engine's lock is held, and has one.
    pub(crate) fn add_up<T>(&self, add: impl FnOnce(&Self) -> T, set: impl FnOnce(T)) {
        let _alone = self.setting.lock().unwrap_or_else(PoisonError::into_inner);
        set(add(self));
    }

    /// The sum of one figure over the shards.
    fn sum<'a>(&'a self, figure: impl Fn(&'a Published) -> &'a AtomicU64) -> u64 {
        self.shards.iter().map(|published| figure(published).load(Ordering::Relaxed)).sum()
    }

    fn sums(&self) -> Sums {
        let bytes = |figure: fn(&Published) -> &AtomicU64| self.sum(figure) * PAGE_BYTES;
        Sums {
            dram_bytes: bytes(|published| &published.dram_pages),
            standby_bytes: bytes(|published| &published.standby_pages),
            unwritable_bytes: bytes(|published| &published.unwritable_pages),
            free_bytes: bytes(|published| &published.free_pages),
            stored_bytes: self.sum(|published| &published.slabs) * REGION_BYTES,
            in_place_bytes: self.sum(|published| &published.in_place_bytes),
            wanted_bytes: bytes(|published| &published.wanted_pages),
        }
    }
}

/// The figures of all shards together, in bytes.
struct Sums {
    dram_bytes: u64,
    standby_bytes: u64,
    unwritable_bytes: u64,
    free_bytes: u64,
    stored_bytes: u64,
    in_place_bytes: u64,
    wanted_bytes: u64,
}

impl Sums {
    fn set_in(self, counters: &Counters) {
        counters.set_resident_bytes(self.dram_bytes);
        counters.set_with_peak(Gauge::StandbyBytes, Gauge::StandbyBytesPeak, self.standby_bytes);
        counters.set(Gauge::UnwritableBytes, self.unwritable_bytes);
        counters.set(Gauge::FramesFreeBytes, self.free_bytes);
        counters.set_with_peak(Gauge::StoredBytes, Gauge::StoredBytesPeak, self.stored_bytes);
        let mapped = self.in_place_bytes.saturating_mul(MAPPED_AROUND);
        counters.set(Gauge::TierMappedBytes, mapped.min(self.stored_bytes));
        // In a process tree the budget is shared by all processes, and this process is the one that would use more of
        // it.
        let suggested = match self.wanted_bytes {
            0 => 0,
            more => suggestion(counters.gauge(Gauge::DramBudgetBytes) + more),
        };
        counters.set(Gauge::SuggestedDramBytes, suggested);
    }
}

/// A budget as a person would type it: an estimate has at most two significant digits.
fn suggestion(bytes: u64) -> u64 {
    let step = (bytes / 64).max(4 << 20).next_power_of_two();
    bytes.next_multiple_of(step)
}

impl<'a> ShardView<'a> {
    /// What this shard last said about itself.
    pub(crate) fn published(self) -> &'a Published {
        self.pager.published.of(self.index)
    }

    /// Sets the gauges from the engine's state.
    pub(crate) fn publish(&self, engine: &Engine) {
        let published = self.published();
        for (figure, now) in [
            (&published.dram_pages, engine.resident_pages() + engine.standby_pages()),
            (&published.standby_pages, engine.standby_pages()),
            (&published.unwritable_pages, engine.unwritable_pages()),
            (&published.free_pages, engine.free_pages()),
            (&published.slabs, engine.map().slabs_in_use().into()),
            (&published.wanted_pages, engine.pages_to_halve_fetches().unwrap_or(0)),
            (&published.unpublished_reports, 0),
        ] {
            figure.store(now, Ordering::Relaxed);
        }
        self.pager.published.add_up(AllPublished::sums, |sums| sums.set_in(&self.counters));
        let counts = engine.counts();
        self.catch_up(Counter::PrefetchHits, &published.hits, counts.prefetch_hits);
        self.catch_up(Counter::PrefetchWasted, &published.wasted, counts.prefetch_wasted);
        self.catch_up(Counter::EvictedCleanBlocks, &published.clean, counts.dropped_clean_blocks);
    }

    /// As `publish`, but only where the pages in DRAM differ from those last published by more than `1 /
    /// PUBLISHED_PART`, or after `REPORTS_UNPUBLISHED_MAX` calls. Called with the engine's lock held, so the counts
    /// need no order.
    pub(crate) fn publish_soon(&self, engine: &Engine) {
        let published = self.published();
        let now = engine.resident_pages() + engine.standby_pages();
        let before = published.dram_pages.load(Ordering::Relaxed);
        let reports = published.unpublished_reports.load(Ordering::Relaxed) + 1;
        if now.abs_diff(before) * PUBLISHED_PART > now || reports > REPORTS_UNPUBLISHED_MAX {
            return self.publish(engine);
        }
        published.unpublished_reports.store(reports, Ordering::Relaxed);
    }

    /// Publishes how hot memory is, and what the pager itself takes. Separate from `publish`, and called less often,
    /// because it sets 26 numbers.
    pub(crate) fn publish_heat(&self, engine: &Engine) {
        self.publish_own_use(engine);
        let Histogram { resident, away } = engine.map().temperatures().histogram();
        for (published, pages) in self.published().heat.iter().zip([resident, away]) {
            published.iter().zip(pages).for_each(|(published, pages)| published.store(*pages, Ordering::Relaxed));
        }
        let add = |all: &AllPublished| {
            [0, 1].map(|index| {
                std::array::from_fn(|class| all.sum(|published| &published.heat[index][class]) * PAGE_BYTES)
            })
        };
        self.pager.published.add_up(add, |[resident, away]| {
            self.counters.set_heat(Place::Resident, resident);
            self.counters.set_heat(Place::Away, away);
        });
    }

    /// Records the sizes of this shard's tables, and returns those of all shards, and the addresses reserved for them.
    pub(crate) fn publish_tables(&self, engine: &Engine) -> (Tables, u64) {
        let Tables { block_map, guards, policy, frames } = engine.tables();
        let now = [block_map, guards, policy, frames, engine.reserved_table_bytes()];
        self.published().tables.iter().zip(now).for_each(|(table, now)| table.store(now, Ordering::Relaxed));
        let [block_map, guards, policy, frames, reserved] =
            std::array::from_fn(|index| self.pager.published.sum(|published| &published.tables[index]));
        (Tables { block_map, guards, policy, frames }, reserved)
    }

    /// Updates a counter with what the engine has counted since the last call. Called with the engine's lock held.
    fn catch_up(&self, counter: Counter, published: &AtomicU64, now: u64) {
        let before = published.swap(now, Ordering::Relaxed);
        if now > before {
            self.counters.add(counter, now - before);
        }
    }
}

impl Pager {
    pub(crate) fn level(&self, index: usize) -> Option<LevelFigures> {
        self.tier.leveled()?.level(index)
    }

    /// Updates the counters with what the levels of a chain have done since the last call. Several processes of a tree
    /// do so, and their amounts add up.
    pub(crate) fn count_levels(&self) {
        for (index, published) in self.published_levels.iter().enumerate() {
            let Some(figures) = self.level(index) else { return };
            let done = [figures.reads, figures.read_bytes, figures.promoted_bytes, figures.demoted_bytes];
            for ((counter, published), done) in LevelCounter::ALL.iter().zip(published).zip(done) {
                // Most figures have not changed: read first, and take the cache line only if needed.
                if done > published.load(Ordering::Relaxed) {
                    let before = published.fetch_max(done, Ordering::Relaxed);
                    self.counters.add_level(index, *counter, done.saturating_sub(before));
                }
            }
        }
    }

    /// After fork(2): the parent counts what the levels of a chain have done so far.
    pub(crate) fn disown_levels(&self) {
        for (index, published) in self.published_levels.iter().enumerate() {
            let Some(figures) = self.level(index) else { return };
            let done = [figures.reads, figures.read_bytes, figures.promoted_bytes, figures.demoted_bytes];
            published.iter().zip(done).for_each(|(published, done)| published.store(done, Ordering::Relaxed));
        }
    }

    /// Publishes what a compressed tier and the levels of a chain hold, and counts what they have done. If several
    /// processes of a tree publish, the last one's gauges are seen.
    pub(crate) fn publish_levels(&self) {
        self.count_levels();
        if let Some(figures) = self.tier.compression() {
            for (gauge, amount) in [
                (Gauge::CompressedPages, figures.stored_pages),
                (Gauge::SameValuePages, figures.same_value_pages),
                (Gauge::IncompressiblePages, figures.incompressible_pages),
                (Gauge::CompressedBytes, figures.live_bytes),
                (Gauge::CompressedWasteBytes, figures.waste_bytes),
                (Gauge::CompressedTableBytes, figures.table_bytes),
            ] {
                self.counters.set(gauge, amount);
            }
        }
        for index in 0..LEVELS {
            let Some(figures) = self.level(index) else { return };
            self.counters.set_level(index, LevelGauge::CapacityBytes, figures.capacity_bytes);
            self.counters.set_level(index, LevelGauge::UsedBytes, figures.used_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn temperatures_are_counted_and_shown_in_the_same_classes() {
        assert_eq!(aquifer_core::temperature::CLASS_NAMES, aquifer_stats::TEMPERATURES);
    }

    /// A thread adds up, and another one publishes before the first one sets the gauge. That used to set the older sum
    /// last, and the gauge kept it until somebody published again.
    #[test]
    fn the_latest_sum_is_set_last() {
        let (all, gauge) = (AllPublished::new(2), AtomicU64::new(0));
        let has_added = AtomicU64::new(0);
        let is_over = AtomicU64::new(0);
        let add = |all: &AllPublished| all.sum(|published| &published.dram_pages);
        let wait_for = |flag: &AtomicU64| {
            // The first thread waits for the second one, which waits for the first one, until the time is over.
            let started = Instant::now();
            while flag.load(Ordering::Acquire) == 0 && started.elapsed() < Duration::from_millis(300) {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                all.of(0).dram_pages.store(5, Ordering::Relaxed);
                all.add_up(add, |sum| {
                    has_added.store(1, Ordering::Release);
                    wait_for(&is_over);
                    gauge.store(sum, Ordering::Relaxed);
                });
            });
            wait_for(&has_added);
            all.of(1).dram_pages.store(7, Ordering::Relaxed);
            all.add_up(add, |sum| gauge.store(sum, Ordering::Relaxed));
            is_over.store(1, Ordering::Release);
        });
        assert_eq!(gauge.into_inner(), 12);
    }

    #[test]
    fn a_suggestion_is_a_round_number() {
        assert_eq!(super::suggestion(1), 4 << 20);
        assert_eq!(super::suggestion((617 << 20) + 5), 624 << 20);
        assert_eq!(super::suggestion(10 << 30), 10 << 30);
    }

    #[test]
    fn every_level_of_a_chain_is_shown() {
        assert_eq!(aquifer_core::tiering::LEVELS_MAX, aquifer_stats::LEVELS);
    }
}
