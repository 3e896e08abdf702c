// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Loads libraries without RTLD_DEEPBIND: dlopen(3), and dlmopen(3) into the program's own namespace.
//!
//! A library that is loaded with this flag looks up its symbols in its own dependencies first, so its `free` is the C
//! library's. If it frees memory from the program's `malloc`, which is this library's, the C library aborts. Its calls
//! would also bypass this library's wrappers. PHP loads its extensions with this flag; sanitizers refuse it for the
//! same reason.
//!
//! dlopen(3) looks at its return address: the library that calls it decides the namespace, and where it searches
//! (DT_RUNPATH). So both functions jump to the C library's with the caller's frame unchanged.

#![allow(unsafe_code, reason = "the C ABI of the dynamic linker")]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_long, c_void};

use crate::libc_functions;
use crate::start::instance_inside;

/// The function to jump to, and the mode to pass, returned in two registers.
#[repr(C)]
struct Onwards {
    function: usize,
    mode: usize,
}

fn without_deep_binding(mode: c_int) -> usize {
    let dropped = if instance_inside().is_some() { libc::RTLD_DEEPBIND } else { 0 };
    (mode & !dropped) as usize
}

extern "C" fn missing() -> usize {
    0
}

extern "C" fn dlopen_onwards(mode: c_int) -> Onwards {
    // SAFETY: only the address is taken.
    let next = unsafe { libc_functions::dlopen() }.map_or(missing as *const () as usize, |next| next as usize);
    Onwards { function: next, mode: without_deep_binding(mode) }
}

extern "C" fn dlmopen_onwards(mode: c_int, namespace: c_long) -> Onwards {
    // SAFETY: only the address is taken.
    let next = unsafe { libc_functions::dlmopen() }.map_or(missing as *const () as usize, |next| next as usize);
    // Another namespace has its own C library, and this library is not in it.
    let mode = if namespace == libc::LM_ID_BASE { without_deep_binding(mode) } else { mode as usize };
    Onwards { function: next, mode }
}

/// Wraps dlopen(3).
///
/// # Safety
/// The same as for dlopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "mov edi, esi",
        "call {onwards}",
        "mov rsi, rdx",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        onwards = sym dlopen_onwards,
    )
}

/// Wraps dlmopen(3).
///
/// # Safety
/// The same as for dlmopen(3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
    naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rsi, rdi",
        "mov edi, edx",
        "call {onwards}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        onwards = sym dlmopen_onwards,
    )
}
