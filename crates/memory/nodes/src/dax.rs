// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory devices: which ones the machine has, how large they are, and whether a program or the kernel uses their
//! memory.
//!
//! See the kernel's `Documentation/ABI/testing/sysfs-bus-dax`.

use serde::Serialize;

use crate::tree::{Tree, Write, WriteFailure, write_all};

const DEVICES: &str = "/sys/bus/dax/devices";
const DRIVERS: &str = "/sys/bus/dax/drivers";

/// Who has a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The program that opens `/dev/daxX.Y`: the driver is `device_dax`.
    Devdax,
    /// Nobody: no driver has it.
    Disabled,
    /// The kernel, as a NUMA node: the driver is `kmem`.
    SystemRam,
}

impl Mode {
    /// The word of `daxctl list`.
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Devdax => "devdax",
            Mode::Disabled => "disabled",
            Mode::SystemRam => "system-ram",
        }
    }

    /// The driver of this mode.
    fn driver(self) -> Option<&'static str> {
        match self {
            Mode::Devdax => Some("device_dax"),
            Mode::Disabled => None,
            Mode::SystemRam => Some("kmem"),
        }
    }
}

/// One memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name, such as `dax0.0`.
    pub name: String,
    /// Who has its memory.
    pub mode: Mode,
    /// Its length.
    pub bytes: u64,
    /// What mappings of it are aligned to.
    pub align_bytes: u64,
    /// Its first physical address.
    pub resource: Option<u64>,
    /// The node that its memory is or becomes, if the firmware or the driver says so.
    pub node: Option<u32>,
}

/// All memory devices, in alphabetical order. Empty where the kernel has none.
pub fn devices(tree: &dyn Tree) -> Vec<Device> {
    tree.names(DEVICES).unwrap_or_default().iter().filter_map(|name| device(tree, name)).collect()
}

/// The device of this name.
pub fn device(tree: &dyn Tree, name: &str) -> Option<Device> {
    let file = |file: &str| format!("{DEVICES}/{name}/{file}");
    let bytes = tree.number(&file("size")).ok()?;
    let mode = match tree.link(&file("driver")).ok().as_deref() {
        Some("kmem") => Mode::SystemRam,
        Some(_) => Mode::Devdax,
        None => Mode::Disabled,
    };
    // Reads -1 where there is none.
    let node = tree.number(&file("target_node")).ok().and_then(|node| u32::try_from(node).ok());
    let (align_bytes, resource) = (tree.number(&file("align")).unwrap_or(2 << 20), tree.number(&file("resource")).ok());
    Some(Device { name: name.to_owned(), mode, bytes, align_bytes, resource, node })
}

/// Moves a device from its mode to another: unbinds its driver, and binds the one of that mode. The memory of a device
/// in the mode system-ram must be offline before.
pub fn set_mode(tree: &dyn Tree, device: &Device, wanted: Mode) -> Result<(), WriteFailure> {
    if device.mode == wanted {
        return Ok(());
    }
    let step = |driver: &str, file: &str| {
        write_all(tree, &[Write::new(format!("{DRIVERS}/{driver}/{file}"), device.name.clone())])
    };
    if let Some(driver) = device.mode.driver() {
        step(driver, "unbind")?;
        // Otherwise the driver may take the device again by itself.
        step(driver, "remove_id")?;
    }
    if let Some(driver) = wanted.driver() {
        // A driver takes only devices that are on its list, unless it is the default, and most take a device as soon as
        // it is on the list.
        step(driver, "new_id")?;
        if self::device(tree, &device.name).is_none_or(|now| now.mode != wanted) {
            step(driver, "bind")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    fn tree() -> Fixture {
        let file = |name: &str| format!("{DEVICES}/{name}");
        Fixture::new()
            .with(&file("dax0.0/size"), "268435456\n")
            .with(&file("dax0.0/align"), "2097152\n")
            .with(&file("dax0.0/target_node"), "1\n")
            .with(&file("dax0.0/resource"), "0x190000000\n")
            .with_link(&file("dax0.0/driver"), "../../../bus/dax/drivers/kmem")
            .with(&file("dax1.0/size"), "4194304\n")
            .with(&file("dax1.0/target_node"), "-1\n")
            .with_link(&file("dax1.0/driver"), "../../../bus/dax/drivers/device_dax")
            .with(&file("dax2.0/size"), "0\n")
    }

    #[test]
    fn devices_are_listed_with_who_has_their_memory() {
        let found = devices(&tree());
        let modes: Vec<(&str, Mode)> = found.iter().map(|device| (device.name.as_str(), device.mode)).collect();
        assert_eq!(modes, [("dax0.0", Mode::SystemRam), ("dax1.0", Mode::Devdax), ("dax2.0", Mode::Disabled)]);
        assert_eq!((found[0].bytes, found[0].node, found[0].resource), (256 << 20, Some(1), Some(0x1_9000_0000)));
        assert_eq!((found[1].align_bytes, found[1].node), (2 << 20, None));
        assert!(devices(&Fixture::new()).is_empty());
        assert_eq!(device(&tree(), "dax9.0"), None);
    }

    #[test]
    fn a_mode_is_changed_by_unbinding_and_binding() {
        for (name, wanted, steps) in [
            ("dax0.0", Mode::Devdax, &["kmem/unbind", "kmem/remove_id", "device_dax/new_id", "device_dax/bind"][..]),
            ("dax1.0", Mode::Disabled, &["device_dax/unbind", "device_dax/remove_id"]),
            ("dax0.0", Mode::SystemRam, &[]),
            ("dax2.0", Mode::SystemRam, &["kmem/new_id", "kmem/bind"]),
        ] {
            let with_drivers = |mut tree: Fixture| {
                for driver in ["kmem", "device_dax"] {
                    for file in ["bind", "unbind", "new_id", "remove_id"] {
                        tree = tree.with(&format!("{DRIVERS}/{driver}/{file}"), "");
                    }
                }
                tree
            };
            let whole = with_drivers(tree());
            set_mode(&whole, &device(&whole, name).unwrap(), wanted).unwrap();
            let written: Vec<Write> = steps.iter().map(|step| Write::new(format!("{DRIVERS}/{step}"), name)).collect();
            assert_eq!(whole.written(), written);
            for (failing, step) in steps.iter().enumerate() {
                let tree = with_drivers(tree()).failing_after(failing);
                let failure = set_mode(&tree, &device(&tree, name).unwrap(), wanted).unwrap_err();
                assert!(failure.write.path.ends_with(step), "{failure}");
            }
        }
    }
}
