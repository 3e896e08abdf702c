// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns the driver's events into counters and messages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aquifer_core::engine::Engine;
use aquifer_core::map::Pages;
use aquifer_driver::{Count, FaultKind, Loss, Observer, Resolved};
use aquifer_stats::Counter;

use crate::abort::{Number, say};
use crate::shard::ShardView;

/// Losses that have a line each. A program that goes on after it has lost a donor may have millions.
const LOSSES_SAID_MAX: u64 = 16;

impl Observer for ShardView<'_> {
    #[inline]
    fn count(&self, what: Count, amount: u64) {
        let counter = match what {
            Count::EvictedBlocks => Counter::EvictedBlocks,
            Count::EvictedCleanBlocks => Counter::EvictedCleanBlocks,
            Count::ExchangeFallbacks => Counter::ExchangeFallbacks,
            Count::FetchedBytes => Counter::FetchedBytes,
            Count::FetchedBlocks => Counter::FetchedBlocks,
            Count::PrefetchedBytes => Counter::PrefetchedBytes,
            Count::PrefetchedBlocks => Counter::PrefetchedBlocks,
            Count::Waits => Counter::Waits,
            Count::WrittenBackBytes => Counter::WrittenBackBytes,
            Count::WrittenBackBlocks => Counter::WrittenBackBlocks,
            Count::ZeroPagesElided => Counter::ZeroPagesElided,
        };
        self.counters.add(counter, amount);
    }

    fn resolved(&self, fault: Resolved) {
        let kind = match fault.kind {
            FaultKind::Fresh => aquifer_stats::FaultKind::Fresh,
            FaultKind::Rescue => aquifer_stats::FaultKind::Rescue,
            FaultKind::Fetch => aquifer_stats::FaultKind::Fetch,
            FaultKind::Wait => aquifer_stats::FaultKind::Wait,
        };
        // The total before its parts, so that a reader never sees a part exceed the total.
        self.counters.add(Counter::Faults, 1);
        self.counters.add(Counter::FaultsFresh, fault.fresh_blocks);
        self.counters.add(Counter::RescuedBlocks, fault.rescued_blocks);
        self.counters.record(kind, fault.ns);
    }

    #[inline]
    fn touched(&self, pages: Pages, block_pages: u32) {
        self.sampling.touched(pages, block_pages);
    }

    fn fetched(&self) {
        self.count_levels();
    }

    fn publish(&self, engine: &Engine) {
        ShardView::publish(self, engine);
    }

    fn publish_if_due(&self, engine: &Engine) {
        self.publish_soon(engine);
    }

    fn publish_more(&self, engine: &Engine) {
        self.publish_heat(engine);
    }

    fn publish_tier(&self) {
        self.publish_levels();
        self.count_figures();
    }

    fn tier_full(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        self.count_failure(Counter::WriteBackFailures);
        if !SAID.swap(true, Ordering::Relaxed) {
            let capacity = Number::new(self.tier.capacity_bytes() >> 20);
            say(&[
                "the tier is full at ",
                capacity.text(),
                " MiB; give it a larger size (--tier KIND:...,size=SIZE) or add DRAM (--dram)",
            ]);
        }
    }

    fn lost(&self, pages: Pages, why: Loss) {
        let (counter, why) = match why {
            Loss::GuardMismatch => {
                (Counter::GuardMismatches, "fetched bytes are not what was written back (guard mismatch)")
            }
            Loss::FetchFailed => (Counter::FetchFailures, "a fetch from the tier failed"),
            Loss::WriteFailed => (Counter::WriteBackFailures, "a write in place to the tier failed halfway"),
        };
        self.count_failure(counter);
        self.counters.add(Counter::PoisonedBlocks, 1);
        static LOSSES: AtomicU64 = AtomicU64::new(0);
        let losses = LOSSES.fetch_add(1, Ordering::Relaxed) + 1;
        if losses > LOSSES_SAID_MAX {
            return said_by_number(losses);
        }
        let (address, bytes) = (Number::new(pages.address() as u64), Number::new(pages.bytes()));
        say(&[
            why,
            ": ",
            bytes.text(),
            " bytes at address ",
            address.text(),
            " are lost and poisoned; an access to them is a SIGBUS; ",
            self.tier.remedy(),
        ]);
    }
}

/// Reports the number of losses each time that it has doubled.
fn said_by_number(losses: u64) {
    if losses.is_power_of_two() {
        let (number, each) = (Number::new(losses), Number::new(LOSSES_SAID_MAX));
        say(&[
            number.text(),
            " losses so far, of which only the first ",
            each.text(),
            " have a line each; poisoned_blocks of 'aquifer stat' counts them all",
        ]);
    }
}
