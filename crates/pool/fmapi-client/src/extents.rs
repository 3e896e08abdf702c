// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds what is wrong with a list of extents, before anything is decided by it. Pure.
//!
//! What a host has of a device is the sum of its extents. If one were counted twice, capacity that was only offered in
//! part would count as accepted, and blocks that are free would be missing.

use aquifer_fmapi::Extent;

/// Returns what is wrong with the extents of one host, if anything is: each has bytes, ends within the address space,
/// and shares no byte with another.
pub(crate) fn wrong(extents: &[Extent]) -> Option<String> {
    let mut sorted: Vec<&Extent> = extents.iter().collect();
    sorted.sort_unstable_by_key(|extent| extent.start);
    let mut before: Option<&Extent> = None;
    for extent in sorted {
        let (start, length) = (extent.start, extent.length);
        if length == 0 || start.checked_add(length).is_none() {
            return Some(format!("an extent of {length} bytes at {start:#x}"));
        }
        // The one before was found to end within the address space.
        if let Some(other) = before.filter(|other| other.start + other.length > start) {
            let (first, bytes) = (other.start, other.length);
            return Some(format!("extents of {bytes} bytes at {first:#x} and of {length} at {start:#x} overlap"));
        }
        before = Some(extent);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(list: &[(u64, u64)]) -> Vec<Extent> {
        list.iter().map(|(start, length)| Extent { start: *start, length: *length, ..Extent::default() }).collect()
    }

    #[test]
    fn extents_overlap_if_they_share_a_byte_in_any_order() {
        for good in [&[][..], &[(0, 1)], &[(4, 4), (0, 4)], &[(0, u64::MAX)], &[(u64::MAX - 4, 4), (0, 2), (2, 1)]] {
            assert_eq!(wrong(&extents(good)), None, "{good:?}");
        }
        for (bad, what) in [
            (&[(8, 4), (0, 9)][..], "extents of 9 bytes at 0x0 and of 4 at 0x8 overlap"),
            (&[(0, 4), (4, 4), (4, 4)], "extents of 4 bytes at 0x4 and of 4 at 0x4 overlap"),
            (&[(0, 64), (2, 2), (6, 2)], "extents of 64 bytes at 0x0 and of 2 at 0x2 overlap"),
            (&[(0, 4), (4, 0)], "an extent of 0 bytes at 0x4"),
            (&[(u64::MAX, 2)], "an extent of 2 bytes at 0xffffffffffffffff"),
        ] {
            assert_eq!(wrong(&extents(bad)).as_deref(), Some(what), "{bad:?}");
        }
    }
}
