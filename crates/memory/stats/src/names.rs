// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every counter, gauge, latency and text: its name and its meaning. One table each.
//!
//! The name is the word in the code, in `--stats-json`, in `aquifer stat` and (with the prefix `aquifer_`) in
//! Prometheus text. The order is the order in the segment: append, never insert or reorder; the golden test of the
//! layout fails otherwise.

/// Defines an enum whose variants have a name and a sentence.
macro_rules! table {
    ($(#[$meta:meta])* $enum:ident { $($variant:ident $name:literal $help:literal)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $enum {
            $(#[doc = $help] $variant,)+
        }

        impl $enum {
            /// All variants, in the order of the segment.
            pub const ALL: &'static [$enum] = &[$($enum::$variant),+];
            /// Number of variants.
            pub const COUNT: usize = Self::ALL.len();

            /// The name.
            pub const fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)+ }
            }

            /// The meaning, in one sentence.
            pub const fn help(self) -> &'static str {
                match self { $($enum::$variant => $help,)+ }
            }
        }
    };
}

table! {
    /// Numbers that only grow.
    Counter {
        Faults "faults" "Faults resolved, of every kind."
        FaultsWrite "faults_write" "Faults that were stores, among all faults."
        FaultsFresh "faults_fresh" "Faults on memory that had no contents yet."
        FetchedBytes "fetched_bytes" "Bytes read from the tier, on demand or ahead of it."
        FetchedBlocks "fetched_blocks" "Blocks read from the tier, on demand or ahead of it."
        PrefetchedBytes "prefetched_bytes" "Bytes read from the tier ahead of demand."
        PrefetchHits "prefetch_hits" "Prefetched blocks that the program then touched, not zeros that were prepared."
        PrefetchWasted "prefetch_wasted" "Prefetched blocks that left without having been touched."
        WrittenBackBytes "written_back_bytes" "Bytes written to the tier."
        WrittenBackBlocks "written_back_blocks" "Blocks written to the tier."
        EvictedBlocks "evicted_blocks" "Blocks taken out of the program's address space."
        EvictedCleanBlocks "evicted_clean_blocks" "Evicted blocks that needed no write-back."
        ZeroPagesElided "zero_pages_elided" "Pages of zeros that were remembered instead of written."
        RescuedBlocks "rescued_blocks" "Blocks touched while on standby, and given back without a fetch."
        DiscardedBytes "discarded_bytes" "Bytes of the tier that were discarded because the program freed the memory."
        Errors "errors" "Failures of any kind: fetch, write-back, guard."
        FetchFailures "fetch_failures" "Fetches that the tier failed."
        WriteBackFailures "write_back_failures" "Write-backs that the tier failed."
        GuardMismatches "guard_mismatches" "Fetched blocks whose bytes differ from those that were written."
        PoisonedBlocks "poisoned_blocks" "Blocks whose contents are lost; the next access is an error."
        Waits "waits" "Faults that waited for another thread's work on the same block, or for a frame."
        EagainRetries "eagain_retries" "Kernel calls repeated because the address space was changing."
        ExchangeFallbacks "exchange_fallbacks" "Pages copied because they could not be moved."
        RepairedBlocks "repaired_blocks" "Fetched blocks with wrong bytes, which were repaired from another copy."
        MembersLost "members_lost" "Times that one donor of several did not answer any more."
        ReadsByAnotherWay "reads_by_another_way" "Reads that one donor could not answer correctly, and another one did."
        ReadsHedged "reads_hedged" "Reads for which a second donor was asked because the first one took long."
        SlabsDegraded "slabs_degraded" "Slabs of the tier that lost one of several copies."
        SlabsRebuilt "slabs_rebuilt" "Copies of slabs that were made in place of lost ones."
        SlabsLost "slabs_lost" "Slabs of the tier that lost their last copy."
        MembersQuarantined "members_quarantined" "Donors quarantined because they repeatedly returned corrupt data."
        PrefetchedBlocks "prefetched_blocks" "Blocks read from the tier ahead of demand."
        CopiedBytes "copied_bytes" "Bytes copied between the program, frames and a tier in memory."
        EngineLocks "engine_locks" "Uses of the engine's lock, where they are timed."
        EngineLockHeldNs "engine_lock_held_ns" "How long threads held the engine's lock, where that is timed."
        EngineLockWaitedNs "engine_lock_waited_ns" "How long threads waited for the engine's lock, where that is timed."
    }
}

