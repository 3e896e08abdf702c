// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Initial inputs for the decoder of hotness monitors.

/// The registers of a monitor that counts already and has two entries, of one that does not count, and a configuration
/// space with a block of them.
pub fn hotness() -> Vec<Vec<u8>> {
    let registers = |status: u64| {
        let mut bytes = vec![0; 0x10 + 0x78 + 64];
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0x00, 1 | 1 << 8);
        put(0x08, 0x78 + 64);
        put(0x10, 0b111 << 8 | 0x0645 << 16 | 0x0012 << 32 | 8 << 48);
        put(0x18, 1 << 4 | 1 << 48);
        put(0x20, 0x70);
        put(0x28, 0x78);
        put(0x70, status);
        put(0x78, 2 << 16);
        put(0x88, 5 << 16 | 40);
        put(0x90, 9 << 16 | 0xffff);
        bytes
    };
    let mut config = vec![0; 0x140];
    let mut put = |at: usize, value: u64| config[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0x100, 0x0023 | (0x1e98 | 0x14 << 20) << 32);
    put(0x108, 8);
    put(0x10c, 5 << 8 | 2 | 1 << 16);
    vec![registers(16 << 32 | 1), registers(16 << 32), registers(16 << 32 | 1 | 1 << 40), config]
}
