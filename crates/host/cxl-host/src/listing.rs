// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What there is: memdevs with their endpoint decoders, windows of the host's addresses, and regions.
//!
//! Numbers of memdevs and endpoints follow the order in which the kernel finds devices, and change from boot to boot; a
//! serial number stays.

use std::cell::RefCell;
use std::io;

use aquifer_nodes::Tree;
use aquifer_nodes::dax::{self, Device};
use serde::Serialize;

use crate::failure::CxlFailure;

pub(crate) const DEVICES: &str = "/sys/bus/cxl/devices";
/// Maximum number of PCI devices from a memdev to its root port. A bus number has 8 bits; real ways have four.
const BRIDGES_MAX: usize = 32;
/// Maximum number of targets of a region. The specification allows 16.
pub(crate) const WAYS_MAX: u64 = 16;

/// A CXL device with memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memdev {
    /// Its name, such as `mem0`.
    pub name: String,
    /// Its serial number.
    pub serial: Option<u64>,
    /// Its volatile capacity.
    pub ram_bytes: u64,
    /// Its persistent capacity.
    pub pmem_bytes: u64,
    /// The way to its PCI device: the address of the root port, and the device and function numbers of each bridge and
    /// of the device itself, such as `0000:0c:00.0/00.0/02.0/00.0`. The last bridge of a switch is a vPPB. Unlike an
    /// address, it has no bus numbers that the kernel gives out as devices appear. `None` if it is no PCI device.
    #[serde(skip)]
    pub pci_path: Option<String>,
    /// Its endpoint, such as `endpoint3`; `None` until the kernel has found its way to a window.
    pub endpoint: Option<String>,
    /// The decoders of the endpoint.
    pub decoders: Vec<Decoder>,
}

impl Memdev {
    /// The volatile capacity that no decoder has.
    pub fn ram_free_bytes(&self) -> u64 {
        let taken = self.decoders.iter().filter(|decoder| decoder.mode == "ram").map(|decoder| decoder.dpa_bytes);
        self.ram_bytes.saturating_sub(taken.sum())
    }

    /// Its name and serial number, for messages.
    pub fn text(&self) -> String {
        match self.serial {
            Some(serial) => format!("{} (serial {serial:#x})", self.name),
            None => self.name.clone(),
        }
    }
}

/// An HDM decoder of an endpoint: a range of a device's own addresses, and its place in the host's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoder {
    /// Its name, such as `decoder3.0`.
    pub name: String,
    /// `ram`, `pmem`, or `none` for a free one.
    pub mode: String,
    /// How much of the device it has.
    pub dpa_bytes: u64,
    /// How much of the host's addresses it decodes.
    pub hpa_bytes: u64,
    /// The region that it belongs to.
    pub region: Option<String>,
}

/// A root decoder: a range of the host's addresses for CXL memory, fixed by the firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Its name, such as `decoder0.0`.
    pub name: String,
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Over how many host bridges it interleaves. The firmware has decided it.
    pub ways: u64,
    /// The bytes that lie together below one host bridge.
    pub granularity_bytes: u64,
    /// Whether it may have volatile memory.
    pub takes_ram: bool,
    /// Whether it may have persistent memory.
    pub takes_pmem: bool,
    /// The names of its regions.
    pub regions: Vec<String>,
}

/// A range of the host's addresses that one or several memdevs back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Its name, such as `region0`.
    pub name: String,
    /// The window that it is in.
    pub window: Option<String>,
    /// `ram` or `pmem`.
    pub mode: String,
    /// Its first address, if it has one yet.
    pub resource: Option<u64>,
    /// Its length.
    pub bytes: u64,
    /// The bytes that lie together on one target.
    pub granularity_bytes: u64,
    /// The endpoint decoders that it consists of, in their order.
    pub targets: Vec<String>,
    /// Whether the decoders are set and locked.
    pub is_committed: bool,
    /// Whether a driver is bound to it, so that its memory can be used.
    pub is_enabled: bool,
    /// Its memory devices.
    pub devices: Vec<Device>,
}

/// The CXL memory of a machine, as sysfs shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The devices.
    pub memdevs: Vec<Memdev>,
    /// The windows.
    pub windows: Vec<Window>,
    /// The regions.
    pub regions: Vec<Region>,
    /// Memory devices that belong to no region, such as those of the firmware.
    pub devices: Vec<Device>,
}

