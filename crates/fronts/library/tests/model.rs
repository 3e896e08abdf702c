// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seeded histories of everything that can be done with a mapping, against a plain array of bytes: every read is the
//! last write, or an error.
//!
//! One thread reads and writes, in place too, fetches, pins and discards; another one gives hints about the same memory
//! at the same time. Tiers fail, lie and fill up. A failure prints the tier and the seed; with the same seed, the first
//! thread does the same again (the kernel's and the other thread's timing differs).

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use aquifer::{Error, Hints, Intent, Mapping, Pattern, Piece, Pin, Space, Status, contexts};
use aquifer_donor::{Donor, Security, Settings, Source};
use aquifer_test_support::Random;
use common::{MIB, PAGE, Scratch, can_run};

const BYTES: usize = 24 * MIB;
const STEPS: usize = 1500;
/// Accesses touch a part of the memory most of the time, so that blocks come and go.
const NEAR: usize = 2 * MIB;

/// Returns a range of 1 to `max` bytes.
fn some_range(random: &mut Random, max: usize) -> std::ops::Range<usize> {
    let whole = if random.index(4) == 0 { BYTES } else { NEAR };
    let start = random.index(whole);
    let len = 1 + random.index(max.min(BYTES - start));
    start..start + len
}

/// A mapping and what its bytes must be.
struct World<'w> {
    space: &'w Space,
    mapping: Mapping,
    bytes: Vec<u8>,
    /// Whether a byte may be the old or the new one, since a write ended with an error.
    torn: Vec<bool>,
    pins: Vec<Pin>,
    story: String,
    failures: usize,
}

impl World<'_> {
    fn step(&mut self, random: &mut Random) {
        match random.index(100) {
            0..=19 => self.write(random, Mapping::write),
            20..=34 => self.write(random, |mapping, at, bytes| mapping.write_in_place(at, bytes).map(|_| ())),
            35..=54 => self.read(random, |mapping, at, into| mapping.read(at, into)),
            55..=64 => self.read(random, |mapping, at, into| mapping.read_in_place(at, into).map(|_| ())),
            65..=74 => self.read(random, |mapping, at, into| {
                // In pieces, the last one first.
                let pieces = into.chunks_mut(500).enumerate().rev();
                let mut pieces: Vec<_> = pieces.map(|(index, into)| Piece { offset: at + index * 500, into }).collect();
                mapping.gather_pieces(&mut pieces)
            }),
            75..=84 => {
                let range = some_range(random, 2 * PAGE);
                let (mapping, mut fetched) = (&self.mapping, Ok(()));
                let keep = &mut fetched;
                let fetch = mapping.fetch(range);
                contexts::run(self.space, [async move { *keep = fetch.await }]);
                self.note(fetched);
            }
            85..=89 if self.pins.len() < 3 => match self.mapping.pin(some_range(random, PAGE)) {
                Ok(pin) => self.pins.push(pin),
                Err(failure) => self.note(Err(failure)),
            },
            85..=89 => drop(self.pins.swap_remove(random.index(3))),
            90..=92 => {
                let page = some_range(random, 1).start / PAGE * PAGE;
                let range = page..(page + 3 * PAGE).min(BYTES);
                match self.mapping.discard(range.clone()) {
                    Ok(()) => {
                        self.bytes[range.clone()].fill(0);
                        self.torn[range].fill(false);
                    }
                    Err(failure) => self.note(Err(failure)),
                }
            }
            _ => self.check_ready(random),
        }
    }

    fn write(&mut self, random: &mut Random, how: impl Fn(&mut Mapping, usize, &[u8]) -> Result<(), Error>) {
        let (range, byte) = (some_range(random, 3 * PAGE), random.bits() as u8);
        let new: Vec<u8> = range.clone().map(|at| byte ^ at as u8).collect();
        match how(&mut self.mapping, range.start, &new) {
            Ok(()) => {
                self.bytes[range.clone()].copy_from_slice(&new);
                self.torn[range].fill(false);
            }
            Err(failure) => {
                self.torn[range].fill(true);
                self.note(Err(failure));
            }
        }
    }

    fn read(&mut self, random: &mut Random, how: impl Fn(&Mapping, usize, &mut [u8]) -> Result<(), Error>) {
        let range = some_range(random, 3 * PAGE);
        let mut found = vec![0; range.len()];
        match how(&self.mapping, range.start, &mut found) {
            Ok(()) => {
                for (at, found) in range.zip(found) {
                    assert!(found == self.bytes[at] || self.torn[at], "{}: wrong byte at {at:#x}", self.story);
                }
            }
            Err(failure) => self.note(Err(failure)),
        }
    }

    /// Checks that what is pinned is ready. It may look for a moment as if it were to leave, when it is chosen as a
    /// victim.
    fn check_ready(&mut self, random: &mut Random) {
        for pin in &self.pins {
            common::wait_until(&self.story, || self.mapping.ready(pin.range()));
        }
        let _ = self.mapping.ready(some_range(random, 3 * PAGE));
    }

    /// Errors are allowed. Memory that is lost is discarded, so that it can be used again.
    fn note(&mut self, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) | Err(Error::Pinned | Error::PinnedTooMuch { .. }) => {}
            Err(Error::Lost | Error::NoRoom) => {
                self.failures += 1;
                if self.failures == 1 {
                    println!("{}: {outcome:?}", self.story);
                }
                let lost: Vec<_> = self.mapping.status(..).expect("it is open");
                for run in lost.into_iter().filter(|run| run.status == Status::Lost) {
                    self.pins.retain(|pin| pin.range().end <= run.range.start || run.range.end <= pin.range().start);
                    // Pins of other pages of a block keep the block, and a lost block stays lost until they are gone.
                    if self.mapping.discard(run.range.clone()).is_ok() {
                        self.bytes[run.range.clone()].fill(0);
                        self.torn[run.range].fill(false);
                    }
                }
            }
            Err(other) => panic!("{}: {other}", self.story),
        }
    }
}

