// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the CXL consortium's extended capabilities (DVSECs) in the configuration space of a PCI function. Pure.
//!
//! The extended capabilities are a linked list that starts at 0x100. Each begins with a double word: the capability's
//! number in bits 15:0, the offset of the next one in bits 31:20. Little-endian; offsets within a DVSEC:
//!
//! | offset | bytes | field        | meaning                                                                  |
//! |--------|-------|--------------|--------------------------------------------------------------------------|
//! | 0x04   | 4     | header 1     | vendor in bits 15:0 (1E98h is the CXL consortium), length in bits 31:20  |
//! | 0x08   | 2     | header 2     | which DVSEC of the vendor                                                |

/// Size of a configuration space.
pub const CONFIG_BYTES: usize = 4096;
const FIRST: usize = 0x100;
/// Maximum number of capabilities that are visited: as many as fit into a configuration space.
const CAPABILITIES_MAX: usize = CONFIG_BYTES / 4;
const DVSEC: u32 = 0x0023;
const CONSORTIUM: u32 = 0x1e98;

/// A DVSEC in a configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dvsec {
    /// Its offset.
    pub at: usize,
    /// Its length as it says, which may be more than the configuration space has.
    pub bytes: usize,
}

/// The first DVSEC of the CXL consortium with this number. `None` without one; to users other than root, the kernel
/// shows the configuration space without its extended part.
pub fn consortium_dvsec(config: &[u8], number: u16) -> Option<Dvsec> {
    let mut at = FIRST;
    for _ in 0..CAPABILITIES_MAX {
        let head = word(config, at)?;
        if head & 0xffff == DVSEC {
            let (first, second) = (word(config, at + 4)?, word(config, at + 8)?);
            if first & 0xffff == CONSORTIUM && second & 0xffff == u32::from(number) {
                return Some(Dvsec { at, bytes: (first >> 20) as usize });
            }
        }
        at = usize::try_from(head >> 20).ok().filter(|next| *next >= FIRST)?;
    }
    None
}

/// The double word at this offset of a configuration space; `None` beyond its end.
pub fn word(config: &[u8], at: usize) -> Option<u32> {
    let bytes = config.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities as (offset, first word, header 1, header 2).
    fn config(capabilities: &[(usize, u32, u32, u32)]) -> Vec<u8> {
        let mut config = vec![0; CONFIG_BYTES];
        for (at, head, first, second) in capabilities {
            for (index, value) in [head, first, second].into_iter().enumerate() {
                config[at + 4 * index..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
        config
    }

    #[test]
    fn a_dvsec_is_found_behind_those_of_other_vendors_and_numbers() {
        let config = config(&[
            (0x100, 0x0001 | 0x200 << 20, 0x1e98 | 0x10 << 20, 8),
            (0x200, 0x0023 | 0x300 << 20, 0x8086 | 0x10 << 20, 8),
            (0x300, 0x0023 | 0x180 << 20, 0x1e98 | 0x38 << 20, 0),
            (0x180, 0x0023, 0x1e98 | 0x24 << 20, 8),
        ]);
        assert_eq!(consortium_dvsec(&config, 8), Some(Dvsec { at: 0x180, bytes: 0x24 }));
        assert_eq!(consortium_dvsec(&config, 0), Some(Dvsec { at: 0x300, bytes: 0x38 }));
        assert_eq!(consortium_dvsec(&config, 3), None);
        assert_eq!(consortium_dvsec(&config[..0x304], 0), None, "it is cut within the header");
    }

    #[test]
    fn a_list_with_a_cycle_or_an_end_beyond_the_space_has_an_end() {
        assert_eq!(consortium_dvsec(&config(&[(0x100, 0x100 << 20, 0, 0)]), 0), None);
        assert_eq!(consortium_dvsec(&config(&[(0x100, 0xffc << 20, 0, 0)]), 0), None);
        assert_eq!(consortium_dvsec(&config(&[(0x100, 0x040 << 20, 0, 0)]), 0), None, "below the extended part");
        assert_eq!(consortium_dvsec(&[], 0), None);
        assert_eq!(word(&[0; 8], usize::MAX), None);
    }
}
