// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Raises the stack limit for this command, and restores it for the program. A user may set a limit so low (`ulimit -s
//! 64`) that parsing the command line would overflow the stack.
//!
//! The kernel checks the limit when a stack grows, and at exec leaves at least 128 MiB of address space below the stack
//! (`mmap_base` in arch/x86/mm/mmap.c), so that raising the limit later is enough. See getrlimit(2).

use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The stack that this command gets: the usual limit on Linux.
const ENOUGH_BYTES: u64 = 8 << 20;

/// The limit before it was raised.
static BEFORE: OnceLock<(u64, u64)> = OnceLock::new();

/// Raises this process's soft limit, up to its hard limit.
pub fn widen() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK) else { return };
    let enough = ENOUGH_BYTES.min(hard);
    if soft < enough && setrlimit(Resource::RLIMIT_STACK, enough, hard).is_ok() {
        let _ = BEFORE.set((soft, hard));
    }
}

/// Returns the soft and hard limits in bytes to restore for a started program, if they were changed.
pub fn before() -> Option<(u64, u64)> {
    BEFORE.get().copied()
}
