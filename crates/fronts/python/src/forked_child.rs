// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What happens in a forked child that touches its parent's memory.
//!
//! The child does not have that memory, but it has copies of arrays that point to it. A load or store cannot raise, so
//! it ends the child by SIGSEGV, after one line that says why. The kernel must not give the addresses to something
//! else, or the child would read and overwrite that; so they are reserved, without memory, as soon as the child runs.
//!
//! The list is only used with the interpreter's lock held, which the thread that forks has. The handler of the signal
//! reads a copy that never changes.

#![allow(unsafe_code, reason = "reserves addresses, and installs a signal handler")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

/// The addresses of all open mappings: start and length.
static MAPPED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// What this process must not touch, as a leaked list: a handler may read it at any time.
static FORBIDDEN: AtomicPtr<Vec<(usize, usize)>> = AtomicPtr::new(ptr::null_mut());
/// What SIGSEGV did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

const MESSAGE: &[u8] =
    b"aquifer: a forked child touched memory of a space of its parent, which it does not have; start \
    processes with the method 'spawn', and open the space there\n";

/// Addresses without memory, which nothing else gets: a load or store there is a SIGSEGV.
pub struct Reserved {
    address: usize,
    len: usize,
}

impl Reserved {
    /// Reserves addresses, if none of them is in use.
    pub fn new(address: usize, len: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let at = ptr::with_exposed_provenance_mut(address);
        // SAFETY: mmap(2) with MAP_FIXED_NOREPLACE replaces nothing.
        let mapped = unsafe { libc::mmap(at, len, libc::PROT_NONE, flags, -1, 0) };
        (mapped == at).then_some(Self { address, len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: these addresses were mapped in `new`, and nobody can use them.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.address), self.len) };
    }
}

/// Notes that a mapping was made.
pub fn add(address: usize, len: usize) {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner).push((address, len));
}

/// Notes that a mapping is gone.
pub fn remove(address: usize) {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(start, _)| *start != address);
}

/// Runs in each forked child, before anything else of the program does.
#[pyfunction]
pub fn explain_touches() {
    let mapped = std::mem::take(&mut *MAPPED.lock().unwrap_or_else(PoisonError::into_inner));
    if mapped.is_empty() {
        return;
    }
    // For as long as the child lives. Where the addresses are taken already, there is nothing to do about it.
    mapped.iter().filter_map(|(address, len)| Reserved::new(*address, *len)).for_each(std::mem::forget);
    let mut forbidden = mapped;
    // SAFETY: the pointer is null or that of a list leaked below, in an ancestor, which nobody changes.
    if let Some(inherited) = unsafe { FORBIDDEN.load(Ordering::Acquire).as_ref() } {
        forbidden.extend_from_slice(inherited);
    }
    // Release pairs with the Acquire in `on_touch`.
    FORBIDDEN.store(Box::into_raw(Box::new(forbidden)), Ordering::Release);
    install();
}

/// Installs the handler, once for a process and its forked descendants.
fn install() {
    BEFORE.get_or_init(|| {
        let on_touch: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_touch;
        // SAFETY: zeros are a valid sigaction, and sigaction(2) reads and writes one each. The handler calls only
        // functions that are allowed in handlers.
        unsafe {
            let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
            action.sa_sigaction = on_touch as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before);
            before
        }
    });
}

/// Prints the reason, restores the earlier action of SIGSEGV, and lets the access happen again. By default that ends
/// the process.
extern "C" fn on_touch(_signal: c_int, detail: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes the details of the signal; SIGSEGV has an address.
    let address = unsafe { (*detail).si_addr() }.addr();
    // SAFETY: null or a leaked list, as above.
    let forbidden = unsafe { FORBIDDEN.load(Ordering::Acquire).as_ref() };
    let is_in = |(start, len): &(usize, usize)| (*start..*start + *len).contains(&address);
    if forbidden.is_some_and(|list| list.iter().any(is_in)) {
        // SAFETY: write(2) reads the message, which is static.
        unsafe { libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len()) };
    }
    // A signal before the call that installed this has returned finds nothing, and ends the process by default.
    let by_default = || {
        // SAFETY: zeros are SIG_DFL without flags.
        unsafe { std::mem::zeroed::<libc::sigaction>() }
    };
    let before = BEFORE.get().copied().unwrap_or_else(by_default);
    // SAFETY: sigaction(2) reads one struct.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
}
