// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An open device, and its protection domains.
//!
//! A queue pair of one domain cannot access the objects of another, whatever keys a peer invents: the device checks it.
//! So a donor that lends to several peers uses a domain for each.

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

/// An open RDMA device. Closed when no object of it is left.
pub struct Device {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<abi::Context>,
    /// 1 in the process that opened it.
    own: OwnWord,
    port: Port,
    /// The largest packet of the port, as a code from 1 to 5: 1 is 256 bytes, and each next code is twice as many.
    mtu: u8,
}

// SAFETY: the library's objects may be used by any thread; its calls take the locks they need (ibv_open_device(3) and
// the programming manual of rdma-core). Calls that only one thread may make at a time are marked where they are made.
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
        // SAFETY: the context was just opened, and has no other user.
        unsafe {
            // Moves the descriptors to numbers that the program does not choose, and protects them from being closed.
            // The library reads both fields again in each call.
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

    /// The port in use.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The port's largest packet, as a code from 1 to 5: 1 is 256 bytes, and each next code is twice as many.
    pub fn mtu(&self) -> u8 {
        self.mtu
    }

    /// Whether this process has opened it; false in a forked child.
    pub fn is_own(&self) -> bool {
        self.own.word().load(Ordering::Relaxed) == 1
    }

    pub(super) fn check_own(&self) -> Result<(), Errno> {
        if self.is_own() { Ok(()) } else { Err(Errno(libc::EOWNERDEAD)) }
    }

    /// The failure of a library call that should have created an object.
    pub(super) fn failure(&self, what: &'static str) -> VerbsFailure {
        VerbsFailure::Call { what, errno: self.library.errno() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: the device is open.
            let (command, events) = unsafe { ((*self.context.as_ptr()).cmd_fd, (*self.context.as_ptr()).async_fd) };
            own_descriptors::unprotect(command);
            own_descriptors::unprotect(events);
            // SAFETY: no object of the device is left: each of them holds an `Arc` of it.
            unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
        }
    }
}

fn open(library: &'static Library, name: &str) -> Result<NonNull<abi::Context>, VerbsFailure> {
    let mut count = 0;
    // SAFETY: the call writes the count, and returns an array of that many devices, or null.
    let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let errno = library.errno();
        // Without the kernel module there is no such class of devices at all.
        return Err(if errno == libc::ENOSYS {
            VerbsFailure::NoDevice
        } else {
            VerbsFailure::Call { what: "ibv_get_device_list", errno }
        });
    }
    let mut opened = Err(VerbsFailure::NoSuchDevice { wanted: name.to_owned(), there: Vec::new() });
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the index is inside the array, which is freed below; a device's name ends in NUL and lives as long as
        // the device.
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
    // SAFETY: the list belongs to the library, and none of its devices is used any more: an open device belongs to its
    // context.
    unsafe { (library.ibv_free_device_list)(list) };
    opened
}

/// A protection domain of an open device.
pub struct Domain {
    pub(super) device: Arc<Device>,
    pub(super) pd: NonNull<c_void>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Domain {}
// SAFETY: as for `Device`.
unsafe impl Sync for Domain {}

impl Domain {
    /// Creates another domain.
    pub fn new(device: &Arc<Device>) -> Result<Domain, VerbsFailure> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.library.ibv_alloc_pd)(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.failure("ibv_alloc_pd"))?;
        Ok(Domain { device: Arc::clone(device), pd })
    }

    /// The domain's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if self.device.is_own() {
            // SAFETY: no object of the domain is left: each of them holds an `Arc` of it.
            unsafe { (self.device.library.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}
