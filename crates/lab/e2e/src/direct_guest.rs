// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest in which programs reach hardware directly: the mailbox of a CXL switch by VFIO behind an IOMMU, and
//! persistent memory through files of a file system with `-o dax`. It also has a node without CPUs, where DAMON counts.
//!
//! The kernel and QEMU are those of `far_guest.rs`. A switch mailbox takes QEMU 8.2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{binaries, compile_text, scratch};
use crate::far_guest::{KERNEL_VARIABLE, drivers, qemu_program};
use crate::guest::{kernel, skipped};
use crate::rdma_guest::{Files, LOADED};

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
/// Programs of this machine, and their packages.
const PROGRAMS: [(&str, [&str; 2], &str); 2] = [
    ("busybox", ["/bin/busybox", "/usr/bin/busybox"], "busybox-static"),
    ("mkfs.ext4", ["/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4"], "e2fsprogs"),
];

/// A guest that can be started.
pub struct DirectGuest {
    /// QEMU with all of its arguments.
    pub qemu: Command,
    /// Whether the guest has a switch with a mailbox.
    pub has_switch: bool,
}

/// Builds the guest. Returns `None`, and reports a skip, if something is missing.
pub fn direct() -> Option<DirectGuest> {
    let Some(root) = std::env::var_os(KERNEL_VARIABLE).map(PathBuf::from) else {
        skipped(&format!("{KERNEL_VARIABLE} is not set; run .ci/guest-kernel DIR cxl and set {KERNEL_VARIABLE}=DIR"));
        return None;
    };
    let Some((kernel, modules)) = kernel(&root) else {
        skipped(&format!("{} has no boot/vmlinuz-VERSION with lib/modules/VERSION", root.display()));
        return None;
    };
    let initramfs = initramfs(&modules)?;
    let program = qemu_program(&root);
    let has_switch = has_switch_mailbox(&program);
    let mut qemu = Command::new(program);
    qemu.args(crate::guest::QEMU_WORDS);
    qemu.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off", "-smp", "1", "-m", "1280M"]);
    qemu.args(["-object", "memory-backend-ram,id=ram0,size=1G", "-object", "memory-backend-ram,id=ram1,size=256M"]);
    qemu.args(["-numa", "node,nodeid=0,cpus=0,memdev=ram0", "-numa", "node,nodeid=1,memdev=ram1"]);
    let words = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off memmap=96M!896M intel_iommu=on";
    qemu.args(["-append", words]).arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    qemu.args(if has_switch { SWITCH_WORDS } else { &["-machine", "q35"] });
    Some(DirectGuest { qemu, has_switch })
}

/// A host bridge with a switch of one port, whose second function is the mailbox, behind an IOMMU.
const SWITCH_WORDS: &[&str] = &[
    "-machine",
    "q35,cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G",
    "-device",
    "intel-iommu",
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

fn has_switch_mailbox(program: &Path) -> bool {
    let asked = Command::new(program).args(["-device", "cxl-switch-mailbox-cci,help"]).output();
    asked.is_ok_and(|answer| answer.status.success())
}

fn initramfs(modules: &Path) -> Option<PathBuf> {
    let mut archive = Files::default();
    drivers(&mut archive, modules, &MODULES)?;
    for (name, places, package) in PROGRAMS {
        let Some(path) = places.iter().map(Path::new).find(|path| path.exists()) else {
            skipped(&format!("there is no {name} (package {package})"));
            return None;
        };
        archive.program(&format!("bin/{name}"), path)?;
    }
    // glibc loads it by name to end threads.
    archive.program(&LOADED[1][1..], Path::new(LOADED[1]))?;
    for name in ["aquifer", "aquifer-fmapi", "libaquifer_preload.so"] {
        archive.program(&format!("bin/{name}"), &binaries().join(name))?;
    }
    archive.program("bin/far-nodes", &compile_text("far-nodes", include_str!("../guest/far-nodes.c"))?)?;
    archive.add("init", include_bytes!("../guest/direct.sh"));
    archive.add("guest/start.sh", include_bytes!("../guest/start.sh"));
    let initramfs = scratch("guest-direct").join("initramfs");
    fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
    Some(initramfs)
}
