// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The slabs' memory: where it comes from, and how it is wiped. It is either mapped, and the donor copies from and to
//! it, or shared with borrowers on this machine, file by file (`lent_files.rs`).
//!
//! Where possible, giving a slab's pages back to the kernel is the wipe: the kernel zeroes a page before anybody gets
//! it again, and until then the machine has the memory. The mechanisms: `sys/src/lent_memory.rs`.

use std::sync::Arc;

use aquifer_sys::lent_memory::LentMemory;
pub use aquifer_sys::lent_memory::Source;
use aquifer_wire::{LentSlab, SLAB_BYTES};

use crate::leases::Access;
use crate::lent_files::LentFiles;
use crate::settings::{Address, Settings, StartFailure};
use crate::wiper::PIECE_BYTES;

/// The memory of all slabs: mapped by the donor, or shared with borrowers on the same host.
#[derive(Debug)]
pub(crate) enum Slabs {
    Mapped(Arc<LentMemory>),
    Shared(LentFiles),
}

impl Slabs {
    pub(crate) fn new(settings: &Settings, slabs: u32) -> Result<Slabs, StartFailure> {
        let bytes = usize::try_from(u64::from(slabs) * SLAB_BYTES).map_err(|_| StartFailure::TooLarge)?;
        if matches!(settings.listen, Address::Local(_)) {
            return LentFiles::new(slabs, settings.node).map(Slabs::Shared);
        }
        let memory = LentMemory::new(&settings.source, bytes)
            .map_err(|error| StartFailure::Memory(settings.source.clone(), error))?;
        if let Some(node) = settings.node {
            memory.bind(node).map_err(|error| StartFailure::Node(node, error))?;
        }
        Ok(Slabs::Mapped(Arc::new(memory)))
    }

    /// Keeps lent memory out of this machine's swap, where wiped bytes would remain. Returns the reason if it cannot.
    pub(crate) fn lock(&self) -> Result<(), String> {
        match self {
            Slabs::Mapped(memory) => memory.lock().map_err(|error| {
                format!("{error}; raise the limit on locked memory (ulimit -l, LimitMEMLOCK=infinity in a unit)")
            }),
            Slabs::Shared(files) if files.is_locked() => Ok(()),
            Slabs::Shared(_) => {
                Err("it takes CAP_SYS_ADMIN and Linux 6.4 where memory is shared; start the donor with \
                 both, or do without swap"
                    .into())
            }
        }
    }

    /// How many bytes are kept out of swap.
    pub(crate) fn locked_bytes(&self) -> u64 {
        let is_locked = match self {
            Slabs::Mapped(memory) => memory.is_locked(),
            Slabs::Shared(files) => files.is_locked(),
        };
        if is_locked { self.capacity_bytes() } else { 0 }
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        match self {
            Slabs::Mapped(memory) => memory.len() as u64,
            Slabs::Shared(files) => files.capacity_bytes(),
        }
    }

    /// The memory that the donor copies from and to; `None` where borrowers do so themselves.
    pub(crate) fn mapped(&self) -> Option<Mapped<'_>> {
        match self {
            Slabs::Mapped(memory) => Some(Mapped(memory)),
            Slabs::Shared(_) => None,
        }
    }

    /// The files that borrowers copy from and to.
    pub(crate) fn shared(&self) -> Option<&LentFiles> {
        match self {
            Slabs::Mapped(_) => None,
            Slabs::Shared(files) => Some(files),
        }
    }

    /// Discards a part of a slab that its holder does not need.
    pub(crate) fn discard(&self, access: &Access, bytes: u64) {
        match self {
            Slabs::Mapped(memory) => memory.wipe(place(access), bytes as usize),
            Slabs::Shared(files) => files.discard(access, bytes),
        }
    }

    /// Wipes a whole slab that nobody has, in pieces; calls `between` after each.
    pub(crate) fn wipe(&self, slab: LentSlab, between: &mut dyn FnMut()) {
        match self {
            Slabs::Mapped(memory) => {
                for at in (0..SLAB_BYTES as usize).step_by(PIECE_BYTES) {
                    memory.wipe(slab.offset() as usize + at, PIECE_BYTES);
                    between();
                }
            }
            Slabs::Shared(files) => files.wipe(slab, between),
        }
    }

    /// Gives back a slab that was wiped and will not be lent again.
    pub(crate) fn give_back(&self, slab: LentSlab) {
        match self {
            // If the memory is a device, this fails: there is nobody to give it back to.
            Slabs::Mapped(memory) => drop(memory.give_back(slab.offset() as usize, SLAB_BYTES as usize)),
            // A slab that no borrower has takes no memory.
            Slabs::Shared(_) => {}
        }
    }
}

/// See [`Slabs::mapped`].
pub(crate) struct Mapped<'a>(&'a Arc<LentMemory>);

impl Mapped<'_> {
    pub(crate) fn read(&self, access: &Access, target: &mut [u8]) {
        self.0.copy_out(place(access), target);
    }

    pub(crate) fn write(&self, access: &Access, source: &[u8]) {
        self.0.copy_in(place(access), source);
    }

    /// Zeroes a part of a slab that its holder does not need and whose pages a device may have registered.
    pub(crate) fn overwrite(&self, access: &Access, bytes: u64) {
        self.0.store_zeros(place(access), bytes as usize);
    }

    pub(crate) fn memory(&self) -> &Arc<LentMemory> {
        self.0
    }
}

fn place(access: &Access) -> usize {
    (access.slab.offset() + access.start) as usize
}
