// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A window of a PCI function's registers by VFIO: the function's driver is vfio-pci, which gives it to programs.
//!
//! This works where the kernel does not let `resource0` be mapped: with lockdown, or in a container that has only the
//! group's file. A group (`/dev/vfio/12`) is one unit of isolation of the IOMMU, and one process at a time has it.
//! See `Documentation/driver-api/vfio.rst`; the numbers are from linux/vfio.h.
//!
//! Without an IOMMU, a function is in no group, and vfio-pci refuses it, unless vfio's parameter
//! `enable_unsafe_noiommu_mode` is set. Then vfio makes a group with the name `vfio-noiommu` for it
//! (`/dev/vfio/noiommu-0`), which needs CAP_SYS_RAWIO, and the kernel notes with a taint that nothing protects its
//! memory from the function. That mode needs a kernel with CONFIG_VFIO_NOIOMMU, which Debian's do not have: it is
//! tested with a tree of files, and in a guest only that its absence is named.
//!
//! Nothing here makes the function master of its bus, and with an IOMMU no memory is mapped for it, so the function
//! writes to no memory for this program. Without an IOMMU, another program with the group's file could make it.

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
/// The module, which shows its parameters here.
const MODULE: &str = "/sys/module/vfio";
const UNSAFE_MODE: &str = "parameters/enable_unsafe_noiommu_mode";
/// How vfio names the groups that it makes for functions without an IOMMU.
const UNSAFE_GROUP: &str = "vfio-noiommu";

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
    /// No IOMMU has the function, and vfio gives none without.
    NoIommu {
        /// Which function.
        function: String,
        /// Why vfio gives none.
        mode: UnsafeMode,
    },
    /// A group without an IOMMU needs a capability.
    NoRawIo {
        /// Which group.
        group: String,
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

/// Vfio's mode for functions without an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsafeMode {
    /// The kernel was built without it.
    Absent,
    /// The module is not loaded.
    NotLoaded,
    /// It is not enabled.
    Off,
    /// It is enabled.
    On,
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
                    Some(libc::EACCES | libc::EPERM) => "run it as root, or give the group's file to this user",
                    _ => "load vfio-pci, and turn the IOMMU on (intel_iommu=on) or set enable_unsafe_noiommu_mode",
                };
                write!(f, "{what}: {source}; {remedy}")
            }
            VfioFailure::NoIommu { function, mode } => {
                let (why, remedy) = match mode {
                    UnsafeMode::Absent => ("and this kernel has no CONFIG_VFIO_NOIOMMU", ""),
                    UnsafeMode::NotLoaded => (
                        "and vfio is not loaded",
                        ", or load vfio with enable_unsafe_noiommu_mode=1, with which every program that has a group's \
                         file can make its function write to any memory",
                    ),
                    UnsafeMode::Off | UnsafeMode::On => (
                        "and vfio's unsafe mode is not enabled",
                        ", or write 1 to /sys/module/vfio/parameters/enable_unsafe_noiommu_mode, with which every program \
                         that has a group's file can make its function write to any memory",
                    ),
                };
                write!(f, "no IOMMU has {function}, {why}; turn the IOMMU on (intel_iommu=on){remedy}")
            }
            VfioFailure::NoRawIo { group } => write!(
                f,
                "{group} needs CAP_SYS_RAWIO, since no IOMMU protects memory from its function; run it as root, or with \
                 that capability as the owner of the group's file"
            ),
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
        let group_place = group_of(Path::new(FUNCTIONS), Path::new(MODULE), function)?;
        let no_window = || VfioFailure::NoWindow { function: function.to_owned(), window };
        let name = CString::new(function).map_err(|_| VfioFailure::Absent { function: function.to_owned() })?;
        if window >= WINDOWS {
            return Err(no_window());
        }
        let container = open(&Path::new(GROUPS).join("vfio"))?;
        let group = group_place.open()?;
        group_place.join(&container, &group)?;
        // SAFETY: the argument is a string that ends in NUL and outlives the call.
        let made = unsafe { ioctl(&group, GROUP_GET_DEVICE_FD, name.as_ptr() as usize) };
        let made =
            made.map_err(|source| VfioFailure::Kernel { what: format!("vfio does not open {function}"), source })?;
        // SAFETY: the new descriptor has no other owner.
        let opened = unsafe { File::from_raw_fd(made as RawFd) };
        let failed = |source| VfioFailure::Kernel { what: format!("vfio does not describe {function}"), source };
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

/// A function's group.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    /// Its file.
    path: PathBuf,
    /// Whether an IOMMU protects memory from its functions.
    has_iommu: bool,
}

