// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fork(2): turns one engine into two that share the tier's contents.
//!
//! Pure, but allocates: never on the fault path. The driver ensures that no thread is working on a block, and makes
//! resident all blocks that are on standby and not in the tier, because frames are not inherited. It then calls
//! [`Engine::inherit`] in the parent, fork(2), and [`Engine::become_child`] in the child.
//!
//! The child gets resident pages as the kernel's copy-on-write pages. It is not notified of stores before it has
//! registered its memory, so none of its blocks is sealed.

use super::Engine;
use crate::block::{Block, State};
use crate::frames::FramePool;
use crate::guard;
use crate::map::Delivery;
use crate::units::{BlockIndex, PageIndex, SlabIndex};

/// What prevents fork(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkObstacle {
    /// A thread is working on a block. Wait for a report; ask again.
    Busy,
    /// The only copy of the bytes of the block with this page is in a frame, or in a slab that must not be inherited
    /// again. Resolve a fault there; ask again.
    Bring {
        /// A page of the block.
        page: PageIndex,
    },
}

impl Engine {
    /// What prevents fork(2) now, if anything.
    pub fn fork_obstacle(&mut self) -> Option<ForkObstacle> {
        let obstacle = self.obstacle_to_fork();
        while obstacle.is_none()
            && let Some(block) = self.map.too_many_versions()
        {
            if self.map.block(block).state != State::Resident {
                return Some(ForkObstacle::Bring { page: self.map.pages(block).start });
            }
            // Drops its inherited copy: the next write-back writes the whole block to the region's own slab.
            self.map.leave_inherited(block);
            self.map.guards_mut(block).fill(guard::UNKNOWN);
            self.map.block_mut(block).sealed = false;
        }
        obstacle
    }

    fn obstacle_to_fork(&self) -> Option<ForkObstacle> {
        self.all_blocks().find_map(|block| {
            let entry = self.map.block(block);
            if entry.state.is_busy() {
                return Some(ForkObstacle::Busy);
            }
            let only_here = entry.state == State::Standby && !entry.known_clean;
            only_here.then(|| ForkObstacle::Bring { page: self.map.pages(block).start })
        })
    }

    /// Called in the parent right before fork(2), when there is no obstacle: the slabs are inherited from now on.
    /// `each` receives each slab that the child will use.
    pub fn inherit(&mut self, each: &mut dyn FnMut(SlabIndex)) {
        self.map.inherit(each);
    }

    /// Called in the child after fork(2): blocks in frames are now in the tier only, and all faults are delivered by
    /// signal.
    pub fn become_child(&mut self) {
        let blocks: Vec<BlockIndex> = self.all_blocks().collect();
        for block in blocks {
            let Block { state, sealed, protected, .. } = self.map.block(block);
            if sealed || protected {
                let mut entry = self.map.block_mut(block);
                (entry.sealed, entry.protected) = (false, false);
            }
            match state {
                State::Standby => self.forget_frame(block),
                state => assert!(!state.is_busy(), "a block is {state:?} at fork"),
            }
        }
        self.ahead = super::background::Ahead::default();
        self.departures = super::advice::Departures::default();
        self.frames = FramePool::new(self.budget_pages());
        self.debt_pages = self.frames.spend(self.resident_pages);
        self.failed_in_a_row = 0;
        self.map.deliver_all(Delivery::Signal);
    }

    fn forget_frame(&mut self, block: BlockIndex) {
        // Not a wasted prefetch: the parent still has the block and counts its outcome.
        self.standby.remove(&mut self.map, block);
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        let mut entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        entry.take_frame();
        drop(entry);
        self.finish(block, if zero { State::Empty } else { State::Stored });
    }

    fn all_blocks(&self) -> impl Iterator<Item = BlockIndex> + '_ {
        self.map.mappings().flat_map(|mapping| self.map.blocks_in(mapping.start, mapping.end))
    }
}
