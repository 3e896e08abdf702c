// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the memory of a system call, or of a call of the library, resident after it has been pinned.
//!
//! The order makes it safe. A pin is published before its blocks are looked at under the engine's lock. A victim chosen
//! earlier is then seen as Leaving, and waited for; a victim chosen later is refused because of the pin.

use aquifer_core::units::{PageIndex, ThreadIndex};

use crate::fatal::Fatal;
use crate::fault::{Outcome, resolve};
use crate::space::{Populated, Space};

/// Maximum number of attempts to make one block resident for one call. A pinned block needs one, plus one each time it
/// is seen as a victim that is about to be refused; a block that is not pinned may be evicted again and again.
const BRINGS_MAX: u32 = 64;

/// What the pages are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read. Blocks that the tier has, too, stay or become sealed, and are then cheap to evict.
    Read,
    /// To be read and written to.
    Write,
}

/// What became of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// All of them were present, and the kernel has the access that was asked for.
    Present,
    /// Those that are managed and not lost are present now.
    AsFarAsManaged,
    /// There is no room for them, or they were evicted each time before they were looked at.
    NoRoom,
}

/// Makes the pages `start..end` resident for this access, except those not managed or lost.
pub fn bring<S: Space>(
    space: &S,
    start: PageIndex,
    end: PageIndex,
    thread: ThreadIndex,
    access: Access,
) -> Result<Brought, Fatal> {
    let writes = access == Access::Write;
    let mut page = start;
    let mut tries = 0;
    let mut all = true;
    while page < end {
        let found = {
            let engine = space.engine();
            let block = engine.map().blocks_in(page, end).next();
            block.map(|block| (engine.map().block(block), engine.map().pages(block)))
        };
        let Some((block, pages)) = found else { break };
        all &= page >= pages.start;
        // A hole that another thread fills is not ours to wait for: with many such threads there would be one at every
        // look. If the kernel is about to write, it cannot signal a fault on a write-protected page either.
        if !block.is_in_place() || (writes && block.protected) {
            match resolve(space, pages.start.max(page), thread, writes)? {
                Outcome::Resolved if tries < BRINGS_MAX => {
                    tries += 1;
                    continue;
                }
                Outcome::Resolved | Outcome::NoRoom => return Ok(Brought::NoRoom),
                // Lost: the kernel returns an error to the call.
                Outcome::Foreign | Outcome::Lost => all = false,
            }
        }
        page = pages.end();
        tries = 0;
    }
    all &= page >= end;
    Ok(match fill_holes(space, start, end, thread, writes)? {
        Brought::Present if !all => Brought::AsFarAsManaged,
        brought => brought,
    })
}

/// Fills single pages that resident blocks lack. Looks at each page once: a page that is missing at a second look was
/// not pinned.
fn fill_holes<S: Space>(
    space: &S,
    start: PageIndex,
    end: PageIndex,
    thread: ThreadIndex,
    writes: bool,
) -> Result<Brought, Fatal> {
    match space.populate(start, end) {
        Populated::All => return Ok(Brought::Present),
        Populated::NotAll => {}
        Populated::Unknown => return Ok(Brought::AsFarAsManaged),
    }
    for page in start.up_to(end) {
        if space.populate(page, page + 1) == Populated::NotAll
            && resolve(space, page, thread, writes)? == Outcome::NoRoom
        {
            return Ok(Brought::NoRoom);
        }
    }
    Ok(Brought::AsFarAsManaged)
}
