// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Creates a file in memory, on the largest folios that are available without a system-wide setting.
//!
//! See memfd_create(2), fsopen(2) and tmpfs(5). These files are tried in this order. The costs are for 128 KiB, on the
//! machine of the fault-path table, where a bare `memcpy` of that size takes 19 us:
//!
//! | file                                            | read  | write | first write | punch |
//! |-------------------------------------------------|-------|-------|-------------|-------|
//! | tmpfs of our own, mounted nowhere, `within_size`| 21 us | 20 us | 21 us       | 1 us  |
//! | memfd, 4 KiB folios                             | 30 us | 33 us | 39 us       | 5 us  |
//!
//! The first needs CAP_SYS_ADMIN. Its file is not given a length: Linux 6.14 and later then make each folio as large as
//! the write beyond the end that requests it, while below the end every hole gets 2 MiB, as with `huge=always` (same
//! speed, but 2 MiB of memory for one block, and 16 us to punch a part of it).
//!
//! Not used: `MFD_HUGETLB`. Such a file can be mapped and read, but write(2) on it is EINVAL, and a mapping would count
//! in the program's resident set.

use std::ffi::CStr;
use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The setting that determines the folios of a memfd.
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The size of the folios of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// As large as the first write, up to 2 MiB.
    Large,
    /// 4 KiB each.
    Small,
}

/// A sparse file in memory that disappears with its last descriptor. Its length extends to the last byte written.
pub fn create() -> io::Result<(File, Folios)> {
    if let Ok(file) = on_own_tmpfs(c"within_size") {
        return Ok((file, Folios::Large));
    }
    Ok((in_memfd()?, if memfd_is_large() { Folios::Large } else { Folios::Small }))
}

/// As [`create`], but with folios of 4 KiB wherever that can be chosen, so that a hole of any length frees its memory
/// and refilling it takes no more than was freed.
pub fn create_with_small_folios() -> io::Result<(File, Folios)> {
    if let Ok(file) = on_own_tmpfs(c"never") {
        return Ok((file, Folios::Small));
    }
    Ok((in_memfd()?, if memfd_is_large() { Folios::Large } else { Folios::Small }))
}

/// The maximum length of a file of this process (`ulimit -f`); `u64::MAX` when there is no limit.
pub fn file_bytes_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

fn in_memfd() -> Result<File, rustix::io::Errno> {
    rustix::fs::memfd_create(c"aquifer-dram", MemfdFlags::CLOEXEC).map(File::from)
}

fn on_own_tmpfs(huge: &CStr) -> Result<File, rustix::io::Errno> {
    let context = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, c"huge", huge)?;
    // No limit of its own, because the tier's capacity is the limit. Without this option, tmpfs stops at half of the
    // RAM.
    rustix::mount::fsconfig_set_string(&context, c"size", c"0")?;
    // With swapped-out memory, a measurement would measure the swap. Linux 6.4 and later support the option.
    let _ = rustix::mount::fsconfig_set_flag(&context, c"noswap");
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&mount, c".", flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(file))
}

/// Whether a memfd gets large folios without further settings.
fn memfd_is_large() -> bool {
    let setting = std::fs::read_to_string(SHMEM_ENABLED).unwrap_or_default();
    ["[always]", "[within_size]", "[force]"].iter().any(|value| setting.contains(value))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use aquifer_sys::direct_io;

    use super::*;

    #[test]
    fn both_kinds_of_file_hold_bytes_and_give_space_back() {
        let own = on_own_tmpfs(c"within_size").map_err(|errno| {
            aquifer_test_support::skip_part("one case", format!("a tmpfs of our own is refused: {errno}"))
        });
        for file in own.into_iter().chain(in_memfd()) {
            file.write_all_at(&[7; 131_072], 4 << 20).unwrap();
            let mut bytes = [0; 8192];
            file.read_exact_at(&mut bytes, 4 << 20).unwrap();
            assert_eq!(bytes, [7; 8192]);
            direct_io::punch_hole(&file, 4 << 20, 4096).unwrap();
            file.read_exact_at(&mut bytes, 4 << 20).unwrap();
            assert_eq!((bytes[0], bytes[4095], bytes[4096]), (0, 0, 7));
        }
    }
}
