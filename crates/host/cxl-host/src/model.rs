// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A model of the kernel's files for CXL memory: what Linux 6.12 does when they are written, as seen in a guest.
//!
//! It has one or more windows, each with a node, and memdevs with two decoders each, which can be pulled out. It
//! refuses what the kernel refuses: steps out of order, decoders that are in use, memory blocks with pages that cannot
//! move. It does not refuse to take a memory device from the programs that have it open. A test can make any single
//! write fail, or that write and all later ones. Public for the tests of other crates.

mod commands;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::time::Duration;

use aquifer_nodes::Tree;

const DEVICES: &str = "/sys/bus/cxl/devices";
const DAX: &str = "/sys/bus/dax";
const BLOCKS: &str = "/sys/devices/system/memory";
/// A memory block.
pub const BLOCK_BYTES: u64 = 128 << 20;
const WINDOW_START: u64 = 0x1_9000_0000;
const WINDOW_BYTES: u64 = 4 << 30;
/// The size of each memdev.
pub const CAPACITY_BYTES: u64 = 512 << 20;
/// The offset of the capability of CXL devices in the configuration space, after another capability.
const DVSEC_AT: usize = 0x140;

/// The writes that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// No write.
    None,
    /// The write with this number, counted from 0.
    One(usize),
    /// All writes from this number on.
    From(usize),
}

/// The kernel's files.
#[derive(Debug)]
pub struct KernelModel {
    configs: RefCell<BTreeMap<String, Vec<u8>>>,
    files: RefCell<BTreeMap<String, String>>,
    links: RefCell<BTreeMap<String, String>>,
    failing: Cell<Failing>,
    writes: Cell<usize>,
    /// Blocks that cannot be emptied.
    held: RefCell<Vec<u64>>,
    /// Blocks that the kernel tries to empty without an end.
    endless: RefCell<Vec<u64>>,
    /// The zone in which the kernel brings new blocks online by itself, if it does.
    auto_online: Cell<Option<&'static str>>,
    /// Files that a program has locked.
    locked: RefCell<BTreeSet<String>>,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// A configuration space whose DVSEC declares these ranges.
pub fn config_of(ranges: &[u64]) -> Vec<u8> {
    let mut config = vec![0; 4096];
    let mut put = |at: usize, word: u32| config[at..at + 4].copy_from_slice(&word.to_le_bytes());
    put(0x100, (DVSEC_AT as u32) << 20 | 1);
    put(DVSEC_AT, 0x0023);
    put(DVSEC_AT + 4, 0x1e98);
    put(DVSEC_AT + 8, (ranges.len() as u32) << 20 | 4 << 16);
    for (range, bytes) in ranges.iter().enumerate() {
        let at = DVSEC_AT + 0x18 + 16 * range;
        put(at, (bytes >> 32) as u32);
        put(at + 4, (*bytes as u32 & 0xf000_0000) | 3);
    }
    config
}

impl KernelModel {
    /// A host with this many memdevs, and one window.
    pub fn new(memdevs: u64) -> KernelModel {
        Self::with_windows(memdevs, 1)
    }

    /// A host with this many memdevs, of which memdev N has the serial number `0x1000 + (N ^ 1)`, and windows.
    pub fn with_windows(memdevs: u64, windows: u64) -> KernelModel {
        let mut files = BTreeMap::new();
        let mut add = |path: String, text: &str| files.insert(path, text.to_owned());
        for number in 0..windows {
            let window = format!("{DEVICES}/decoder0.{number}");
            add(format!("{window}/start"), &format!("{:#x}", WINDOW_START + number * WINDOW_BYTES));
            add(format!("{window}/size"), &format!("{WINDOW_BYTES:#x}"));
            for (file, text) in
                [("cap_ram", "1"), ("cap_pmem", "1"), ("create_ram_region", "region0"), ("delete_region", "")]
            {
                add(format!("{window}/{file}"), text);
            }
        }
        add(format!("{BLOCKS}/block_size_bytes"), "8000000");
        add(format!("{DEVICES}/decoder1.0/start"), "0x0");
        for file in ["bind", "unbind"] {
            add(format!("/sys/bus/cxl/drivers/cxl_region/{file}"), "");
            for driver in ["kmem", "device_dax"] {
                add(format!("{DAX}/drivers/{driver}/{file}"), "");
            }
        }
        for driver in ["kmem", "device_dax"] {
            add(format!("{DAX}/drivers/{driver}/new_id"), "");
            add(format!("{DAX}/drivers/{driver}/remove_id"), "");
        }
        let model = KernelModel {
            configs: RefCell::default(),
            files: RefCell::new(files),
            links: RefCell::default(),
            failing: Cell::new(Failing::None),
            writes: Cell::new(0),
            held: RefCell::default(),
            endless: RefCell::default(),
            auto_online: Cell::new(None),
            locked: RefCell::default(),
        };
        // The kernel finds them in any order: names and serial numbers differ.
        (0..memdevs).for_each(|number| model.plug(number, 0x1000 + (number ^ 1), CAPACITY_BYTES));
        model
    }

