// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tests the conformance suite itself: a tier that returns one wrong bit must not pass it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_tiers::conformance::model::{Step, replay};
use aquifer_tiers::conformance::{Open, check, frames, overlapping_gains_time};
use aquifer_tiers::{Completion, PAGE, Request, Tier, TierFailure, TierQueue, TierSpec, Wait, open};

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

#[test]
fn a_changed_bit_fails_the_suite_and_the_model() {
    let corrupt = "failing:corrupt=3:dram:size=16MiB";
    assert!(catch_unwind(|| check("a corrupt tier", &|| tier(corrupt))).is_err());
    let steps = [Step::WriteBehind { page: 0, pages: 4 }, Step::ReadBehind { page: 0, pages: 4 }];
    replay(&*tier("dram:size=16MiB"), 4, &steps);
    let corrupt = tier(corrupt);
    assert!(catch_unwind(AssertUnwindSafe(|| replay(&*corrupt, 4, &steps))).is_err());
}

#[test]
fn a_changed_bit_is_one_bit() {
    let tier = tier("failing:corrupt=1:dram:size=16MiB");
    let mut frame = frames::frame(2, 0);
    tier.write(0, &frame).unwrap();
    let changed = |frame: &FrameBuffer| frame.bytes().iter().map(|byte| byte.count_ones()).sum::<u32>();
    tier.read(0, &mut frame).unwrap();
    assert_eq!(changed(&frame), 1);
    // A verified read hid the planned damage: the bytes were read once more.
    tier.read_verified(0, &mut frame, &mut |_, _, _| {}).unwrap();
    assert_eq!(changed(&frame), 1);
}

/// A tier that makes false claims about itself.
struct Liar {
    inner: Box<dyn Tier>,
    /// Requests do not overlap: each takes this long.
    takes: Duration,
    /// Its queue zeroes the bytes of a request after this many.
    cuts_behind: usize,
}

impl Tier for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn request_bytes_max(&self) -> usize {
        self.cuts_behind
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        std::thread::sleep(self.takes);
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.inner.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.inner.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.inner.flush()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(OneByOne {
            inner: self.inner.open_queue(depth)?,
            takes: self.takes,
            cuts_behind: self.cuts_behind,
        }))
    }
}

struct OneByOne {
    inner: Box<dyn TierQueue>,
    takes: Duration,
    cuts_behind: usize,
}

impl TierQueue for OneByOne {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.inner.submit(request)
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        self.inner.kick()
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let Self { inner, takes, cuts_behind } = self;
        inner.complete(wait, max, &mut |mut completion| {
            std::thread::sleep(*takes);
            let kept = completion.buffer.len().min(*cuts_behind);
            completion.buffer.bytes_mut()[kept..].fill(0);
            sink(completion);
        })
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn descriptor(&self) -> Option<i32> {
        self.inner.descriptor()
    }
}

/// The message with which `judge` fails such a tier.
fn complaint(takes: Duration, cuts_behind: usize, judge: fn(&Open)) -> String {
    let open = || -> Box<dyn Tier> { Box::new(Liar { inner: tier("dram:size=16MiB"), takes, cuts_behind }) };
    let panic = catch_unwind(|| judge(&open)).expect_err("the suite believes it");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_tier_that_cuts_long_requests_fails_the_suite() {
    let complaint = complaint(Duration::ZERO, 64 * PAGE, |open| check("a liar", open));
    assert!(complaint.starts_with("wrong byte at "), "{complaint}");
}

#[test]
fn requests_that_do_not_overlap_fail_the_check() {
    let complaint = complaint(Duration::from_micros(100), 512 * PAGE, overlapping_gains_time);
    assert!(complaint.starts_with("liar says that requests overlap; 16 take"), "{complaint}");
}
