// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that the program gives back: empties a range, or takes it out of management.
//!
//! The kernel call is made under the engine's lock, while no block of the range is being worked on. Memory that the
//! kernel refuses to remove stays managed, with its contents.

use std::time::Duration;

use aquifer_core::engine::DiscardStep;
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

/// Discards the pages `first..last`, and stops managing them if `remove`. `act` makes the kernel call; it runs once,
/// with the engine's lock held if any page is managed, and returns the result and whether the kernel has done it.
/// `after` runs under the same lock, if the engine gave the range up, to forget what is left at the range's ends.
pub fn discard<S: Space, T>(
    space: &S,
    first: PageIndex,
    last: PageIndex,
    remove: bool,
    act: impl FnOnce() -> (T, bool),
    after: impl FnOnce(&mut LockedEngine<'_, S::Tape>, &mut dyn FnMut(SlabIndex)),
) -> Result<Discard<T>, Fatal> {
    let mut started = space.now_ns();
    let mut fetches = 0;
    loop {
        let ticket = space.ticket();
        let mut engine = space.engine();
        let overlapping = engine.map().overlapping(first, last);
        let managed_pages: u64 = overlapping.map(|mapping| mapping.pages_within(first, last)).sum();
        if managed_pages == 0 {
            drop(engine);
            let (result, _) = act();
            return Ok(Discard { result, managed_pages, is_done: false });
        }
        match engine.discard_step(first, last, remove) {
            DiscardStep::Done => {
                let (result, is_done) = act();
                if !is_done {
                    return Ok(Discard { result, managed_pages, is_done });
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
                after(&mut engine, &mut freed);
                space.publish(&engine);
                space.publish_more(&engine);
                drop(engine);
                space.signal();
                return Ok(Discard { result, managed_pages, is_done });
            }
            DiscardStep::MakeResident { page } => {
                drop(engine);
                let outcome = resolve(space, page, ThreadIndex(0), true)?;
                (fetches, started) = (fetches + 1, space.now_ns());
                if outcome != Outcome::Resolved || fetches > FETCHES_MAX {
                    return Err(Fatal::PartlyDiscarded);
                }
            }
            DiscardStep::Wait => {
                drop(engine);
                check_timeout(space, started)?;
                space.wait_at_most(ticket, WAIT_ONCE);
            }
        }
    }
}