table! {
    /// Present values.
    Gauge {
        Pid "pid" "Process that writes these numbers; null before the pager starts, or if it is not visible here."
        StartTimeUnixS "start_time_unix_s" "When the pager started, in seconds since 1970."
        Active "active" "1 once mappings are registered, because the budget was nearly used; 0 before."
        DramBudgetBytes "dram_budget_bytes" "Local DRAM that managed memory may take."
        ManagedBytes "managed_bytes" "Memory of the program that is managed."
        ResidentBytes "resident_bytes" "Managed memory in local DRAM now."
        ResidentBytesPeak "resident_bytes_peak" "The most managed memory that was in local DRAM."
        StandbyBytes "standby_bytes" "Evicted blocks still in DRAM; part of the resident bytes."
        FramesFreeBytes "frames_free_bytes" "Frames ready for the next fetch."
        StoredBytes "stored_bytes" "Bytes of the tier that are set aside for the program, in slabs of 2 MiB."
        TierCapacityBytes "tier_capacity_bytes" "Bytes that the tier can hold."
        RegisteredMappingsSignal "registered_mappings_signal" "Mappings whose faults the faulting thread resolves."
        RegisteredMappingsListener "registered_mappings_listener" "Mappings whose faults a listener resolves."
        LeftAloneBytes "left_alone_bytes" "Shared and file mappings of the program, which stay the kernel's."
        UnwritableBytes "unwritable_bytes" "Blocks on standby that the tier did not take; they are tried again."
        StandbyBytesPeak "standby_bytes_peak" "The most bytes that were on standby."
        StoredBytesPeak "stored_bytes_peak" "The most bytes that were set aside in the tier."
        ManagedBytesPeak "managed_bytes_peak" "The most memory that was managed."
        SuggestedDramBytes "suggested_dram_bytes" "Budget that would halve the fetches, by an estimate; 0 while unknown."
        OverheadBytes "overhead_bytes" "The pager's own memory in local DRAM; part of the budget, except with --record."
        UnmanagedResidentBytes "unmanaged_resident_bytes" "Memory in local DRAM that is not managed: shared memory, stacks, small mappings."
        UnmanagedResidentBytesPeak "unmanaged_resident_bytes_peak" "The most unmanaged memory that was in local DRAM."
        CompressedPages "compressed_pages" "Pages that a compressed tier stores."
        SameValuePages "same_value_pages" "Pages of a compressed tier that repeat one value, and take no room."
        IncompressiblePages "incompressible_pages" "Pages of a compressed tier that do not compress, stored as they are."
        CompressedBytes "compressed_bytes" "Local DRAM that the pages of a compressed tier take; part of the budget."
        CompressedWasteBytes "compressed_waste_bytes" "Local DRAM that a compressed tier takes beyond its pages and its tables."
        CompressedTableBytes "compressed_table_bytes" "Local DRAM for the tables of a compressed tier."
        TierMappedBytes "tier_mapped_bytes" "The most that a tier in this machine's memory adds to the program's shared memory."
        OverheadBlockMapBytes "overhead_block_map_bytes" "Local DRAM for the description of mappings, regions and blocks."
        OverheadGuardsBytes "overhead_guards_bytes" "Local DRAM for the guards of stored pages."
        OverheadPolicyBytes "overhead_policy_bytes" "Local DRAM for the policy's lists of blocks."
        OverheadFramesBytes "overhead_frames_bytes" "Local DRAM for the sets and lists of frames, and the kernel's page tables of their addresses."
        OverheadBuffersBytes "overhead_buffers_bytes" "Local DRAM for queues, bounce buffers, and a huge page from which frames are cut."
        OverheadStacksBytes "overhead_stacks_bytes" "Local DRAM for the stacks on which the pager works, by an estimate for each thread."
        OverheadHeapBytes "overhead_heap_bytes" "Local DRAM for all else on the pager's own heap."
    }
}

table! {
    /// How a fault was resolved; each kind has its own histogram.
    FaultKind {
        Fresh "fresh" "The memory had no contents yet."
        Rescue "rescue" "The block was on standby."
        Fetch "fetch" "The block came from the tier."
        Wait "wait" "Another thread was at work on the block."
    }
}

table! {
    /// The places for which temperatures are counted.
    Place {
        Resident "resident" "At the program's address."
        Away "away" "On standby, in the tier, or on the way."
    }
}

/// Classes of temperature, from cold to hot, each twice as hot as the one before. Units: docs/temperature.md.
pub const TEMPERATURES: [&str; 9] = ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255"];

/// Number of levels of a chain of tiers for which the segment has room.
pub const LEVELS: usize = 4;

table! {
    /// Numbers that only grow, for each level of a chain.
    LevelCounter {
        Reads "reads" "Reads of the program's blocks from this level of a chain of tiers."
        ReadBytes "read_bytes" "Bytes of the program's blocks read from this level of a chain of tiers."
        PromotedBytes "promoted_bytes" "Bytes that moved to this level from a slower one, since they were fetched often."
        DemotedBytes "demoted_bytes" "Bytes that moved to this level from a faster one, to make room there."
    }
}

table! {
    /// Present values, for each level of a chain.
    LevelGauge {
        CapacityBytes "capacity_bytes" "Bytes that this level of a chain of tiers can hold."
        UsedBytes "used_bytes" "Bytes of this level of a chain of tiers that are set aside, in slabs of 2 MiB."
    }
}

/// Maximum number of bytes in the name of a level's tier.
pub(crate) const LEVEL_NAME_BYTES: usize = 32;

table! {
    /// Texts about this instance.
    Text {
        Program "program" "The program's name."
        Policy "policy" "Which policy chooses the blocks that leave."
        Tier "tier" "Where cold blocks go."
        Block "block" "How many bytes move as one."
        Delivery "delivery" "Who resolves a fault."
        Exchange "exchange" "How pages get to and from the program's address."
        LastMessage "last_message" "The last message to the user."
    }
}

impl Gauge {
    /// Whether the value is a fact about the instance rather than a measurement.
    pub const fn is_identity(self) -> bool {
        matches!(self, Gauge::Pid | Gauge::StartTimeUnixS)
    }
}

impl Text {
    /// Maximum number of bytes of the text; the rest is cut off.
    pub const fn capacity_bytes(self) -> usize {
        match self {
            Text::Tier | Text::Program => 256,
            Text::LastMessage => 512,
            Text::Policy | Text::Block | Text::Delivery | Text::Exchange => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_across_the_tables() {
        let mut names: Vec<&str> = Vec::new();
        names.extend(Counter::ALL.iter().map(|c| c.name()));
        names.extend(Gauge::ALL.iter().map(|g| g.name()));
        names.extend(Text::ALL.iter().map(|t| t.name()));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn every_table_lists_its_variants_in_order() {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index);
        }
        for (index, gauge) in Gauge::ALL.iter().enumerate() {
            assert_eq!(*gauge as usize, index);
        }
    }
}
