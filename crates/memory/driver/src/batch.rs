// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Evictions, many at a time: the worker's, and those of a fault that finds no room and many victims to drop.
//!
//! Each kernel call that takes pages away interrupts every CPU that runs the program, which costs as much as many page
//! copies. So neighbours move in one call. And a sealed block needs no call of its own: it has been write-protected
//! since it was installed, so its bytes can be copied while the program runs, and one call drops all copied blocks.
//! Nothing is lost in between: a store faults on the protection and waits, since the block is Leaving; and no device
//! can be about to write to a page, since a pin for writing would have lifted the protection first.
//!
//! Next on the path: `evict.rs`, for blocks that are not sealed; `pager/src/space/exchanger.rs`, for those that are.

use aquifer_core::engine::{DROPS_MAX, Task};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex, PageIndex};

use crate::engine_lock::LockedEngine;
use crate::evict::{evict, stays, take_away};
use crate::fatal::Fatal;
use crate::fault::report;
use crate::observer::Count;
use crate::space::{Refused, Space, TakeAway};

/// Maximum number of sealed blocks that one kernel call takes away, and the maximum number of frames that one call
/// gives back: the kernel's limit for a list of ranges (UIO_MAXIOV).
pub const BATCH_MAX: usize = 1024;

/// Maximum number of bytes of neighbours that one call moves: at 2 MiB a call's fixed cost is a tenth of the total.
const NEIGHBOURS_BYTES_MAX: u64 = 2 << 20;

/// The most reports with the engine locked once: faults wait for them.
const REPORTS_AT_ONCE: usize = 8;

/// A sealed block to be taken away.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The block.
    pub block: BlockIndex,
    /// Its pages.
    pub pages: Pages,
    /// Where to copy it; `None` when the tier's copy will do.
    pub frame: Option<FrameIndex>,
}

/// A block to be moved to its frame.
#[derive(Clone, Copy, Debug)]
struct Victim {
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    delivery: Delivery,
}

impl Victim {
    /// Whether `next` continues a run of `blocks` blocks, both in the program's addresses and in the frames.
    fn continues(&self, run: &Pages, blocks: usize, next: &Victim) -> bool {
        run.end() == next.pages.start
            && self.delivery == next.delivery
            && self.frame.order() == next.frame.order()
            && self.frame.index() + blocks as u32 == next.frame.index()
            && u64::from(run.count) == blocks as u64 * u64::from(self.frame.order().pages())
            && run.bytes() + next.pages.bytes() <= NEIGHBOURS_BYTES_MAX
    }
}

/// Carries out the evictions among `tasks`: all sealed blocks together, and neighbours together. False if there are
/// only evictions and the kernel refused every victim.
pub(crate) fn evict_all<S: Space>(space: &S, tasks: &[Task]) -> Result<bool, Fatal> {
    let mut moved: Vec<Victim> = Vec::with_capacity(tasks.len());
    let mut sealed: Vec<Sealed> = Vec::with_capacity(tasks.len());
    for task in tasks {
        match *task {
            Task::Evict { block, pages, frame, copied: true } => {
                sealed.push(Sealed { block, pages, frame: Some(frame) });
            }
            Task::Evict { block, pages, frame, copied: false } => {
                let delivery = space.engine().map().region_of(block).delivery;
                moved.push(Victim { block, pages, frame, delivery });
            }
            Task::Drop { block, pages } => sealed.push(Sealed { block, pages, frame: None }),
            _ => {}
        }
    }
    let evictions = moved.len() + sealed.len();
    let mut progress = evictions < tasks.len() || evictions == 0;
    progress |= evict_sealed(space, &sealed)?;
    let mut start = 0;
    while start < moved.len() {
        let mut run = moved[start].pages;
        let mut end = start + 1;
        while end < moved.len() && moved[start].continues(&run, end - start, &moved[end]) {
            run.count += moved[end].pages.count;
            end += 1;
        }
        progress |= evict_run(space, run, &moved[start..end])?;
        start = end;
    }
    Ok(progress)
}

/// Evicts neighbours. Returns whether any was evicted.
fn evict_run<S: Space>(space: &S, pages: Pages, members: &[Victim]) -> Result<bool, Fatal> {
    let mut was_touched = false;
    if members.len() > 1 {
        match evict_at_once(space, pages, members)? {
            TakeAway::Taken => return Ok(true),
            TakeAway::Refused(Refused { is_untouched, .. }) => was_touched = !is_untouched,
        }
    }
    let mut progress = false;
    for member in members {
        // Blocks that were put back are no longer protected, and the program may have written to them since.
        if was_touched && space.engine().map().block(member.block).sealed {
            stays(space, member.block, member.pages)?;
        } else {
            progress |= evict(space, member.block, member.pages, member.frame, member.delivery)?;
        }
    }
    Ok(progress)
}

