// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The ways of reading a batch of items whose places are known.

use std::cell::Cell;
use std::ops::Range;

use aquifer::{Intent, Mapping, Space, contexts};
use aquifer_sys::mapped_file::MappedFile;

use crate::args::Way;
use crate::failure::Failure;
use crate::items;
use crate::memory::Memory;

/// How many items ahead of the present one are prefetched: fewer than a space's list of prefetches takes (32).
const AHEAD: usize = 24;
/// Contexts that read a batch: more than the fetches that the executor keeps under way (64), so that one is always able
/// to run.
const CONTEXTS: usize = 96;

/// Items that are gathered at a time: twice what a tier's queue takes.
const GATHERED: usize = 64;

/// An item to read.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its key.
    pub key: u64,
    /// Its first word.
    pub at: usize,
}

/// What a batch has cost, but for time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Items that were read.
    pub reads: u64,
    /// Items that were not resident when they were asked for.
    pub far_reads: u64,
    /// Items with wrong bytes.
    pub wrong: u64,
}

impl Outcome {
    /// Adds another one.
    pub fn add(&mut self, other: Outcome) {
        self.reads += other.reads;
        self.far_reads += other.far_reads;
        self.wrong += other.wrong;
    }
}

/// Reads a batch of items of this many words each.
pub fn read_all(way: Way, memory: &Memory, item_words: usize, batch: &[Wanted]) -> Result<Outcome, Failure> {
    if let Memory::File(mapped) = memory {
        return Ok(of_file(mapped, item_words, batch));
    }
    match way {
        Way::Dram => {
            let words = memory.words()?;
            let check = |wanted: &&Wanted| !items::is_right(wanted.key, &words[wanted.at..wanted.at + item_words]);
            Ok(Outcome { reads: batch.len() as u64, far_reads: 0, wrong: batch.iter().filter(check).count() as u64 })
        }
        Way::Blocking | Way::Hints => by_loads(way == Way::Hints, memory, item_words, batch),
        Way::Contexts => by_contexts(memory.far()?, memory.words()?, item_words, batch),
        Way::InPlace => in_place(memory.far()?.1, item_words, batch),
    }
}

fn bytes_of(wanted: &Wanted, item_words: usize) -> Range<usize> {
    wanted.at * 8..(wanted.at + item_words) * 8
}

fn by_loads(with_hints: bool, memory: &Memory, item_words: usize, batch: &[Wanted]) -> Result<Outcome, Failure> {
    let ((_, mapping), words) = (memory.far()?, memory.words()?);
    let mut outcome = Outcome::default();
    let mut announce = |wanted: &Wanted| {
        let bytes = bytes_of(wanted, item_words);
        if !mapping.ready(bytes.clone()) {
            outcome.far_reads += 1;
            if with_hints {
                // A hint: where it is refused, the load fetches.
                let _ = mapping.prefetch(bytes, Intent::Read);
            }
        }
    };
    let ahead = if with_hints { AHEAD } else { 0 };
    batch.iter().take(ahead).for_each(&mut announce);
    let mut wrong = 0;
    for (index, wanted) in batch.iter().enumerate() {
        batch.get(index + ahead).into_iter().for_each(&mut announce);
        wrong += u64::from(!items::is_right(wanted.key, &words[wanted.at..wanted.at + item_words]));
    }
    outcome.reads = batch.len() as u64;
    outcome.wrong = wrong;
    Ok(outcome)
}

fn by_contexts(
    (space, mapping): (&Space, &Mapping),
    words: &[u64],
    item_words: usize,
    batch: &[Wanted],
) -> Result<Outcome, Failure> {
    let (next, far_reads, wrong, failed) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(None));
    let context = || async {
        let mut item = vec![0; item_words * 8];
        while let Some(wanted) = batch.get(next.replace(next.get() + 1)) {
            let bytes = bytes_of(wanted, item_words);
            let is_right = if mapping.ready(bytes.clone()) {
                items::is_right(wanted.key, &words[wanted.at..wanted.at + item_words])
            } else {
                far_reads.set(far_reads.get() + 1);
                if let Err(error) = mapping.copy(bytes.start, &mut item).await {
                    failed.set(Some(error));
                    return;
                }
                items::are_right(wanted.key, &item)
            };
            wrong.set(wrong.get() + u64::from(!is_right));
        }
    };
    contexts::run(space, (0..CONTEXTS).map(|_| context()));
    match failed.take() {
        Some(error) => Err(error.into()),
        None => Ok(Outcome { reads: batch.len() as u64, far_reads: far_reads.get(), wrong: wrong.get() }),
    }
}

/// Reads through a mapping of a file. The kernel does not report which of the reads were far.
fn of_file(mapped: &MappedFile, item_words: usize, batch: &[Wanted]) -> Outcome {
    let mut item = vec![0; item_words * 8];
    let is_wrong =
        |wanted: &&Wanted| !mapped.copy(wanted.at as u64 * 8, &mut item) || !items::are_right(wanted.key, &item);
    Outcome { reads: batch.len() as u64, far_reads: 0, wrong: batch.iter().filter(is_wrong).count() as u64 }
}

/// By gathers, each of some items.
fn in_place(mapping: &Mapping, item_words: usize, batch: &[Wanted]) -> Result<Outcome, Failure> {
    let mut outcome = Outcome { reads: batch.len() as u64, ..Outcome::default() };
    let item_bytes = item_words * 8;
    let mut bytes = vec![0; item_bytes * GATHERED];
    for part in batch.chunks(GATHERED) {
        let is_far = |wanted: &&Wanted| !mapping.ready(bytes_of(wanted, item_words));
        outcome.far_reads += part.iter().filter(is_far).count() as u64;
        let indices: Vec<usize> = part.iter().map(|wanted| wanted.at / item_words).collect();
        let bytes = &mut bytes[..item_bytes * part.len()];
        mapping.gather(item_bytes, &indices, bytes)?;
        for (wanted, item) in part.iter().zip(bytes.chunks_exact(item_bytes)) {
            outcome.wrong += u64::from(!items::are_right(wanted.key, item));
        }
    }
    Ok(outcome)
}
