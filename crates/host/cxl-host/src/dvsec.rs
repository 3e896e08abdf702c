// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads how much memory a device declares in its configuration space: the CXL device DVSEC (CXL 3.1 section 8.1.3).
//! Pure.
//!
//! Little-endian; offsets within the DVSEC, which `nodes/src/dvsec.rs` finds:
//!
//! | offset | bytes | field                     | meaning                                                      |
//! |--------|-------|---------------------------|--------------------------------------------------------------|
//! | 0x08   | 2     | header 2                  | 0: the DVSEC of CXL devices                                  |
//! | 0x0a   | 2     | capability                | bit 2: it has memory; bits 5:4: how many ranges it has       |
//! | 0x18   | 8     | range 1 size: high, low   | bits 31:28 of the low word are bits 31:28 of the size        |
//! | 0x28   | 8     | range 2 size: high, low   | bit 0 of the low word: the size is valid                     |

use aquifer_nodes::dvsec::{consortium_dvsec, word};

const DEVICE: u16 = 0;
const HAS_MEMORY: u32 = 1 << 2;
const RANGES: [usize; 2] = [0x18, 0x28];

/// The amount of memory that a device declares. `None` without the capability, without memory, or while a size is not
/// valid yet.
pub(crate) fn declared_bytes(config: &[u8]) -> Option<u64> {
    let at = consortium_dvsec(config, DEVICE)?.at;
    let capability = word(config, at + 0x08)? >> 16;
    let ranges = usize::try_from((capability >> 4) & 3).unwrap_or(0).min(RANGES.len());
    if capability & HAS_MEMORY == 0 || ranges == 0 {
        return None;
    }
    let mut bytes = 0_u64;
    for range in &RANGES[..ranges] {
        let (high, low) = (word(config, at + range)?, word(config, at + range + 4)?);
        if low & 1 == 0 {
            return None;
        }
        bytes = bytes.checked_add(u64::from(high) << 32 | u64::from(low & 0xf000_0000))?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use aquifer_nodes::dvsec::CONFIG_BYTES;

    use super::*;
    use crate::model::config_of;

    #[test]
    fn the_sizes_of_all_valid_ranges_are_added() {
        assert_eq!(declared_bytes(&config_of(&[256 << 20])), Some(256 << 20));
        assert_eq!(declared_bytes(&config_of(&[5 << 32 | 1 << 28, 1 << 28])), Some((5 << 32) + (1 << 29)));
        assert_eq!(declared_bytes(&config_of(&[])), None, "it has no memory");
        let mut config = config_of(&[1 << 30]);
        let at = consortium_dvsec(&config, DEVICE).unwrap().at;
        config[at + 0x1c] &= !1;
        assert_eq!(declared_bytes(&config), None, "the size is not valid yet");
        assert_eq!(declared_bytes(&[]), None);
        assert_eq!(declared_bytes(&config_of(&[1 << 30])[..at + 0x1a]), None, "without root, it is cut");
    }

    #[test]
    fn no_configuration_space_makes_it_panic_or_run_for_ever() {
        let mut state = 7_u64;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize % bound
        };
        for _ in 0..2000 {
            let mut config = config_of(&[1 << 30, 2 << 30]);
            for _ in 0..below(40) {
                let at = below(config.len());
                config[at] = below(256) as u8;
            }
            config.truncate(below(CONFIG_BYTES + 1));
            let _ = declared_bytes(&config);
        }
        // A list with a cycle.
        let mut circle = vec![0; CONFIG_BYTES];
        circle[0x100..0x104].copy_from_slice(&(0x100_u32 << 20).to_le_bytes());
        assert_eq!(declared_bytes(&circle), None);
    }
}
