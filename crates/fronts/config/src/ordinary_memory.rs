// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the preload library offers to `libaquifer` in the same process: hints about a program's ordinary memory.
//!
//! `libaquifer` looks for [`SYMBOL`] among the symbols of the process (dlsym(3)). It is there under `aquifer run` and
//! nowhere else. Everything is passed and returned by value, since memory of the program may be evicted. A change of
//! anything here needs a new symbol.

use std::ffi::CStr;

/// The name of the table.
pub const SYMBOL: &CStr = c"aquifer_ordinary_memory_1";

/// The table of calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OrdinaryMemory {
    /// Gives a hint ([`hint`]) about `start..start + len`. Returns an [`outcome`].
    pub advise: extern "C" fn(usize, usize, u32) -> i32,
    /// Says where the memory at `start` is, and how much of `start..start + len` is in the same place.
    pub look: extern "C" fn(usize, usize) -> Look,
    /// Keeps `start..start + len` resident. Returns the number of the pin, or an [`outcome`] below zero.
    pub pin: extern "C" fn(usize, usize) -> i64,
    /// Ends a pin.
    pub unpin: extern "C" fn(u64),
}

/// Where some memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Look {
    /// Bytes in the same place, at least one.
    pub len: u64,
    /// A number of `enum aquifer_status_of`, or [`Look::UNMANAGED`]; from bit 8 on the level of a chain, and bit 16 if
    /// the tier is known to have the same bytes.
    pub status: u64,
}

impl Look {
    /// The memory is not managed.
    pub const UNMANAGED: u64 = 7;
}

/// What can be said about memory.
pub mod hint {
    /// It will not be used for a long time.
    pub const EVICT: u32 = 0;
    /// It will not be used again.
    pub const STREAM: u32 = 1;
    /// It will be read soon.
    pub const PREFETCH_READ: u32 = 2;
    /// It will be written to soon.
    pub const PREFETCH_WRITE: u32 = 3;
    /// The pattern of use is to be learned (4), is scattered (5), or is in ascending order (6).
    pub const PATTERNS: [u32; 3] = [4, 5, 6];
    /// The priority is low (7), normal (8) or high (9).
    pub const PRIORITIES: [u32; 3] = [7, 8, 9];
    /// Its block size is to be learned. With `n` more, blocks have `2^(n - 1)` pages, up to 2 MiB.
    pub const BLOCK_SIZE: u32 = 10;
}

/// How a call ended.
pub mod outcome {
    /// The call did what was asked.
    pub const DONE: i32 = 0;
    /// None of the memory is managed.
    pub const UNMANAGED: i32 = -1;
    /// A part of the memory is pinned or locked.
    pub const PINNED: i32 = -2;
    /// As much is pinned as the budget allows.
    pub const PINNED_TOO_MUCH: i32 = -3;
    /// The memory cannot be made resident: nothing more can be written back.
    pub const NO_ROOM: i32 = -4;
    /// The tier has lost some of the memory.
    pub const LOST: i32 = -5;
    /// The range is longer than what would stay in DRAM until it is used.
    pub const BEYOND_BUDGET: i32 = -6;
    /// The hint has no meaning.
    pub const MEANINGLESS: i32 = -7;
}
