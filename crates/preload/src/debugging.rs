// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Brings memory for a debugger: `call (int)aquifer_bring(ADDRESS, LEN)` in gdb. See docs/debugging.md.
//!
//! What is evicted cannot be read from outside: the kernel answers with an error. This makes it resident, from inside.

#![allow(unsafe_code, reason = "a function that a debugger finds by its name")]

use std::ffi::c_int;

use crate::start::instance_inside;

/// What is brought at once. A choice: few calls, and little beside the smallest budget.
const PIECE_BYTES: usize = 64 << 10;

/// Makes `start..start + len` resident, where it is managed: 0, or -1 where some of it cannot be read. Much at once may
/// be more than the budget, and what came first is evicted again.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_bring(start: usize, len: usize) -> c_int {
    let Some(instance) = instance_inside() else { return 0 };
    let (mut at, end) = (start, start.saturating_add(len));
    let mut complete = true;
    while at < end {
        let next = (at + 1).next_multiple_of(PIECE_BYTES).min(end);
        if let Some(mut holding) = instance.adopter.holding() {
            holding.add(at, next - at);
            complete &= holding.is_complete();
        }
        at = next;
    }
    if complete { 0 } else { -1 }
}
