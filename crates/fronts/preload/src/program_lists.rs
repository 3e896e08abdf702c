// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! execl(3), execlp(3) and execle(3): the C library's own functions would execute without going through `programs.rs`.
//!
//! Their arguments are variadic: up to five are in registers, and the rest on the stack. Pushing the former below the
//! rest forms the array that execv(3) takes.

#![allow(unsafe_code, reason = "variadic functions of the C library")]

use std::ffi::{c_char, c_int};

use crate::programs::{execv, execve, execvp};

type Words = *const *const c_char;

/// Declares a function whose arguments become an array for `$array`.
macro_rules! list {
    ($name:ident, $array:path) => {
        #[doc = concat!("Wraps ", stringify!($name), "(3).")]
        ///
        /// # Safety
        /// The caller must keep the rules of its manual page.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
            std::arch::naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                // The return address, which also aligns the stack for a call.
                "push rax",
                "call {array}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                array = sym $array,
            )
        }
    };
}

list!(execl, execv);
list!(execlp, execvp);
list!(execle, with_environment_last);

/// Executes a program whose environment follows the null pointer that ends the arguments.
unsafe extern "C" fn with_environment_last(path: *const c_char, words: Words) -> c_int {
    let mut last = words;
    // SAFETY: the caller's promise: a null pointer ends the arguments, and the environment follows.
    unsafe {
        while !(*last).is_null() {
            last = last.add(1);
        }
        execve(path, words, last.add(1).cast::<Words>().read())
    }
}
