// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Interleaving by the XOR of address bits: which of a window's targets has an address of the host. Pure.
//!
//! With modulo arithmetic, some bits of an address are the position of its target. With XOR arithmetic (CXL 3.1 table
//! 9-22), the firmware gives one map for each of these bits: bit `i` of the position is the XOR of all of the address's
//! bits that map `i` has. The lowest bit of a map is the one whose place the position's bit takes, so that the others
//! only decide whether it is inverted. Windows of 6 and 12 targets have maps for the bits below the division by 3;
//! windows of 1 and 3 targets have none.

/// The most maps that a window has: for 16 targets.
const MAPS_MAX: usize = 4;

/// The maps of a window, for the lowest bit of the position first. A map of zero leaves its bit as it is, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XorMaps {
    maps: [u64; MAPS_MAX],
}

impl XorMaps {
    /// Those of modulo arithmetic.
    pub const NONE: XorMaps = XorMaps { maps: [0; MAPS_MAX] };

    /// The maps of a window with this granularity. `None` if there are too many, or the lowest bit of one is not that
    /// of its place in the position.
    pub fn new(maps: &[u64], granularity_bytes: u64) -> Option<XorMaps> {
        if maps.len() > MAPS_MAX || !granularity_bytes.is_power_of_two() {
            return None;
        }
        let mut all = XorMaps::NONE;
        for (index, (place, map)) in all.maps.iter_mut().zip(maps).enumerate() {
            if *map != 0 && lowest_bit(*map) != granularity_bytes.checked_shl(index as u32)? {
                return None;
            }
            *place = *map;
        }
        Some(all)
    }

    /// The bits of an address that the maps change.
    pub(crate) fn changed_bits(self) -> u64 {
        self.maps.into_iter().map(lowest_bit).fold(0, |bits, bit| bits | bit)
    }

    /// The address with the position's bits in their places.
    pub(crate) fn with_position(self, host: u64) -> u64 {
        // No map has the lowest bit of one before it, so each sees the bits of the host's address.
        self.maps.into_iter().fold(host, with_sum)
    }

    /// The host's address of one with the position's bits in their places: the inverse.
    pub(crate) fn without_position(self, address: u64) -> u64 {
        // In the other order, so that each map sees the bits of the host's address, too, where it has the lowest bit of
        // a later one.
        self.maps.into_iter().rev().fold(address, with_sum)
    }
}

/// The lowest bit of a map; 0 of 0.
fn lowest_bit(map: u64) -> u64 {
    map & map.wrapping_neg()
}

/// The address, whose bit at the lowest bit of the map has become the XOR of all of its bits in the map. Twice is the
/// same address again.
fn with_sum(address: u64, map: u64) -> u64 {
    let bit = lowest_bit(map);
    if (address & map).count_ones() % 2 == 1 { address | bit } else { address & !bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_their_lowest_bits_in_the_order_of_the_position() {
        assert!(XorMaps::new(&[0x0202_0900, 0x0404_1200, 0x0101_0400, 0x800], 256).is_some());
        assert_eq!(XorMaps::new(&[], 256), Some(XorMaps::NONE));
        assert_eq!(XorMaps::new(&[0, 0], 256), Some(XorMaps::NONE), "nothing is changed");
        for wrong in [&[0x0404_1200, 0x0202_0900][..], &[0x0202_0900, 0x0202_0900], &[0x0404_1200], &[0x80], &[256; 5]]
        {
            assert_eq!(XorMaps::new(wrong, 256), None, "{wrong:x?}");
        }
        assert_eq!(XorMaps::new(&[0x300], 0x300), None);
        assert_eq!(XorMaps::new(&[1 << 63, 1], 1 << 63), None);
    }

    #[test]
    fn a_map_of_one_bit_changes_nothing_and_one_of_two_inverts_the_lower_by_the_upper() {
        let maps = XorMaps::new(&[0x100], 256).unwrap();
        assert_eq!((maps.with_position(0x1fff), maps.with_position(0x1e00)), (0x1fff, 0x1e00));
        let maps = XorMaps::new(&[0x1100], 256).unwrap();
        assert_eq!(maps.changed_bits(), 0x100);
        for (host, address) in [(0, 0), (0x100, 0x100), (0x1000, 0x1100), (0x1100, 0x1000), (0x2fff, 0x2fff)] {
            assert_eq!((maps.with_position(host), maps.without_position(address)), (address, host));
        }
    }

    /// The second map's lowest bit is one of the first map, so that the order matters.
    #[test]
    fn each_bit_of_the_position_is_the_sum_over_the_hosts_address() {
        let maps = XorMaps::new(&[0x1300, 0x2200], 256).unwrap();
        for block in 0..64_u64 {
            let host = block << 8;
            let sum = |map: u64| u64::from((host & map).count_ones() % 2);
            let address = maps.with_position(host);
            assert_eq!(address >> 8 & 3, sum(0x1300) | sum(0x2200) << 1, "{host:#x}");
            assert_eq!(address & !0x300, host & !0x300);
            assert_eq!(maps.without_position(address), host);
        }
    }
}
