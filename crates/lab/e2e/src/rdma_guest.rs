// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest with an RDMA device: Soft-RoCE over a pair of virtual interfaces, with the binaries under test and the tests
//! of the transports, which run in the guest against a real device.
//!
//! `AQUIFER_E2E_RDMA_KERNEL=DIR` names a directory with an unpacked kernel package that has `rdma_rxe`;
//! `.ci/guest-kernel DIR rdma` creates one. Everything else is taken from this machine: busybox (statically linked),
//! `ip` and `rdma` of iproute2, and libibverbs with its driver for Soft-RoCE.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{binaries, compile_text, scratch, test_program, torture};
use crate::guest::{Archive, kernel, skipped};
use crate::verifying;

/// Names the directory with the kernel.
pub const KERNEL_VARIABLE: &str = "AQUIFER_E2E_RDMA_KERNEL";

/// In load order.
const MODULES: [&str; 7] = [
    "crypto/crc32_generic",
    "net/ipv4/udp_tunnel",
    "net/ipv6/ip6_udp_tunnel",
    "drivers/infiniband/core/ib_core",
    "drivers/infiniband/core/ib_uverbs",
    "drivers/infiniband/sw/rxe/rdma_rxe",
    "drivers/net/veth",
];
/// Libraries that are loaded by name at run time, so that ldd(1) lists them for no program.
pub(crate) const LOADED: [&str; 3] =
    ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"];
/// The directory of libibverbs' drivers, and the file that makes it load the one for Soft-RoCE.
const DRIVERS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const DRIVER_WORD: &str = "/etc/libibverbs.d/rxe.driver";

/// A kernel, and an initramfs. Returns `None`, and reports a skip, if something is missing.
pub fn rdma() -> Option<(PathBuf, PathBuf)> {
    let Some(root) = std::env::var_os(KERNEL_VARIABLE).map(PathBuf::from) else {
        skipped(&format!("{KERNEL_VARIABLE} is not set; run .ci/guest-kernel DIR rdma and set {KERNEL_VARIABLE}=DIR"));
        return None;
    };
    let Some((kernel, modules)) = kernel(&root) else {
        skipped(&format!("{} has no boot/vmlinuz-VERSION with lib/modules/VERSION", root.display()));
        return None;
    };
    let mut archive = Files::default();
    let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    for (index, module) in MODULES.iter().enumerate() {
        if !built_in.contains(&format!("{module}.ko")) {
            let path = modules.join(format!("kernel/{module}.ko"));
            archive.add(&format!("modules/{index}.ko"), &read(&path)?);
        }
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
    let Some(busybox) = busybox else {
        skipped("there is no busybox (package busybox-static)");
        return None;
    };
    archive.add("bin/busybox", &read(&busybox)?);
    for (name, places) in [("ip", ["/usr/sbin/ip", "/sbin/ip"]), ("rdma", ["/usr/bin/rdma", "/usr/sbin/rdma"])] {
        let Some(path) = places.iter().map(Path::new).find(|path| path.exists()) else {
            skipped(&format!("there is no {name} (package iproute2)"));
            return None;
        };
        archive.program(&format!("guest/{name}"), path)?;
    }
    for path in LOADED {
        archive.program(&path[1..], Path::new(path))?;
    }
    // A library in a separate linker namespace is searched for by its name alone, and so is the dynamic linker.
    archive.program("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", Path::new(LOADED[2]))?;
    let driver = fs::read_dir(DRIVERS).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_soft = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe"));
    let Some(driver) = driver.into_iter().find(is_soft) else {
        skipped(&format!("there is no driver for Soft-RoCE in {DRIVERS} (package ibverbs-providers)"));
        return None;
    };
    archive.program(&driver.to_string_lossy()[1..], &driver)?;
    archive.add(&DRIVER_WORD[1..], &read(Path::new(DRIVER_WORD))?);
    for name in ["aquifer", "libaquifer_preload.so"] {
        archive.program(&format!("bin/{name}"), &binaries().join(name))?;
    }
    archive.program("bin/verify", &compile_text("verify-rdma", verifying::PROGRAM)?)?;
    archive.program("bin/transports", &test_program("aquifer-donor", "transports"))?;
    archive.program("bin/rdma-donor", &test_program("aquifer-donor", "rdma"))?;
    archive.program("bin/verbs", &test_program("aquifer-sys", "verbs"))?;
    archive.add("init", include_bytes!("../guest/rdma-init.sh"));
    archive.add("guest/rdma.sh", include_bytes!("../guest/rdma.sh"));
    let initramfs = scratch("guest-rdma").join("initramfs");
    fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
    Some((kernel, initramfs))
}

/// The kernel of `guest::KERNEL_VARIABLE`, which is older than most, and an initramfs that runs the torture program on
/// it. Returns `None`, and reports a skip, if something is missing.
pub fn older() -> Option<(PathBuf, PathBuf)> {
    let Some(root) = std::env::var_os(crate::guest::KERNEL_VARIABLE).map(PathBuf::from) else {
        let variable = crate::guest::KERNEL_VARIABLE;
        skipped(&format!("{variable} is not set; run .ci/guest-kernel DIR and set {variable}=DIR"));
        return None;
    };
    let Some((kernel, _)) = kernel(&root) else {
        skipped(&format!("{} has no boot/vmlinuz-VERSION with lib/modules/VERSION", root.display()));
        return None;
    };
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
    let Some(busybox) = busybox else {
        skipped("there is no busybox (package busybox-static)");
        return None;
    };
    let mut archive = Files::default();
    archive.add("bin/busybox", &read(&busybox)?);
    // Of these libraries only libgcc_s is needed: glibc loads it by name to end threads.
    archive.program(&LOADED[1][1..], Path::new(LOADED[1]))?;
    for name in ["aquifer", "libaquifer_preload.so"] {
        archive.program(&format!("bin/{name}"), &binaries().join(name))?;
    }
    archive.program("bin/torture", torture()?)?;
    archive.add("init", include_bytes!("../guest/older-init.sh"));
    let initramfs = scratch("guest-older").join("initramfs");
    fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
    Some((kernel, initramfs))
}

pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path);
    if let Err(error) = &bytes {
        skipped(&format!("{} cannot be read: {error}", path.display()));
    }
    bytes.ok()
}

