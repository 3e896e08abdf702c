// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A window of a PCI function's registers by VFIO: the function's driver is vfio-pci, which gives it to programs.
//!
//! This works where the kernel does not let `resource0` be mapped: with lockdown, or in a container that has only the
//! group's file. A group (`/dev/vfio/12`) is one unit of isolation of the IOMMU, and one process at a time has it.
//! Without an IOMMU, the kernel has groups only if vfio's parameter `enable_unsafe_noiommu_mode` is set
//! (`/dev/vfio/noiommu-0`); registers can be used there all the same. See `Documentation/driver-api/vfio.rst`; the
//! numbers are from linux/vfio.h.
//!
//! No memory of the process is mapped for the device, so it cannot write to any.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use crate::device_memory::DeviceMemory;
use crate::raw::syscall;

const GET_API_VERSION: usize = 0x3b64;
const SET_IOMMU: usize = 0x3b66;
const GROUP_GET_STATUS: usize = 0x3b67;
const GROUP_SET_CONTAINER: usize = 0x3b68;
const GROUP_GET_DEVICE_FD: usize = 0x3b6a;
const DEVICE_GET_REGION_INFO: usize = 0x3b6c;

const API_VERSION: usize = 0;
const TYPE1V2_IOMMU: usize = 3;
const NOIOMMU_IOMMU: usize = 8;
/// A flag of a group: all of its functions belong to vfio or to nobody.
const VIABLE: u32 = 1;
/// A flag of a region: it can be mapped.
const MAPPABLE: u32 = 4;
const CONFIG_REGION: u32 = 7;
/// A function has up to six windows.
const WINDOWS: u32 = 6;
/// The command register of the configuration space, and its bit that makes the function decode memory.
const COMMAND: u64 = 4;
const DECODES_MEMORY: u16 = 2;

const FUNCTIONS: &str = "/sys/bus/pci/devices";
const GROUPS: &str = "/dev/vfio";

/// `struct vfio_group_status`.
#[repr(C)]
#[derive(Default)]
struct GroupStatus {
    bytes: u32,
    flags: u32,
}

/// `struct vfio_region_info`.
#[repr(C)]
#[derive(Default)]
struct Region {
    bytes: u32,
    flags: u32,
    index: u32,
    capabilities_at: u32,
    size: u64,
    offset: u64,
}

/// Why a function cannot be used by VFIO.
#[derive(Debug)]
#[non_exhaustive]
pub enum VfioFailure {
    /// There is no such function.
    Absent {
        /// Which.
        function: String,
    },
    /// The kernel refused a step.
    Kernel {
        /// What it was about.
        what: String,
        /// Its answer.
        source: io::Error,
    },
    /// The kernel does not let the window be mapped.
    NoWindow {
        /// Of which function.
        function: String,
        /// Which.
        window: u32,
    },
    /// Another driver has the function, or none.
    OtherDriver {
        /// Which function.
        function: String,
        /// Its driver.
        driver: Option<String>,
    },
    /// Another function of its group has a driver of the kernel.
    NotViable {
        /// Which group.
        group: String,
    },
}

impl fmt::Display for VfioFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VfioFailure::Absent { function } => {
                write!(f, "there is no PCI function {function}; lspci -D lists them")
            }
            VfioFailure::Kernel { what, source } => {
                let remedy = match source.raw_os_error() {
                    Some(libc::EBUSY) => "another program has the function, or its group",
                    Some(libc::EACCES | libc::EPERM) => {
                        "run it as root, or give the group's file to this user; without an IOMMU it takes CAP_SYS_RAWIO"
                    }
                    _ => "load vfio-pci, and turn the IOMMU on (intel_iommu=on) or set enable_unsafe_noiommu_mode",
                };
                write!(f, "{what}: {source}; {remedy}")
            }
            VfioFailure::NoWindow { function, window } => {
                write!(f, "window {window} of {function} cannot be mapped; check its size with lspci -v")
            }
            VfioFailure::OtherDriver { function, driver } => {
                let driver =
                    driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("the driver {name}"));
                write!(
                    f,
                    "{function} has {driver}; write vfio-pci to {FUNCTIONS}/{function}/driver_override, unbind it, and \
                     write {function} to /sys/bus/pci/drivers_probe"
                )
            }
            VfioFailure::NotViable { group } => write!(
                f,
                "another function of the group {group} has a driver of the kernel; give all of them to vfio-pci"
            ),
        }
    }
}

