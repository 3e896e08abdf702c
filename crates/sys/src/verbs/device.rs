// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A device that has been opened, and protection domains of it.
//!
//! What is of one domain cannot be reached by a queue pair of another, whatever keys a peer makes up: the device checks
//! it. So whoever lends to several peers has a domain for each.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::abi;
use super::failure::VerbsFailure;
use super::library::Library;
use super::ports::Port;
use crate::memory::OwnWord;
use crate::own_descriptors;
use crate::raw::Errno;

/// See the module. Closed when nothing of it is left.
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<abi::Context>,
    /// 1 in the process that opened it.
    own: OwnWord,
    port: Port,
    /// The largest packet of the port: 1 is 256 bytes, and each further one twice as long, up to 5.
    mtu: u8,
}

// SAFETY: the library's objects may be used by any thread; its calls lock what they must (ibv_open_device(3) and the
// programming manual of rdma-core). What only one thread may do at a time is said where it is done.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device of a port.
    pub fn open(port: &Port) -> Result<Device, VerbsFailure> {
        let library = Library::get()?;
        let own = OwnWord::new().map_err(|errno| VerbsFailure::Call { what: "mmap", errno: errno.0 })?;
        own.word().store(1, Ordering::Relaxed);
        let context = open(library, &port.device)?;
        // SAFETY: it was just opened, and nobody else has it.
        unsafe {
            // The program cannot close them, and does not choose their numbers. The library reads both fields anew in
            // each call.
            let context = context.as_ptr();
            (*context).cmd_fd = own_descriptors::keep((*context).cmd_fd);
            (*context).async_fd = own_descriptors::keep((*context).async_fd);
        }
        let mut device = Device { library, context, own, port: port.clone(), mtu: 0 };
        device.mtu = device.query_mtu()?;
        Ok(device)
    }

    #[cfg(test)]
    pub(super) fn of_parts(
        library: &'static Library,
        context: NonNull<abi::Context>,
        own: OwnWord,
        port: Port,
    ) -> Device {
        Device { library, context, own, port, mtu: 3 }
    }

    fn query_mtu(&self) -> Result<u8, VerbsFailure> {
        let mut attributes = abi::PortAttr::default();
        // SAFETY: the context is open, and the structure is at least as long as the library's.
        let done =
            unsafe { (self.library.ibv_query_port)(self.context.as_ptr(), self.port.number, &raw mut attributes) };
        if done != 0 {
            return Err(VerbsFailure::Call { what: "ibv_query_port", errno: done });
        }
        Ok(attributes.active_mtu.clamp(1, 5) as u8)
    }

    /// The port that is used.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Its largest packet: 1 is 256 bytes, and each further one twice as long, up to 5.
    pub fn mtu(&self) -> u8 {
        self.mtu
    }

    /// Whether this process has opened it; not in a forked child.
    pub fn is_own(&self) -> bool {
        self.own.word().load(Ordering::Relaxed) == 1
    }

    pub(super) fn check_own(&self) -> Result<(), Errno> {
        if self.is_own() { Ok(()) } else { Err(Errno(libc::EOWNERDEAD)) }
    }

    /// Why a call of the library's that makes something has made nothing.
    pub(super) fn failure(&self, what: &'static str) -> VerbsFailure {
        VerbsFailure::Call { what, errno: self.library.errno() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: nothing of it is left: all that there is keeps it.
            unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
        }
    }
}

fn open(library: &'static Library, name: &str) -> Result<NonNull<abi::Context>, VerbsFailure> {
    let mut count = 0;
    // SAFETY: writes the count, and returns an array of so many devices, or null.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let errno = library.errno();
        // Without the module there is no class of devices at all.
        return Err(if errno == libc::ENOSYS {
            VerbsFailure::NoDevice
        } else {
            VerbsFailure::Call { what: "ibv_get_device_list", errno }
        });
    }
    let mut opened = Err(VerbsFailure::NoSuchDevice { wanted: name.to_owned(), there: Vec::new() });
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: inside the array, which is freed below; a device's name ends in NUL and lives as long as it.
        let (device, its_name) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((library.ibv_get_device_name)(device)))
        };
        if its_name.to_bytes() == name.as_bytes() {
            // SAFETY: the device is one of the list.
            let context = unsafe { (library.ibv_open_device)(device) };
            opened = NonNull::new(context)
                .ok_or_else(|| VerbsFailure::Call { what: "ibv_open_device", errno: library.errno() });
            break;
        }
    }
    // SAFETY: the list is the library's, and no device of it is used any more: an open one is its context's.
    unsafe { (library.ibv_free_device_list)(list) };
    opened
}

/// See the module.
pub struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) pd: NonNull<c_void>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Domain {}
// SAFETY: as for `Device`.
unsafe impl Sync for Domain {}

impl Domain {
    /// One more domain.
    pub fn new(device: &Arc<Device>) -> Result<Domain, VerbsFailure> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.library.ibv_alloc_pd)(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.failure("ibv_alloc_pd"))?;
        Ok(Domain { device: Arc::clone(device), pd })
    }

    /// Of which device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: nothing of it is left: all that there is keeps it.
            unsafe { (self.device.library.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}
