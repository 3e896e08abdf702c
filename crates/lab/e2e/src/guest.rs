// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Guests of virtual machines, built from the sources in `guest/`: one that replaces the machine's firmware and needs
//! nothing else, and an initramfs for a Linux kernel.
//!
//! `AQUIFER_E2E_KERNEL=DIR` names a directory with an unpacked kernel package (`boot/vmlinuz-VERSION`,
//! `lib/modules/VERSION`); `.ci/guest-kernel DIR` creates one. Otherwise this machine's own kernel is used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::build::scratch;

/// Names the directory with the kernel.
pub const KERNEL_VARIABLE: &str = "AQUIFER_E2E_KERNEL";
/// QEMU's arguments for a minimal virtual machine. `-nodefaults` omits devices that would only take time.
pub const QEMU_WORDS: [&str; 9] =
    ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "none"];
/// QEMU's exit status if the firmware found no errors.
pub const BARE_RIGHT: i32 = 33;

/// Modules for a balloon and a disk on the PCI bus, in load order.
const MODULES: [&str; 7] = [
    "virtio/virtio_ring",
    "virtio/virtio",
    "virtio/virtio_pci_legacy_dev",
    "virtio/virtio_pci_modern_dev",
    "virtio/virtio_pci",
    "virtio/virtio_balloon",
    "block/virtio_blk",
];

/// Whether QEMU can be started. Reports a skip if not.
pub fn has_qemu() -> bool {
    let started = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    match started {
        Ok(status) if status.success() => true,
        Ok(status) => skipped(&format!("qemu-system-x86_64 --version: {status}")),
        Err(error) => skipped(&format!("qemu-system-x86_64 cannot be started: {error}")),
    }
}

/// Reports a skip with the reason; returns false.
pub fn skipped(why: &str) -> bool {
    aquifer_test_support::skip(why);
    false
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest").join(name)
}

fn compile(mut compiler: Command, source: &Path, built: PathBuf) -> Option<PathBuf> {
    match compiler.args(["-Wall", "-Wextra", "-Werror", "-static", "-o"]).arg(&built).arg(source).output() {
        Ok(output) if output.status.success() => Some(built),
        Ok(output) => {
            panic!("{} does not compile: {}", source.display(), String::from_utf8_lossy(&output.stderr))
        }
        Err(error) => {
            skipped(&format!("cc cannot be started: {error}"));
            None
        }
    }
}

/// Builds the firmware that tests its machine's memory, for `-bios`.
pub fn bare() -> Option<PathBuf> {
    let mut compiler = Command::new("cc");
    compiler.args(["-m32", "-O1", "-ffreestanding", "-fno-pic", "-no-pie", "-nostdlib", "-fno-stack-protector"]);
    compiler.args(["-mgeneral-regs-only", "-fcf-protection=none", "-Wl,--build-id=none", "-Wl,--oformat=binary"]);
    let directory = scratch("guest-bare");
    let (source, script) = (directory.join("bare.c"), directory.join("bare.ld"));
    // The sources are compiled into this crate, because `aquifer stress` is installed without the source tree.
    fs::write(&source, include_str!("../guest/bare.c")).expect("the scratch directory can be written");
    fs::write(&script, include_str!("../guest/bare.ld")).expect("the scratch directory can be written");
    compiler.arg("-Wl,-T").arg(script);
    compile(compiler, &source, directory.join("bare"))
}

/// A kernel, and an initramfs with the tester and the drivers that it needs. Returns `None`, and reports a skip, if
/// there is no kernel.
pub fn linux() -> Option<(PathBuf, PathBuf)> {
    let root = PathBuf::from(std::env::var_os(KERNEL_VARIABLE).unwrap_or_else(|| "/".into()));
    let Some((kernel, modules)) = kernel(&root) else {
        skipped(&format!(
            "{} has no boot/vmlinuz-VERSION that can be read, with lib/modules/VERSION; \
             run .ci/guest-kernel DIR and set {KERNEL_VARIABLE}=DIR",
            root.display()
        ));
        return None;
    };
    let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    let directory = scratch("guest-linux");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-std=gnu11"]);
    let mut archive = Archive::default();
    archive.add("init", &fs::read(compile(compiler, &source("init.c"), directory.join("init"))?).expect("just built"));
    let missing = MODULES.iter().filter(|module| !built_in.contains(&format!("/{module}.ko")));
    for (index, module) in missing.enumerate() {
        let path = modules.join(format!("kernel/drivers/{module}.ko"));
        let Ok(bytes) = fs::read(&path) else {
            skipped(&format!("{} cannot be read", path.display()));
            return None;
        };
        archive.add(&format!("{index}.ko"), &bytes);
    }
    let initramfs = directory.join("initramfs");
    fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
    Some((kernel, initramfs))
}

/// The newest kernel below `root`, and the directory of its modules.
pub(crate) fn kernel(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let names = fs::read_dir(root.join("boot")).ok()?.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort_unstable();
    names.iter().rev().find_map(|name| {
        let version = name.strip_prefix("vmlinuz-")?;
        let (kernel, modules) = (root.join("boot").join(name), root.join("lib/modules").join(version));
        (fs::File::open(&kernel).is_ok() && modules.is_dir()).then_some((kernel, modules))
    })
}

/// An archive of files and directories in the format that the kernel unpacks: the `newc` format of cpio(5).
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    /// Adds an executable file.
    pub(crate) fn add(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, 0o100_755, contents);
    }

    /// Adds a directory, which must precede its contents.
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.files += 1;
        let file_len = u32::try_from(contents.len()).expect("a program, or a module");
        let name_len = u32::try_from(name.len() + 1).expect("a short name");
        let fields = [self.files, mode, 0, 0, 1, 0, file_len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| self.bytes.extend_from_slice(format!("{field:08x}").as_bytes()));
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", &[]);
        self.bytes
    }
}
