// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The registers of a PCI function by its file in sysfs, such as `/sys/bus/pci/devices/0000:0d:00.1/resource0`.
//!
//! The file is root's, and the kernel refuses to map it where a driver has claimed the window, and under kernel
//! lockdown. The function has to decode its memory: `enable` in the same directory says 1.

use std::io;
use std::path::Path;

use aquifer_sys::device_memory::DeviceMemory;

use crate::mailbox::{RegisterFailure, Registers};

/// The registers behind a file.
#[derive(Debug)]
pub struct ResourceFile {
    window: DeviceMemory,
}

impl ResourceFile {
    /// Maps the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { window: DeviceMemory::open(path)? })
    }

    fn beyond(&self, offset: usize) -> RegisterFailure {
        RegisterFailure { offset, why: format!("the window has {} bytes", self.window.bytes()) }
    }
}

impl Registers for ResourceFile {
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
        self.window.read_u32(offset).ok_or_else(|| self.beyond(offset))
    }

    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure> {
        self.window.write_u32(offset, value).ok_or_else(|| self.beyond(offset))
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        self.window.read_u64(offset).ok_or_else(|| self.beyond(offset))
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        self.window.write_u64(offset, value).ok_or_else(|| self.beyond(offset))
    }
}
