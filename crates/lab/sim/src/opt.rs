// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The optimum that knows the future (Belady's MIN, 1966): evicts the block whose next visit is farthest away.
//!
//! No policy can hit more often, so it shows how much a better policy could gain.

use std::collections::BinaryHeap;

use crate::workload::Trace;

/// The part of the counted visits that hit with `frames` frames, standby included.
pub fn hit_ratio(trace: &Trace, frames: u32) -> f64 {
    let next = next_visits(trace);
    let mut resident = vec![false; trace.blocks as usize];
    let mut held = 0;
    let mut by_next_visit = BinaryHeap::new();
    let mut hits = 0u64;
    for (index, touch) in trace.touches.iter().enumerate() {
        let block = touch.block() as usize;
        if resident[block] {
            hits += u64::from(index >= trace.warm);
        } else {
            while held >= frames {
                let (_, victim): (usize, usize) = by_next_visit.pop().expect("every resident block is in the heap");
                held -= u32::from(std::mem::replace(&mut resident[victim], false));
            }
            resident[block] = true;
            held += 1;
        }
        // The entry of the previous visit names this visit as the next one. That is not in the future, so it is never
        // popped before the new entry.
        by_next_visit.push((next[index], block));
    }
    hits as f64 / (trace.touches.len() - trace.warm) as f64
}

/// For each visit, the index of the next visit of the same block.
fn next_visits(trace: &Trace) -> Vec<usize> {
    let mut latest = vec![usize::MAX; trace.blocks as usize];
    let mut next = vec![0; trace.touches.len()];
    for (index, touch) in trace.touches.iter().enumerate().rev() {
        next[index] = std::mem::replace(&mut latest[touch.block() as usize], index);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Touch;

    #[test]
    fn a_cycle_of_three_over_two_frames_hits_every_other_visit() {
        let touches = (0..300).map(|visit| Touch::read(visit % 3)).collect();
        let trace = Trace { touches, blocks: 3, warm: 0 };
        let ratio = hit_ratio(&trace, 2);
        assert!((ratio - 0.5).abs() < 0.02, "{ratio}");
    }
}
