// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The slabs' memory: where it comes from, and how it is wiped.
//!
//! Where it can be done, giving a slab's pages back to the kernel is the wipe: it zeroes a page before anybody has it
//! again, and the machine has the memory until then. The mechanisms: `sys/src/lent_memory.rs`.

use aquifer_sys::lent_memory::LentMemory;
pub use aquifer_sys::lent_memory::Source;
use aquifer_wire::SLAB_BYTES;

use crate::leases::Access;
use crate::settings::{Settings, StartFailure};

/// See the module.
#[derive(Debug)]
pub(crate) struct Slabs {
    memory: LentMemory,
}

impl Slabs {
    pub(crate) fn new(settings: &Settings, slabs: u32) -> Result<Slabs, StartFailure> {
        let bytes = usize::try_from(u64::from(slabs) * SLAB_BYTES).map_err(|_| StartFailure::TooLarge)?;
        let memory = LentMemory::new(&settings.source, bytes)
            .map_err(|error| StartFailure::Memory(settings.source.clone(), error))?;
        if let Some(node) = settings.node {
            memory.bind(node).map_err(|error| StartFailure::Node(node, error))?;
        }
        Ok(Slabs { memory })
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    pub(crate) fn read(&self, access: &Access, target: &mut [u8]) {
        self.memory.copy_out(place(access), target);
    }

    pub(crate) fn write(&self, access: &Access, source: &[u8]) {
        self.memory.copy_in(place(access), source);
    }

    /// Part of a slab that its holder does not need.
    pub(crate) fn discard(&self, access: &Access, bytes: u64) {
        self.memory.wipe(place(access), bytes as usize);
    }

    /// A whole slab that nobody has.
    pub(crate) fn wipe(&self, slab: u32) {
        self.memory.wipe(beginning(slab), SLAB_BYTES as usize);
    }

    /// One that was wiped and will not be lent any more.
    pub(crate) fn give_back(&self, slab: u32) {
        // A device has nowhere to give it to.
        self.memory.give_back(beginning(slab), SLAB_BYTES as usize);
    }
}

fn beginning(slab: u32) -> usize {
    (u64::from(slab) * SLAB_BYTES) as usize
}

fn place(access: &Access) -> usize {
    beginning(access.slab) + access.start as usize
}
