// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The optimum that knows the future (Belady's MIN, 1966): evicts the block whose next visit is farthest away.
//!
//! No policy can hit more often, so it shows how much a better policy could gain, and how often a pager that reads on
//! demand must read. One step takes the time of a few memory accesses, and a trace of a hundred million visits less
//! than half a gigabyte beside the trace itself.

use crate::workload::Trace;

/// Marks a visit after which its block is not visited again.
const NEVER: u32 = u32::MAX;

/// The part of the counted visits that hit with `frames` frames, standby included.
pub fn hit_ratio(trace: &Trace, frames: u32) -> f64 {
    let counted = (trace.touches.len() - trace.warm) as f64;
    1.0 - Optimum::new(trace).misses(frames) as f64 / counted
}

/// A trace whose future is known.
pub struct Optimum<'a> {
    trace: &'a Trace,
    /// For each visit, the index of the next visit of the same block, or [`NEVER`].
    next: Vec<u32>,
}

impl<'a> Optimum<'a> {
    /// Looks into the future of `trace`, which has fewer than 2^32 - 1 visits.
    pub fn new(trace: &'a Trace) -> Self {
        assert!(trace.touches.len() < NEVER as usize, "a trace has fewer than 2^32 - 1 visits");
        let mut latest = vec![NEVER; trace.blocks as usize];
        let mut next = vec![NEVER; trace.touches.len()];
        for (index, touch) in trace.touches.iter().enumerate().rev() {
            next[index] = std::mem::replace(&mut latest[touch.block() as usize], index as u32);
        }
        Optimum { trace, next }
    }

    /// Counted visits of blocks that are not resident, with `frames` frames, at least 1.
    pub fn misses(&self, frames: u32) -> u64 {
        let touches = &self.trace.touches;
        let mut resident = vec![false; self.trace.blocks as usize];
        let mut held = 0;
        // Resident blocks: by their next visits, and those that have none.
        let mut awaited = Visits::none(touches.len());
        let mut done: Vec<u32> = Vec::new();
        let mut misses = 0;
        for (index, touch) in touches.iter().enumerate() {
            let block = touch.block();
            if resident[block as usize] {
                awaited.remove(index as u32);
            } else {
                misses += u64::from(index >= self.trace.warm);
                if held < frames.max(1) {
                    held += 1;
                } else {
                    let farthest =
                        |awaited: &mut Visits| awaited.take_last().map(|visit| touches[visit as usize].block());
                    let victim =
                        done.pop().or_else(|| farthest(&mut awaited)).expect("a resident block is in one of the two");
                    resident[victim as usize] = false;
                }
                resident[block as usize] = true;
            }
            match self.next[index] {
                NEVER => done.push(block),
                visit => awaited.insert(visit),
            }
        }
        misses
    }
}

/// A set of visits whose last one is found fast: a bit for each visit, and for each 64 bits one bit of the next level,
/// set when any of them is, up to a level of a single word.
struct Visits {
    levels: Vec<Vec<u64>>,
}

impl Visits {
    fn none(count: usize) -> Self {
        let mut levels = vec![vec![0; count.div_ceil(64).max(1)]];
        while let Some(words) = levels.last().map(Vec::len).filter(|words| *words > 1) {
            levels.push(vec![0; words.div_ceil(64)]);
        }
        Visits { levels }
    }

    fn insert(&mut self, visit: u32) {
        let mut place = visit as usize;
        for level in &mut self.levels {
            let was_empty = level[place / 64] == 0;
            level[place / 64] |= 1 << (place % 64);
            if !was_empty {
                return;
            }
            place /= 64;
        }
    }

    fn remove(&mut self, visit: u32) {
        let mut place = visit as usize;
        for level in &mut self.levels {
            level[place / 64] &= !(1 << (place % 64));
            if level[place / 64] != 0 {
                return;
            }
            place /= 64;
        }
    }

    /// Removes and returns the last one.
    fn take_last(&mut self) -> Option<u32> {
        let mut word = 0;
        for level in self.levels.iter().rev() {
            word = word * 64 + level[word].checked_ilog2()? as usize;
        }
        self.remove(word as u32);
        Some(word as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::workload::Touch;

    fn trace(blocks: impl IntoIterator<Item = u32>, warm: usize) -> Trace {
        let touches: Vec<Touch> = blocks.into_iter().map(Touch::read).collect();
        let blocks = touches.iter().map(|touch| touch.block() + 1).max().unwrap_or(0);
        Trace { touches, blocks, warm }
    }

    #[test]
    fn a_cycle_of_three_over_two_frames_hits_every_other_visit() {
        let ratio = hit_ratio(&trace((0..300).map(|visit| visit % 3), 0), 2);
        assert!((ratio - 0.5).abs() < 0.02, "{ratio}");
    }

    /// The example of textbooks on operating systems, worked out by hand: with three frames, MIN misses at 7, 0, 1, 2
    /// (for 7), 3 (for 1), 4 (for 0), 0 (for 4), 1 (for 3), and 7 (for 2).
    #[test]
    fn the_textbooks_trace_has_nine_misses() {
        let visits = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(Optimum::new(&trace(visits, 0)).misses(3), 9);
        // The first three are in the warm-up.
        assert_eq!(Optimum::new(&trace(visits, 3)).misses(3), 6);
        assert_eq!(Optimum::new(&trace(visits, 0)).misses(1), 20);
        assert_eq!(Optimum::new(&trace(visits, 0)).misses(6), 6, "each block once");
    }

    /// The same by the definition: whatever is evicted, no choice leads to fewer misses.
    #[test]
    fn no_choice_of_victims_is_better() {
        fn fewest(visits: &[u32], held: &mut Vec<u32>, frames: usize) -> u64 {
            let Some((first, rest)) = visits.split_first() else { return 0 };
            if held.contains(first) {
                return fewest(rest, held, frames);
            }
            if held.len() < frames {
                held.push(*first);
                let misses = 1 + fewest(rest, held, frames);
                held.pop();
                return misses;
            }
            let with_victim = |place: usize| {
                let mut others = held.clone();
                others[place] = *first;
                1 + fewest(rest, &mut others, frames)
            };
            (0..frames).map(with_victim).min().expect("there is a frame")
        }
        let mut random = Random::new(5);
        for round in 0..50 {
            let visits: Vec<u32> = (0..16).map(|_| random.below(5) as u32).collect();
            let frames = 1 + round % 4;
            let found = Optimum::new(&trace(visits.iter().copied(), 0)).misses(frames);
            assert_eq!(found, fewest(&visits, &mut Vec::new(), frames as usize), "{visits:?} with {frames}");
        }
    }

    #[test]
    fn the_last_visit_is_found_at_every_level() {
        let mut visits = Visits::none(300_000);
        assert_eq!((visits.levels.len(), visits.take_last()), (4, None));
        let all = [0, 63, 64, 4095, 4096, 262_143, 262_144, 299_999];
        all.into_iter().for_each(|visit| visits.insert(visit));
        visits.remove(4096);
        let taken: Vec<u32> = std::iter::from_fn(|| visits.take_last()).collect();
        assert_eq!(taken, [299_999, 262_144, 262_143, 4095, 64, 63, 0]);
    }
}
