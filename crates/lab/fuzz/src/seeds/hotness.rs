// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Initial inputs for the decoders of hotness monitors and of the firmware's table of windows.

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

/// The firmware's table with a window of four targets by XOR and its maps, by modulo, and of six targets without maps.
pub fn cedt() -> Vec<Vec<u8>> {
    let table = |arithmetic: u8, ways: u8, maps: u8| {
        let mut bytes = vec![0; 36 + 52 + 8 + 8 * usize::from(maps)];
        let table_bytes = bytes.len() as u8;
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"CEDT");
        put(4, &[table_bytes]);
        put(36, &[1, 0, 52]);
        put(44, &(16_u64 << 30).to_le_bytes());
        put(52, &(1_u64 << 30).to_le_bytes());
        put(60, &[ways, arithmetic]);
        put(88, &[2, 0, 8 + 8 * maps, 0, 0, 0, 0, maps]);
        for (index, map) in [0x202_0900_u64, 0x404_1200, 0x101_0400].into_iter().take(usize::from(maps)).enumerate() {
            put(96 + 8 * index, &map.to_le_bytes());
        }
        bytes
    };
    vec![table(1, 2, 3), table(1, 2, 2), table(0, 2, 2), table(1, 9, 0)]
}
