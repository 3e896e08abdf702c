// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest in which programs reach hardware directly: the mailbox of a CXL switch by VFIO behind an IOMMU, and
//! persistent memory through files of a file system with `-o dax`. It also has a node without CPUs, where DAMON counts.
//! Without an IOMMU, it has the mailbox alone.
//!
//! The kernel and QEMU are those of `scripted_guest.rs`. A switch mailbox takes QEMU 8.2.

use crate::build::compile_text;
use crate::scripted_guest::{BUSYBOX, Base, Contents, Program, ScriptedGuest};

/// In load order.
const MODULES: [&str; 9] = [
    "kernel/drivers/nvdimm/libnvdimm",
    "kernel/drivers/nvdimm/nd_btt",
    "kernel/drivers/nvdimm/nd_pmem",
    "kernel/drivers/nvdimm/nd_e820",
    "kernel/virt/lib/irqbypass",
    "kernel/drivers/vfio/vfio",
    "kernel/drivers/vfio/vfio_iommu_type1",
    "kernel/drivers/vfio/pci/vfio-pci-core",
    "kernel/drivers/vfio/pci/vfio-pci",
];
const PROGRAMS: [Program; 2] = [BUSYBOX, ("mkfs.ext4", ["/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"], "e2fsprogs")];

/// A guest that can be booted.
pub struct DirectGuest {
    /// The guest.
    pub guest: ScriptedGuest,
    /// Whether it has a switch with a mailbox.
    pub has_switch: bool,
    /// Whether its kernel has vfio's mode for functions without an IOMMU.
    pub has_unsafe_mode: bool,
}

/// Builds the guest, with an IOMMU or without. Returns `None`, and reports a skip, if something is missing.
pub fn direct(has_iommu: bool) -> Option<DirectGuest> {
    let base = Base::find()?;
    let has_switch = base.device_help("cxl-switch-mailbox-cci").is_some();
    let has_unsafe_mode = base.has_option("CONFIG_VFIO_NOIOMMU");
    let mut qemu_words = vec!["-m", "1280M"];
    if has_switch && has_iommu {
        qemu_words.extend(["-device", "intel-iommu"]);
    }
    qemu_words.extend(if has_switch { SWITCH_WORDS } else { &["-machine", "q35"] });
    let guest = base.guest(&Contents {
        name: if has_iommu { "direct" } else { "direct-bare" },
        modules: &MODULES,
        programs: &PROGRAMS,
        binaries: &["aquifer", "aquifer-fmapi", "libaquifer_preload.so"],
        compiled: &[("bin/far-nodes", compile_text("far-nodes", include_str!("../guest/far-nodes.c"))?)],
        scripts: &[("init", include_bytes!("../guest/direct.sh"))],
        cpu: "max,la57=off",
        // The script of the parts asks for the second one.
        kernel_words: if has_iommu { "memmap=96M!896M intel_iommu=on" } else { "aquifer_bare" },
        qemu_words: &qemu_words,
    })?;
    Some(DirectGuest { guest, has_switch, has_unsafe_mode })
}

/// A host bridge with a switch of one port, whose second function is the mailbox.
const SWITCH_WORDS: &[&str] = &[
    "-machine",
    "q35,cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G",
    "-device",
    "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
    "-device",
    "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2",
    "-device",
    "cxl-upstream,port=1,sn=1234,bus=rp0,id=us0,addr=0.0,multifunction=on",
    "-device",
    "cxl-switch-mailbox-cci,bus=rp0,addr=0.1,target=us0",
    "-device",
    "cxl-downstream,port=0,bus=us0,id=swport0,chassis=0,slot=4",
];