impl std::error::Error for VfioFailure {}

/// A mapped window of a function that this process has.
#[derive(Debug)]
pub struct VfioWindow {
    memory: DeviceMemory,
    // In this order: the function is given back before its group, and that before the container.
    _function: File,
    _group: File,
    _container: File,
}

impl VfioWindow {
    /// Takes the function, such as `0000:0d:00.1`, and maps its window.
    pub fn open(function: &str, window: u32) -> Result<VfioWindow, VfioFailure> {
        let group_path = group_of(Path::new(FUNCTIONS), function)?;
        let no_window = || VfioFailure::NoWindow { function: function.to_owned(), window };
        let name = CString::new(function).map_err(|_| VfioFailure::Absent { function: function.to_owned() })?;
        if window >= WINDOWS {
            return Err(no_window());
        }
        let container = open(&Path::new(GROUPS).join("vfio"))?;
        let group = open(&group_path)?;
        join(&container, &group, &group_path)?;
        // SAFETY: the argument is a string that ends in NUL and outlives the call.
        let made = unsafe { ioctl(&group, GROUP_GET_DEVICE_FD, name.as_ptr() as usize) };
        let made =
            made.map_err(|source| VfioFailure::Kernel { what: format!("vfio does not give {function}"), source })?;
        // SAFETY: the new descriptor has no other owner.
        let opened = unsafe { File::from_raw_fd(made as RawFd) };
        let failed = |source| VfioFailure::Kernel { what: format!("vfio does not show {function}"), source };
        let region = region(&opened, window).map_err(failed)?;
        if region.flags & MAPPABLE == 0 || region.size == 0 {
            return Err(no_window());
        }
        decode_memory(&opened).map_err(failed)?;
        let memory = DeviceMemory::map(&opened, region.offset, region.size).map_err(failed)?;
        Ok(VfioWindow { memory, _function: opened, _group: group, _container: container })
    }

    /// The registers.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

/// The file of a function's group.
fn group_of(functions: &Path, function: &str) -> Result<PathBuf, VfioFailure> {
    let directory = functions.join(function);
    let last = |link: PathBuf| link.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    // A name, not a path: `.` and `..` have no driver of this name either.
    if function.is_empty() || function.contains('/') || !directory.is_dir() {
        return Err(VfioFailure::Absent { function: function.to_owned() });
    }
    let driver = fs::read_link(directory.join("driver")).ok().and_then(last);
    if driver.as_deref() != Some("vfio-pci") {
        return Err(VfioFailure::OtherDriver { function: function.to_owned(), driver });
    }
    let number = fs::read_link(directory.join("iommu_group")).ok().and_then(last).ok_or_else(|| {
        let what = format!("{function} is in no group of vfio");
        VfioFailure::Kernel { what, source: io::Error::from_raw_os_error(libc::ENOENT) }
    })?;
    let is_unsafe = fs::read_to_string(directory.join("iommu_group/name")).is_ok_and(|it| it.trim() == "vfio-noiommu");
    Ok(Path::new(GROUPS).join(if is_unsafe { format!("noiommu-{number}") } else { number }))
}

fn open(path: &Path) -> Result<File, VfioFailure> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| VfioFailure::Kernel { what: format!("{} cannot be opened", path.display()), source })
}

/// Puts the group into the container, and gives it an IOMMU, without which the kernel shows no function.
fn join(container: &File, group: &File, path: &Path) -> Result<(), VfioFailure> {
    let failed = |source| VfioFailure::Kernel { what: format!("{} cannot be used", path.display()), source };
    // SAFETY: the argument is ignored.
    let version = unsafe { ioctl(container, GET_API_VERSION, 0) }.map_err(failed)?;
    if version != API_VERSION {
        return Err(failed(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)));
    }
    let mut status = GroupStatus { bytes: size_of::<GroupStatus>() as u32, flags: 0 };
    // SAFETY: the kernel writes one `GroupStatus`, whose size is in its first field.
    unsafe { ioctl(group, GROUP_GET_STATUS, &raw mut status as usize) }.map_err(failed)?;
    if status.flags & VIABLE == 0 {
        return Err(VfioFailure::NotViable { group: path.display().to_string() });
    }
    let descriptor = container.as_raw_fd();
    // SAFETY: the kernel reads one descriptor from the argument.
    unsafe { ioctl(group, GROUP_SET_CONTAINER, &raw const descriptor as usize) }.map_err(failed)?;
    let is_unsafe = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("noiommu-"));
    let kind = if is_unsafe { NOIOMMU_IOMMU } else { TYPE1V2_IOMMU };
    // SAFETY: the argument is a number.
    unsafe { ioctl(container, SET_IOMMU, kind) }.map_err(failed).map(drop)
}

