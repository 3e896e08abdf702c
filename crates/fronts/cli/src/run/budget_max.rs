// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The largest budget that `aquifer set` can give a running program.
//!
//! The pager reserves about ten pages of address space for each page of this maximum, because frames exist in every
//! block size. The reservation costs nothing unless address space is limited.

use aquifer_core::frames::BUDGET_PAGES_MAX;
use aquifer_core::units::PAGE_BYTES;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::memory_limit::Allowed;

/// The value of overcommit_memory with which the kernel charges address space against the machine's memory; see
/// proc_sys_vm(5).
const OVERCOMMIT_NEVER: &str = "2";

/// Returns the maximum for a program that starts with `budget_bytes`: all memory that it may use, or only that budget
/// if address space is limited.
pub fn bytes(budget_bytes: u64, allowed: &Allowed) -> u64 {
    let is_limited = getrlimit(Resource::RLIMIT_AS).is_ok_and(|(limit, _)| limit != RLIM_INFINITY);
    let overcommit = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    if is_limited || overcommit.trim() == OVERCOMMIT_NEVER {
        return budget_bytes;
    }
    allowed.bytes().0.min(BUDGET_PAGES_MAX * PAGE_BYTES).max(budget_bytes)
}