/// Takes a whole run away by one exchange. Some blocks may be sealed. A shared page makes the whole exchange fail, and
/// its block is then evicted on its own.
fn evict_at_once<S: Space>(space: &S, pages: Pages, members: &[Victim]) -> Result<TakeAway, Fatal> {
    let first = members[0];
    let taken = take_away(space, first.delivery, pages, first.frame, true)?;
    if taken == TakeAway::Taken {
        space.count(Count::EvictedBlocks, members.len() as u64);
        report_each(space, members, |engine, member| engine.evicted(member.block));
    }
    Ok(taken)
}

/// Drops sealed victims on the thread of a fault. Returns whether any was dropped.
///
/// May run in a signal handler: does not allocate.
pub(crate) fn drop_victims<S: Space>(space: &S, blocks: &[BlockIndex]) -> Result<bool, Fatal> {
    let nothing = Sealed { block: BlockIndex(0), pages: Pages { start: PageIndex(0), count: 0 }, frame: None };
    let mut victims = [nothing; DROPS_MAX];
    let victims = &mut victims[..blocks.len()];
    let engine = space.engine();
    for (victim, block) in victims.iter_mut().zip(blocks) {
        *victim = Sealed { block: *block, pages: engine.map().pages(*block), frame: None };
    }
    drop(engine);
    evict_sealed(space, victims)
}

/// Takes sealed `victims` away. Returns whether any was evicted.
fn evict_sealed<S: Space>(space: &S, victims: &[Sealed]) -> Result<bool, Fatal> {
    let (mut rest, mut progress) = (victims, false);
    while !rest.is_empty() {
        let (count, next_stayed) = evict_first(space, rest);
        progress |= count > 0;
        rest = &rest[count..];
        if count == BATCH_MAX {
            continue;
        }
        if let Some((kept, others)) = rest.split_first() {
            // A drop that ended half way would have left zeros behind.
            if next_stayed && !space.is_whole(kept.pages) {
                return Err(Fatal::Divided);
            }
            stays(space, kept.block, kept.pages)?;
            rest = others;
        }
    }
    Ok(progress)
}

/// Takes away the first of `victims`, up to the one that fails or is pinned, and reports those taken. Returns how many,
/// and whether the kernel did not drop the next one.
fn evict_first<S: Space>(space: &S, victims: &[Sealed]) -> (usize, bool) {
    let free = victims.iter().take(BATCH_MAX).take_while(|victim| !space.is_pinned(victim.pages)).count();
    let gone = space.take_away_sealed(&victims[..free]);
    // Counted before the consequences of the evictions can be counted.
    space.count(Count::EvictedBlocks, gone.count as u64);
    report_each(space, &victims[..gone.count], |engine, victim| {
        if victim.frame.is_some() { engine.evicted(victim.block) } else { engine.dropped(victim.block) }
    });
    (gone.count, gone.next_stayed)
}

/// Gives the frames of all such tasks back to the kernel together, and reports.
pub(crate) fn empty_all<S: Space>(space: &S, tasks: &[Task]) -> Result<(), Fatal> {
    let frame_of = |task: &Task| if let Task::Empty { frame } = *task { Some(frame) } else { None };
    let frames: Vec<FrameIndex> = tasks.iter().filter_map(frame_of).collect();
    frames.chunks(BATCH_MAX).try_for_each(|frames| empty(space, frames))
}

/// Gives the pages of at most [`BATCH_MAX`] frames back to the kernel, and reports.
pub(crate) fn empty<S: Space>(space: &S, frames: &[FrameIndex]) -> Result<(), Fatal> {
    space.give_back(frames)?;
    report_each(space, frames, |engine, frame| {
        engine.emptied(*frame);
        true
    });
    Ok(())
}

/// Reports the end of several steps, a few each time that the engine is locked. `one` returns whether threads wait.
fn report_each<S: Space, T>(space: &S, done: &[T], one: impl Fn(&mut LockedEngine<'_, S::Tape>, &T) -> bool) {
    for done in done.chunks(REPORTS_AT_ONCE) {
        let mut engine = space.engine();
        let wanted = done.iter().fold(false, |wanted, done| one(&mut engine, done) | wanted);
        drop(engine);
        report(space, wanted);
    }
}
