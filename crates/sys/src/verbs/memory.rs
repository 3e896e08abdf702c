// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a device may reach: a peer's way in ([`Window`]), and what goes out and comes in ([`Dock`]).
//!
//! The kernel pins the pages for as long as they are registered. Registering is for a donor's grants and for the
//! beginning of a tier, never for a fault.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::device::{Device, Domain};
use super::failure::VerbsFailure;
use crate::lent_memory::LentMemory;
use crate::memory::map_anonymous;
use crate::raw::syscall;

/// A registration. Deregistered when it is dropped: the device refuses every access from then on.
struct Registration {
    domain: Arc<Domain>,
    mr: NonNull<abi::Mr>,
    is_over: bool,
}

// SAFETY: as for `Device`; the structure is only read.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// `called`: what its first byte is called in works.
    ///
    /// # Safety
    /// The range must stay mapped, and with the same pages, until the registration is dropped. Nobody makes references
    /// to bytes of it that the device may change.
    unsafe fn new(
        domain: &Arc<Domain>,
        start: usize,
        bytes: usize,
        called: u64,
        access: c_int,
    ) -> Result<Registration, VerbsFailure> {
        let device = &domain.device;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the domain is there, and the caller promises the range.
        let mr = unsafe { (device.library.ibv_reg_mr_iova)(domain.pd.as_ptr(), address, bytes, called, access) };
        let mr = NonNull::new(mr).ok_or_else(|| device.failure("registering memory"))?;
        Ok(Registration { domain: Arc::clone(domain), mr, is_over: false })
    }

    fn mr(&self) -> &abi::Mr {
        // SAFETY: the library's structure, which does not change until it is deregistered.
        unsafe { self.mr.as_ref() }
    }
}

impl Registration {
    fn end(mut self) -> Result<(), VerbsFailure> {
        match self.deregister() {
            0 => Ok(()),
            errno => Err(VerbsFailure::Call { what: "deregistering memory", errno: errno.abs() }),
        }
    }

    fn deregister(&mut self) -> c_int {
        if std::mem::replace(&mut self.is_over, true) || !self.domain.device.is_own() {
            return 0;
        }
        // SAFETY: it is registered, and nobody uses it afterwards: this is done once.
        unsafe { (self.domain.device.library.ibv_dereg_mr)(self.mr.as_ptr()) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Part of what is lent, for the peers of one domain, until it is dropped. They call its first byte 0, and learn
/// nothing of where it is.
pub struct Window {
    registration: Registration,
    _memory: Arc<LentMemory>,
}

impl Window {
    /// Opens one on `bytes` bytes from `offset` on. Their pages must not be given back while it is open.
    pub fn open(
        domain: &Arc<Domain>,
        memory: &Arc<LentMemory>,
        offset: usize,
        bytes: usize,
    ) -> Result<Window, VerbsFailure> {
        let start = memory.place_of(offset, bytes);
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE;
        // SAFETY: the memory is mapped as long as `_memory` is kept, and reached through atomics alone. Where its pages
        // were given back, the device would go on with those that it has pinned: nobody else's.
        let registration = unsafe { Registration::new(domain, start, bytes, 0, access) }?;
        Ok(Window { registration, _memory: Arc::clone(memory) })
    }

    /// Closes it, so that it is known whether that was done: dropping it would not say.
    pub fn close(self) -> Result<(), VerbsFailure> {
        let Window { registration, .. } = self;
        registration.end()
    }

    /// What a peer has to show.
    pub fn key(&self) -> u32 {
        self.registration.mr().rkey
    }
}

/// Memory of our own that a queue pair takes from and brings to. Not in forked children.
pub struct Dock {
    // Dropped before the mapping.
    registration: Registration,
    mapping: Mapping,
}

/// A mapping that is not in forked children.
struct Mapping {
    start: usize,
    bytes: usize,
    device: Arc<Device>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child something else may be there.
        if self.device.is_own() {
            // SAFETY: our own range, to which nobody has a reference any more.
            let _ = unsafe { syscall(libc::SYS_munmap, [self.start, self.bytes, 0, 0, 0, 0]) };
        }
    }
}

impl Dock {
    /// `bytes` bytes, which are there from now on.
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Dock, VerbsFailure> {
        let call = |errno: crate::raw::Errno| VerbsFailure::Call { what: "mmap", errno: errno.0 };
        let start = map_anonymous(bytes).map_err(call)?;
        let mapping = Mapping { start, bytes, device: Arc::clone(&domain.device) };
        // SAFETY: advice about our own range, to which nobody has a reference.
        unsafe { syscall(libc::SYS_madvise, [start, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]) }.map_err(call)?;
        // SAFETY: the range is mapped until `mapping` is dropped, which is after the registration; its bytes are
        // reached by copies alone, while no work with it is under way.
        let registration = unsafe { Registration::new(domain, start, bytes, start as u64, abi::ACCESS_LOCAL_WRITE) }?;
        Ok(Dock { registration, mapping })
    }

    #[cfg(test)]
    pub(super) fn of_parts(domain: &Arc<Domain>, bytes: usize) -> Dock {
        let start = map_anonymous(bytes).unwrap();
        // SAFETY: integers and null pointers are all zeros.
        let mr: &mut abi::Mr = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let registration = Registration { domain: Arc::clone(domain), mr: mr.into(), is_over: true };
        Dock { registration, mapping: Mapping { start, bytes, device: Arc::clone(&domain.device) } }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.mapping.bytes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.mapping.bytes == 0
    }

    pub(super) fn address(&self, offset: usize, bytes: usize) -> u64 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.mapping.bytes), "inside the dock");
        (self.mapping.start + offset) as u64
    }

    pub(super) fn key(&self) -> u32 {
        self.registration.mr().lkey
    }

    /// Copies from `offset` on into `target`. While no work with it is under way.
    pub fn copy_out(&mut self, offset: usize, target: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(self.address(offset, target.len()) as usize);
        // SAFETY: inside the mapping, to which nobody has a reference; `&mut` keeps other threads away, and the device
        // has no work with it, by the caller. The target is elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
    }

    /// Copies `source` to `offset`. While no work with it is under way.
    pub fn copy_in(&mut self, offset: usize, source: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address(offset, source.len()) as usize);
        // SAFETY: as in `copy_out`.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
    }
}
