// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the library's own calls apart from the program's.
//!
//! The library exports `mmap`, `read` and others for the program. With `--wrap`, the same names used
//! *inside* the library (by the standard library, jemalloc, io-uring) resolve to `__wrap_` functions that
//! go straight to the kernel, so the pager never calls its own wrappers.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in [
        "mmap",
        "mmap64",
        "munmap",
        "madvise",
        "mprotect",
        "mremap",
        "read",
        "pread64",
        "pwrite64",
        "write",
        "close",
        "sigaction",
        "syscall",
        "pthread_create",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,nodelete");
}
