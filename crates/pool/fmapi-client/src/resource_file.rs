// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The registers of a PCI function by its file in sysfs, such as `/sys/bus/pci/devices/0000:0d:00.1/resource0`, or by
//! VFIO.
//!
//! The file is root's, and the kernel refuses to map it where a driver has claimed the window, and under kernel
//! lockdown. The function has to decode its memory: `enable` in the same directory says 1.

use std::io;
use std::path::Path;

use aquifer_sys::device_memory::DeviceMemory;
use aquifer_sys::vfio::{VfioFailure, VfioWindow};

use crate::mailbox::{RegisterFailure, Registers};

/// The number of the window that has the mailbox.
const MAILBOX_WINDOW: u32 = 0;

/// The registers behind a file.
#[derive(Debug)]
pub struct ResourceFile {
    window: DeviceMemory,
}

impl ResourceFile {
    /// Maps the file, and locks it. EWOULDBLOCK if another program has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { window: DeviceMemory::open(path)? })
    }
}

/// The first window of a function that vfio-pci has.
#[derive(Debug)]
pub struct VfioFunction {
    window: VfioWindow,
}

impl VfioFunction {
    /// Takes the function, such as `0000:0d:00.1`, until the value is dropped.
    pub fn open(function: &str) -> Result<Self, VfioFailure> {
        Ok(Self { window: VfioWindow::open(function, MAILBOX_WINDOW)? })
    }
}

fn within<T>(window: &DeviceMemory, offset: usize, value: Option<T>) -> Result<T, RegisterFailure> {
    value.ok_or_else(|| RegisterFailure { offset, why: format!("the window has {} bytes", window.bytes()) })
}

impl Registers for ResourceFile {
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
        let window = &self.window;
        within(window, offset, window.read_u32(offset))
    }

    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure> {
        let window = &self.window;
        within(window, offset, window.write_u32(offset, value))
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        let window = &self.window;
        within(window, offset, window.read_u64(offset))
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        let window = &self.window;
        within(window, offset, window.write_u64(offset, value))
    }
}

impl Registers for VfioFunction {
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure> {
        let window = self.window.memory();
        within(window, offset, window.read_u32(offset))
    }

    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure> {
        let window = self.window.memory();
        within(window, offset, window.write_u32(offset, value))
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        let window = self.window.memory();
        within(window, offset, window.read_u64(offset))
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        let window = self.window.memory();
        within(window, offset, window.write_u64(offset, value))
    }
}
