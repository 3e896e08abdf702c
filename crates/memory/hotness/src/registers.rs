// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The registers of a device, as a monitor needs them: a mapped window, or a model.

use std::fmt;

use aquifer_sys::device_memory::DeviceMemory;

/// The registers of a device, from offset 0 of its window on. All accesses are aligned.
pub trait Registers {
    /// Reads 16 bits.
    fn read_u16(&mut self, offset: usize) -> Result<u16, RegisterFailure>;
    /// Writes 16 bits.
    fn write_u16(&mut self, offset: usize, value: u16) -> Result<(), RegisterFailure>;
    /// Reads 64 bits.
    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure>;
    /// Writes 64 bits.
    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure>;
}

/// A register that cannot be accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterFailure {
    /// Its offset.
    pub offset: usize,
    /// Why.
    pub why: String,
}

impl fmt::Display for RegisterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "register {:#x}: {}", self.offset, self.why)
    }
}

impl std::error::Error for RegisterFailure {}

fn within<T>(window: &DeviceMemory, offset: usize, value: Option<T>) -> Result<T, RegisterFailure> {
    value.ok_or_else(|| RegisterFailure { offset, why: format!("the window has {} bytes", window.bytes()) })
}

impl Registers for DeviceMemory {
    fn read_u16(&mut self, offset: usize) -> Result<u16, RegisterFailure> {
        within(self, offset, DeviceMemory::read_u16(self, offset))
    }

    fn write_u16(&mut self, offset: usize, value: u16) -> Result<(), RegisterFailure> {
        within(self, offset, DeviceMemory::write_u16(self, offset, value))
    }

    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure> {
        within(self, offset, DeviceMemory::read_u64(self, offset))
    }

    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure> {
        within(self, offset, DeviceMemory::write_u64(self, offset, value))
    }
}
