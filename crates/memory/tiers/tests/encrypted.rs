// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier whose contents are sealed is a tier. The bytes underneath reveal nothing, and bytes that were changed there
//! are never mistaken for the stored ones.

mod scratch;
mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use aquifer_sys::FrameBuffer;
use aquifer_tiers::conformance::{check, frames, model};
use aquifer_tiers::{
    Encrypted, Failing, FailurePlan, Operation, PAGE, Request, Tier, TierFailure, TierQueue, TierSpec, Wait, open,
};
use proptest::prelude::*;
use scratch::Scratch;

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

fn encrypted(inner: Box<dyn Tier>) -> Box<dyn Tier> {
    Box::new(Encrypted::new(inner).unwrap())
}

/// A tier whose stored bytes the test can read and change. Its second way reads from `copy`.
#[derive(Clone)]
struct Watched {
    tier: Arc<dyn Tier>,
    copy: Arc<dyn Tier>,
}

impl Watched {
    fn new() -> Watched {
        let dram = || Arc::from(tier("dram:size=16MiB"));
        Watched { tier: dram(), copy: dram() }
    }

    fn pages(&self, count: usize) -> Vec<u8> {
        let mut frame = frames::frame(count, 0);
        self.tier.read(0, &mut frame).unwrap();
        let bytes = frame.bytes().to_vec();
        frames::give_back(frame);
        bytes
    }

    /// Changes one bit underneath.
    fn damage(&self, page: usize) {
        let mut frame = frames::frame(1, 0);
        self.tier.read((page * PAGE) as u64, &mut frame).unwrap();
        frame.bytes_mut()[page % PAGE] ^= 4;
        self.tier.write((page * PAGE) as u64, &frame).unwrap();
        frames::give_back(frame);
    }
}

impl Tier for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }
    fn capacity_bytes(&self) -> u64 {
        self.tier.capacity_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.tier.read(offset, buffer)
    }
    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        [&self.tier, &self.copy]
            .get(way as usize - 1)
            .map_or(Ok(false), |tier| tier.read(offset, buffer).map(|()| true))
    }
    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.tier.write(offset, buffer)?;
        self.copy.write(offset, buffer)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.tier.discard(offset, len)
    }
    fn flush(&self) -> Result<(), TierFailure> {
        self.tier.flush()
    }
    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.tier.open_queue(depth)
    }
}

#[test]
fn whatever_is_underneath_it_passes_the_suite() {
    check("encrypted dram", &|| encrypted(tier("dram:size=16MiB")));
    check("encrypted emulated", &|| encrypted(tier("emulated:cmm-h,size=16MiB")));
    let scratch = Scratch::new();
    let flash = format!("flash:{},size=16MiB,encrypt=ephemeral", scratch.path().display());
    check("encrypted flash", &|| tier(&flash));
}

/// The worker installs what was read first before what was read later; a thread may be waiting for it.
#[test]
fn reads_complete_in_the_order_in_which_the_tier_underneath_completes_them() {
    let tier = encrypted(tier("dram:size=16MiB"));
    let mut queue = tier.open_queue(8).unwrap();
    for tag in 0..8 {
        let request =
            Request { operation: Operation::Read, offset: tag * PAGE as u64, buffer: frames::frame(1, 0), tag };
        assert!(queue.submit(request).is_ok());
    }
    queue.kick().unwrap();
    let mut tags = Vec::new();
    queue.complete(Wait::ForOne, usize::MAX, &mut |completion| {
        tags.push(completion.tag);
        frames::give_back(completion.buffer);
    });
    assert_eq!(tags, (0..8).collect::<Vec<u64>>());
}

#[test]
fn failures_underneath_surface_and_what_was_stored_before_stays() {
    let plan = FailurePlan { every: Some(3), ..FailurePlan::default() };
    check("encrypted", &|| encrypted(Box::new(Failing::new(tier("dram:size=16MiB"), FailurePlan::default()))));
    let tier = encrypted(Box::new(Failing::new(tier("dram:size=16MiB"), plan)));
    let mut frame = frames::frame(4, 0);
    let (mut failed, mut held) = (0, 0);
    for version in 1..30 {
        frames::stamp(frame.bytes_mut(), 0, version);
        match tier.write(0, &frame) {
            Ok(()) => held = version,
            Err(_) => failed += 1,
        }
        if tier.read(0, &mut frame).is_ok() && held > 0 {
            frames::check_stamp(frame.bytes(), 0, held);
        }
    }
    assert!(failed > 5 && held > 0);
    frames::give_back(frame);
}

#[test]
fn stored_bytes_reveal_nothing() {
    let watched = Watched::new();
    let tier = encrypted(Box::new(watched.clone()));
    // The same byte everywhere, written in both ways and more than once.
    let frame = frames::frame(16, 0x77);
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        tier.write(0, &frame).unwrap();
        let mut queue = tier.open_queue(4).unwrap();
        let request =
            Request { operation: Operation::Write, offset: 16 << 12, buffer: frames::frame(16, 0x77), tag: 0 };
        assert!(queue.submit(request).is_ok());
        queue.kick().unwrap();
        assert_eq!(
            queue.complete(Wait::ForOne, 1, &mut |done| {
                done.outcome.unwrap();
                assert!(done.buffer.bytes().iter().all(|byte| *byte == 0x77), "the caller's frame is as it was");
                frames::give_back(done.buffer);
            }),
            1
        );
        for page in watched.pages(32).chunks_exact(PAGE) {
            // No word is in the clear, and no page looks like another page, or as it did in an earlier round.
            assert!(page.chunks_exact(8).all(|word| word != [0x77; 8]));
            assert!(seen.insert(page.to_vec()), "round {round}");
        }
    }
    frames::give_back(frame);
}

#[test]
fn a_changed_page_reads_as_zeros_and_is_repaired_by_another_way() {
    let watched = Watched::new();
    let tier = encrypted(Box::new(watched.clone()));
    let mut frame = frames::frame(8, 0);
    frames::stamp(frame.bytes_mut(), 0, 1);
    tier.write(0, &frame).unwrap();
    let sealed = watched.pages(8);
    watched.damage(3);
    let found = |frame: &mut FrameBuffer| {
        frame.bytes_mut().fill(0xee);
        tier.read(0, frame).unwrap();
        let zeros = frame.bytes()[3 * PAGE..4 * PAGE].iter().all(|byte| *byte == 0);
        if zeros {
            frames::check_stamp(&frame.bytes()[..3 * PAGE], 0, 1);
            frames::check_stamp(&frame.bytes()[4 * PAGE..], 4 << 12, 1);
        } else {
            frames::check_stamp(frame.bytes(), 0, 1);
        }
        !zeros
    };
    assert!(!found(&mut frame));
    assert!(tier.read_other(0, &mut frame, 2).unwrap());
    frames::check_stamp(frame.bytes(), 0, 1);
    tier.write(0, &frame).unwrap();
    assert!(found(&mut frame));
    assert!(watched.pages(8) == sealed, "what related processes know of is what they find");
    assert!(!tier.read_other(0, &mut frame, 3).unwrap());
    frames::give_back(frame);
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..40, steps in steps::steps()) {
        model::replay(&*encrypted(tier("dram:size=16MiB")), depth, &steps);
    }
}
