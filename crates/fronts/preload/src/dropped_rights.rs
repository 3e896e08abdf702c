// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Closes a process's access to its parent's resources before the program gives up rights, if the library did not see
//! the call that created the process.
//!
//! A child of a call that the library saw (fork(2) or clone(2)) did so when it was created. A child that was created by
//! the bare instruction, in a process whose calls do not trap, does it here at the latest, so that afterwards it cannot
//! reach more than its rights allow. See `pager/src/fork.rs` and SECURITY.md.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;

use crate::libc_functions;
use crate::start::instance;

/// Defines the C library's functions that change what a process may do. All take only integers and addresses, at most
/// five; the arguments that a function does not have are passed on as they are in the registers.
macro_rules! changing_rights {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize) -> c_int {
                let _ = instance();
                // SAFETY: the caller's promise.
                unsafe { libc_functions::$name().map_or(-1, |function| function(a, b, c, d, e)) }
            }
        )*
    };
}

changing_rights! {
    /// Wraps setuid(2).
    setuid;
    /// Wraps setgid(2).
    setgid;
    /// Wraps seteuid(2).
    seteuid;
    /// Wraps setegid(2).
    setegid;
    /// Wraps setreuid(2).
    setreuid;
    /// Wraps setregid(2).
    setregid;
    /// Wraps setresuid(2).
    setresuid;
    /// Wraps setresgid(2).
    setresgid;
    /// Wraps setgroups(2).
    setgroups;
    /// Wraps initgroups(3).
    initgroups;
    /// Wraps capset(2).
    capset;
    /// Wraps chroot(2).
    chroot;
    /// Wraps unshare(2).
    unshare;
    /// Wraps prctl(2).
    prctl;
}
