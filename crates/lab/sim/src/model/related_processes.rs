// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Forked processes that live next to the world: they do nothing, and the tier's pages that they can read must not
//! change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use aquifer_core::block::State;
use aquifer_core::engine::Engine;
use aquifer_core::slabs::Slabs;
use aquifer_core::units::SlabIndex;

use super::memory::Memory;
use super::world::World;

/// Maximum number of related processes alive at a time.
pub const RELATED_MAX: usize = 3;

/// How many processes use each slab.
#[derive(Clone, Debug)]
pub struct SlabUsers(Arc<Mutex<Vec<u32>>>);

impl SlabUsers {
    pub fn new(slabs: u32) -> Self {
        Self(Arc::new(Mutex::new(vec![0; slabs as usize])))
    }

    fn change(&self, slab: SlabIndex, by: i32) -> u32 {
        let users = &mut self.0.lock().unwrap()[slab.index()];
        *users = users.checked_add_signed(by).expect("a slab is given back once by each user");
        *users
    }
}

impl Slabs for SlabUsers {
    fn take(&mut self) -> Option<SlabIndex> {
        let slab = SlabIndex(self.0.lock().unwrap().iter().position(|users| *users == 0)? as u32);
        self.change(slab, 1);
        Some(slab)
    }

    fn release(&mut self, slab: SlabIndex) -> bool {
        self.change(slab, -1) == 0
    }

    fn is_shared(&self, slab: SlabIndex) -> bool {
        self.0.lock().unwrap()[slab.index()] > 1
    }

    fn in_use(&self) -> u32 {
        self.0.lock().unwrap().iter().filter(|users| **users > 0).count() as u32
    }
}

/// A forked process.
#[derive(Debug)]
pub struct RelatedProcess {
    slabs: Vec<SlabIndex>,
    /// What it can read, by page of the tier.
    pub reads: BTreeMap<u64, u32>,
}

impl World {
    /// fork(2), while nothing is under way: continues as the parent or as the child; the other process becomes a
    /// related one.
    pub fn fork(&self, engines: &mut [MutexGuard<'_, Engine>], as_child: bool) {
        if self.memory.borrow().related_processes.len() == RELATED_MAX {
            self.bury();
        }
        let reads = engines.iter().flat_map(|engine| self.readable(engine)).collect();
        let mut slabs = Vec::new();
        for engine in &mut *engines {
            engine.inherit(&mut |slab| {
                self.slab_users.change(slab, 1);
                slabs.push(slab);
            });
        }
        let mut memory = self.memory.borrow_mut();
        memory.related_processes.push(RelatedProcess { slabs, reads });
        if as_child {
            memory.lose_frames();
            engines.iter_mut().for_each(|engine| engine.become_child());
        }
    }

    /// The tier's pages that this process can read.
    fn readable(&self, engine: &Engine) -> BTreeMap<u64, u32> {
        let (map, mut reads, memory) = (engine.map(), BTreeMap::new(), self.memory.borrow());
        for mapping in map.mappings() {
            for block in map.blocks_in(mapping.start, mapping.end) {
                let entry = map.block(block);
                if !matches!(entry.state, State::Stored | State::Standby) {
                    continue;
                }
                let Some(slot) = map.slot(block) else { continue };
                for at in 0..map.pages(block).count as usize {
                    let value = memory.pages[&(map.pages(block).start + at as u64)].last;
                    // Zeros are not stored.
                    if value != 0 && map.guards(block)[at] != aquifer_core::guard::ZERO {
                        assert_eq!(memory.stored(slot, at), value);
                        reads.insert(Memory::place(slot, at), value);
                    }
                }
            }
        }
        reads
    }

    /// Ends the oldest related process.
    pub fn bury(&self) {
        let mut memory = self.memory.borrow_mut();
        if memory.related_processes.is_empty() {
            return;
        }
        let related = memory.related_processes.remove(0);
        for (place, value) in related.reads {
            assert_eq!(memory.stored_at(place), value, "a related process reads what it did not write");
        }
        for slab in related.slabs {
            self.slab_users.change(slab, -1);
        }
    }
}
