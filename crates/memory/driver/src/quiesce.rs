// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Brings a space to rest before a fork: no thread is working on a block, and no block exists only in a frame.
//!
//! Next on the path: `core/src/engine/fork.rs`, the slabs that both processes read.

use std::time::Duration;

use aquifer_core::engine::{Engine, ForkObstacle};
use aquifer_core::units::{PageIndex, ThreadIndex};

use crate::fatal::Fatal;
use crate::fault::{Outcome, check_timeout, resolve};
use crate::space::Space;

/// One sleep while threads finish their work.
const WAIT_ONCE: Duration = Duration::from_millis(1);

/// Brings the space to rest, while it is paused for all other threads. `obstacle` names a further page that has to be
/// resident, at most `obstacles_max` times. A page counts again each time that it is evicted to make room for another.
/// False if a page could not be made resident.
pub fn quiesce<S: Space>(
    space: &S,
    thread: ThreadIndex,
    obstacle: impl Fn(&Engine) -> Option<PageIndex>,
    obstacles_max: u32,
) -> Result<bool, Fatal> {
    let started = space.now_ns();
    let mut turns = 0;
    loop {
        let ticket = space.ticket();
        let found = space.engine().fork_obstacle();
        let page = match found {
            None => {
                let Some(page) = obstacle(&space.engine()) else { return Ok(true) };
                turns += 1;
                page
            }
            Some(ForkObstacle::Busy) => {
                check_timeout(space, started)?;
                space.wait_at_most(ticket, WAIT_ONCE);
                continue;
            }
            Some(ForkObstacle::Bring { page }) => page,
        };
        if turns > obstacles_max || resolve(space, page, thread, false)? != Outcome::Resolved {
            return Ok(false);
        }
    }
}
