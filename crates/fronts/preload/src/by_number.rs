// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! syscall(2): calls on memory that the program makes by number take the same path as those by name.
//!
//! SBCL maps its heap this way, and none of it would be managed otherwise: below the budget no call traps, and nothing
//! else sees these calls. Every other number goes on to the C library's syscall(2) with all registers unchanged, and
//! traps there if calls trap.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::in_libcs_manner;
use crate::mappings::{advise, map, protect, protect_with_key, unmap};
use crate::remap::remap;
use crate::segments::attach;
use crate::{libc_functions, locks, unmovable};

/// The numbers below 64 that this library handles, as bits.
const OURS_BELOW_64: u64 = 1 << libc::SYS_mmap
    | 1 << libc::SYS_mprotect
    | 1 << libc::SYS_munmap
    | 1 << libc::SYS_mremap
    | 1 << libc::SYS_madvise
    | 1 << libc::SYS_shmat;
// The code below takes these four as a range.
const _: () = assert!(libc::SYS_munlock == libc::SYS_mlock + 1 && libc::SYS_munlockall == libc::SYS_mlock + 3);

/// The C library's syscall(2), once it has been looked up; until then the bare instruction. No call traps before that.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Looks up the C library's syscall(2).
pub fn prepare() {
    // SAFETY: only its address is taken.
    let libcs = unsafe { libc_functions::syscall() };
    OTHERS.store(libcs.map_or(0, |libcs| libcs as usize), Ordering::Release);
}

/// Wraps syscall(2). That it is variadic makes no difference to the caller of this ABI.
///
/// Naked, so that it has no stack frame: a call may return twice, or on another stack, and must not return through a
/// frame of this library.
///
/// # Safety
/// The same as for the system call.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: i64,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> isize {
    std::arch::naked_asm!(
        "cmp rdi, 63",
        "ja 2f",
        "movabs rax, {ours_below_64}",
        "bt rax, rdi",
        "jc {on_memory}",
        "jmp 3f",
        "2:",
        "lea rax, [rdi - {first_lock}]",
        "cmp rax, 3",
        "jbe {on_memory}",
        "cmp rdi, {mlock2}",
        "je {on_memory}",
        "cmp rdi, {pkey_mprotect}",
        "je {on_memory}",
        "cmp rdi, {vmsplice}",
        "je {on_memory}",
        "3:",
        "mov rax, [rip + {others}]",
        "test rax, rax",
        "jz {instruction}",
        "jmp rax",
        ours_below_64 = const OURS_BELOW_64,
        first_lock = const libc::SYS_mlock,
        mlock2 = const libc::SYS_mlock2,
        pkey_mprotect = const libc::SYS_pkey_mprotect,
        vmsplice = const libc::SYS_vmsplice,
        on_memory = sym on_memory,
        others = sym OTHERS,
        instruction = sym __wrap_syscall,
    )
}

/// Makes a system call by the bare instruction, with libc's convention for results. This library's own calls of
/// syscall(2) come here, too.
///
/// # Safety
/// The same as for the system call.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_syscall(
    number: i64,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> isize {
    std::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {failed}",
        failed = sym failed,
    )
}

extern "C" fn failed(result: isize) -> isize {
    in_libcs_manner(result)
}

/// Makes a call on memory, with libc's convention for results.
///
/// # Safety
/// The same as for the system call.
unsafe extern "C" fn on_memory(
    number: i64,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> isize {
    let address = std::ptr::with_exposed_provenance_mut(first);
    let args = [first, second, third, fourth, fifth, sixth];
    // SAFETY: the caller's promise. The kernel uses only the lower half of an int argument.
    unsafe {
        match number {
            libc::SYS_mmap => {
                map(address, second, third as c_int, fourth as c_int, fifth as c_int, sixth as i64) as isize
            }
            libc::SYS_mprotect => protect(first, second, third) as isize,
            libc::SYS_pkey_mprotect => protect_with_key(first, second, third, fourth as c_int) as isize,
            libc::SYS_munmap => unmap(address, second) as isize,
            libc::SYS_mremap => remap(address, second, third, fourth as c_int, fifth),
            libc::SYS_madvise => advise(address, second, third as c_int) as isize,
            libc::SYS_shmat => in_libcs_manner(attach(args)),
            libc::SYS_mlock => in_libcs_manner(locks::lock(number, [first, second, 0, 0, 0, 0])),
            libc::SYS_mlock2 => in_libcs_manner(locks::lock(number, [first, second, third, 0, 0, 0])),
            libc::SYS_munlock => in_libcs_manner(locks::unlock([first, second, 0, 0, 0, 0])),
            libc::SYS_mlockall => in_libcs_manner(locks::lock_all(first)),
            libc::SYS_munlockall => in_libcs_manner(locks::unlock_all()),
            _ => unmovable::splice_in_libcs_manner(args),
        }
    }
}
