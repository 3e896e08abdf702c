// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest with far memory: a node without CPUs, a memory device, and, where QEMU has them, CXL devices behind a
//! switch.
//!
//! `AQUIFER_E2E_CXL_KERNEL=DIR` names a directory with an unpacked kernel package of Linux 6.12 or later, which has
//! weighted interleaving, and perhaps with an unpacked QEMU (`usr/bin/qemu-system-x86_64`): `.ci/guest-kernel DIR cxl`
//! fills it. Volatile CXL memory takes QEMU 8.1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{binaries, compile_text, scratch};
use crate::guest::{kernel, skipped};
use crate::operator::Operator;
use crate::rdma_guest::{Files, LOADED, read};

/// Names the directory with the kernel.
pub const KERNEL_VARIABLE: &str = "AQUIFER_E2E_CXL_KERNEL";

/// In load order.
const MODULES: [&str; 14] = [
    "kernel/drivers/cxl/cxl_acpi",
    "kernel/drivers/cxl/cxl_pci",
    "kernel/drivers/cxl/cxl_mem",
    "kernel/drivers/dax/dax_cxl",
    "kernel/drivers/dax/device_dax",
    "kernel/drivers/dax/kmem",
    "kernel/drivers/nvdimm/libnvdimm",
    "kernel/drivers/nvdimm/nd_btt",
    "kernel/drivers/nvdimm/nd_pmem",
    "kernel/drivers/nvdimm/nd_e820",
    "kernel/drivers/dax/dax_pmem",
    "kernel/drivers/block/loop",
    "kernel/drivers/dax/hmem/dax_hmem",
    "kernel/drivers/md/dm-mod",
];
/// Programs of this machine, and their packages.
const PROGRAMS: [(&str, [&str; 2], &str); 2] = [
    ("dmsetup", ["/usr/sbin/dmsetup", "/sbin/dmsetup"], "dmsetup"),
    ("busybox", ["/bin/busybox", "/usr/bin/busybox"], "busybox-static"),
];

/// A guest that can be started.
pub struct FarGuest {
    /// QEMU with all of its arguments.
    pub qemu: Command,
    /// Whether the guest has CXL devices.
    pub has_cxl: bool,
}

/// Builds the guest. Returns `None`, and reports a skip, if something is missing.
pub fn far() -> Option<FarGuest> {
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
    let has_cxl = has_volatile_cxl(&program);
    let mut qemu = Command::new(program);
    qemu.args(crate::guest::QEMU_WORDS);
    // One CPU: on a busy machine, two wait for each other whenever a page is taken away.
    // With the hypervisor bit, the kernel refuses to commit regions: it cannot flush the processors' caches.
    qemu.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,-hypervisor,la57=off", "-smp", "1"]);
    qemu.args(["-m", "1280M,maxmem=8G,slots=4"]);
    qemu.args(["-object", "memory-backend-ram,id=ram0,size=1G", "-object", "memory-backend-ram,id=ram1,size=256M"]);
    qemu.args(["-numa", "node,nodeid=0,cpus=0,memdev=ram0", "-numa", "node,nodeid=1,memdev=ram1"]);
    qemu.args(["-numa", "dist,src=0,dst=1,val=30"]);
    let words = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off memhp_default_state=offline memmap=64M!960M";
    qemu.args(["-append", words]).arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    qemu.args(if has_cxl { CXL_WORDS } else { &["-machine", "q35"] });
    if has_cxl {
        Operator::start(&mut qemu);
    }
    Some(FarGuest { qemu, has_cxl })
}

/// A host bridge with a switch, two devices of 256 MiB behind it, and a port where the operator plugs a third one. The
/// two windows become two nodes.
const CXL_WORDS: &[&str] = &[
    "-machine",
    "q35,cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G,cxl-fmw.1.targets.0=cxl.1,cxl-fmw.1.size=1G",
    "-object",
    "memory-backend-ram,id=cxlmem0,share=on,size=256M",
    "-object",
    "memory-backend-ram,id=cxlmem1,share=on,size=256M",
    "-device",
    "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1,hdm_for_passthrough=true",
    "-device",
    "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2",
    "-device",
    "cxl-upstream,port=2,bus=rp0,id=us0",
    "-device",
    "cxl-downstream,port=0,bus=us0,id=swport0,chassis=0,slot=4",
    "-device",
    "cxl-downstream,port=1,bus=us0,id=swport1,chassis=0,slot=5",
    "-object",
    "memory-backend-ram,id=cxlmem2,share=on,size=256M",
    "-device",
    "cxl-downstream,port=3,bus=us0,id=swport2,chassis=0,slot=6",
    "-device",
    "cxl-type3,bus=swport0,volatile-memdev=cxlmem0,id=mem0,sn=0x1000",
    "-device",
    "cxl-type3,bus=swport1,volatile-memdev=cxlmem1,id=mem1,sn=0x1001",
];

/// The QEMU of `AQUIFER_QEMU`, or the unpacked one, or the installed one.
pub(crate) fn qemu_program(root: &Path) -> PathBuf {
    let unpacked = root.join("usr/bin/qemu-system-x86_64");
    let named = std::env::var_os("AQUIFER_QEMU").map(PathBuf::from);
    named.or_else(|| unpacked.is_file().then_some(unpacked)).unwrap_or_else(|| "qemu-system-x86_64".into())
}

fn has_volatile_cxl(program: &Path) -> bool {
    let asked = Command::new(program).args(["-device", "cxl-type3,help"]).output();
    asked.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).contains("volatile-memdev"))
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
    for name in ["aquifer", "libaquifer_preload.so"] {
        archive.program(&format!("bin/{name}"), &binaries().join(name))?;
    }
    archive.program("bin/far-nodes", &compile_text("far-nodes", include_str!("../guest/far-nodes.c"))?)?;
    // The pool's programs, for what a bind and an unbind do to this host.
    for name in ["aquifer-agentd", "aquifer-cxl-switchd", "aquifer-fabric", "aquifer-fabricd"] {
        archive.program(&format!("bin/{name}"), &binaries().join(name))?;
    }
    archive.add("init", include_bytes!("../guest/far-nodes.sh"));
    archive.add("guest/start.sh", include_bytes!("../guest/start.sh"));
    archive.add("guest/far-pool.sh", include_bytes!("../guest/far-pool.sh"));
    let initramfs = scratch("guest-far").join("initramfs");
    fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
    Some(initramfs)
}

/// Adds those of these modules that are not built into the kernel, to be loaded in this order.
pub(crate) fn drivers(archive: &mut Files, modules: &Path, wanted: &[&str]) -> Option<()> {
    let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    for (index, module) in wanted.iter().enumerate() {
        if !built_in.contains(&format!("{module}.ko")) {
            let bytes = module_bytes(&modules.join(format!("{module}.ko")))?;
            archive.add(&format!("modules/{index:02}.ko"), &bytes);
        }
    }
    Some(())
}

/// A module, uncompressed: insmod of busybox does not decompress.
fn module_bytes(path: &Path) -> Option<Vec<u8>> {
    let compressed = path.with_extension("ko.xz");
    if !compressed.exists() {
        return read(path);
    }
    match Command::new("xz").arg("-dc").arg(&compressed).output() {
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) => panic!("{}: {}", compressed.display(), String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            skipped(&format!("xz cannot be started (package xz-utils): {error}"));
            None
        }
    }
}
