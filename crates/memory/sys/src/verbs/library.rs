// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! libibverbs, loaded when RDMA is first needed, in its own linker namespace.
//!
//! dlmopen(3) gives the library, its drivers and their dependencies (above all a C library) symbols that are visible to
//! nothing else. This is necessary: in a program that runs with the preload library, `malloc` is the program's, whose
//! heap is managed. A driver keeps the state of a queue pair in memory that it allocated, and touches it to fetch a
//! page; in the program's heap that state could itself be evicted. The namespace's C library takes its memory from
//! mmap(2), which nothing interposes there. Everything is bound when it is loaded (`RTLD_NOW`), so the dynamic linker
//! is not entered again.
//!
//! Loaded once, and never unloaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi::{CompChannel, Context, Cq, Device, Mr, Name, PortAttr, Qp, QpAttr, QpInitAttr};
use super::failure::VerbsFailure;

/// The library's file name, unchanged since 2006.
const NAME: &CStr = c"libibverbs.so.1";

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions that are called by name.
        #[derive(Clone, Copy)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Library {
            fn find(handle: *mut c_void) -> Result<Library, VerbsFailure> {
                Ok(Library {
                    $($name: {
                        let address = find(handle, stringify!($name))?;
                        // SAFETY: by the library's header, the function of this name has this signature. dlsym(3)
                        // finds its newest version, as the linker does for every program today.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                address,
                            )
                        }
                    },)+
                })
            }
        }
    };
}

functions! {
    ibv_fork_init: fn() -> c_int;
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_get_device_name: fn(*mut Device) -> Name;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut c_void;
    ibv_dealloc_pd: fn(*mut c_void) -> c_int;
    ibv_reg_mr_iova: fn(*mut c_void, *mut c_void, usize, u64, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
    ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32);
    ibv_create_qp: fn(*mut c_void, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    pthread_setcancelstate: fn(c_int, *mut c_int) -> c_int;
    __errno_location: fn() -> *mut c_int;
}

impl Library {
    /// The library, loaded by the first caller.
    pub(super) fn get() -> Result<&'static Library, VerbsFailure> {
        static LIBRARY: OnceLock<Result<Library, VerbsFailure>> = OnceLock::new();
        LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// The error number left by its last call on this thread. It is in the namespace's C library, not in the program's.
    pub(super) fn errno(&self) -> i32 {
        // SAFETY: returns the address of a word of this thread, which lives as long as the thread.
        unsafe { *(self.__errno_location)() }
    }
}

fn load() -> Result<Library, VerbsFailure> {
    // SAFETY: loads a library whose constructors set up only that library: all its dependencies are its own copies.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(VerbsFailure::NoLibrary(last_word()));
    }
    let library = Library::find(handle)?;
    // SAFETY: the call has no arguments. Where the kernel copies pinned pages for a child at fork(2) (Linux 5.12) it
    // does nothing; on older kernels it keeps a driver's own queues from being copied on write. If it fails, a child
    // created by fork(2) endangers the parent's transfers, so loading fails as a whole.
    match unsafe { (library.ibv_fork_init)() } {
        0 => Ok(library),
        errno => Err(VerbsFailure::Call { what: "ibv_fork_init", errno }),
    }
}

fn find(handle: *mut c_void, name: &str) -> Result<*mut c_void, VerbsFailure> {
    let mut bytes = [0u8; 64];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the handle is open, and the name ends in NUL.
    let address = unsafe { libc::dlsym(handle, bytes.as_ptr().cast::<c_char>()) };
    if address.is_null() { Err(VerbsFailure::OldLibrary(name.to_owned())) } else { Ok(address) }
}

fn last_word() -> String {
    // SAFETY: returns null, or a text that stays valid until this thread's next call of the dynamic linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason is given".into();
    }
    // SAFETY: the text ends in NUL, and is copied immediately.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
