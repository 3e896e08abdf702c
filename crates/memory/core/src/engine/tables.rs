// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How many bytes of memory the engine's tables take, by part.
//!
//! Pure. A few additions, so it can be asked at each fault.

use super::Engine;
use crate::standby::LINK_BYTES;
use crate::units::PAGE_BYTES;

/// Bytes of one entry of the kernel's page tables.
const PAGE_TABLE_ENTRY_BYTES: u64 = 8;

/// Bytes in memory, by part. Entries that were never written are not counted, since they take no memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Mappings, regions and blocks.
    pub block_map: u64,
    /// The guards of regions, once anything in them was written back.
    pub guards: u64,
    /// The policy's lists.
    pub policy: u64,
    /// The sets of frames, the standby lists, and the kernel's page tables for the frames' addresses.
    pub frames: u64,
}

impl Tables {
    /// All parts.
    pub fn total(self) -> u64 {
        self.block_map + self.guards + self.policy + self.frames
    }
}

impl Engine {
    /// Bytes of memory that the tables take.
    pub fn tables(&self) -> Tables {
        let (frames, pages) = self.frames.reached();
        let page_tables = (pages * PAGE_TABLE_ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        Tables {
            block_map: self.map.table_bytes(),
            guards: self.map.guard_bytes(),
            policy: self.map.policy_bytes(),
            frames: self.frames.set_bytes() + frames * LINK_BYTES + page_tables,
        }
    }

    /// Bytes of addresses that the larger tables have. Memory that was never written to is included.
    pub fn reserved_table_bytes(&self) -> u64 {
        let frames = self.standby.reserved_bytes() + self.frames.set_bytes();
        self.map.reserved_bytes() + self.policy.reserved_bytes() + frames
    }
}
