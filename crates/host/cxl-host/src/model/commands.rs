// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the model does when one of the kernel's files is written: it creates, commits and deletes regions, gives memory
//! devices to drivers, and takes memory blocks online and offline.

use std::io;

use aquifer_nodes::Tree;

use super::{BLOCK_BYTES, BLOCKS, CAPACITY_BYTES, DAX, DEVICES, KernelModel, WINDOW_BYTES, errno};

impl KernelModel {
    /// The window of a region.
    fn window_of(&self, name: &str) -> String {
        let windows = (0..16).map(|number| format!("{DEVICES}/decoder0.{number}"));
        let has = |window: &String| self.get(&format!("{window}/{name}/uevent")).is_ok();
        windows.into_iter().find(has).unwrap_or_default()
    }

    pub(super) fn dax_of(&self, region: &str) -> String {
        format!("dax{}.0", region.trim_start_matches("region"))
    }

    fn create_region(&self, window: &str, name: &str) -> io::Result<()> {
        let file = |window: &str| format!("{DEVICES}/{window}/create_ram_region");
        if self.get(&file(window))? != name {
            return Err(errno(libc::EBUSY));
        }
        let number: u32 = name.trim_start_matches("region").parse().map_err(|_| errno(libc::EINVAL))?;
        // All windows show the same name for the next region.
        for other in (0..16).map(|number| format!("decoder0.{number}")).filter(|other| self.get(&file(other)).is_ok()) {
            self.set(&file(&other), &format!("region{}", number + 1));
        }
        self.set(&format!("{DEVICES}/{window}/{name}/uevent"), "");
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
        let window = self.window_of(name);
        self.remove_below(&format!("{DEVICES}/{name}"));
        self.remove_below(&format!("{window}/{name}"));
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
        let (dax, size) = (self.dax_of(name), self.value(&format!("{DEVICES}/{name}/size")));
        let (window, start) = (self.window_of(name), self.free_address(name));
        let node = 1 + window.rsplit('.').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        self.links.borrow_mut().insert(format!("{DEVICES}/{name}/driver"), "cxl_region".into());
        self.set(&format!("{DEVICES}/{name}/dax_region{number}/{dax}/uevent"), "");
        for (file, text) in [
            ("size", size.to_string()),
            ("align", (2 << 20).to_string()),
            ("dev", format!("250:{number}")),
            ("target_node", node.to_string()),
            ("resource", format!("{start:#x}")),
        ] {
            self.set(&format!("{DAX}/devices/{dax}/{file}"), &text);
        }
        self.take("kmem", &dax)
    }

    /// The first free address of a region's window.
    fn free_address(&self, region: &str) -> u64 {
        let names = self.names(&format!("{DAX}/devices")).unwrap_or_default();
        let taken: Vec<u64> = names.iter().map(|name| self.value(&format!("{DAX}/devices/{name}/resource"))).collect();
        let start = self.value(&format!("{}/start", self.window_of(region)));
        let places = (0..WINDOW_BYTES / CAPACITY_BYTES).map(|place| start + place * CAPACITY_BYTES);
        places.into_iter().find(|place| !taken.contains(place)).unwrap_or(start)
    }

    pub(super) fn unbind(&self, name: &str) -> io::Result<()> {
        let number = name.trim_start_matches("region");
        let dax = self.dax_of(name);
        self.links.borrow_mut().remove(&format!("{DEVICES}/{name}/driver")).ok_or_else(|| errno(libc::ENODEV))?;
        let _ = self.release(&dax);
        self.remove_below(&format!("{DAX}/devices/{dax}"));
        self.remove_below(&format!("{DEVICES}/{name}/dax_region{number}"));
        Ok(())
    }

    pub(super) fn blocks_of(&self, dax: &str) -> std::ops::Range<u64> {
        let value = |file: &str| self.value(&format!("{DAX}/devices/{dax}/{file}"));
        // No test has devices of more than 1 GiB.
        let (start, size) = (value("resource").min(1 << 48), value("size").min(1 << 30));
        start.div_ceil(BLOCK_BYTES)..(start + size) / BLOCK_BYTES
    }

    /// A driver takes a device; kmem adds its blocks, offline or as the kernel brings new blocks online by itself.
    fn take(&self, driver: &str, dax: &str) -> io::Result<()> {
        let link = format!("{DAX}/devices/{dax}/driver");
        self.get(&format!("{DAX}/devices/{dax}/size"))?;
        if self.links.borrow().contains_key(&link) {
            return Err(errno(libc::EBUSY));
        }
        self.links.borrow_mut().insert(link, driver.to_owned());
        if driver == "kmem" {
            for block in self.blocks_of(dax) {
                let (state, zones) =
                    self.auto_online.get().map_or(("offline", "Normal Movable"), |zone| ("online", zone));
                self.set(&format!("{BLOCKS}/memory{block}/state"), state);
                self.set(&format!("{BLOCKS}/memory{block}/valid_zones"), zones);
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

    pub(super) fn command(&self, path: &str, value: &str) -> io::Result<()> {
        self.get(path)?;
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts[..] {
            [.., window, "create_ram_region"] => self.create_region(window, value),
            [.., _, "delete_region"] => self.delete_region(value),
            [.., "cxl_region", "bind"] => self.bind(value),
            [.., "cxl_region", "unbind"] => self.unbind(value),
            [.., "drivers", driver, "new_id"] => {
                // A driver that matches takes the device at once.
                let _ = self.take(driver, value);
                Ok(())
            }
            [.., "drivers", driver, "bind"] => self.take(driver, value),
            [.., "drivers", _, "unbind"] => self.release(value),
            [.., block, "state"] => {
                self.block_state(block.trim_start_matches("memory").parse().map_err(|_| errno(libc::EINVAL))?, value)
            }
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
