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
    reads_by_another_way "Reads that one member could not answer rightly, and another one did.",
    reads_hedged "Reads for which a second member was asked because the first one took long.",
    slabs_degraded "Slabs that lost a copy, and have others.",
    slabs_rebuilt "Copies of slabs that were made in place of lost ones.",
    slabs_lost "Slabs whose bytes are gone.",
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
