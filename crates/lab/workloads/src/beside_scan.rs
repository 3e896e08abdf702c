// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `hints`: what hints are worth. A hot set, which fits into local memory, is read at random beside a scan of far more
//! memory than that.
//!
//! The figure is the part of the hot set's reads that are hits beside the scan, over that part without a scan. With
//! hints, the scan prefetches what it reads next and gives up what it has read, once by `stream` and once by `evict`;
//! the figure is the lesser of the two.

use std::time::Duration;

use aquifer::{Intent, Mapping, Pattern};
use aquifer_sim::random::Random;
use serde_json::{Value, json};

use crate::args::{Args, Way};
use crate::failure::Failure;
use crate::items;
use crate::memory::Memory;
use crate::meter::{Measured, Spent};

/// Items are pages.
const ITEM_BYTES: usize = 4096;
const ITEM_WORDS: usize = ITEM_BYTES / 8;
/// The part of all items that is the hot set, in per cent: three fifths of local memory at 25 %.
const HOT_PERCENT: u32 = 15;
/// Reads of the hot set, and items that are scanned, in turn. Each hot item is then read about twice while the scan
/// passes through as much as local memory holds.
const HOT_READS: u32 = 16;
const SCANNED: u32 = 8;
/// What the scan prefetches and gives up at a time: the largest block, as blocks that lie partly in a range stay.
const PART_BYTES: usize = 2 << 20;
/// What the scan prefetches at most at a time, and keeps announced.
const AHEAD_BYTES: usize = 256 << 10;

/// How the scan announces what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hints {
    Evict,
    Nothing,
    Stream,
}

/// The items, and where the scan is.
struct Items {
    memory: Memory,
    hot: u32,
    count: u32,
    random: Random,
    /// The next item of the scan.
    next: u32,
    /// Up to where the scan has prefetched, in bytes.
    announced: usize,
    ahead_bytes: usize,
}

/// What a part of the run has read.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    spent: Spent,
    hot: u64,
    hot_hits: u64,
    scanned: u64,
    scanned_far: u64,
    wrong: u64,
}

impl Read {
    fn hit_ratio(&self) -> f64 {
        self.hot_hits as f64 / self.hot.max(1) as f64
    }
}

impl Items {
    fn filled(args: &Args, count: u32) -> Result<Self, Failure> {
        let memory = Memory::filled(args, count, ITEM_WORDS, 0, items::fill)?;
        let (space, mapping) = memory.far()?;
        mapping.pattern(.., Pattern::Normal)?;
        let ahead_bytes = AHEAD_BYTES.min(space.prefetch_bytes_max());
        let hot = (u64::from(count) * u64::from(HOT_PERCENT) / 100) as u32;
        let random = Random::new(args.seed);
        Ok(Self { hot, count, random, next: hot, announced: 0, ahead_bytes, memory })
    }

    /// Reads the hot set for this long; `scan` says with which hints a scan runs beside, if one does.
    fn read_for(&mut self, limit: Duration, scan: Option<Hints>) -> Result<Read, Failure> {
        let mut read = Read::default();
        let mut spent = Spent::default();
        while spent.wall < limit {
            spent.measure(|| self.step(scan, &mut read))?;
        }
        read.spent = spent;
        Ok(read)
    }

    fn step(&mut self, scan: Option<Hints>, read: &mut Read) -> Result<(), Failure> {
        for _ in 0..HOT_READS {
            let item = self.random.below(u64::from(self.hot)) as u32;
            let (is_here, is_right) = self.look(item)?;
            read.hot += 1;
            read.hot_hits += u64::from(is_here);
            read.wrong += u64::from(!is_right);
        }
        let Some(hints) = scan else { return Ok(()) };
        for _ in 0..SCANNED {
            if hints != Hints::Nothing {
                self.prefetch()?;
            }
            let (is_here, is_right) = self.look(self.next)?;
            read.scanned += 1;
            read.scanned_far += u64::from(!is_here);
            read.wrong += u64::from(!is_right);
            self.next += 1;
            self.give_up(hints)?;
            if self.next == self.count {
                (self.next, self.announced) = (self.hot, 0);
            }
        }
        Ok(())
    }

    /// Reads an item. Returns whether it was resident, and whether it is right.
    fn look(&self, item: u32) -> Result<(bool, bool), Failure> {
        let at = item as usize * ITEM_BYTES;
        let is_here = self.mapping()?.ready(at..at + ITEM_BYTES);
        let words = &self.memory.words()?[item as usize * ITEM_WORDS..][..ITEM_WORDS];
        Ok((is_here, items::is_right(items::key(item), words)))
    }

    /// Announces what is scanned next, before the scan has come near the end of what was announced.
    fn prefetch(&mut self) -> Result<(), Failure> {
        let (at, end) = (self.next as usize * ITEM_BYTES, self.count as usize * ITEM_BYTES);
        let start = self.announced.max(at);
        if start >= end || start - at > self.ahead_bytes {
            return Ok(());
        }
        let stop = (start + self.ahead_bytes).min(end);
        self.announced = stop;
        Ok(self.mapping()?.prefetch(start..stop, Intent::Read)?)
    }

