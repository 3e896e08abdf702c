// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A model of the kernel's files for CXL memory: what Linux 6.12 does when they are written, as seen in a guest.
//!
//! It has one window and some memdevs with two decoders each. It refuses what the kernel refuses: steps out of order,
//! decoders that are in use, memory blocks with pages that cannot move. Any one write, or all from one on, can be made
//! to fail.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

use aquifer_nodes::Tree;

const DEVICES: &str = "/sys/bus/cxl/devices";
const DAX: &str = "/sys/bus/dax";
const BLOCKS: &str = "/sys/devices/system/memory";
pub const BLOCK_BYTES: u64 = 128 << 20;
const WINDOW_START: u64 = 0x1_9000_0000;
pub const CAPACITY_BYTES: u64 = 512 << 20;

/// Which writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    None,
    /// The one of this number, from 0.
    One(usize),
    /// All from this number on.
    From(usize),
}

pub struct Model {
    files: RefCell<BTreeMap<String, String>>,
    links: RefCell<BTreeMap<String, String>>,
    failing: Cell<Failing>,
    writes: Cell<usize>,
    /// Blocks that cannot be emptied.
    held: RefCell<Vec<u64>>,
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl Model {
    pub fn new(memdevs: u64) -> Model {
        let mut files = BTreeMap::new();
        let mut links = BTreeMap::new();
        let mut add = |path: String, text: &str| files.insert(path, text.to_owned());
        let window = format!("{DEVICES}/decoder0.0");
        for (file, text) in [
            ("start", "0x190000000"),
            ("size", "0x100000000"),
            ("cap_ram", "1"),
            ("cap_pmem", "1"),
            ("create_ram_region", "region0"),
            ("delete_region", ""),
        ] {
            add(format!("{window}/{file}"), text);
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
        for number in 0..memdevs {
            // The kernel finds them in any order: names and serial numbers differ.
            let (memdev, endpoint) = (format!("mem{number}"), format!("endpoint{}", number + 3));
            add(format!("{DEVICES}/{memdev}/serial"), &format!("{:#x}", 0x1000 + (number ^ 1)));
            add(format!("{DEVICES}/{memdev}/ram/size"), &format!("{CAPACITY_BYTES:#x}"));
            add(format!("{DEVICES}/{memdev}/pmem/size"), "0x0");
            links.insert(format!("{DEVICES}/{endpoint}/uport"), memdev);
            for index in 0..2 {
                let decoder = format!("decoder{}.{index}", number + 3);
                // In the endpoint's directory, and in the list of all devices.
                add(format!("{DEVICES}/{endpoint}/{decoder}/devtype"), "cxl_decoder_endpoint");
                for (file, text) in [("mode", "none"), ("dpa_size", "0x0"), ("size", "0x0"), ("region", "")] {
                    add(format!("{DEVICES}/{decoder}/{file}"), text);
                }
            }
        }
        let (files, links) = (RefCell::new(files), RefCell::new(links));
        let (failing, writes) = (Cell::new(Failing::None), Cell::new(0));
        Model { files, links, failing, writes, held: RefCell::default() }
    }

    pub fn failing(self, failing: Failing) -> Model {
        self.fail(failing);
        self
    }

    /// From now on, counted from now.
    pub fn fail(&self, failing: Failing) {
        self.failing.set(failing);
        self.writes.set(0);
    }

    pub fn writes(&self) -> usize {
        self.writes.get()
    }

    /// Memory blocks from now on cannot be emptied.
    pub fn hold(&self, blocks: &[u64]) {
        *self.held.borrow_mut() = blocks.to_vec();
    }

    pub fn set(&self, path: &str, text: &str) {
        self.files.borrow_mut().insert(path.to_owned(), text.to_owned());
    }

    /// All files and links, to compare states. What was last written to a command is not a state.
    pub fn state(&self) -> BTreeMap<String, String> {
        let is_state = |path: &String| !path.contains("/drivers/") && !path.ends_with("create_ram_region");
        // The mode of a decoder without memory means nothing, and nothing can set it back.
        let is_free = |path: &String| path.ends_with("/mode") && path.contains("/decoder");
        let files = self.files.borrow();
        let state = files
            .iter()
            .chain(self.links.borrow().iter())
            .map(|(path, text)| (path.clone(), text.clone()))
            .collect::<Vec<_>>();
        state.into_iter().filter(|(path, _)| is_state(path) && !is_free(path)).collect()
    }

    fn get(&self, path: &str) -> io::Result<String> {
        self.files.borrow().get(path).cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    fn value(&self, path: &str) -> u64 {
        self.number(path).unwrap_or(0)
    }

    fn remove_below(&self, prefix: &str) {
        let prefix = format!("{prefix}/");
        self.files.borrow_mut().retain(|path, _| !path.starts_with(&prefix));
        self.links.borrow_mut().retain(|path, _| !path.starts_with(&prefix));
    }

    fn create_region(&self, name: &str) -> io::Result<()> {
        let file = format!("{DEVICES}/decoder0.0/create_ram_region");
        if self.get(&file)? != name {
            return Err(errno(libc::EBUSY));
        }
        let number: u32 = name.trim_start_matches("region").parse().map_err(|_| errno(libc::EINVAL))?;
        self.set(&file, &format!("region{}", number + 1));
        self.set(&format!("{DEVICES}/decoder0.0/{name}/uevent"), "");
        for (file, text) in [
            ("mode", "ram"),
            ("size", "0x0"),
            ("commit", "0"),
            ("interleave_ways", "0"),
            ("interleave_granularity", "0"),
        ] {
            self.set(&format!("{DEVICES}/{name}/{file}"), text);
        }
        Ok(())
    }

    fn delete_region(&self, name: &str) -> io::Result<()> {
        self.get(&format!("{DEVICES}/{name}/commit"))?;
        if self.links.borrow().contains_key(&format!("{DEVICES}/{name}/driver")) {
            self.unbind(name)?;
        }
        for way in 0..16 {
            let target = self.get(&format!("{DEVICES}/{name}/target{way}")).unwrap_or_default();
            if !target.is_empty() {
                self.set(&format!("{DEVICES}/{target}/region"), "");
                self.set(&format!("{DEVICES}/{target}/size"), "0x0");
            }
        }
        self.remove_below(&format!("{DEVICES}/{name}"));
        self.remove_below(&format!("{DEVICES}/decoder0.0/{name}"));
        Ok(())
    }

    fn commit(&self, name: &str, on: bool) -> io::Result<()> {
        let file = |file: &str| format!("{DEVICES}/{name}/{file}");
        let (ways, size) = (self.value(&file("interleave_ways")).min(16), self.value(&file("size")));
        let targets: Vec<String> =
            (0..ways).map(|way| self.get(&file(&format!("target{way}"))).unwrap_or_default()).collect();
        if on && (ways == 0 || size == 0 || targets.iter().any(String::is_empty)) {
            return Err(errno(libc::ENXIO));
        }
        for target in targets.iter().filter(|target| !target.is_empty()) {
            self.set(&format!("{DEVICES}/{target}/size"), &format!("{:#x}", if on { size } else { 0 }));
        }
        self.set(&file("commit"), if on { "1" } else { "0" });
        Ok(())
    }

    fn bind(&self, name: &str) -> io::Result<()> {
        if self.get(&format!("{DEVICES}/{name}/commit"))? != "1" {
            return Err(errno(libc::ENXIO));
        }
        let number = name.trim_start_matches("region");
        let (dax, size) = (format!("dax{number}.0"), self.value(&format!("{DEVICES}/{name}/size")));
        self.links.borrow_mut().insert(format!("{DEVICES}/{name}/driver"), "cxl_region".into());
        self.set(&format!("{DEVICES}/{name}/dax_region{number}/{dax}/uevent"), "");
        for (file, text) in [
            ("size", size.to_string()),
            ("align", (2 << 20).to_string()),
            ("target_node", "1".into()),
            ("resource", format!("{WINDOW_START:#x}")),
        ] {
            self.set(&format!("{DAX}/devices/{dax}/{file}"), &text);
        }
        self.take("kmem", &dax)
    }

    fn unbind(&self, name: &str) -> io::Result<()> {
        let number = name.trim_start_matches("region");
        let dax = format!("dax{number}.0");
        self.links.borrow_mut().remove(&format!("{DEVICES}/{name}/driver")).ok_or_else(|| errno(libc::ENODEV))?;
        let _ = self.release(&dax);
        self.remove_below(&format!("{DAX}/devices/{dax}"));
        self.remove_below(&format!("{DEVICES}/{name}/dax_region{number}"));
        Ok(())
    }

    fn blocks_of(&self, dax: &str) -> std::ops::Range<u64> {
        let size = self.value(&format!("{DAX}/devices/{dax}/size"));
        // No test has devices of more than 1 GiB.
        WINDOW_START.div_ceil(BLOCK_BYTES)..(WINDOW_START + size.min(1 << 30)) / BLOCK_BYTES
    }

    /// A driver takes a device; kmem adds its blocks, offline.
    fn take(&self, driver: &str, dax: &str) -> io::Result<()> {
        let link = format!("{DAX}/devices/{dax}/driver");
        self.get(&format!("{DAX}/devices/{dax}/size"))?;
        if self.links.borrow().contains_key(&link) {
            return Err(errno(libc::EBUSY));
        }
        self.links.borrow_mut().insert(link, driver.to_owned());
        if driver == "kmem" {
            for block in self.blocks_of(dax) {
                self.set(&format!("{BLOCKS}/memory{block}/state"), "offline");
                self.set(&format!("{BLOCKS}/memory{block}/valid_zones"), "Normal Movable");
            }
        }
        Ok(())
    }

    /// The driver lets a device go. Memory that is online stays for ever, as in the kernel.
    fn release(&self, dax: &str) -> io::Result<()> {
        for block in self.blocks_of(dax) {
            if self.get(&format!("{BLOCKS}/memory{block}/state")).is_ok_and(|state| state == "online") {
                return Err(errno(libc::EBUSY));
            }
        }
        for block in self.blocks_of(dax) {
            self.remove_below(&format!("{BLOCKS}/memory{block}"));
        }
        let removed = self.links.borrow_mut().remove(&format!("{DAX}/devices/{dax}/driver"));
        removed.map(|_| ()).ok_or_else(|| errno(libc::ENODEV))
    }

    fn block_state(&self, block: u64, value: &str) -> io::Result<()> {
        let file = |file: &str| format!("{BLOCKS}/memory{block}/{file}");
        let now = self.get(&file("state"))?;
        match (value, now.as_str()) {
            ("online_movable" | "online_kernel", "offline") => {
                self.set(&file("state"), "online");
                let zone = if value == "online_movable" { "Movable" } else { "Normal" };
                self.set(&file("valid_zones"), zone);
            }
            ("offline", "online") if self.held.borrow().contains(&block) => return Err(errno(libc::EBUSY)),
            ("offline", "online") => {
                self.set(&file("state"), "offline");
                self.set(&file("valid_zones"), "Normal Movable");
            }
            _ => return Err(errno(libc::EINVAL)),
        }
        Ok(())
    }

    fn target(&self, region: &str, target: &str, decoder: &str) -> io::Result<()> {
        let file = format!("{DEVICES}/{region}/{target}");
        let before = self.get(&file)?;
        if self.get(&format!("{DEVICES}/{region}/commit"))? == "1" {
            return Err(errno(libc::EBUSY));
        }
        if decoder == "\n" {
            self.set(&format!("{DEVICES}/{before}/region"), "");
            self.set(&file, "");
            return Ok(());
        }
        if self.get(&format!("{DEVICES}/{decoder}/mode"))? != "ram"
            || self.value(&format!("{DEVICES}/{decoder}/dpa_size")) == 0
        {
            return Err(errno(libc::EINVAL));
        }
        self.set(&format!("{DEVICES}/{decoder}/region"), region);
        self.set(&file, decoder);
        Ok(())
    }

    fn dpa_size(&self, decoder: &str, value: &str) -> io::Result<()> {
        if !self.get(&format!("{DEVICES}/{decoder}/region"))?.is_empty() {
            return Err(errno(libc::EBUSY));
        }
        if value != "0" && self.get(&format!("{DEVICES}/{decoder}/mode"))? == "none" {
            return Err(errno(libc::EINVAL));
        }
        let value = if value == "0" { "0x0" } else { value };
        self.set(&format!("{DEVICES}/{decoder}/dpa_size"), value);
        Ok(())
    }

    fn command(&self, path: &str, value: &str) -> io::Result<()> {
        self.get(path)?;
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts[..] {
            [.., "decoder0.0", "create_ram_region"] => self.create_region(value),
            [.., "decoder0.0", "delete_region"] => self.delete_region(value),
            [.., "cxl_region", "bind"] => self.bind(value),
            [.., "cxl_region", "unbind"] => self.unbind(value),
            [.., "drivers", driver, "new_id"] => {
                // A driver that matches takes the device at once.
                let _ = self.take(driver, value);
                Ok(())
            }
            [.., "drivers", driver, "bind"] => self.take(driver, value),
            [.., "drivers", _, "unbind"] => self.release(value),
            [.., block, "state"] => self.block_state(block.trim_start_matches("memory").parse().unwrap(), value),
            [.., region, "commit"] => self.commit(region, value == "1"),
            [.., region, "interleave_ways"] => {
                let ways: u64 = value.parse().map_err(|_| errno(libc::EINVAL))?;
                (0..ways).for_each(|way| self.set(&format!("{DEVICES}/{region}/target{way}"), ""));
                self.set(path, value);
                Ok(())
            }
            [.., region, target] if target.starts_with("target") => self.target(region, target, value),
            [.., decoder, "dpa_size"] => self.dpa_size(decoder, value),
            _ => {
                self.set(path, value);
                Ok(())
            }
        }
    }
}

impl Tree for Model {
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
        self.links.borrow().get(path).cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let number = self.writes.replace(self.writes.get() + 1);
        match self.failing.get() {
            Failing::One(failing) if number == failing => Err(errno(libc::EIO)),
            Failing::From(failing) if number >= failing => Err(errno(libc::EIO)),
            _ => self.command(path, value),
        }
    }
}
