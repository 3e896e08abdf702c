// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the pager itself takes in local DRAM, by part. It is part of the budget: `share.rs` subtracts it.
//!
//! Counted, not measured: reading /proc/PID/smaps takes milliseconds, and this is computed after each turn of the
//! worker. The tables are exact to a page of the kernel, since memory that was never written to is not counted; the
//! stacks are an estimate for each thread. `lab/e2e/tests/own_use.rs` compares the sum with what the kernel says.

use std::sync::atomic::Ordering;

use aquifer_core::engine::{Engine, Tables};
use aquifer_core::units::PAGE_BYTES;
use aquifer_stats::Gauge;
use aquifer_sys::memory::{OWN_BUFFER_BYTES, OWN_HEAP_BYTES, OWN_STACKS};

use crate::huge_frames::HugeFrames;
use crate::pager::Owner;
use crate::shard::ShardView;

/// What a thread of the program has written to on the two stacks that it got from this library, and a thread of the
/// pager on its own. Estimates, not measured.
const THREAD_STACK_BYTES: u64 = 32 << 10;
const PAGER_STACK_BYTES: u64 = 16 << 10;

/// The rings of a worker's queue and of the faulting threads, and the pages of counters.
const QUEUE_BYTES: u64 = 128 << 10;

/// Bytes of local DRAM, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnUse {
    tables: Tables,
    buffers: u64,
    stacks: u64,
    heap: u64,
}

impl OwnUse {
    /// All parts.
    pub(crate) fn bytes(self) -> u64 {
        self.tables.total() + self.buffers + self.stacks + self.heap
    }
}

impl ShardView<'_> {
    /// What this space takes now. A program's space includes what the library takes for the whole process.
    pub(crate) fn own_use(&self, engine: &Engine) -> OwnUse {
        let (tables, reserved) = self.publish_tables(engine);
        let supply = self.huge_frames.as_ref().map_or(0, HugeFrames::own_bytes);
        let of_process = self.service.owner() == Owner::Program;
        let (heap, stacks, buffers) = if of_process {
            let stacks = OWN_STACKS.load(Ordering::Relaxed) * THREAD_STACK_BYTES;
            (OWN_HEAP_BYTES.load(Ordering::Relaxed), stacks, OWN_BUFFER_BYTES.load(Ordering::Relaxed))
        } else {
            (0, 0, 0)
        };
        OwnUse {
            tables,
            buffers: supply + QUEUE_BYTES * self.shards.len() as u64 + buffers,
            stacks: stacks + self.service.threads() * PAGER_STACK_BYTES,
            heap: heap.saturating_sub(reserved),
        }
    }

    /// Sets the gauges of what the pager takes.
    pub(crate) fn publish_own_use(&self, engine: &Engine) {
        self.published.add_up(|_| self.own_use(engine), |own| self.set_own_use(own));
    }

    fn set_own_use(&self, own: OwnUse) {
        self.own_pages.store(own.bytes().div_ceil(PAGE_BYTES), Ordering::Relaxed);
        for (gauge, bytes) in [
            (Gauge::OverheadBytes, own.bytes()),
            (Gauge::OverheadBlockMapBytes, own.tables.block_map),
            (Gauge::OverheadGuardsBytes, own.tables.guards),
            (Gauge::OverheadPolicyBytes, own.tables.policy),
            (Gauge::OverheadFramesBytes, own.tables.frames),
            (Gauge::OverheadBuffersBytes, own.buffers),
            (Gauge::OverheadStacksBytes, own.stacks),
            (Gauge::OverheadHeapBytes, own.heap),
        ] {
            self.counters.set(gauge, bytes);
        }
    }
}
