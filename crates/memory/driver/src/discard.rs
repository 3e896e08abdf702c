// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that the program gives back: empties a range, or takes it out of management.
//!
//! The kernel call is made under the locks of all shards that can have pages of the range, while no block of it is
//! being worked on. Memory that the kernel refuses to remove stays managed, with its contents.

use std::time::Duration;

use aquifer_core::engine::{DiscardStep, Engine};
use aquifer_core::units::{PageIndex, REGION_PAGES, SlabIndex, ThreadIndex};

use crate::engine_lock::LockedEngine;
use crate::fatal::Fatal;
use crate::fault::{Outcome, check_timeout, resolve};
#[cfg(feature = "planted")]
use crate::planted::{self, Bug};
use crate::space::Space;

/// One sleep of a discard that waits until a block in its range is no longer being worked on.
const WAIT_ONCE: Duration = Duration::from_millis(1);

/// Maximum number of blocks that one discard makes resident: a hole in a region needs all blocks of the region, and
/// some may be evicted again before the last is fetched. A choice: eight times the pages of a region.
const FETCHES_MAX: u32 = 8 * REGION_PAGES;

/// How a discard went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard<T> {
    /// The kernel's result.
    pub result: T,
    /// How many pages of the range were managed.
    pub managed_pages: u64,
    /// Whether the engine has given up the range.
    pub is_done: bool,
}

/// Discards the pages `first..last` in every one of `shards` that can have any of them, and stops managing them if
/// `remove`. `act` makes the kernel call; it runs once, with the locks of these shards held if any page is managed, and
/// returns the result and whether the kernel has done it. `after` runs under the same locks for each shard, if the
/// range was given up, to forget what is left at the range's ends.
///
/// The locks are taken in the order of `shards`, which is the same for all callers.
pub fn discard<S: Space, T>(
    shards: &[S],
    first: PageIndex,
    last: PageIndex,
    remove: bool,
    act: impl FnOnce() -> (T, bool),
    mut after: impl FnMut(&mut LockedEngine<'_, S::Tape>, &mut dyn FnMut(SlabIndex)),
) -> Result<Discard<T>, Fatal> {
    let mut started = shards[0].now_ns();
    let mut fetches = 0;
    let mut lost = None;
    loop {
        let tickets: Vec<u32> = shards.iter().map(S::ticket).collect();
        let mut engines: Vec<_> = shards.iter().map(S::engine).collect();
        let managed_pages = engines.iter().map(|engine| managed_pages(engine, first, last)).sum();
        if managed_pages == 0 {
            drop(engines);
            let (result, _) = act();
            return Ok(Discard { result, managed_pages, is_done: false });
        }
        let steps = engines.iter().map(|engine| engine.discard_step(first, last, remove));
        let obstacle = steps.enumerate().find(|(_, step)| *step != DiscardStep::Done);
        match obstacle {
            None | Some((_, DiscardStep::Done)) => {
                let (result, is_done) = act();
                if is_done {
                    for (shard, engine) in shards.iter().zip(&mut engines) {
                        give_up(shard, engine, first, last, remove, &mut after);
                    }
                    drop(engines);
                    shards.iter().for_each(S::signal);
                }
                return Ok(Discard { result, managed_pages, is_done });
            }
            Some((index, DiscardStep::MakeResident { page })) => {
                drop(engines);
                let outcome = resolve(&shards[index], page, ThreadIndex(0), true)?;
                (fetches, started) = (fetches + 1, shards[index].now_ns());
                // A block whose bytes the tier has lost is poisoned now, and no obstacle: the rest of it is lost in any
                // case. One that is still an obstacle found no room.
                let is_stuck = outcome != Outcome::Resolved && lost.replace(page) == Some(page);
                if is_stuck || fetches > FETCHES_MAX {
                    return Err(Fatal::PartlyDiscarded);
                }
            }
            Some((index, DiscardStep::Wait)) => {
                drop(engines);
                check_timeout(&shards[index], started)?;
                shards[index].wait_at_most(tickets[index], WAIT_ONCE);
            }
        }
    }
}

fn managed_pages(engine: &Engine, first: PageIndex, last: PageIndex) -> u64 {
    engine.map().overlapping(first, last).map(|mapping| mapping.pages_within(first, last)).sum()
}

/// The kernel has emptied or removed the range: the engine forgets it.
fn give_up<S: Space>(
    space: &S,
    engine: &mut LockedEngine<'_, S::Tape>,
    first: PageIndex,
    last: PageIndex,
    remove: bool,
    after: &mut impl FnMut(&mut LockedEngine<'_, S::Tape>, &mut dyn FnMut(SlabIndex)),
) {
    if managed_pages(engine, first, last) == 0 {
        return;
    }
    let mut freed = |slab: SlabIndex| {
        space.freed(slab);
        #[cfg(feature = "planted")]
        if planted::is(Bug::DoubleFree)
            && let Some(slab) = planted::freed_before(slab)
        {
            space.freed(slab);
        }
    };
    let step = engine.discard(first, last, remove, &mut freed);
    assert_eq!(step, DiscardStep::Done, "nothing stood in the way, and the engine is ours");
    after(engine, &mut freed);
    space.publish(engine);
    space.publish_more(engine);
}