impl Listing {
    /// Reads sysfs. Empty on a machine without CXL. Fails if something that is there cannot be read, because memory in
    /// use would be missing from the listing; values that only root may read are left out for others.
    pub fn read(tree: &dyn Tree) -> Result<Listing, CxlFailure> {
        let reading = Reading { tree, failed: RefCell::new(None) };
        let listing = Self::read_all(&reading);
        match reading.failed.into_inner() {
            Some((path, source)) => Err(CxlFailure::Unreadable { path, source }),
            None => Ok(listing),
        }
    }

    fn read_all(tree: &dyn Tree) -> Listing {
        let names = tree.names(DEVICES).unwrap_or_default();
        let of = |prefix: &str| names.iter().filter(|name| is_numbered(name, prefix)).cloned().collect::<Vec<_>>();
        let windows: Vec<Window> =
            names.iter().filter(|name| name.starts_with("decoder")).filter_map(|name| window(tree, name)).collect();
        let endpoints: Vec<(String, String)> = of("endpoint")
            .into_iter()
            .filter_map(|endpoint| Some((tree.link(&format!("{DEVICES}/{endpoint}/uport")).ok()?, endpoint)))
            .collect();
        let regions: Vec<Region> = of("region").iter().map(|name| region(tree, name, &windows)).collect();
        let of_region = |device: &Device| regions.iter().any(|region| region.devices.contains(device));
        let devices = dax::devices(tree).into_iter().filter(|device| !of_region(device)).collect();
        let memdevs = of("mem").iter().map(|name| memdev(tree, name, &endpoints)).collect();
        Listing { memdevs, windows, regions, devices }
    }

    /// The memdev of this name, or with this serial number.
    pub fn memdev(&self, named: &str) -> Option<&Memdev> {
        let serial = match named.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => named.parse().ok(),
        };
        self.memdevs.iter().find(|memdev| memdev.name == named || (serial.is_some() && memdev.serial == serial))
    }

    /// The region of this name.
    pub fn region(&self, named: &str) -> Option<&Region> {
        self.regions.iter().find(|region| region.name == named)
    }

    /// The memory device of this name, in a region or in none.
    pub fn device(&self, named: &str) -> Option<&Device> {
        let of_regions = self.regions.iter().flat_map(|region| &region.devices);
        of_regions.chain(&self.devices).find(|device| device.name == named)
    }
}

/// Files that are read, and the first that could not be.
struct Reading<'a> {
    tree: &'a dyn Tree,
    failed: RefCell<Option<(String, io::Error)>>,
}

impl Reading<'_> {
    fn note<T>(&self, path: &str, read: io::Result<T>) -> io::Result<T> {
        read.inspect_err(|error| {
            // A text that is no number has no code, and no value either.
            if let Some(code) = error.raw_os_error().filter(|_| !is_not_there(error)) {
                self.failed.borrow_mut().get_or_insert((path.to_owned(), io::Error::from_raw_os_error(code)));
            }
        })
    }
}

impl Tree for Reading<'_> {
    fn text(&self, path: &str) -> io::Result<String> {
        self.note(path, self.tree.text(path))
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.note(path, self.tree.names(path))
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.note(path, self.tree.link(path))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        self.tree.write(path, value)
    }
}

