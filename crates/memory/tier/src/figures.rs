// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier's figures: how many times each kind of event has happened since the last query.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! figures {
    ($($name:ident $meaning:literal,)+) => {
        /// A count for each kind of event. The set may grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct TierFigures {
            $(#[doc = $meaning] pub $name: u64,)+
        }

        impl TierFigures {
            /// The sum of two tiers' figures.
            pub fn and(self, other: TierFigures) -> TierFigures {
                TierFigures { $($name: self.$name + other.$name,)+ }
            }
        }

        /// The same figures, while they are counted. Threads: any, including signal handlers.
        #[derive(Debug, Default)]
        pub struct TierCounters {
            $(#[doc = $meaning] pub $name: AtomicU64,)+
        }

        impl TierCounters {
            /// Takes what was counted since the last call. Relaxed: each number is independent.
            pub fn take(&self) -> TierFigures {
                TierFigures { $($name: self.$name.swap(0, Ordering::Relaxed),)+ }
            }
        }
    };
}

figures! {
    members_lost "Members that did not answer any more.",
    members_quarantined "Members quarantined because they repeatedly returned corrupt data.",
    reads_by_another_way "Reads that one member could not answer correctly, and another one did.",
    reads_hedged "Reads for which a second member was asked because the first one took long.",
    slabs_degraded "Slabs that lost a copy, and have others.",
    slabs_rebuilt "Copies of slabs that were made in place of lost ones.",
    slabs_lost "Slabs whose bytes are gone.",
    mapped_bytes "Bytes that were read through a mapping in this process: the kernel counts their pages in its resident \
                  set.",
}

/// What a tier that compresses has stored now, by all processes of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionFigures {
    /// Pages with something stored.
    pub stored_pages: u64,
    /// Those of them that repeat one value, and take no room.
    pub same_value_pages: u64,
    /// Those of them that do not compress, and are stored as they are.
    pub incompressible_pages: u64,
    /// The bytes of their records.
    pub live_bytes: u64,
    /// Further bytes of local memory that are taken for records: dead ones, and ends of spans.
    pub waste_bytes: u64,
    /// The bytes of the tables.
    pub table_bytes: u64,
}

impl CompressionFigures {
    /// The sum of two tiers' figures.
    pub fn and(self, other: CompressionFigures) -> CompressionFigures {
        CompressionFigures {
            stored_pages: self.stored_pages + other.stored_pages,
            same_value_pages: self.same_value_pages + other.same_value_pages,
            incompressible_pages: self.incompressible_pages + other.incompressible_pages,
            live_bytes: self.live_bytes + other.live_bytes,
            waste_bytes: self.waste_bytes + other.waste_bytes,
            table_bytes: self.table_bytes + other.table_bytes,
        }
    }

    /// The bytes of local memory that all of it takes.
    pub fn local_bytes(&self) -> u64 {
        self.live_bytes + self.waste_bytes + self.table_bytes
    }
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
