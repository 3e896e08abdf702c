// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The hotness monitor of a CXL device: its configuration space, and registers with any contents.

use aquifer_hotness::{HotnessSource, Monitor, RegisterFailure, Registers, Settings, monitor_blocks};

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
