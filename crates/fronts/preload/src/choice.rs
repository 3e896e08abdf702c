// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which memory is managed, and which delivery it gets: one function for each question.
//!
//! The rule: memory that the program has allocated is touched by its own loads and stores, and by system calls that the
//! library sees before the kernel does; the faulting thread resolves those faults itself, which is faster. The same
//! holds for memory that the program has mapped, if Aquifer sees all of the program's calls; the pager finds that out
//! when it starts. In other programs, mapped memory may be anything (a runtime's heap, on which it makes its calls by
//! the bare instruction), and gets a listener, as does memory that was loaded with the program.
//!
//! Next on the path: `pager/src/adopt.rs`.

use aquifer_core::map::Delivery;

/// Allocations of this size and above live like mappings, and get signal delivery. Users who raise glibc's own mmap
/// threshold commonly set no more than this, and every kernel structure is far smaller.
pub const BIG_ALLOCATION_BYTES: usize = 1 << 20;

/// The program's own mappings below this size stay with the kernel: only hundreds of them could matter to a budget of
/// the smallest size, 16 MiB.
pub const SMALLEST_MAPPING_BYTES: usize = 64 << 10;

/// Where managed memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One allocation of at least [`BIG_ALLOCATION_BYTES`].
    BigAllocation,
    /// The static arrays of the executable.
    Bss,
    /// The program's own mmap(2).
    Mapping,
    /// Extents for small objects.
    SmallObjects,
}

/// Returns the delivery for memory from `origin`, unless the user forces one; `None` if the pager decides.
pub fn delivery(origin: Origin, forced: aquifer_config::Delivery) -> Option<Delivery> {
    match (forced, origin) {
        (aquifer_config::Delivery::Signal, _) => Some(Delivery::Signal),
        (aquifer_config::Delivery::Listener, _) => Some(Delivery::Listener),
        (aquifer_config::Delivery::Auto, Origin::BigAllocation | Origin::SmallObjects) => Some(Delivery::Signal),
        (aquifer_config::Delivery::Auto, Origin::Bss) => Some(Delivery::Listener),
        (aquifer_config::Delivery::Auto, Origin::Mapping) => None,
    }
}
