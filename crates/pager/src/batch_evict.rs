// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The worker's batched work on many small blocks: evicts sealed blocks from the program's address, and gives frames
//! back to the kernel.
//!
//! Taking a page away interrupts every CPU that runs the program, which costs as much as many page copies, once for
//! each kernel call. A sealed block needs no call of its own: it has been write-protected since it was installed, so
//! its bytes can be copied while the program runs, and one call drops all copied blocks. Nothing is lost in between: a
//! store faults on the protection and waits, since the block is Leaving; and no device can be about to write to a page,
//! since a pin for writing would have lifted the protection first.

#![allow(unsafe_code, reason = "pages of the program are copied and dropped; each site says why nobody misses them")]

use aquifer_core::map::Pages;
use aquifer_core::units::{BlockIndex, FrameIndex};
use aquifer_stats::Counter;
use aquifer_sys::memory::{SPANS_MAX, Span, drop_spans, read_spans};

use crate::abort::abort;
use crate::exchange;
use crate::pager::Pager;

/// A sealed block to be taken away.
#[derive(Clone, Copy)]
pub(crate) struct Sealed {
    pub(crate) block: BlockIndex,
    pub(crate) pages: Pages,
    /// Where to copy it; `None` when the tier's copy will do.
    pub(crate) frame: Option<FrameIndex>,
}

/// Takes `victims` away. Returns whether any was evicted.
pub(crate) fn evict(pager: &Pager, victims: &[Sealed]) -> bool {
    let (mut rest, mut progress) = (victims, false);
    while !rest.is_empty() {
        let Evicted { count, failed } = evict_first(pager, rest);
        progress |= count > 0;
        rest = &rest[count..];
        if let Some((kept, others)) = rest.split_first() {
            // A drop that ended half way would have left zeros behind.
            if failed && !exchange::is_whole(kept.pages) {
                abort(&["a block could be taken away in part only; its contents would be lost"]);
            }
            pager.stays(kept.block, kept.pages);
            rest = others;
        }
    }
    progress
}

/// The result for the first victims.
struct Evicted {
    count: usize,
    /// The kernel did not drop the next victim.
    failed: bool,
}

/// Takes away the first of `victims`, up to the one that fails or is pinned, and reports those taken.
fn evict_first(pager: &Pager, victims: &[Sealed]) -> Evicted {
    let free = victims.iter().take(SPANS_MAX).take_while(|victim| !pager.pins.cover(victim.pages)).count();
    let copied = copy_out(pager, &victims[..free]);
    let spans: Vec<Span> = victims[..copied].iter().map(source).collect();
    // SAFETY: the blocks are Leaving and write-protected, so nobody writes to them; their bytes have been copied, or
    // the tier has them.
    let gone = whole(&spans, unsafe { drop_spans(&spans) }.unwrap_or(0));
    // Counted before the consequences of the evictions can be counted.
    pager.counters.add(Counter::EvictedBlocks, gone as u64);
    let mut engine = pager.engine();
    let wanted = victims[..gone].iter().fold(false, |wanted, victim| {
        let waited = if victim.frame.is_some() { engine.evicted(victim.block) } else { engine.dropped(victim.block) };
        waited | wanted
    });
    drop(engine);
    pager.report(wanted);
    Evicted { count: gone, failed: gone < copied }
}

/// Copies victims to their frames. Returns how many, from the first on, are copied now or need no copy.
fn copy_out(pager: &Pager, victims: &[Sealed]) -> usize {
    let framed = |victim: &&Sealed| victim.frame.is_some();
    let sources: Vec<Span> = victims.iter().filter(framed).map(source).collect();
    let targets: Vec<Span> = victims
        .iter()
        .filter_map(|victim| Some(Span { start: pager.area.address(victim.frame?), ..source(victim) }))
        .collect();
    if sources.is_empty() {
        return victims.len();
    }
    // SAFETY: the frames are this thread's, as the engine's answer says, and the blocks are Leaving and
    // write-protected: nobody writes to either.
    let copied = whole(&sources, unsafe { read_spans(&targets, &sources) }.unwrap_or(0));
    let missing = |(_, victim): &(usize, &Sealed)| victim.frame.is_some();
    victims.iter().enumerate().filter(missing).nth(copied).map_or(victims.len(), |(index, _)| index)
}

fn source(victim: &Sealed) -> Span {
    Span { start: victim.pages.address() as usize, len: victim.pages.bytes() as usize }
}

/// How many of `spans` lie within their first `bytes` bytes.
fn whole(spans: &[Span], bytes: usize) -> usize {
    let mut left = bytes;
    spans.iter().take_while(|span| left.checked_sub(span.len).map(|rest| left = rest).is_some()).count()
}

/// Gives the pages of `frames` back to the kernel, and reports.
pub(crate) fn empty(pager: &Pager, frames: &[FrameIndex]) {
    for frames in frames.chunks(SPANS_MAX) {
        let spans: Vec<Span> = frames
            .iter()
            .map(|frame| Span { start: pager.area.address(*frame), len: frame.order().bytes() as usize })
            .collect();
        // SAFETY: the frames are this thread's, and their bytes are not needed.
        let dropped = whole(&spans, unsafe { drop_spans(&spans) }.unwrap_or(0));
        frames[dropped..].iter().for_each(|frame| pager.area.drop_pages(*frame));
        let mut engine = pager.engine();
        frames.iter().for_each(|frame| engine.emptied(*frame));
        drop(engine);
        pager.progress.signal();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_was_done_in_part_does_not_count() {
        let spans = [8, 4, 4].map(|pages| Span { start: 0, len: pages << 12 });
        let done = |pages: usize| whole(&spans, pages << 12);
        assert_eq!([0, 7, 8, 11, 12, 16].map(done), [0, 0, 1, 1, 2, 3]);
    }
}
