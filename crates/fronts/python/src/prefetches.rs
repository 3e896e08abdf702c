// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Fetches of scattered items that nobody waits for: `Mapping.prefetch(indices, size)`.
//!
//! A space remembers few ranges that are prefetched, because each is advice about much memory. Items are many and
//! small, so they are asked for by fetches of the crate, which form a queue. They are started and never polled: a poll
//! may wait for the tier, and a prefetch must not.

use std::collections::VecDeque;
use std::ops::Range;

use aquifer::{Error, Fetch, Hints};

/// Bytes of a page: what a fetch makes resident at least.
const PAGE: usize = 4096;
/// Maximum number of fetches of one mapping under way. The oldest are dropped for new ones: items that were requested
/// long ago are probably no longer needed. What one call asks for beyond it is not fetched.
const AHEAD_MAX: usize = 4096;

/// The fetches of one mapping that have not ended.
#[derive(Default)]
pub struct Ahead {
    fetches: VecDeque<Fetch>,
}

impl Ahead {
    /// Starts fetches of ranges, as [`runs`] returns them. Does not wait for them.
    pub fn start(&mut self, hints: &Hints, mut runs: Vec<Range<usize>>) -> Result<(), Error> {
        self.fetches.retain_mut(|fetch| fetch.start() == Ok(false));
        runs.truncate(AHEAD_MAX);
        self.fetches.drain(..excess(self.fetches.len(), runs.len()));
        for run in runs {
            let mut fetch = hints.fetch(run);
            match fetch.start() {
                Ok(true) => {}
                Ok(false) => self.fetches.push_back(fetch),
                // Lost memory is found out by the read; this is a hint.
                Err(Error::Lost | Error::NoRoom) => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(())
    }
}

/// Returns how many fetches have to go so that `new` ones may come.
fn excess(under_way: usize, new: usize) -> usize {
    (under_way + new).saturating_sub(AHEAD_MAX)
}

/// Returns the pages of the items with these indices, as ranges in ascending order, for a mapping of `len` bytes.
pub fn runs(indices: &[u64], size: usize, len: usize, bytes_max: usize) -> Result<Vec<Range<usize>>, Error> {
    if size == 0 || indices.is_empty() {
        return Err(Error::EmptyRange);
    }
    let mut pages = Vec::with_capacity(indices.len());
    for index in indices {
        let start = usize::try_from(*index).unwrap_or(usize::MAX).saturating_mul(size);
        let end = start.saturating_add(size);
        if end > len {
            return Err(Error::OutOfRange { start, end, len });
        }
        pages.push(start / PAGE..end.div_ceil(PAGE));
    }
    pages.sort_unstable_by_key(|run| run.start);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for run in pages {
        match runs.last_mut().filter(|last| run.start <= last.end) {
            Some(last) => last.end = last.end.max(run.end),
            None => runs.push(run),
        }
    }
    let asked_bytes = runs.iter().map(|run| run.len() * PAGE).sum();
    if asked_bytes > bytes_max {
        return Err(Error::BeyondBudget { asked_bytes, bytes_max });
    }
    Ok(runs.into_iter().map(|run| run.start * PAGE..(run.end * PAGE).min(len)).collect())
}
