// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads how much memory a device declares in its configuration space: the CXL device DVSEC (CXL 3.1 section 8.1.3).
//! Pure.
//!
//! The extended capabilities are a linked list that starts at 0x100. Each begins with a double word: the capability's
//! number in bits 15:0, the offset of the next one in bits 31:20. Little-endian; offsets within the DVSEC:
//!
//! | offset | bytes | field                     | meaning                                                      |
//! |--------|-------|---------------------------|--------------------------------------------------------------|
//! | 0x04   | 4     | header 1                  | the vendor in bits 15:0: 1E98h is the CXL consortium         |
//! | 0x08   | 2     | header 2                  | which DVSEC of the vendor: 0 is that of CXL devices          |
//! | 0x0a   | 2     | capability                | bit 2: it has memory; bits 5:4: how many ranges it has       |
//! | 0x18   | 8     | range 1 size: high, low   | bits 31:28 of the low word are bits 31:28 of the size        |
//! | 0x28   | 8     | range 2 size: high, low   | bit 0 of the low word: the size is valid                     |

/// Size of a configuration space.
pub(crate) const CONFIG_BYTES: usize = 4096;
const FIRST: usize = 0x100;
/// Maximum number of capabilities that are visited: more than fit into a configuration space.
const CAPABILITIES_MAX: usize = CONFIG_BYTES / 4;
const DVSEC: u32 = 0x0023;
const CONSORTIUM: u32 = 0x1e98;
const DEVICE: u32 = 0;
const HAS_MEMORY: u32 = 1 << 2;
const RANGES: [usize; 2] = [0x18, 0x28];

/// The amount of memory that a device declares. `None` without the capability, without memory, or while a size is not
/// valid yet.
pub(crate) fn declared_bytes(config: &[u8]) -> Option<u64> {
    let at = device_dvsec(config)?;
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

/// The offset of the DVSEC of CXL devices.
fn device_dvsec(config: &[u8]) -> Option<usize> {
    let mut at = FIRST;
    for _ in 0..CAPABILITIES_MAX {
        let head = word(config, at)?;
        let is_of_consortium = || Some(word(config, at + 4)? & 0xffff == CONSORTIUM);
        if head & 0xffff == DVSEC && is_of_consortium()? && word(config, at + 8)? & 0xffff == DEVICE {
            return Some(at);
        }
        at = usize::try_from(head >> 20).ok().filter(|next| *next >= FIRST)?;
    }
    None
}

fn word(config: &[u8], at: usize) -> Option<u32> {
    let bytes = config.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config_of;

    #[test]
    fn the_sizes_of_all_valid_ranges_are_added() {
        assert_eq!(declared_bytes(&config_of(&[256 << 20])), Some(256 << 20));
        assert_eq!(declared_bytes(&config_of(&[5 << 32 | 1 << 28, 1 << 28])), Some((5 << 32) + (1 << 29)));
        assert_eq!(declared_bytes(&config_of(&[])), None, "it has no memory");
        let mut config = config_of(&[1 << 30]);
        let at = device_dvsec(&config).unwrap();
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
        circle[FIRST..FIRST + 4].copy_from_slice(&(0x100_u32 << 20).to_le_bytes());
        assert_eq!(declared_bytes(&circle), None);
    }
}
