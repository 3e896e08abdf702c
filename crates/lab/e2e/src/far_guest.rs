// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest with far memory: a node without CPUs, a memory device, and, where QEMU has them, CXL devices behind a
//! switch.
//!
//! The kernel and QEMU are those of `scripted_guest.rs`; the kernel has weighted interleaving. Volatile CXL memory
//! needs QEMU 8.1.

use crate::build::{compile_text, scratch, workloads};
use crate::operator::Operator;
use crate::scripted_guest::{BUSYBOX, Base, Contents, Program, ScriptedGuest};

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
const PROGRAMS: [Program; 3] = [
    BUSYBOX,
    ("dmsetup", ["/usr/sbin/dmsetup", "/sbin/dmsetup"], "dmsetup"),
    ("numactl", ["/usr/bin/numactl", "/bin/numactl"], "numactl"),
];
/// The last four are the pool's programs, for what a bind and an unbind do to this host.
const BINARIES: [&str; 7] = [
    "aquifer",
    "aquifer-bench",
    "libaquifer_preload.so",
    "aquifer-agentd",
    "aquifer-cxl-switchd",
    "aquifer-fabric",
    "aquifer-fabricd",
];
/// Of the bench.
const WORKLOADS: [&str; 2] = ["memory_speed", "stream"];

/// A guest that can be booted.
pub struct FarGuest {
    /// The guest.
    pub guest: ScriptedGuest,
    /// Whether it has CXL devices.
    pub has_cxl: bool,
}

/// Builds the guest. Returns `None`, and reports a skip, if something is missing.
pub fn far() -> Option<FarGuest> {
    let base = Base::find()?;
    let has_cxl = base.device_help("cxl-type3").is_some_and(|help| help.contains("volatile-memdev"));
    let directory = scratch("guest-workloads");
    // For any processor: QEMU's has not all that this machine's has.
    workloads(&directory, &WORKLOADS, &["CXXFLAGS=-O2"])?;
    let mut compiled = vec![("bin/far-nodes", compile_text("far-nodes", include_str!("../guest/far-nodes.c"))?)];
    let names = WORKLOADS.map(|name| (format!("workloads/{name}"), directory.join(name)));
    compiled.extend(names.iter().map(|(name, path)| (name.as_str(), path.clone())));
    let mut qemu_words = vec!["-m", "1280M,maxmem=8G,slots=4", "-numa", "dist,src=0,dst=1,val=30"];
    qemu_words.extend(if has_cxl { CXL_WORDS } else { &["-machine", "q35"] });
    let mut guest = base.guest(&Contents {
        name: "far",
        modules: &MODULES,
        programs: &PROGRAMS,
        binaries: &BINARIES,
        compiled: &compiled,
        scripts: &[
            ("init", include_bytes!("../guest/far-nodes.sh")),
            ("guest/far-bench.sh", include_bytes!("../guest/far-bench.sh")),
            ("guest/far-pool.sh", include_bytes!("../guest/far-pool.sh")),
        ],
        // With the hypervisor bit, the kernel refuses to commit regions: it cannot flush the processors' caches.
        cpu: "max,-hypervisor,la57=off",
        kernel_words: "memhp_default_state=offline memmap=64M!960M",
        qemu_words: &qemu_words,
    })?;
    if has_cxl {
        Operator::start(&mut guest.qemu);
    }
    Some(FarGuest { guest, has_cxl })
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
