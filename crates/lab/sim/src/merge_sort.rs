// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The visits of a merge sort of lines, as GNU sort makes them: the lines lie where they were read, and an array of
//! entries that point to them is sorted, in two halves by two threads, with a second array half as long.
//!
//! A comparison looks at the line itself, so in the last merges the lines are touched in random order, each block
//! often, while the entries are read and written once in order. A pager should keep the lines, and let the entries
//! pass.

use crate::random::Random;
use crate::workload::{Touch, Trace};

/// Lines and entries in one block.
const LINES: usize = 100;
const ENTRIES: usize = 128;
/// Runs of this many lines are touched in order, once.
const SHORT: usize = 64;
/// The threads take turns of this many visits.
const TURN: usize = 16;

/// A sort of as many lines as take about `blocks` blocks, entries included.
pub fn trace(blocks: u32, seed: u64) -> Trace {
    let lines = blocks as usize * 2 * LINES * ENTRIES / (2 * ENTRIES + 3 * LINES);
    let mut random = Random::new(seed);
    let mut sort = Sort {
        keys: (0..lines).map(|_| random.below(u64::from(u32::MAX)) as u32).collect(),
        entries: (0..lines).chain(0..lines.div_ceil(2)).map(|line| line as u32).collect(),
        first_entry_block: lines.div_ceil(LINES),
        visits: Vec::new(),
    };
    let blocks = sort.block_of_entry(sort.entries.len() - 1) + 1;
    let warm = blocks as usize;
    let half = lines / 2;
    sort.run(half, lines - half, lines + half / 2, false);
    let upper = std::mem::take(&mut sort.visits);
    sort.run(0, half, lines, false);
    let lower = std::mem::take(&mut sort.visits);
    sort.last_merge(half, lines);
    let last = sort.visits;
    let mut touches: Vec<Touch> = (0..blocks).map(Touch::write).collect();
    let (mut upper, mut lower) = (upper.chunks(TURN), lower.chunks(TURN));
    loop {
        let turns = [upper.next(), lower.next()];
        if turns == [None, None] {
            break;
        }
        touches.extend(turns.into_iter().flatten().flatten());
    }
    touches.extend(last);
    Trace { touches, blocks, warm }
}

struct Sort {
    keys: Vec<u32>,
    /// The array, and the second one behind it.
    entries: Vec<u32>,
    first_entry_block: usize,
    visits: Vec<Touch>,
}

impl Sort {
    fn block_of_entry(&self, entry: usize) -> u32 {
        (self.first_entry_block + entry / ENTRIES) as u32
    }

    fn visit(&mut self, touch: Touch) {
        if self.visits.last() != Some(&touch) {
            self.visits.push(touch);
        }
    }

    /// Looks at the line of an entry.
    fn look(&mut self, entry: usize) -> u32 {
        self.visit(Touch::read(self.block_of_entry(entry)));
        let line = self.entries[entry] as usize;
        self.visit(Touch::read((line / LINES) as u32));
        self.keys[line]
    }

    fn store(&mut self, entry: usize, line: u32) {
        self.visit(Touch::write(self.block_of_entry(entry)));
        self.entries[entry] = line;
    }

    /// Sorts `count` entries at `start`, in place or into the second array at `second`.
    fn run(&mut self, start: usize, count: usize, second: usize, to_second: bool) {
        if count <= SHORT {
            let mut order: Vec<(u32, u32)> =
                (start..start + count).map(|entry| (self.look(entry), self.entries[entry])).collect();
            order.sort_unstable();
            let into = if to_second { second } else { start };
            order.iter().zip(into..).for_each(|((_, line), entry)| self.store(entry, *line));
            return;
        }
        let low = count / 2;
        self.run(start + low, count - low, second + if to_second { low } else { 0 }, to_second);
        self.run(start, low, second, !to_second);
        let (from, into) = if to_second { (start, second) } else { (second, start) };
        self.merge(from, low, into, count);
    }

    /// Merges `low` entries at `from` with those that lie behind the first `low` at `into`, where all `count` end.
    fn merge(&mut self, from: usize, low: usize, into: usize, count: usize) {
        let (mut left, mut right, left_end, right_end) = (from, into + low, from + low, into + count);
        let mut place = into;
        let (mut left_key, mut right_key) = (self.look(left), self.look(right));
        while left < left_end {
            let is_left = right == right_end || left_key <= right_key;
            let taken = if is_left { left } else { right };
            self.store(place, self.entries[taken]);
            place += 1;
            match is_left {
                true if left + 1 < left_end => left_key = self.look(left + 1),
                false if right + 1 < right_end => right_key = self.look(right + 1),
                _ => {}
            }
            if is_left { left += 1 } else { right += 1 }
        }
    }

    /// The last merge, which writes the lines out.
    fn last_merge(&mut self, half: usize, lines: usize) {
        let (mut left, mut right) = (0, half);
        while left < half && right < lines {
            if self.look(left) <= self.look(right) { left += 1 } else { right += 1 }
        }
        (left..half).chain(right..lines).for_each(|entry| _ = self.look(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sorts_and_visits_every_block() {
        let lines = 10_000;
        let mut random = Random::new(1);
        let mut sort = Sort {
            keys: (0..lines).map(|_| random.below(1 << 32) as u32).collect(),
            entries: (0..lines).chain(0..lines / 2).map(|line| line as u32).collect(),
            first_entry_block: lines / LINES,
            visits: Vec::new(),
        };
        sort.run(0, lines, lines, false);
        assert!(sort.entries[..lines].is_sorted_by_key(|line| sort.keys[*line as usize]));
        let trace = trace(500, 1);
        let mut seen = vec![false; trace.blocks as usize];
        trace.touches[trace.warm..].iter().for_each(|touch| seen[touch.block() as usize] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
