// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which pages of this process are populated: /proc/self/pagemap, see pagemap(5) in the kernel's
//! documentation (`admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Calls `each` with the index of every page of `start..start + pages * 4096` that has contents.
pub fn populated(start: usize, pages: usize, each: &mut dyn FnMut(usize)) -> io::Result<()> {
    const AT_ONCE: usize = 512;
    let file = File::open("/proc/thread-self/pagemap")?;
    let mut bytes = [0u8; AT_ONCE * 8];
    for first in (0..pages).step_by(AT_ONCE) {
        let count = AT_ONCE.min(pages - first);
        file.read_exact_at(&mut bytes[..count * 8], (start / 4096 + first) as u64 * 8)?;
        for (index, entry) in bytes[..count * 8].as_chunks::<8>().0.iter().enumerate() {
            if u64::from_ne_bytes(*entry) & (PRESENT | SWAPPED) != 0 {
                each(first + index);
            }
        }
    }
    Ok(())
}

/// Whether programs on this machine may have transparent huge pages. False when in doubt.
pub fn may_be_huge() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|enabled| enabled.contains("[always]") || enabled.contains("[madvise]"))
}

/// Whether pages on this machine can be in swap. True when in doubt.
pub fn may_be_swapped() -> bool {
    std::fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().count() > 1)
}
