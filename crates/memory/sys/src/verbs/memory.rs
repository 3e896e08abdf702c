// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a device may access: a peer's access to lent memory ([`Window`]), and the local buffer of transfers
//! ([`BounceBuffer`]).
//!
//! The kernel pins the pages for as long as they are registered. Memory is registered when a donor grants a slab and
//! when a tier is opened, never during a fault.

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
    /// `called` is the address that the first byte has in work requests.
    ///
    /// # Safety
    /// The range must stay mapped, with the same pages, until the registration is dropped. No reference may be made to
    /// bytes of it that the device may change.
    unsafe fn new(
        domain: &Arc<Domain>,
        start: usize,
        bytes: usize,
        called: u64,
        access: c_int,
    ) -> Result<Registration, VerbsFailure> {
        let device = &domain.device;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the domain exists, and the caller promises the range.
        let mr = unsafe { (device.library.ibv_reg_mr_iova)(domain.pd.as_ptr(), address, bytes, called, access) };
        let mr = NonNull::new(mr).ok_or_else(|| device.failure("registering memory"))?;
        Ok(Registration { domain: Arc::clone(domain), mr, is_over: false })
    }

    fn mr(&self) -> &abi::Mr {
        // SAFETY: the structure belongs to the library, and does not change until it is deregistered.
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
        // SAFETY: the memory is registered, and the registration is not used afterwards: this runs once.
        unsafe { (self.domain.device.library.ibv_dereg_mr)(self.mr.as_ptr()) }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// Part of the lent memory, accessible to the peers of one domain until it is dropped. Peers address its first byte as
/// 0, and do not learn its real address.
pub struct Window {
    registration: Registration,
    _memory: Arc<LentMemory>,
}

impl Window {
    /// Opens a window on `bytes` bytes from `offset` on. Their pages must not be given back while it is open.
    pub fn open(
        domain: &Arc<Domain>,
        memory: &Arc<LentMemory>,
        offset: usize,
        bytes: usize,
    ) -> Result<Window, VerbsFailure> {
        let start = memory.place_of(offset, bytes);
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE;
        // SAFETY: the memory is mapped as long as `_memory` is kept, and accessed only through atomics. If its pages
        // were given back, the device would continue to use those that it has pinned, which no other process gets.
        let registration = unsafe { Registration::new(domain, start, bytes, 0, access) }?;
        Ok(Window { registration, _memory: Arc::clone(memory) })
    }

    /// Closes it, and returns whether that succeeded, which dropping it would not report.
    pub fn close(self) -> Result<(), VerbsFailure> {
        let Window { registration, .. } = self;
        registration.end()
    }

    /// The key that a peer must present.
    pub fn key(&self) -> u32 {
        self.registration.mr().rkey
    }
}

/// A local buffer that a queue pair reads from and writes to. Not mapped in forked children.
pub struct BounceBuffer {
    // Dropped before the mapping.
    registration: Registration,
    mapping: Mapping,
}

/// A mapping that forked children do not inherit.
struct Mapping {
    start: usize,
    bytes: usize,
    device: Arc<Device>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child, something else may be mapped there.
        if self.device.is_own() {
            // SAFETY: the range is this value's own, and no reference to it exists any more.
            let _ = unsafe { syscall(libc::SYS_munmap, [self.start, self.bytes, 0, 0, 0, 0]) };
        }
    }
}

impl BounceBuffer {
    /// Allocates `bytes` bytes, which are resident from then on.
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<BounceBuffer, VerbsFailure> {
        let call = |errno: crate::raw::Errno| VerbsFailure::Call { what: "mmap", errno: errno.0 };
        let start = map_anonymous(bytes).map_err(call)?;
        let mapping = Mapping { start, bytes, device: Arc::clone(&domain.device) };
        // SAFETY: madvise(2) on this value's own range, to which no reference exists.
        unsafe { syscall(libc::SYS_madvise, [start, bytes, libc::MADV_DONTFORK as usize, 0, 0, 0]) }.map_err(call)?;
        // SAFETY: the range is mapped until `mapping` is dropped, which is after the registration; its bytes are
        // accessed only by copies, while no work request that uses it is in progress.
        let registration = unsafe { Registration::new(domain, start, bytes, start as u64, abi::ACCESS_LOCAL_WRITE) }?;
        Ok(BounceBuffer { registration, mapping })
    }

    #[cfg(test)]
    pub(super) fn of_parts(domain: &Arc<Domain>, bytes: usize) -> BounceBuffer {
        let start = map_anonymous(bytes).unwrap();
        // SAFETY: integers and null pointers are all zeros.
        let mr: &mut abi::Mr = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        let registration = Registration { domain: Arc::clone(domain), mr: mr.into(), is_over: true };
        BounceBuffer { registration, mapping: Mapping { start, bytes, device: Arc::clone(&domain.device) } }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.mapping.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mapping.bytes == 0
    }

    pub(super) fn address(&self, offset: usize, bytes: usize) -> u64 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.mapping.bytes), "inside the bounce buffer");
        (self.mapping.start + offset) as u64
    }

    pub(super) fn key(&self) -> u32 {
        self.registration.mr().lkey
    }

    /// Copies from `offset` on into `target`. Only while no work request that uses the buffer is in progress.
    pub fn copy_out(&mut self, offset: usize, target: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(self.address(offset, target.len()) as usize);
        // SAFETY: the range is inside the mapping, to which no reference exists; `&mut` excludes other threads, and the
        // caller ensures that no work request of the device uses the buffer. The target does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) };
    }

    /// Copies `source` to `offset`. Only while no work request that uses the buffer is in progress.
    pub fn copy_in(&mut self, offset: usize, source: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.address(offset, source.len()) as usize);
        // SAFETY: as in `copy_out`.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to, source.len()) };
    }
}
