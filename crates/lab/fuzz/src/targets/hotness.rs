// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The hotness monitor of a CXL device: its configuration space, and registers with any contents. The firmware's table
//! of the windows by which its addresses become the host's.

use aquifer_hotness::{Cedt, Decoder, HotnessSource, Monitor, RegisterFailure, Registers, Settings, monitor_blocks};

use super::one_line;

/// Registers as words; beyond their end, the window ends.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Result<[u8; N], RegisterFailure> {
        let bytes = self.0.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| RegisterFailure { offset, why: "beyond the window".into() })
    }
}

impl Registers for Words<'_> {
    fn read_u16(&mut self, offset: usize) -> Result<u16, RegisterFailure> {
        self.bytes(offset).map(u16::from_le_bytes)
    }

    fn write_u16(&mut self, offset: usize, _: u16) -> Result<(), RegisterFailure> {
        self.bytes::<2>(offset).map(drop)
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        // A device that is busy for ever is a test's; it takes a second.
        let word = u64::from_le_bytes(self.bytes(offset)?);
        Ok(if offset % 0x80 == 0x70 { word & !0xffff_0000 } else { word })
    }

    fn write_u64(&mut self, offset: usize, _: u64) -> Result<(), RegisterFailure> {
        self.bytes::<8>(offset).map(drop)
    }
}

/// A configuration space, and the registers of a monitor.
pub fn hotness(bytes: &[u8]) {
    for block in monitor_blocks(bytes) {
        assert!(block.bar < 6 && block.offset % (1 << 16) == 0, "{block:?}");
    }
    let opened = Monitor::open("fuzzed".into(), Words(bytes), 0, 0, Settings::default());
    let mut monitor = match opened {
        Ok(monitor) => monitor,
        Err(failure) => return one_line(&failure.to_string()),
    };
    let entries = usize::from(monitor.capabilities().list_entries);
    if let Err(failure) = monitor.start() {
        one_line(&failure.to_string());
    }
    match monitor.collect() {
        Ok(hot) => assert!(hot.ranges.len() < entries, "{} of {entries}", hot.ranges.len()),
        Err(failure) => one_line(&failure.to_string()),
    }
}

/// The firmware's table of windows: what it says of a region in the seeds' window, and the region's translation.
pub fn cedt(bytes: &[u8]) {
    let cedt = match Cedt::parse(bytes) {
        Ok(cedt) => cedt,
        Err(failure) => return one_line(&failure.to_string()),
    };
    let (host, ways) = (16 << 30, 4);
    let maps = match cedt.xor_maps(host, ways << 12) {
        Ok(maps) => maps,
        Err(failure) => return one_line(&failure.to_string()),
    };
    let decoder = Decoder::new(0, (host, ways << 12), ways, 256, 1).expect("such a region can be");
    let Some(decoder) = decoder.with_xor(maps) else { return };
    for device in (0..1 << 12).step_by(256) {
        let address = decoder.to_host(device).expect("an address of the device");
        assert_eq!(decoder.to_device(address), Some(device), "{maps:x?}");
    }
}