    /// A memdev appears at the vPPB with its number.
    pub fn plug(&self, number: u64, serial: u64, bytes: u64) {
        self.plug_at(number, number, serial, bytes);
    }

    /// A memdev appears at a vPPB.
    pub fn plug_at(&self, vppb: u64, number: u64, serial: u64, bytes: u64) {
        let (memdev, endpoint) = (format!("mem{number}"), format!("endpoint{}", number + 3));
        self.set(&format!("{DEVICES}/{memdev}/serial"), &format!("{serial:#x}"));
        self.set(&format!("{DEVICES}/{memdev}/ram/size"), &format!("{bytes:#x}"));
        self.set(&format!("{DEVICES}/{memdev}/pmem/size"), "0x0");
        self.configs.borrow_mut().insert(format!("{DEVICES}/{memdev}/../config"), config_of(&[bytes]));
        // The device, the vPPB, the upstream port and the root port. The kernel gives buses out as devices appear.
        let bus = 0x10 + number;
        for (above, address) in
            [("..", format!("{bus:02x}:00.0")), ("../..", format!("0e:{vppb:02x}.0")), ("../../..", "0d:00.0".into())]
        {
            let uevent = format!("DRIVER=pcieport\nPCI_SLOT_NAME=0000:{address}");
            self.set(&format!("{DEVICES}/{memdev}/{above}/uevent"), &uevent);
        }
        self.set(&format!("{DEVICES}/{memdev}/../../../../uevent"), "PCI_SLOT_NAME=0000:0c:00.0");
        self.links.borrow_mut().insert(format!("{DEVICES}/{endpoint}/uport"), memdev);
        for index in 0..2 {
            let decoder = format!("decoder{}.{index}", number + 3);
            // In the endpoint's directory, and in the list of all devices.
            self.set(&format!("{DEVICES}/{endpoint}/{decoder}/devtype"), "cxl_decoder_endpoint");
            for (file, text) in [("mode", "none"), ("dpa_size", "0x0"), ("size", "0x0"), ("region", "")] {
                self.set(&format!("{DEVICES}/{decoder}/{file}"), text);
            }
        }
    }

    /// A memdev is pulled out. Its regions lose it, and their driver, and can no longer be used.
    pub fn pull(&self, number: u64) {
        for index in 0..2 {
            let decoder = format!("decoder{}.{index}", number + 3);
            let region = self.get(&format!("{DEVICES}/{decoder}/region")).unwrap_or_default();
            if !region.is_empty() {
                let dax = self.dax_of(&region);
                self.links.borrow_mut().remove(&format!("{DAX}/devices/{dax}/driver"));
                self.blocks_of(&dax).for_each(|block| self.remove_below(&format!("{BLOCKS}/memory{block}")));
                let _ = self.unbind(&region);
                for (file, text) in [("commit", "0"), ("target0", "")] {
                    self.set(&format!("{DEVICES}/{region}/{file}"), text);
                }
            }
            self.remove_below(&format!("{DEVICES}/{decoder}"));
        }
        self.remove_below(&format!("{DEVICES}/endpoint{}", number + 3));
        self.remove_below(&format!("{DEVICES}/mem{number}"));
    }

    /// Makes a memdev declare other sizes than it has.
    pub fn declare(&self, memdev: &str, ranges: &[u64]) {
        self.configs.borrow_mut().insert(format!("{DEVICES}/{memdev}/../config"), config_of(ranges));
    }

    /// The same model, with failing writes.
    pub fn failing(self, failing: Failing) -> KernelModel {
        self.fail(failing);
        self
    }

    /// Sets the writes that fail, counted from now.
    pub fn fail(&self, failing: Failing) {
        self.failing.set(failing);
        self.writes.set(0);
    }

    /// Number of writes since the failures were last set.
    pub fn writes(&self) -> usize {
        self.writes.get()
    }

    /// Makes the kernel bring new blocks online by itself, in this zone.
    pub fn auto_online(&self, zone: &'static str) {
        self.auto_online.set(Some(zone));
    }

    /// Sets the memory blocks that cannot be emptied.
    pub fn hold(&self, blocks: &[u64]) {
        *self.held.borrow_mut() = blocks.to_vec();
    }

    /// Sets the memory blocks that the kernel tries to empty until a signal arrives. A write without a limit would
    /// never return: it panics.
    pub fn never_empty(&self, blocks: &[u64]) {
        *self.endless.borrow_mut() = blocks.to_vec();
    }

    /// A process opens a file, and maps this much of it.
    pub fn open(&self, pid: u32, path: &str, mapped_bytes: u64) {
        let (process, start) = (format!("/proc/{pid}"), 0x7f00_0000_0000u64);
        self.set(&format!("{process}/comm"), "redis-server");
        self.links.borrow_mut().insert(format!("{process}/fd/3"), path.to_owned());
        self.set(
            &format!("{process}/maps"),
            "5581c7600000-5581c7641000 r-xp 00000000 08:01 42    /usr/bin/redis-server",
        );
        if mapped_bytes > 0 {
            let end = start + mapped_bytes;
            self.set(&format!("{process}/maps"), &format!("{start:x}-{end:x} rw-s 00000000 00:06 470    {path}"));
            self.links.borrow_mut().insert(format!("{process}/map_files/{start:x}-{end:x}"), path.to_owned());
        }
    }