/// The group of a function, by what the kernel shows of it.
fn group_of(functions: &Path, module: &Path, function: &str) -> Result<Group, VfioFailure> {
    let directory = functions.join(function);
    let last = |link: PathBuf| link.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    // A name, not a path: `.` and `..` have no driver of this name either.
    if function.is_empty() || function.contains('/') || !directory.is_dir() {
        return Err(VfioFailure::Absent { function: function.to_owned() });
    }
    let number = fs::read_link(directory.join("iommu_group")).ok().and_then(last);
    let mode = unsafe_mode(module);
    // Before its driver: vfio-pci would not take it.
    if number.is_none() && mode != UnsafeMode::On {
        return Err(VfioFailure::NoIommu { function: function.to_owned(), mode });
    }
    let driver = fs::read_link(directory.join("driver")).ok().and_then(last);
    if driver.as_deref() != Some("vfio-pci") {
        return Err(VfioFailure::OtherDriver { function: function.to_owned(), driver });
    }
    let number = number.ok_or_else(|| {
        let what = format!("{function} is in no group of vfio");
        VfioFailure::Kernel { what, source: io::Error::from_raw_os_error(libc::ENOENT) }
    })?;
    let name = fs::read_to_string(directory.join("iommu_group/name"));
    let has_iommu = !name.is_ok_and(|name| name.trim() == UNSAFE_GROUP);
    let path = Path::new(GROUPS).join(if has_iommu { number } else { format!("noiommu-{number}") });
    Ok(Group { path, has_iommu })
}

/// Whether vfio gives functions without an IOMMU.
fn unsafe_mode(module: &Path) -> UnsafeMode {
    match fs::read_to_string(module.join(UNSAFE_MODE)) {
        Ok(text) if text.trim() == "Y" => UnsafeMode::On,
        Ok(_) => UnsafeMode::Off,
        Err(_) if module.is_dir() => UnsafeMode::Absent,
        Err(_) => UnsafeMode::NotLoaded,
    }
}

fn open(path: &Path) -> Result<File, VfioFailure> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| VfioFailure::Kernel { what: format!("{} cannot be opened", path.display()), source })
}

impl Group {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn open(&self) -> Result<File, VfioFailure> {
        open(&self.path).map_err(|failure| self.with_capability(failure))
    }