fn region(function: &File, index: u32) -> io::Result<Region> {
    let mut region = Region { bytes: size_of::<Region>() as u32, index, ..Region::default() };
    // SAFETY: the kernel reads and writes one `Region`, whose size is in its first field.
    unsafe { ioctl(function, DEVICE_GET_REGION_INFO, &raw mut region as usize) }?;
    Ok(region)
}

/// Makes the function decode its windows: an access to one that it does not decode is SIGBUS.
fn decode_memory(function: &File) -> io::Result<()> {
    let config = region(function, CONFIG_REGION)?;
    let mut command = [0; 2];
    function.read_exact_at(&mut command, config.offset + COMMAND)?;
    let command = u16::from_le_bytes(command) | DECODES_MEMORY;
    function.write_all_at(&command.to_le_bytes(), config.offset + COMMAND)
}

/// # Safety
/// As for the request: a pointer among the arguments must be valid for the kernel's use of it.
unsafe fn ioctl(file: &File, request: usize, argument: usize) -> io::Result<usize> {
    // SAFETY: the caller vouches for the argument.
    let answer = unsafe { syscall(libc::SYS_ioctl, [file.as_raw_fd() as usize, request, argument, 0, 0, 0]) };
    answer.map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_structures_have_the_sizes_of_the_kernel() {
        assert_eq!((size_of::<GroupStatus>(), size_of::<Region>()), (8, 32));
    }

    #[test]
    fn a_function_is_used_only_if_vfio_has_it() {
        let root = std::env::temp_dir().join(format!("aquifer-vfio-{}", std::process::id()));
        for (name, driver) in
            [("0000:01:00.0", None), ("0000:02:00.0", Some("nvme")), ("0000:03:00.0", Some("vfio-pci"))]
        {
            fs::create_dir_all(root.join(name)).unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), root.join(name).join("driver")).unwrap();
            }
        }
        let group = |name: &str| group_of(&root, name).map_err(|failure| failure.to_string());
        assert!(group("0000:01:00.0").unwrap_err().contains("has no driver; write vfio-pci to"));
        assert!(group("0000:02:00.0").unwrap_err().contains("has the driver nvme; write vfio-pci to"));
        assert!(group("0000:03:00.0").unwrap_err().contains("is in no group of vfio"));
        for absent in ["", "0000:04:00.0", "../x", "/dev"] {
            assert!(group(absent).unwrap_err().contains("there is no PCI function"), "{absent}");
        }
        fs::create_dir_all(root.join("groups/7")).unwrap();
        symlink(root.join("groups/7"), root.join("0000:03:00.0/iommu_group")).unwrap();
        assert_eq!(group("0000:03:00.0").unwrap(), Path::new("/dev/vfio/7"));
        fs::write(root.join("groups/7/name"), "vfio-noiommu\n").unwrap();
        assert_eq!(group("0000:03:00.0").unwrap(), Path::new("/dev/vfio/noiommu-7"));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let function = || "0000:0d:00.1".to_owned();
        let kernel = |errno| VfioFailure::Kernel { what: function(), source: io::Error::from_raw_os_error(errno) };
        for failure in [
            VfioFailure::Absent { function: function() },
            kernel(libc::EBUSY),
            kernel(libc::EPERM),
            kernel(libc::ENOENT),
            VfioFailure::NoWindow { function: function(), window: 0 },
            VfioFailure::OtherDriver { function: function(), driver: None },
            VfioFailure::NotViable { group: "/dev/vfio/7".into() },
        ] {
            let text = failure.to_string();
            assert!(text.contains("; ") && !text.contains('\n'), "{text}");
        }
    }
}
