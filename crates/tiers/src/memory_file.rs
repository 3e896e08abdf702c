// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes a file that lives in memory, on the largest pages that can be had without asking anybody.
//!
//! See memfd_create(2), fsopen(2) and tmpfs(5). In this order:
//!
//! 1. a file on a tmpfs of our own, mounted nowhere, with `huge=always`. Needs CAP_SYS_ADMIN. Since Linux
//!    6.14 such a file gets folios as large as each write, before that 2 MiB. Measured on the machine of
//!    the fault-path table, 128 KiB: read 20 us, write 19 us, next to 19 us for a bare `memcpy`;
//! 2. a memfd. 4 KiB folios unless `shmem_enabled` allows more: read 30 us, write 33 us, first write 39 us.
//!
//! Not used: `MFD_HUGETLB`. Such a file can be mapped and read, but write(2) on it is EINVAL, and a mapping
//! would count in the program's resident set.

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// The setting that decides about the folios of a memfd.
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// How the memory of the file is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folios {
    /// As large as a write, up to 2 MiB.
    Large,
    /// 4 KiB each.
    Small,
}

/// A sparse file of `len` bytes that lives in memory and disappears with its last descriptor.
pub(crate) fn create(len: u64) -> io::Result<(File, Folios)> {
    if let Ok(file) = on_own_tmpfs() {
        file.set_len(len)?;
        return Ok((file, Folios::Large));
    }
    let file = File::from(rustix::fs::memfd_create(c"aquifer-dram", MemfdFlags::CLOEXEC)?);
    file.set_len(len)?;
    Ok((file, if memfd_is_large() { Folios::Large } else { Folios::Small }))
}

fn on_own_tmpfs() -> Result<File, rustix::io::Errno> {
    let context = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, c"huge", c"always")?;
    // No limit of its own: the tier's capacity is the limit. Without this, tmpfs stops at half of the RAM.
    rustix::mount::fsconfig_set_string(&context, c"size", c"0")?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&mount, c".", flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(file))
}

/// Whether a memfd gets large folios by itself.
fn memfd_is_large() -> bool {
    let setting = std::fs::read_to_string(SHMEM_ENABLED).unwrap_or_default();
    ["[always]", "[within_size]", "[force]"].iter().any(|value| setting.contains(value))
}
