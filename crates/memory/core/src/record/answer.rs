// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The recorded form of an engine's answer: enough to tell whether another answer was the same.
//!
//! Pure. A flag is kept as it is. A larger answer is kept as its kind and 32 bits of a digest over every field. Two
//! different answers have the same digest once in 2^32; answers that follow would then show the difference.

use std::hash::{Hash, Hasher};

use crate::engine::{Arrived, DiscardStep, Engine, FaultStep, Task};
use crate::units::{REGION_BYTES, SlabIndex, Slot};

/// The recorded form of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// A flag's value, the kind of the step or of the place, or the number of tasks in a plan.
    pub kind: u8,
    /// A digest over all fields. 0 for flags; for a slot, its slab.
    pub digest: u32,
}

/// Names of the steps of a fault, by their kind.
const STEPS: [&str; 13] = [
    "fetch",
    "fill",
    "fill a hole",
    "rescue",
    "evict",
    "clean",
    "empty",
    "wait",
    "poisoned",
    "foreign",
    "drop",
    "credit",
    "another step",
];
/// Names of the places of a page, by their kind.
const ARRIVALS: [&str; 6] = ["away", "busy", "foreign", "here", "lost", "another place"];
/// Names of the outcomes of a discard, by their kind.
const DISCARDS: [&str; 3] = ["done", "make resident", "wait"];

impl Summary {
    /// Summarises a yes-or-no answer.
    pub fn of_flag(flag: bool) -> Self {
        Self { kind: u8::from(flag), digest: 0 }
    }

    /// Summarises where a page is.
    pub fn of_arrived(arrived: Arrived) -> Self {
        let kind = match arrived {
            Arrived::Away => 0,
            Arrived::Busy => 1,
            Arrived::Foreign => 2,
            Arrived::Here => 3,
            Arrived::Lost => 4,
        };
        Self { kind, digest: 0 }
    }

    /// The word for where a page is.
    pub fn arrived_name(self) -> &'static str {
        ARRIVALS[usize::from(self.kind).min(ARRIVALS.len() - 1)]
    }

    /// Summarises a fault's next step.
    pub fn of_step(step: &FaultStep) -> Self {
        let kind = match step {
            FaultStep::Fetch { .. } => 0,
            FaultStep::Fill { .. } => 1,
            FaultStep::FillHole { .. } => 2,
            FaultStep::Rescue { .. } => 3,
            FaultStep::Evict { .. } => 4,
            FaultStep::Clean { .. } => 5,
            FaultStep::Empty { .. } => 6,
            FaultStep::Wait => 7,
            FaultStep::Poisoned => 8,
            FaultStep::Foreign => 9,
            FaultStep::Drop { .. } => 10,
            FaultStep::Credit { .. } => 11,
        };
        Self { kind, digest: Digest::of(step) }
    }

    /// The word for the step of a fault.
    pub fn step_name(self) -> &'static str {
        STEPS[usize::from(self.kind).min(STEPS.len() - 1)]
    }

    /// Summarises a reserved slot. Its slab is kept whole: which slab of the tier is free is not the engine's decision,
    /// so a replay needs it as an input ([`Summary::slab`]).
    pub fn of_slot(slot: Option<Slot>) -> Self {
        Self { kind: u8::from(slot.is_some()), digest: slot.map_or(0, |slot| slot.slab().0) }
    }

    /// The slab of a reserved slot; `None` if the tier was full.
    pub fn slab(self) -> Option<SlabIndex> {
        (self.kind != 0).then_some(SlabIndex(self.digest))
    }

    /// Summarises a discard or a removal, and the slabs that it gave back.
    pub fn of_discard(step: DiscardStep, freed: Digest) -> Self {
        let kind = match step {
            DiscardStep::Done => 0,
            DiscardStep::MakeResident { .. } => 1,
            DiscardStep::Wait => 2,
        };
        let mut digest = freed;
        step.hash(&mut digest);
        Self { kind, digest: digest.short() }
    }

    /// The word for the outcome of a discard.
    pub fn discard_name(self) -> &'static str {
        DISCARDS[usize::from(self.kind).min(DISCARDS.len() - 1)]
    }

    /// Summarises a plan together with the engine's counts: plans are frequent enough to reveal soon a difference
    /// that the answers alone would not show yet.
    pub fn of_plan(tasks: &[Task], engine: &Engine) -> Self {
        let mut digest = Digest::default();
        tasks.hash(&mut digest);
        engine.counts().hash(&mut digest);
        for pages in [engine.resident_pages(), engine.standby_pages(), engine.free_pages(), engine.debt_pages()] {
            digest.write_u64(pages);
        }
        Self { kind: u8::try_from(tasks.len()).unwrap_or(u8::MAX), digest: digest.short() }
    }
}

/// A hash that is the same on every machine and in every build. One multiplication and one shift for each word, as in
/// the finaliser of MurmurHash3; not meant to withstand an adversary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Digest(u64);

impl Digest {
    fn of(value: &impl Hash) -> u32 {
        let mut digest = Self::default();
        value.hash(&mut digest);
        digest.short()
    }

    /// Adds a slab, as a range of bytes of its tier.
    pub fn slab(&mut self, slab: SlabIndex) {
        self.word(slab.offset());
        self.word(REGION_BYTES);
    }

    fn short(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 33;
    }
}

/// Every width counts as one word, so that a digest does not depend on the width that the compiler gives a field.
impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.word(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.word(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.word(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.word(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.word(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Exchange;
    use crate::map::Pages;
    use crate::policy::Arrival;
    use crate::units::{BlockIndex, FrameIndex, PageIndex};

    /// Golden: recordings outlive compilers, and no compiler promises how it derives a hash.
    #[test]
    fn digests_are_pinned() {
        let (block, pages, frame) = (BlockIndex(7), Pages { start: PageIndex(1000), count: 32 }, FrameIndex(3));
        let fetch = FaultStep::Fetch {
            block,
            pages,
            frame,
            slot: Slot(1 << 40),
            fresh: false,
            exchange: Exchange::Move,
            arrival: Arrival::Rescued,
        };
        let discard = DiscardStep::MakeResident { page: PageIndex(5) };
        let found = [
            Summary::of_step(&fetch),
            Summary::of_step(&FaultStep::Wait),
            Summary::of_slot(Some(Slot(3 << 21 | 4096))),
            Summary::of_discard(discard, Digest::default()),
        ];
        let pinned = [(0, 2_923_014_635), (7, 4_138_299_526), (1, 3), (1, 338_825_315)]
            .map(|(kind, digest)| Summary { kind, digest });
        assert_eq!(found, pinned);
    }

    #[test]
    fn every_field_counts() {
        let (block, pages, frame) = (BlockIndex(7), Pages { start: PageIndex(1000), count: 32 }, FrameIndex(3));
        let steps = [
            FaultStep::Evict { block, pages, frame },
            FaultStep::Evict { block: BlockIndex(8), pages, frame },
            FaultStep::Evict { block, pages: Pages { start: PageIndex(1001), count: 32 }, frame },
            FaultStep::Evict { block, pages: Pages { start: PageIndex(1000), count: 31 }, frame },
            FaultStep::Evict { block, pages, frame: FrameIndex(4) },
            FaultStep::Clean { block, pages, frame, known_clean: false },
            FaultStep::Clean { block, pages, frame, known_clean: true },
        ];
        let digests: std::collections::BTreeSet<u32> = steps.iter().map(|step| Summary::of_step(step).digest).collect();
        assert_eq!(digests.len(), steps.len());
    }
}
