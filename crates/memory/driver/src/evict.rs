// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Evicts one block: takes its pages away from the program's address, into a frame.
//!
//! May run in a signal handler: does not allocate, and takes no lock but the engine's. The worker evicts many at a
//! time: `batch.rs`.
//!
//! Next on the path: `pager/src/space/exchanger.rs`, then `core/src/engine/reports.rs` (`evicted`).

use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex};

use crate::fatal::Fatal;
use crate::fault::report;
use crate::observer::Count;
use crate::planted::{self, Bug};
use crate::space::{Refused, Space, TakeAway};

/// Takes blocks away from the program's address, unless a pin covers them. `sealed`: some of them may be sealed.
pub(crate) fn take_away<S: Space>(
    space: &S,
    delivery: Delivery,
    pages: Pages,
    frame: FrameIndex,
    sealed: bool,
) -> Result<TakeAway, Fatal> {
    if space.is_pinned(pages) && !planted::is(Bug::IgnoredPin) {
        return Ok(TakeAway::Refused(Refused { is_busy: true, is_untouched: true }));
    }
    space.take_away(delivery, pages, frame, sealed)
}

/// Evicts one victim. False if the kernel refuses to release it.
pub fn evict<S: Space>(
    space: &S,
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    delivery: Delivery,
) -> Result<bool, Fatal> {
    let sealed = space.engine().map().block(block).sealed;
    let taken = take_away(space, delivery, pages, frame, sealed)?;
    if let TakeAway::Refused(refused) = taken
        && !planted::is(Bug::IgnoredRefusal)
    {
        let is_shared = refused == Refused { is_busy: true, is_untouched: true };
        if sealed && is_shared && drop_sealed(space, block, pages)? {
            return Ok(true);
        }
        stays(space, block, pages)?;
        return Ok(false);
    }
    space.count(Count::EvictedBlocks, 1);
    let wanted = space.engine().evicted(block);
    report(space, wanted);
    Ok(true)
}

/// Drops the pages of a sealed victim that the kernel does not move: the tier has the same bytes. After a fork the
/// kernel moves no sealed block, for as long as the child lives. False if a pin covers the victim or the kernel
/// refuses.
fn drop_sealed<S: Space>(space: &S, block: BlockIndex, pages: Pages) -> Result<bool, Fatal> {
    if space.is_pinned(pages) || !space.drop_sealed(pages)? {
        return Ok(false);
    }
    space.count(Count::EvictedBlocks, 1);
    let wanted = space.engine().dropped(block);
    report(space, wanted);
    Ok(true)
}

/// Keeps a victim resident. The engine then no longer counts it as sealed, so its protection is lifted first: a system
/// call that pins the block would otherwise meet a protection that nobody would lift, and fail with EFAULT.
pub fn stays<S: Space>(space: &S, block: BlockIndex, pages: Pages) -> Result<(), Fatal> {
    space.count(Count::ExchangeFallbacks, 1);
    let (sealed, delivery) = {
        let engine = space.engine();
        (engine.map().block(block).sealed, engine.map().region_of(block).delivery)
    };
    if sealed {
        space.lift_protection(delivery, pages)?;
    }
    let wanted = space.engine().eviction_refused(block);
    report(space, wanted);
    Ok(())
}
