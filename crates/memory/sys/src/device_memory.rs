// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A window of a PCI device's registers (a BAR), mapped through its file in sysfs (`resource0` and so on), or by VFIO
//! (`vfio.rs`).
//!
//! Every access is one load or store of its width, neither merged nor repeated, and it is aligned. A file in sysfs is
//! locked while it is mapped (`file_lock.rs`): the commands of two programs would get into each other's. Whether the
//! function decodes its window, and whether a driver of the kernel uses it too, is for the caller to know. See
//! sysfs-pci in the kernel's documentation.
//!
//! Threads: any; the device defines the effect of concurrent accesses.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::file_lock;
use crate::memory::unmap;
use crate::raw::syscall;

/// The largest window that is mapped; that of a mailbox has some KiB.
const WINDOW_BYTES_MAX: u64 = 1 << 30;

/// A mapped window of registers; see the module.
#[derive(Debug)]
pub struct DeviceMemory {
    start: NonNull<u8>,
    len: usize,
    /// The file that is locked until the value is dropped; `None` where the caller has the device for itself.
    _locked: Option<File>,
}

// SAFETY: accesses are volatile and go through `&self`, and only the drop of the one owner unmaps the window.
unsafe impl Send for DeviceMemory {}

impl DeviceMemory {
    /// Maps a whole window, and locks its file. EINVAL if the file is empty or larger than 1 GiB: then it is not a
    /// register window. EWOULDBLOCK if another program has it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC | libc::O_CLOEXEC).open(path)?;
        let len = checked(file.metadata()?.len())?;
        file_lock::lock(&file)?;
        Ok(Self { start: mapped(&file, 0, len)?, len, _locked: Some(file) })
    }

    /// Maps `len` bytes of a device's file, which the caller has for itself. EINVAL as above.
    pub(crate) fn map(file: &File, offset: u64, len: u64) -> io::Result<Self> {
        let len = checked(len)?;
        Ok(Self { start: mapped(file, offset, len)?, len, _locked: None })
    }

    /// Bytes of the window.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Reads a register of 16 bits. None if it is not wholly within the window, or not aligned.
    pub fn read_u16(&self, offset: usize) -> Option<u16> {
        let address: NonNull<u16> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        Some(u16::from_le(unsafe { address.read_volatile() }))
    }

    /// Writes a register of 16 bits. None, and nothing written, as above.
    pub fn write_u16(&self, offset: usize, value: u16) -> Option<()> {
        let address: NonNull<u16> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        unsafe { address.write_volatile(value.to_le()) };
        Some(())
    }

    /// Reads a register of 32 bits. None if it is not wholly within the window, or not aligned.
    pub fn read_u32(&self, offset: usize) -> Option<u32> {
        let address: NonNull<u32> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        Some(u32::from_le(unsafe { address.read_volatile() }))
    }

    /// Writes a register of 32 bits. None, without a write, if it is not wholly within the window, or not aligned.
    pub fn write_u32(&self, offset: usize, value: u32) -> Option<()> {
        let address: NonNull<u32> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        unsafe { address.write_volatile(value.to_le()) };
        Some(())
    }

    /// Reads a register of 64 bits. None if it is not wholly within the window, or not aligned.
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        let address: NonNull<u64> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        Some(u64::from_le(unsafe { address.read_volatile() }))
    }

    /// Writes a register of 64 bits. If it is not wholly within the window, or not aligned, writes nothing: None.
    pub fn write_u64(&self, offset: usize, value: u64) -> Option<()> {
        let address: NonNull<u64> = self.address(offset)?;
        // SAFETY: within the mapping and aligned, as `address` has checked.
        unsafe { address.write_volatile(value.to_le()) };
        Some(())
    }

    fn address<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.len || !offset.is_multiple_of(size_of::<T>()) {
            return None;
        }
        // SAFETY: within the mapping, as checked above. The mapping begins at a page, so the address is aligned.
        Some(unsafe { self.start.add(offset) }.cast())
    }
}

/// The length of a window, if it is one.
fn checked(len: u64) -> io::Result<usize> {
    let is_window = len > 0 && len <= WINDOW_BYTES_MAX;
    if is_window { Ok(len as usize) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

fn mapped(file: &File, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let args = [0, len, prot, libc::MAP_SHARED as usize, file.as_raw_fd() as usize, offset as usize];
    // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
    let start = unsafe { syscall(libc::SYS_mmap, args) };
    let start = start.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start));
    start.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no address of it outlives a call.
        let _ = unsafe { unmap(self.start.as_ptr() as usize, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// How long a child that another test forks may have the first file open, until it executes a program.
    const FORK_MAX: Duration = Duration::from_secs(10);

    #[test]
    fn registers_are_read_and_written_within_the_window_only() {
        let path = std::env::temp_dir().join(format!("aquifer-device-memory-{}", std::process::id()));
        std::fs::write(&path, [0; 64]).unwrap();
        let window = DeviceMemory::open(&path).unwrap();
        assert_eq!(window.bytes(), 64);
        assert_eq!(window.write_u64(56, 0x1122_3344_5566_7788), Some(()));
        assert_eq!((window.read_u32(56), window.read_u32(60)), (Some(0x5566_7788), Some(0x1122_3344)));
        assert_eq!(window.write_u16(58, 0xabcd), Some(()));
        assert_eq!((window.read_u16(58), window.read_u32(56)), (Some(0xabcd), Some(0xabcd_7788)));
        assert_eq!((window.read_u16(63), window.write_u16(64, 1)), (None, None));
        assert_eq!(window.write_u32(4, 9), Some(()));
        assert_eq!(window.read_u64(0), Some(9 << 32));
        for (offset, why) in [(64, "beyond"), (60, "across the end"), (4, "unaligned"), (usize::MAX, "overflow")] {
            assert_eq!((window.read_u64(offset), window.write_u64(offset, 1)), (None, None), "{why}");
        }
        assert_eq!(std::fs::read(&path).unwrap()[4], 9);
        drop(window);
        std::fs::write(&path, []).unwrap();
        assert_eq!(DeviceMemory::open(&path).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(DeviceMemory::open(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// Two programs with one mailbox overwrote each other's commands, and read each other's answers.
    #[test]
    fn a_window_that_another_program_has_is_refused_until_that_has_ended() {
        let path = std::env::temp_dir().join(format!("aq-{}-device-memory-twice", std::process::id()));
        std::fs::write(&path, [0; 64]).unwrap();
        let first = DeviceMemory::open(&path).unwrap();
        let refused = DeviceMemory::open(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
        assert_eq!(first.write_u32(0, 7), Some(()));
        drop(first);
        let (begun, mut next) = (Instant::now(), DeviceMemory::open(&path));
        while next.is_err() {
            assert!(begun.elapsed() < FORK_MAX, "{next:?}");
            std::thread::yield_now();
            next = DeviceMemory::open(&path);
        }
        assert_eq!(next.unwrap().read_u32(0), Some(7));
        std::fs::remove_file(&path).unwrap();
    }
}