    /// Gives up a part of the scan that has been read.
    fn give_up(&self, hints: Hints) -> Result<(), Failure> {
        let done = self.next as usize * ITEM_BYTES;
        let first = self.hot as usize * ITEM_BYTES;
        if !(done.is_multiple_of(PART_BYTES) || self.next == self.count) {
            return Ok(());
        }
        let start = ((done - 1) / PART_BYTES * PART_BYTES).max(first);
        match hints {
            Hints::Evict => Ok(self.mapping()?.evict(start..done)?),
            Hints::Nothing => Ok(()),
            Hints::Stream => Ok(self.mapping()?.stream(start..done)?),
        }
    }

    fn mapping(&self) -> Result<&Mapping, Failure> {
        Ok(self.memory.far()?.1)
    }
}

/// Runs the workload.
pub fn run(args: &Args) -> Result<String, Failure> {
    let count = u32::try_from(args.bytes.0 / ITEM_BYTES as u64).ok().filter(|count| *count >= 100);
    let count =
        count.ok_or_else(|| Failure(format!("--bytes {} does not fit; use 100 pages or more", args.bytes.0)))?;
    let bytes = u64::from(count) * ITEM_BYTES as u64;
    if args.footprint {
        return Ok(bytes.to_string());
    }
    let kinds: &[Hints] = match args.way {
        Way::Blocking => &[Hints::Nothing],
        Way::Hints => &[Hints::Stream, Hints::Evict],
        Way::Contexts | Way::Dram | Way::InPlace => {
            return Err(Failure("hints are given or not; use --way hints or --way blocking".to_owned()));
        }
    };
    let mut items = Items::filled(args, count)?;
    let fetched_before = items.memory.fetched_bytes();
    let (warmup, limit) = (Duration::from_secs_f64(args.warmup), args.seconds / (kinds.len() + 1) as f64);
    let limit = Duration::from_secs_f64(limit);
    let mut parts = vec![items.read_for(warmup, None)?, items.read_for(limit, None)?];
    for kind in kinds {
        parts.push(items.read_for(warmup, None)?);
        parts.push(items.read_for(limit, Some(*kind))?);
    }
    let measured = measured(&parts, bytes, items.memory.fetched_bytes() - fetched_before);
    Ok(measured.line(args, figure(kinds, &parts)))
}

/// The numbers of all parts that count: every other one, after its warm-up.
fn measured(parts: &[Read], bytes: u64, fetched_bytes: u64) -> Measured {
    let counted = || parts.iter().skip(1).step_by(2);
    let mut spent = Spent::default();
    for part in counted() {
        spent.wall += part.spent.wall;
        spent.cpu += part.spent.cpu;
    }
    let sum = |of: fn(&Read) -> u64| counted().map(of).sum::<u64>();
    Measured {
        spent,
        reads: sum(|part| part.hot + part.scanned),
        far_reads: sum(|part| part.hot - part.hot_hits + part.scanned_far),
        fetched_bytes,
        bytes,
        ordinary_bytes: 0,
        is_verified: parts.iter().all(|part| part.wrong == 0 && part.hot > 0),
    }
}

/// The figure, and what it was computed from.
fn figure(kinds: &[Hints], parts: &[Read]) -> Value {
    // The warm-ups have no scan either. On a slow disk the first part can end before the hot set is resident.
    let without = parts[1..2].iter().chain(parts.iter().skip(2).step_by(2));
    let alone = without.map(Read::hit_ratio).fold(0.0, f64::max);
    let beside: Vec<&Read> = parts.iter().skip(3).step_by(2).collect();
    let ratio = |read: &&Read| if alone > 0.0 { read.hit_ratio() / alone } else { 0.0 };
    let value = beside.iter().map(ratio).fold(f64::INFINITY, f64::min);
    let each = kinds.iter().zip(&beside).map(|(kind, read)| {
        let name = match kind {
            Hints::Evict => "evict",
            Hints::Nothing => "nothing",
            Hints::Stream => "stream",
        };
        let rate = (read.scanned * ITEM_BYTES as u64) as f64 / read.spent.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        json!({
            "hints": name, "hot_hit_ratio": read.hit_ratio(), "scanned_bytes_per_second": rate,
            "scanned_far_ratio": read.scanned_far as f64 / read.scanned.max(1) as f64,
        })
    });
    json!({
        "name": "hot hits beside a scan over alone", "value": value, "unit": "x", "better": "higher",
        "hot_hit_ratio_alone": alone, "beside": each.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(hot: u64, hot_hits: u64) -> Read {
        Read { hot, hot_hits, scanned: 10, ..Read::default() }
    }

    #[test]
    fn the_figure_is_the_worst_kind_of_hints_over_no_scan() {
        let parts = [read(1, 0), read(100, 80), read(1, 0), read(100, 76), read(1, 0), read(100, 72)];
        let figure = figure(&[Hints::Stream, Hints::Evict], &parts);
        assert_eq!(figure["value"], 0.72 / 0.8);
        assert_eq!(figure["beside"][0]["hints"], "stream");
        let measured = measured(&parts, 0, 0);
        assert_eq!((measured.reads, measured.far_reads), (330, 20 + 24 + 28));
    }
}
