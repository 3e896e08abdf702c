// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `kv`, `lookup` and `gather`: items of one size, read one after the other.
//!
//! The items of a batch are drawn before the clock runs: what is measured is the lookup in the index and the read.
//! `gather` and `lookup` have no index: the number of an item is its place.

use std::time::Duration;

use aquifer_cache::index::{Index, Place};
use aquifer_sim::random::Random;
use serde_json::{Value, json};

use crate::args::{Args, Workload};
use crate::failure::Failure;
use crate::items;
use crate::keys::Keys;
use crate::memory::Memory;
use crate::meter::{Measured, Spent};
use crate::ways::{Outcome, Wanted, read_all};

/// Items of a batch.
const BATCH: usize = 16 << 10;
/// Number of turns with sampling, and of turns without.
const CURVE_TURNS: u32 = 16;
/// A time longer than any measurement.
const SAMPLED_MAX: Duration = Duration::from_secs(3600);

/// The items of a workload.
struct Shape {
    item_words: usize,
    count: u32,
    has_index: bool,
}

impl Shape {
    fn of(args: &Args) -> Result<Self, Failure> {
        let (item_bytes, has_index) = match args.workload {
            Workload::Kv => (1024, true),
            Workload::Lookup => (4096, false),
            Workload::Gather | Workload::BfsHints | Workload::Hints => (64, false),
        };
        let count = u32::try_from(args.bytes.0 / item_bytes).ok().filter(|count| *count > 0);
        let count = count.ok_or_else(|| {
            Failure(format!("--bytes {} does not fit; use 1 to {} items of {item_bytes} bytes", args.bytes.0, u32::MAX))
        })?;
        Ok(Self { item_words: item_bytes as usize / 8, count, has_index })
    }

    fn ordinary_bytes(&self) -> u64 {
        let count = u64::from(self.count);
        if self.has_index { Index::bytes_for(count) + Keys::zipf_bytes(count) } else { 0 }
    }
}

/// The index of all items.
fn index_of(shape: &Shape) -> Result<Index, Failure> {
    let no_memory = || Failure::of("there is no memory for the index", "lower --bytes");
    let mut index = Index::new(u64::from(shape.count)).ok_or_else(no_memory)?;
    for number in 0..shape.count {
        let at = u64::from(number) * shape.item_words as u64 * 8;
        index.put(items::key(number), Place { at, bytes: shape.item_words as u32 * 8 }, 0);
    }
    Ok(index)
}

/// The items in memory, and what draws them.
struct Reader<'a> {
    args: &'a Args,
    shape: Shape,
    memory: Memory,
    index: Option<Index>,
    keys: Keys,
    random: Random,
}

impl Reader<'_> {
    fn filled(args: &Args, shape: Shape) -> Result<Reader<'_>, Failure> {
        let memory = Memory::filled(args, shape.count, shape.item_words, shape.ordinary_bytes(), items::fill)?;
        let index = if shape.has_index { Some(index_of(&shape)?) } else { None };
        let keys = if shape.has_index { Keys::zipf(shape.count, args.seed) } else { Keys::uniform(shape.count) };
        Ok(Reader { args, shape, memory, index, keys, random: Random::new(args.seed) })
    }

    /// Reads batches for this long, and adds what that takes.
    fn read_for(&mut self, limit: Duration, spent: &mut Spent) -> Result<Outcome, Failure> {
        let mut outcome = Outcome::default();
        let (mut numbers, mut batch) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        while spent.wall < limit {
            numbers.clear();
            numbers.extend((0..BATCH).map(|_| self.keys.draw(&mut self.random)));
            let (index, item_words) = (&self.index, self.shape.item_words);
            let read = spent.measure(|| {
                batch.clear();
                batch.extend(numbers.iter().map(|number| wanted(index.as_ref(), *number, item_words)));
                read_all(self.args.way, &self.memory, item_words, &batch)
            })?;
            outcome.add(read);
        }
        Ok(outcome)
    }
}

/// The duration of a measurement, its reads, and its figure.
type Figure = (Spent, Outcome, Value);

impl Reader<'_> {
    fn without_curve(&mut self, limit: Duration) -> Result<Figure, Failure> {
        let mut spent = Spent::default();
        let outcome = self.read_for(limit, &mut spent)?;
        let value = per_second(outcome.reads, &spent);
        Ok((spent, outcome, json!({ "name": "reads", "value": value, "unit": "/s", "better": "higher" })))
    }

    /// Alternates turns of reads with and without sampling of touches. In every other pair, the turn with sampling
    /// comes first.
    fn with_curve(&mut self, limit: Duration) -> Result<Figure, Failure> {
        let mut spent = [Spent::default(); 2];
        let mut outcomes = [Outcome::default(); 2];
        for turn in 0..2 * CURVE_TURNS {
            let is_sampled = matches!(turn % 4, 1 | 2);
            let (space, _) = self.memory.far()?;
            match is_sampled {
                true => space.sample_touches(SAMPLED_MAX)?,
                false => space.stop_sampling()?,
            }
            let which = usize::from(is_sampled);
            let until = limit.mul_f64(f64::from(turn / 2 + 1) / f64::from(2 * CURVE_TURNS));
            let read = self.read_for(until, &mut spent[which])?;
            outcomes[which].add(read);
        }
        let (space, _) = self.memory.far()?;
        let samples = space.miss_ratio_curve()?.map_or(0, |curve| curve.samples());
        let [plain, sampled] = [0, 1].map(|which| per_second(outcomes[which].reads, &spent[which]));
        let [mut all, more] = outcomes;
        all.add(more);
        let spent = Spent { wall: spent[0].wall + spent[1].wall, cpu: spent[0].cpu + spent[1].cpu };
        let figure = json!({
            "name": "sampled over not", "value": sampled / plain, "unit": "x", "better": "higher", "samples": samples,
        });
        Ok((spent, all, figure))
    }
}

/// An item by its key, as a client of a store knows it, or by its place.
fn wanted(index: Option<&Index>, number: u32, item_words: usize) -> Wanted {
    let key = items::key(number);
    let at = match index {
        Some(index) => index.find(key).map_or(0, |found| found.place.at as usize / 8),
        None => number as usize * item_words,
    };
    Wanted { key, at }
}

/// Runs one of these workloads.
pub fn run(args: &Args) -> Result<String, Failure> {
    let shape = Shape::of(args)?;
    let (bytes, ordinary_bytes) = (u64::from(shape.count) * shape.item_words as u64 * 8, shape.ordinary_bytes());
    if args.footprint {
        return Ok((bytes + ordinary_bytes).to_string());
    }
    let mut reader = Reader::filled(args, shape)?;
    let warmup = reader.read_for(Duration::from_secs_f64(args.warmup), &mut Spent::default())?;
    let fetched_before = reader.memory.fetched_bytes();
    let (spent, outcome, figure) = match args.curve {
        true => reader.with_curve(Duration::from_secs_f64(args.seconds))?,
        false => reader.without_curve(Duration::from_secs_f64(args.seconds))?,
    };
    let measured = Measured {
        spent,
        reads: outcome.reads,
        far_reads: outcome.far_reads,
        fetched_bytes: reader.memory.fetched_bytes() - fetched_before,
        bytes,
        ordinary_bytes,
        is_verified: outcome.wrong + warmup.wrong == 0 && outcome.reads > 0,
    };
    Ok(measured.line(args, figure))
}

fn per_second(reads: u64, spent: &Spent) -> f64 {
    reads as f64 / spent.wall.as_secs_f64().max(f64::MIN_POSITIVE)
}