    /// A process ends.
    pub fn end(&self, pid: u32) {
        self.remove_below(&format!("/proc/{pid}"));
    }

    /// Sets whether a program has locked a file.
    pub fn set_locked(&self, path: &str, is_locked: bool) {
        let mut locked = self.locked.borrow_mut();
        _ = if is_locked { locked.insert(path.to_owned()) } else { locked.remove(path) };
    }

    /// Sets the text of a file.
    pub fn set(&self, path: &str, text: &str) {
        self.files.borrow_mut().insert(path.to_owned(), text.to_owned());
    }

    /// All files and links, to compare states, without the files that only take commands, and without the numbers of
    /// devices, which are other ones each time.
    pub fn state(&self) -> BTreeMap<String, String> {
        let is_left_out = |path: &String| path.ends_with("create_ram_region") || path.ends_with("/dev");
        let is_state = |path: &String| !path.contains("/drivers/") && !is_left_out(path);
        // The mode of a decoder without memory has no meaning and cannot be reset.
        let is_free = |path: &String| path.ends_with("/mode") && path.contains("/decoder");
        let files = self.files.borrow();
        let state = files
            .iter()
            .chain(self.links.borrow().iter())
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect::<Vec<_>>();
        state.into_iter().filter(|(path, _)| is_state(path) && !is_free(path)).collect()
    }

    pub(super) fn get(&self, path: &str) -> io::Result<String> {
        self.files.borrow().get(path).cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    pub(super) fn value(&self, path: &str) -> u64 {
        self.number(path).unwrap_or(0)
    }

    /// Whether a write of `offline` to this file never ends.
    fn is_endless(&self, path: &str) -> bool {
        self.endless.borrow().iter().any(|block| path == format!("{BLOCKS}/memory{block}/state"))
    }

    pub(super) fn remove_below(&self, prefix: &str) {
        let prefix = format!("{prefix}/");
        self.files.borrow_mut().retain(|path, _| !path.starts_with(&prefix));
        self.links.borrow_mut().retain(|path, _| !path.starts_with(&prefix));
    }
}

impl Tree for KernelModel {
    fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        let config = self.configs.borrow().get(path).cloned();
        let mut bytes = config.map_or_else(|| self.get(path).map(String::into_bytes), Ok)?;
        bytes.truncate(max);
        Ok(bytes)
    }

    fn text(&self, path: &str) -> io::Result<String> {
        Ok(self.get(path)?.trim().to_owned())
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{path}/");
        let (files, links) = (self.files.borrow(), self.links.borrow());
        let below = files.keys().chain(links.keys()).filter_map(|path| path.strip_prefix(&prefix));
        let names: std::collections::BTreeSet<String> =
            below.filter_map(|rest| rest.split('/').next()).map(str::to_owned).collect();
        if names.is_empty() { Err(errno(libc::ENOENT)) } else { Ok(names.into_iter().collect()) }
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let links = self.links.borrow();
        let target = links.get(path).ok_or_else(|| errno(libc::ENOENT))?;
        Ok(target.rsplit('/').next().unwrap_or(target).to_owned())
    }

    /// A file of /dev without a memory device is another device.
    fn device_number(&self, path: &str) -> io::Result<(u32, u32)> {
        let links = self.links.borrow();
        let target = links.get(path).ok_or_else(|| errno(libc::ENOENT))?;
        let name = target.strip_prefix("/dev/").ok_or_else(|| errno(libc::ENOTTY))?;
        let number = self.get(&format!("{DAX}/devices/{name}/dev")).unwrap_or_else(|_| "1:3".into());
        let (major, minor) = number.split_once(':').ok_or_else(|| errno(libc::EIO))?;
        Ok((major.parse().map_err(|_| errno(libc::EIO))?, minor.parse().map_err(|_| errno(libc::EIO))?))
    }

    fn lock(&self, path: &str) -> io::Result<Option<File>> {
        if self.locked.borrow().contains(path) { Err(errno(libc::EWOULDBLOCK)) } else { Ok(None) }
    }

    fn write_within(&self, path: &str, value: &str, _limit: Duration) -> io::Result<()> {
        if value == "offline" && self.is_endless(path) {
            self.writes.set(self.writes.get() + 1);
            return Err(errno(libc::EINTR));
        }
        self.write(path, value)
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        assert!(value != "offline" || !self.is_endless(path), "a write to {path} that never returns");
        let number = self.writes.replace(self.writes.get() + 1);
        match self.failing.get() {
            Failing::One(failing) if number == failing => Err(errno(libc::EIO)),
            Failing::From(failing) if number >= failing => Err(errno(libc::EIO)),
            _ => self.command(path, value),
        }
    }
}