/// Gives hints until told to stop.
fn give_hints(hints: &Hints, seed: u64, is_over: &AtomicBool) {
    let mut random = Random(seed);
    while !is_over.load(Ordering::Relaxed) {
        let range = some_range(&mut random, MIB);
        let outcome = match random.index(7) {
            0 => hints.prefetch(range.start..range.end.min(range.start + PAGE), Intent::Read),
            1 => hints.prefetch(range.start..range.end.min(range.start + PAGE), Intent::Write),
            2 => hints.stream(range),
            3 => hints.pattern(range, [Pattern::Normal, Pattern::Random, Pattern::Sequential][random.index(3)]),
            4 => hints.status(range).map(|_| ()),
            _ => hints.evict(range),
        };
        assert!(matches!(outcome, Ok(()) | Err(Error::Pinned)), "{outcome:?}");
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

/// Returns how many errors there were.
fn play(tier: &str, block_size: &str, seed: u64) -> usize {
    let story = format!("tier {tier}, blocks {block_size}, seed {seed}");
    let space = common::space(tier, block_size);
    let mapping = space.map(BYTES).expect("it can be mapped");
    let (hints, is_over) = (mapping.hints(), AtomicBool::new(false));
    let (bytes, torn) = (vec![0; BYTES], vec![false; BYTES]);
    let mut world = World { space: &space, mapping, bytes, torn, pins: Vec::new(), story, failures: 0 };
    std::thread::scope(|scope| {
        let (hints, is_over) = (&hints, &is_over);
        scope.spawn(move || give_hints(hints, !seed, is_over));
        let mut random = Random(seed);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..STEPS).for_each(|_| world.step(&mut random));
        }));
        is_over.store(true, Ordering::Relaxed);
        played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    world.failures
}

#[test]
fn every_read_is_the_last_write() {
    if !can_run() {
        return;
    }
    for (seed, block_size) in [(1, "auto"), (2, "4KiB"), (3, "64KiB"), (4, "256KiB")] {
        assert_eq!(play("dram:size=64MiB", block_size, seed), 0);
        assert_eq!(play("compressed:size=8MiB", block_size, seed + 10), 0);
    }
}

#[test]
fn every_read_is_the_last_write_over_flash_and_encrypted_flash() {
    if !can_run() {
        return;
    }
    let flash = Scratch::new("model-flash");
    for (seed, options) in ["", ",encrypt=ephemeral"].iter().enumerate() {
        let tier = format!("flash:{},size=64MiB{options}", flash.0.display());
        for (more, block_size) in ["4KiB", "auto"].iter().enumerate() {
            assert_eq!(play(&tier, block_size, 300 + 10 * seed as u64 + more as u64), 0);
        }
    }
}

#[test]
fn every_read_is_the_last_write_over_donors_mirrors_and_parity() {
    if !can_run() {
        return;
    }
    let kinds = [(1, ""), (1, ",encrypt=ephemeral"), (2, ",mirror=2"), (3, ",parity=2+1")];
    for (seed, (count, options)) in kinds.into_iter().enumerate() {
        let donors: Vec<Donor> = (0..count).map(|_| donor()).collect();
        let addresses: Vec<String> = donors.iter().map(|donor| donor.address().to_string()).collect();
        let tier = format!("donor:{},size=64MiB,security=plain{options}", addresses.join("+"));
        for (more, block_size) in ["4KiB", "auto"].iter().enumerate() {
            assert_eq!(play(&tier, block_size, 400 + 10 * seed as u64 + more as u64), 0);
        }
    }
}

/// Starts a donor in this process.
fn donor() -> Donor {
    let (address, bytes) = (([127, 0, 0, 1], 0).into(), 64 << 20);
    let settings = Settings::new(address, bytes, Source::Anonymous, Security::Plain);
    Donor::start(settings, Box::new(|line| println!("{line}"))).expect("it can be started")
}

#[test]
fn every_read_is_the_last_write_or_an_error_over_tiers_that_fail_and_lie() {
    if !can_run() {
        return;
    }
    let mut failures = 0;
    for (seed, tier) in [
        "failing:every=40,on=read+queue,times=20:dram:size=64MiB",
        "failing:corrupt=30:dram:size=64MiB",
        "failing:every=5,on=write+queue,times=200:dram:size=64MiB",
        "failing:after=300,times=50:dram:size=64MiB",
        "failing:corrupt=25:emulated:cmm-h,size=64MiB",
    ]
    .iter()
    .enumerate()
    {
        failures += play(tier, "auto", seed as u64 + 100) + play(tier, "16KiB", seed as u64 + 200);
    }
    assert!(failures > 0, "no tier has failed");
}
