// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sets the gauges from the state of the engines.
//!
//! A gauge is of the whole space. Each shard keeps its own figures here when its engine is locked, and the sum over all
//! shards is set: a reader sees figures of different moments added up, as it would without shards.

use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_core::engine::{Engine, Tables};
use aquifer_core::temperature::{CLASSES, Histogram};
use aquifer_core::units::{PAGE_BYTES, REGION_BYTES};
use aquifer_stats::{Counter, Gauge, LEVELS, LevelCounter, LevelGauge, Place};
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

/// What a shard last said about itself.
#[derive(Debug, Default)]
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
    /// How many reports on the fault path have published nothing since.
    unpublished_reports: AtomicU64,
    /// How much of the engine's counts was added to the counters.
    hits: AtomicU64,
    wasted: AtomicU64,
    clean: AtomicU64,
}

/// A budget as a person would type it: an estimate has at most two significant digits.
fn suggestion(bytes: u64) -> u64 {
    let step = (bytes / 64).max(4 << 20).next_power_of_two();
    bytes.next_multiple_of(step)
}

impl ShardView<'_> {
    /// Sets the gauges from the engine's state.
    pub(crate) fn publish(&self, engine: &Engine) {
        let published = &self.shard.published;
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
        self.pager.publish_sums();
        let counts = engine.counts();
        self.catch_up(Counter::PrefetchHits, &published.hits, counts.prefetch_hits);
        self.catch_up(Counter::PrefetchWasted, &published.wasted, counts.prefetch_wasted);
        self.catch_up(Counter::EvictedCleanBlocks, &published.clean, counts.dropped_clean_blocks);
    }

    /// As `publish`, but only where the pages in DRAM differ from those last published by more than `1 /
    /// PUBLISHED_PART`, or after `REPORTS_UNPUBLISHED_MAX` calls. Called with the engine's lock held, so the counts
    /// need no order.
    pub(crate) fn publish_soon(&self, engine: &Engine) {
        let published = &self.shard.published;
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
        for (published, pages) in self.shard.published.heat.iter().zip([resident, away]) {
            published.iter().zip(pages).for_each(|(published, pages)| published.store(*pages, Ordering::Relaxed));
        }
        for (index, place) in [Place::Resident, Place::Away].into_iter().enumerate() {
            let class = |class: usize| self.pager.sum(|published| &published.heat[index][class]) * PAGE_BYTES;
            self.counters.set_heat(place, std::array::from_fn(class));
        }
    }

    /// Records the sizes of this shard's tables, and returns those of all shards, and the addresses reserved for them.
    pub(crate) fn publish_tables(&self, engine: &Engine) -> (Tables, u64) {
        let Tables { block_map, guards, policy, frames } = engine.tables();
        let now = [block_map, guards, policy, frames, engine.reserved_table_bytes()];
        self.shard.published.tables.iter().zip(now).for_each(|(table, now)| table.store(now, Ordering::Relaxed));
        let [block_map, guards, policy, frames, reserved] =
            std::array::from_fn(|index| self.pager.sum(|published| &published.tables[index]));
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
    /// The sum of one figure over the shards.
    fn sum<'a>(&'a self, figure: impl Fn(&'a Published) -> &'a AtomicU64) -> u64 {
        self.shards.iter().map(|shard| figure(&shard.published).load(Ordering::Relaxed)).sum()
    }

    fn publish_sums(&self) {
        let bytes = |figure: fn(&Published) -> &AtomicU64| self.sum(figure) * PAGE_BYTES;
        let standby = bytes(|published| &published.standby_pages);
        self.counters.set_resident_bytes(bytes(|published| &published.dram_pages));
        self.counters.set_with_peak(Gauge::StandbyBytes, Gauge::StandbyBytesPeak, standby);
        self.counters.set(Gauge::UnwritableBytes, bytes(|published| &published.unwritable_pages));
        self.counters.set(Gauge::FramesFreeBytes, bytes(|published| &published.free_pages));
        let stored = self.sum(|published| &published.slabs) * REGION_BYTES;
        self.counters.set_with_peak(Gauge::StoredBytes, Gauge::StoredBytesPeak, stored);
        let in_place = self.shards.iter().map(|shard| shard.in_place_bytes.load(Ordering::Relaxed));
        let used = in_place.sum::<u64>().saturating_mul(MAPPED_AROUND);
        self.counters.set(Gauge::TierMappedBytes, used.min(stored));
        let more = bytes(|published| &published.wanted_pages);
        // In a process tree the budget is shared by all processes, and this process is the one that would use more of
        // it.
        let suggested = if more == 0 { 0 } else { suggestion(self.counters.gauge(Gauge::DramBudgetBytes) + more) };
        self.counters.set(Gauge::SuggestedDramBytes, suggested);
    }

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
    #[test]
    fn temperatures_are_counted_and_shown_in_the_same_classes() {
        assert_eq!(aquifer_core::temperature::CLASS_NAMES, aquifer_stats::TEMPERATURES);
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
