// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the registers of hotness monitors: the Register Locator DVSEC of a CXL device (CXL 3.2 section 8.1.9), and the
//! devices that have one. Functions of bytes and of a tree of files.
//!
//! Little-endian; offsets within the DVSEC, which `nodes/src/dvsec.rs` finds:
//!
//! | offset | bytes | field        | meaning                                                                  |
//! |--------|-------|--------------|--------------------------------------------------------------------------|
//! | 0x04   | 4     | header 1     | length in bits 31:20                                                     |
//! | 0x08   | 2     | header 2     | 8: the Register Locator                                                  |
//! | 0x0c   | 8 each| block        | BAR in bits 2:0, kind in 15:8 (5: hotness monitors), offset in 63:16     |

use aquifer_nodes::Tree;
use aquifer_nodes::dvsec::{CONFIG_BYTES, Dvsec, consortium_dvsec, word};

/// Where the kernel lists PCI functions.
pub const DEVICES: &str = "/sys/bus/pci/devices";
/// The class of CXL memory devices.
const MEMORY_DEVICE: &str = "0x050210";
const REGISTER_LOCATOR: u16 = 8;
const BLOCKS_AT: usize = 0x0c;
const MONITORS: u64 = 5;
/// A BAR is one of six.
const BAR_MAX: u64 = 5;

/// A block of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// In which BAR: `resource0` to `resource5` in sysfs.
    pub bar: u8,
    /// Where in it.
    pub offset: u64,
}

/// The CXL memory devices with hotness monitors, such as `0000:0d:00.0`. The kernel shows enough to root only.
pub fn devices_with_monitors(tree: &dyn Tree) -> Vec<String> {
    let names = tree.names(DEVICES).unwrap_or_default();
    let has_monitors = |name: &String| {
        tree.text(&format!("{DEVICES}/{name}/class")).is_ok_and(|class| class == MEMORY_DEVICE)
            && !blocks_of(tree, name).is_empty()
    };
    names.into_iter().filter(has_monitors).collect()
}

/// The blocks of registers with hotness monitors of a PCI function.
pub fn blocks_of(tree: &dyn Tree, device: &str) -> Vec<Block> {
    tree.bytes(&format!("{DEVICES}/{device}/config"), CONFIG_BYTES)
        .map_or_else(|_| Vec::new(), |it| monitor_blocks(&it))
}

/// The blocks of registers that hold hotness monitors, in order. Empty without any.
pub fn monitor_blocks(config: &[u8]) -> Vec<Block> {
    let Some(Dvsec { at, bytes }) = consortium_dvsec(config, REGISTER_LOCATOR) else { return Vec::new() };
    let entries = (at + BLOCKS_AT..(at + bytes).min(config.len())).step_by(8);
    let block = |at: usize| {
        let entry = u64::from(word(config, at)?) | u64::from(word(config, at + 4)?) << 32;
        let (bar, kind) = (entry & 7, entry >> 8 & 0xff);
        (kind == MONITORS && bar <= BAR_MAX).then_some(Block { bar: bar as u8, offset: entry & !0xffff })
    };
    entries.filter_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space whose Register Locator comes after another capability.
    fn config(blocks: &[u64]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        let mut put = |at: usize, value: u64| config[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0x100, 0x0023 | 0x200 << 20 | 0x1e98 << 32);
        let bytes = (BLOCKS_AT + 8 * blocks.len()) as u64;
        put(0x200, 0x0023 | (0x1e98 | bytes << 20) << 32);
        put(0x208, 8);
        for (index, block) in blocks.iter().enumerate() {
            put(0x200 + BLOCKS_AT + 8 * index, *block);
        }
        config
    }

    #[test]
    fn the_blocks_of_monitors_are_found_among_others() {
        let config = config(&[1 << 8, 3 << 8 | 2, 0x12_0002 | 5 << 8, 1 << 32 | 5 << 8 | 4]);
        let found = [Block { bar: 2, offset: 0x12_0000 }, Block { bar: 4, offset: 1 << 32 }];
        assert_eq!(monitor_blocks(&config), found);
        assert_eq!(monitor_blocks(&config[..0x224]), found[..1], "without root, it is cut");
        assert_eq!(monitor_blocks(&[]), []);
    }

    #[test]
    fn a_bar_that_does_not_exist_and_a_list_with_a_cycle_are_nothing() {
        assert_eq!(monitor_blocks(&config(&[5 << 8 | 7])), []);
        let mut circle = vec![0; 4096];
        circle[0x100..0x104].copy_from_slice(&(0x100_u32 << 20).to_le_bytes());
        assert_eq!(monitor_blocks(&circle), []);
    }
}