/// An archive that also gets the parent directories of its files and the libraries of its programs.
#[derive(Default)]
pub(crate) struct Files {
    archive: Archive,
    there: BTreeSet<String>,
}

impl Files {
    /// The archive.
    pub(crate) fn end(self) -> Vec<u8> {
        self.archive.end()
    }

    /// Adds a file, unless the archive already has one of this name.
    pub(crate) fn add(&mut self, name: &str, contents: &[u8]) {
        let mut at = 0;
        while let Some(slash) = name[at..].find('/') {
            at += slash + 1;
            if self.there.insert(name[..at].to_owned()) {
                self.archive.directory(&name[..at - 1]);
            }
        }
        if self.there.insert(name.to_owned()) {
            self.archive.add(name, contents);
        }
    }

    /// Adds a program or a library without its debugging symbols, and the libraries that it is linked to.
    pub(crate) fn program(&mut self, name: &str, path: &Path) -> Option<()> {
        let smaller = scratch("guest-stripped").join("stripped");
        let stripped = Command::new("strip").arg("-o").arg(&smaller).arg(path).status();
        let path_to_add = if stripped.is_ok_and(|status| status.success()) { &smaller } else { path };
        let bytes = read(path_to_add)?;
        self.add(name, &bytes);
        let listed = Command::new("ldd").arg(path).output().ok()?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, or `/lib64/ld-linux-x86-64.so.2 (0x…)`
            let library = line.rsplit("=>").next().and_then(|rest| rest.split_whitespace().next());
            if let Some(library) = library.filter(|library| library.starts_with('/')) {
                let bytes = read(Path::new(library))?;
                self.add(&library[1..], &bytes);
            }
        }
        Some(())
    }
}
