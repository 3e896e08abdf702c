// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A PCI configuration space. The identity (vendor and device) and the class are read-only.

use std::collections::BTreeMap;

use aquifer_fmapi::ConfigurationAccess;

/// Base class and subclass of a PCI bridge, and of a CXL memory device with its programming interface.
pub(crate) const CLASS_BRIDGE: u32 = 0x0006_0400;
pub(crate) const CLASS_MEMORY: u32 = 0x0005_0210;
/// Numbers of the registers that hold the identity and the class.
const IDENTITY: u16 = 0;
const CLASS: u16 = 2;

/// The configuration space of a function: double words by register number. A number has 12 bits, which bounds the map
/// at 4096 registers.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    values: BTreeMap<u16, u32>,
}

impl Registers {
    /// Creates the registers of a function with this identity.
    pub fn new(vendor_id: u16, device_id: u16, class: u32) -> Self {
        let identity = u32::from(vendor_id) | u32::from(device_id) << 16;
        Self { values: BTreeMap::from([(IDENTITY, identity), (CLASS, class << 8)]) }
    }

    /// Reads the enabled bytes of a register; or writes them, and returns zero.
    pub fn access(&mut self, access: &ConfigurationAccess, data: u32) -> u32 {
        let value = self.values.get(&access.register).copied().unwrap_or_default();
        let enabled = (0..4).filter(|byte| access.byte_enables >> byte & 1 == 1);
        let mask = enabled.fold(0u32, |mask, byte| mask | 0xff << (8 * byte));
        if !access.is_write {
            return value & mask;
        }
        if ![IDENTITY, CLASS].contains(&access.register) {
            self.values.insert(access.register, value & !mask | data & mask);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_bytes_are_written_and_the_identity_stays() {
        let mut registers = Registers::new(0x1234, 0x5678, CLASS_BRIDGE);
        let mut access = |register, byte_enables, is_write, data| {
            registers.access(&ConfigurationAccess { register, byte_enables, is_write }, data)
        };
        assert_eq!(access(0, 0xf, true, 0), 0);
        assert_eq!(access(0, 0xf, false, 0), 0x5678_1234);
        assert_eq!(access(2, 0xc, false, 0), 0x0604_0000);
        access(0xfff, 0xf, true, 0x1122_3344);
        access(0xfff, 0b0101, true, 0xaabb_ccdd);
        assert_eq!(access(0xfff, 0xf, false, 0), 0x11bb_33dd);
    }
}