    /// Puts the group into the container, and gives it an IOMMU, without which the kernel shows no function.
    fn join(&self, container: &File, group: &File) -> Result<(), VfioFailure> {
        let failed = |source| {
            self.with_capability(VfioFailure::Kernel { what: format!("{} cannot be used", self.name()), source })
        };
        // SAFETY: the argument is ignored.
        let version = unsafe { ioctl(container, GET_API_VERSION, 0) }.map_err(failed)?;
        if version != API_VERSION {
            return Err(failed(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT)));
        }
        let mut status = GroupStatus { bytes: size_of::<GroupStatus>() as u32, flags: 0 };
        // SAFETY: the kernel writes one `GroupStatus`, whose size is in its first field.
        unsafe { ioctl(group, GROUP_GET_STATUS, &raw mut status as usize) }.map_err(failed)?;
        if status.flags & VIABLE == 0 {
            return Err(VfioFailure::NotViable { group: self.name() });
        }
        let descriptor = container.as_raw_fd();
        // SAFETY: the kernel reads one descriptor from the argument.
        unsafe { ioctl(group, GROUP_SET_CONTAINER, &raw const descriptor as usize) }.map_err(failed)?;
        let kind = if self.has_iommu { TYPE1V2_IOMMU } else { NOIOMMU_IOMMU };
        // SAFETY: the argument is a number.
        unsafe { ioctl(container, SET_IOMMU, kind) }.map_err(failed).map(drop)
    }

    /// The failure; where the kernel refuses what needs a capability without an IOMMU, that. Who may not open the file
    /// hears of the capability, too: the file alone would not help, and nobody but root should have it.
    fn with_capability(&self, failure: VfioFailure) -> VfioFailure {
        let VfioFailure::Kernel { source, .. } = &failure else { return failure };
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) if !self.has_iommu => VfioFailure::NoRawIo { group: self.name() },
            _ => failure,
        }
    }
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

    /// A tree of functions as the kernel shows them, removed at the end.
    struct Functions(PathBuf);

    impl Functions {
        fn new(name: &str) -> Functions {
            let root = std::env::temp_dir().join(format!("aquifer-vfio-{name}-{}", std::process::id()));
            fs::create_dir_all(&root).unwrap();
            Functions(root)
        }

        fn add(&self, function: &str, driver: Option<&str>, group: Option<(&str, &str)>) {
            let directory = self.0.join(function);
            fs::create_dir_all(&directory).unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), directory.join("driver")).unwrap();
            }
            if let Some((number, name)) = group {
                let group = self.0.join("groups").join(number);
                fs::create_dir_all(&group).unwrap();
                // The kernel shows a name of groups that have one only.
                if !name.is_empty() {
                    fs::write(group.join("name"), format!("{name}\n")).unwrap();
                }
                symlink(group, directory.join("iommu_group")).unwrap();
            }
        }

        /// Sets vfio's parameter; without a value, the kernel was built without it.
        fn module(&self, parameter: Option<&str>) {
            let parameters = self.0.join("module/parameters");
            fs::create_dir_all(&parameters).unwrap();
            if let Some(value) = parameter {
                fs::write(self.0.join("module").join(UNSAFE_MODE), format!("{value}\n")).unwrap();
            }
        }

        fn group(&self, function: &str) -> Result<(String, bool), String> {
            let found = group_of(&self.0, &self.0.join("module"), function);
            found.map(|group| (group.name(), group.has_iommu)).map_err(|failure| failure.to_string())
        }
    }

    impl Drop for Functions {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_function_is_used_only_if_vfio_has_it() {
        let functions = Functions::new("drivers");
        functions.add("0000:01:00.0", None, Some(("5", "")));
        functions.add("0000:02:00.0", Some("nvme"), Some(("6", "")));
        functions.add("0000:03:00.0", Some("vfio-pci"), Some(("7", "")));
        assert!(functions.group("0000:01:00.0").unwrap_err().contains("has no driver; write vfio-pci to"));
        assert!(functions.group("0000:02:00.0").unwrap_err().contains("has the driver nvme; write vfio-pci to"));
        assert_eq!(functions.group("0000:03:00.0"), Ok(("/dev/vfio/7".to_owned(), true)));
        for absent in ["", "0000:04:00.0", "../x", "/dev"] {
            assert!(functions.group(absent).unwrap_err().contains("there is no PCI function"), "{absent}");
        }
    }

    #[test]
    fn without_an_iommu_a_function_is_used_in_the_unsafe_mode_only() {
        let functions = Functions::new("unsafe");
        let (none, other, bare) = ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0");
        functions.add(none, None, None);
        functions.add(other, Some("nvme"), None);
        functions.add(bare, Some("vfio-pci"), None);
        functions.add("0000:04:00.0", Some("vfio-pci"), Some(("0", UNSAFE_GROUP)));
        // As the IOMMU's driver names a group: no reason for doubt.
        functions.add("0000:05:00.0", Some("vfio-pci"), Some(("1", "sub-bus")));
        let refusals = |cause: &str, remedy: &str| {
            for function in [none, other, bare] {
                let refusal = functions.group(function).unwrap_err();
                assert!(refusal.starts_with(&format!("no IOMMU has {function}, and {cause}; ")), "{refusal}");
                assert!(refusal.contains("intel_iommu=on") && refusal.contains(remedy), "{refusal}");
            }
        };
        refusals("vfio is not loaded", "load vfio with enable_unsafe_noiommu_mode=1");
        functions.module(None);
        refusals("this kernel has no CONFIG_VFIO_NOIOMMU", "");
        functions.module(Some("N"));
        refusals("vfio's unsafe mode is not enabled", "can make its function write to any memory");
        functions.module(Some("Y"));
        assert!(functions.group(none).unwrap_err().contains("has no driver; write vfio-pci to"));
        assert!(functions.group(other).unwrap_err().contains("has the driver nvme; write vfio-pci to"));
        assert!(functions.group(bare).unwrap_err().contains("is in no group of vfio"));
        // Once it has its group, that counts, also if the parameter was reset since.
        for value in ["Y", "N"] {
            functions.module(Some(value));
            assert_eq!(functions.group("0000:04:00.0"), Ok(("/dev/vfio/noiommu-0".to_owned(), false)));
            assert_eq!(functions.group("0000:05:00.0"), Ok(("/dev/vfio/1".to_owned(), true)));
        }
    }

    #[test]
    fn a_missing_capability_is_named_where_no_iommu_makes_it_necessary() {
        let refused = |has_iommu, errno| {
            let group = Group { path: "/dev/vfio/noiommu-0".into(), has_iommu };
            let source = io::Error::from_raw_os_error(errno);
            group.with_capability(VfioFailure::Kernel { what: "it cannot be opened".into(), source }).to_string()
        };
        for errno in [libc::EPERM, libc::EACCES] {
            let without = refused(false, errno);
            assert!(without.starts_with("/dev/vfio/noiommu-0 needs CAP_SYS_RAWIO, since no IOMMU"), "{without}");
            assert!(without.contains("; run it as root"), "{without}");
            assert!(refused(true, errno).starts_with("it cannot be opened"));
        }
        assert!(refused(false, libc::EBUSY).contains("another program has the function"));
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
            VfioFailure::NoIommu { function: function(), mode: UnsafeMode::Absent },
            VfioFailure::NoIommu { function: function(), mode: UnsafeMode::NotLoaded },
            VfioFailure::NoIommu { function: function(), mode: UnsafeMode::Off },
            VfioFailure::NoRawIo { group: "/dev/vfio/noiommu-0".into() },
            VfioFailure::NoWindow { function: function(), window: 0 },
            VfioFailure::OtherDriver { function: function(), driver: None },
            VfioFailure::NotViable { group: "/dev/vfio/7".into() },
        ] {
            let text = failure.to_string();
            assert!(text.contains("; ") && !text.contains('\n'), "{text}");
        }
    }
}