/// Whether a file is not there, or its object or process has just gone, or it is not for this user. Every other error,
/// such as EMFILE or ENOMEM, does not say what the file has.
pub(crate) fn is_not_there(error: &io::Error) -> bool {
    let codes = [
        libc::ENOENT,
        libc::ENODEV,
        libc::ENXIO,
        libc::ENOTDIR,
        libc::ESRCH,
        // No symbolic link.
        libc::EINVAL,
        libc::EACCES,
        libc::EPERM,
    ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Whether a name is the prefix and a number: `mem0`, and not `memory`.
fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn memdev(tree: &dyn Tree, name: &str, endpoints: &[(String, String)]) -> Memdev {
    let number = |file: &str| tree.number(&format!("{DEVICES}/{name}/{file}"));
    let endpoint = endpoints.iter().find(|(uport, _)| uport == name).map(|(_, endpoint)| endpoint.clone());
    let decoders = endpoint.iter().flat_map(|endpoint| {
        let names = tree.names(&format!("{DEVICES}/{endpoint}")).unwrap_or_default();
        names.into_iter().filter(|name| name.starts_with("decoder")).map(|name| decoder(tree, name))
    });
    Memdev {
        name: name.to_owned(),
        serial: number("serial").ok(),
        ram_bytes: number("ram/size").unwrap_or(0),
        pmem_bytes: number("pmem/size").unwrap_or(0),
        pci_path: pci_path(tree, name),
        decoders: decoders.collect(),
        endpoint,
    }
}

fn pci_path(tree: &dyn Tree, memdev: &str) -> Option<String> {
    let mut path = Vec::new();
    // Through the memdev's link, `..` is its PCI device, and then the bridges up to the root port.
    let mut directory = format!("{DEVICES}/{memdev}");
    for _ in 0..BRIDGES_MAX {
        directory.push_str("/..");
        let uevent = tree.text(&format!("{directory}/uevent")).unwrap_or_default();
        let Some(address) = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")) else { break };
        path.push(address.to_owned());
    }
    let root = path.pop()?;
    let numbers = path.iter().rev().map(|address| address.rsplit(':').next().unwrap_or(address));
    Some(numbers.fold(root, |way, number| format!("{way}/{number}")))
}

fn decoder(tree: &dyn Tree, name: String) -> Decoder {
    let file = |file: &str| format!("{DEVICES}/{name}/{file}");
    Decoder {
        mode: tree.text(&file("mode")).unwrap_or_else(|_| "none".into()),
        dpa_bytes: tree.number(&file("dpa_size")).unwrap_or(0),
        hpa_bytes: tree.number(&file("size")).unwrap_or(0),
        region: tree.text(&file("region")).ok().filter(|region| !region.is_empty()),
        name,
    }
}

/// A decoder is a window if regions can be made in it.
fn window(tree: &dyn Tree, name: &str) -> Option<Window> {
    let file = |file: &str| format!("{DEVICES}/{name}/{file}");
    let can = |what: &str| tree.text(&file(what)).is_ok_and(|text| text == "1");
    let (takes_ram, takes_pmem) = (can("cap_ram"), can("cap_pmem"));
    let inside = tree.names(&format!("{DEVICES}/{name}")).ok()?;
    if !inside.iter().any(|name| name == "delete_region") {
        return None;
    }
    Some(Window {
        name: name.to_owned(),
        start: tree.number(&file("start")).unwrap_or(0),
        bytes: tree.number(&file("size")).unwrap_or(0),
        ways: tree.number(&file("interleave_ways")).unwrap_or(1).max(1),
        granularity_bytes: tree.number(&file("interleave_granularity")).unwrap_or(0),
        takes_ram,
        takes_pmem,
        regions: inside.into_iter().filter(|name| is_numbered(name, "region")).collect(),
    })
}

fn region(tree: &dyn Tree, name: &str, windows: &[Window]) -> Region {
    let file = |file: &str| format!("{DEVICES}/{name}/{file}");
    let ways = tree.number(&file("interleave_ways")).unwrap_or(0).min(WAYS_MAX);
    let targets = (0..ways).filter_map(|way| tree.text(&file(&format!("target{way}"))).ok());
    let number = name.trim_start_matches("region");
    let devices = tree.names(&file(&format!("dax_region{number}"))).unwrap_or_default();
    Region {
        name: name.to_owned(),
        window: windows
            .iter()
            .find(|window| window.regions.iter().any(|region| region == name))
            .map(|it| it.name.clone()),
        mode: tree.text(&file("mode")).unwrap_or_default(),
        resource: tree.number(&file("resource")).ok().filter(|address| *address != u64::MAX),
        bytes: tree.number(&file("size")).unwrap_or(0),
        granularity_bytes: tree.number(&file("interleave_granularity")).unwrap_or(0),
        targets: targets.filter(|target| !target.is_empty()).collect(),
        is_committed: tree.text(&file("commit")).is_ok_and(|text| text == "1"),
        is_enabled: tree.link(&file("driver")).is_ok(),
        devices: devices
            .iter()
            .filter(|name| name.starts_with("dax"))
            .filter_map(|name| dax::device(tree, name))
            .collect(),
    }
}
