// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The largest budget that `aquifer set` can give a program while it runs.
//!
//! The pager reserves about ten pages of address space for each page of it, since frames come in every block size. That
//! costs nothing unless address space is limited.

use aquifer_core::frames::BUDGET_PAGES_MOST;
use aquifer_core::units::PAGE_BYTES;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::memory_limit::Allowed;

/// Where the kernel counts address space against the machine's memory: see proc_sys_vm(5).
const OVERCOMMIT_NEVER: &str = "2";

/// For a program that begins with `budget_bytes`: all memory that it is allowed, or only that budget, where address
/// space is limited.
pub fn bytes(budget_bytes: u64, allowed: &Allowed) -> u64 {
    let is_limited = getrlimit(Resource::RLIMIT_AS).is_ok_and(|(limit, _)| limit != RLIM_INFINITY);
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if is_limited || overcommit.trim() == OVERCOMMIT_NEVER {
        return budget_bytes;
    }
    allowed.bytes().0.min(BUDGET_PAGES_MOST * PAGE_BYTES).max(budget_bytes)
}
