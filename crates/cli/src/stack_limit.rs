// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A user may limit stacks so far (`ulimit -s 64`) that reading a command line does not fit. The limit is for the
//! program: this command takes what it needs for itself, and the program gets back what was set.
//!
//! The kernel asks for the limit when a stack grows, and leaves 128 MiB of address space below it at exec
//! (`mmap_base` in arch/x86/mm/mmap.c), so that raising it later is enough. See getrlimit(2).

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What a command has where nothing is limited: the usual limit of Linux.
const ENOUGH_BYTES: u64 = 8 << 20;

/// The limit as it was.
static BEFORE: OnceLock<(u64, u64)> = OnceLock::new();

/// Raises the limit for this process, as far as it may be raised.
pub fn widen() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK) else { return };
    let enough = ENOUGH_BYTES.min(hard);
    if soft < enough && setrlimit(Resource::RLIMIT_STACK, enough, hard).is_ok() {
        let _ = BEFORE.set((soft, hard));
    }
}

/// What a program that is started must be given back: the soft and the hard limit in bytes, where they were changed.
pub fn before() -> Option<(u64, u64)> {
    BEFORE.get().copied()
}
