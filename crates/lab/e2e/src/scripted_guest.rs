// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A guest whose first process is a script of parts: how it is built, started and judged. What a guest has of its own
//! is in `far_guest.rs` and `direct_guest.rs`: devices, modules, programs, scripts.
//!
//! `AQUIFER_E2E_CXL_KERNEL=DIR` names a directory with an unpacked kernel package of Linux 6.12 or later, and perhaps
//! with an unpacked QEMU (`usr/bin/qemu-system-x86_64`): `.ci/guest-kernel DIR cxl` fills it.
//!
//! `AQUIFER_E2E_GUEST_PARTS=NAME,NAME` runs only these parts, in the order of the script; a part may need those
//! before it. `AQUIFER_E2E_GUEST_PARTS=all` runs slow parts, too, which otherwise run only if they are named. The
//! console is in the file `console` of the guest's scratch directory while the guest runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::build::{binaries, scratch};
use crate::guest::{kernel, skipped};
use crate::rdma_guest::{Files, LOADED, read};
use crate::run::run;

/// Names the directory with the kernel.
pub const KERNEL_VARIABLE: &str = "AQUIFER_E2E_CXL_KERNEL";
/// Names the parts to run; by default all but the slow ones.
pub const PARTS_VARIABLE: &str = "AQUIFER_E2E_GUEST_PARTS";

/// How much longer slow parts may take than the others.
const SLOW_TIMES: u32 = 8;
/// How many lines of each failed part's output the panic repeats at its end.
const FAILED_LINES: usize = 5;

/// One CPU: on a busy machine, two wait for each other whenever a page is taken away. Node 1 has memory alone.
const MACHINE_WORDS: [&str; 21] = [
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-monitor",
    "none",
    "-accel",
    "tcg,thread=multi,tb-size=512",
    "-smp",
    "1",
    "-object",
    "memory-backend-ram,id=ram0,size=1G",
    "-object",
    "memory-backend-ram,id=ram1,size=256M",
    "-numa",
    "node,nodeid=0,cpus=0,memdev=ram0",
    "-numa",
    "node,nodeid=1,memdev=ram1",
    "-serial",
    "chardev:console",
];
const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off";

/// A program of this machine: its name, where it may be, its package.
pub(crate) type Program = (&'static str, [&'static str; 2], &'static str);

/// Busybox, the guest's shell.
pub(crate) const BUSYBOX: Program = ("busybox", ["/bin/busybox", "/usr/bin/busybox"], "busybox-static");

/// What a guest has of its own.
pub(crate) struct Contents<'a> {
    /// For its scratch directory.
    pub name: &'a str,
    /// Modules, in load order.
    pub modules: &'a [&'a str],
    /// Programs of this machine.
    pub programs: &'a [Program],
    /// Programs and libraries of ours.
    pub binaries: &'a [&'a str],
    /// Programs that were compiled for it, by their names in the guest.
    pub compiled: &'a [(&'a str, PathBuf)],
    /// Scripts, by their names in the guest; `init` is the first process.
    pub scripts: &'a [(&'a str, &'a [u8])],
    /// The processor, as QEMU names it.
    pub cpu: &'a str,
    /// More of the kernel's command line.
    pub kernel_words: &'a str,
    /// More of QEMU's.
    pub qemu_words: &'a [&'a str],
}

/// The kernel and the QEMU of all such guests.
pub(crate) struct Base {
    kernel: PathBuf,
    modules: PathBuf,
    program: PathBuf,
}

impl Base {
    /// Finds them. Returns `None`, and reports a skip, if something is missing.
    pub(crate) fn find() -> Option<Base> {
        let Some(root) = std::env::var_os(KERNEL_VARIABLE).map(PathBuf::from) else {
            let remedy = format!("run .ci/guest-kernel DIR cxl and set {KERNEL_VARIABLE}=DIR");
            skipped(&format!("{KERNEL_VARIABLE} is not set; {remedy}"));
            return None;
        };
        let Some((kernel, modules)) = kernel(&root) else {
            skipped(&format!("{} has no boot/vmlinuz-VERSION with lib/modules/VERSION", root.display()));
            return None;
        };
        Some(Base { kernel, modules, program: qemu_program(&root) })
    }

    /// Whether the kernel was built with this option, by the configuration beside it.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        let name = self.kernel.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let config = self.kernel.with_file_name(name.replace("vmlinuz-", "config-"));
        fs::read_to_string(config).is_ok_and(|text| is_built_with(&text, option))
    }

    /// What QEMU says of a device; `None` if it has no such device.
    pub(crate) fn device_help(&self, device: &str) -> Option<String> {
        let asked = Command::new(&self.program).args(["-device", &format!("{device},help")]).output().ok()?;
        asked.status.success().then(|| String::from_utf8_lossy(&asked.stdout).into_owned())
    }

    /// A guest with these contents. Returns `None`, and reports a skip, if something is missing.
    pub(crate) fn guest(self, contents: &Contents<'_>) -> Option<ScriptedGuest> {
        let archive = self.archive(contents)?;
        let directory = scratch(&format!("guest-{}", contents.name));
        let (initramfs, console) = (directory.join("initramfs"), directory.join("console"));
        fs::write(&initramfs, archive.end()).expect("the scratch directory can be written");
        let mut qemu = Command::new(self.program);
        qemu.arg("-chardev").arg(format!("stdio,id=console,logfile={}", console.display()));
        qemu.args(MACHINE_WORDS).args(["-cpu", contents.cpu]).args(contents.qemu_words);
        qemu.arg("-kernel").arg(self.kernel).arg("-initrd").arg(initramfs);
        let kernel_words = format!("{KERNEL_WORDS} {}", contents.kernel_words);
        Some(ScriptedGuest { qemu, kernel_words })
    }

    fn archive(&self, contents: &Contents<'_>) -> Option<Files> {
        let mut archive = Files::default();
        self.drivers(&mut archive, contents.modules)?;
        for (name, places, package) in contents.programs {
            let Some(path) = places.iter().map(Path::new).find(|path| path.exists()) else {
                skipped(&format!("there is no {name} (package {package})"));
                return None;
            };
            archive.program(&format!("bin/{name}"), path)?;
        }
        // glibc loads it by name to end threads.
        archive.program(&LOADED[1][1..], Path::new(LOADED[1]))?;
        for name in contents.binaries {
            archive.program(&format!("bin/{name}"), &binaries().join(name))?;
        }
        for (name, path) in contents.compiled {
            archive.program(name, path)?;
        }
        for (name, text) in contents.scripts {
            archive.add(name, text);
        }
        archive.add("guest/start.sh", include_bytes!("../guest/start.sh"));
        Some(archive)
    }

    /// Adds those of these modules that are not built into the kernel, to be loaded in this order.
    fn drivers(&self, archive: &mut Files, wanted: &[&str]) -> Option<()> {
        let built_in = fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        for (index, module) in wanted.iter().enumerate() {
            if !built_in.contains(&format!("{module}.ko")) {
                let bytes = module_bytes(&self.modules.join(format!("{module}.ko")))?;
                archive.add(&format!("modules/{index:02}.ko"), &bytes);
            }
        }
        Some(())
    }
}

/// Whether a kernel's configuration has this option, built in or as a module.
fn is_built_with(config: &str, option: &str) -> bool {
    config.lines().filter_map(|line| line.split_once('=')).any(|(name, value)| name == option && value != "n")
}

/// The QEMU of `AQUIFER_QEMU`, or the unpacked one, or the installed one.
fn qemu_program(root: &Path) -> PathBuf {
    let unpacked = root.join("usr/bin/qemu-system-x86_64");
    let named = std::env::var_os("AQUIFER_QEMU").map(PathBuf::from);
    named.or_else(|| unpacked.is_file().then_some(unpacked)).unwrap_or_else(|| "qemu-system-x86_64".into())
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

/// A guest that can be booted.
pub struct ScriptedGuest {
    /// QEMU with all of its arguments but the kernel's command line.
    pub(crate) qemu: Command,
    kernel_words: String,
}

/// Whether some of these parts are to run: all of them, unless others are named.
pub fn is_asked(parts: &[&str]) -> bool {
    let asked = std::env::var(PARTS_VARIABLE).unwrap_or_else(|_| "all".to_owned());
    asked == "all" || asked.split(',').any(|name| parts.contains(&name))
}

impl ScriptedGuest {
    /// Boots it, and prints its console. Panics, with the console and then what the failed parts printed, unless each
    /// of these parts passes and the guest ends within the time limit. Those of them that are `slow` run only on
    /// request, and then the limit is a multiple.
    pub fn boot(mut self, parts: &[&str], slow: &[&str], limit: Duration) {
        let asked = std::env::var(PARTS_VARIABLE).ok();
        let (expected, words): (Vec<&str>, String) = match asked.as_deref() {
            None => {
                let quick = parts.iter().copied().filter(|part| !slow.contains(part));
                (quick.collect(), format!(" aquifer_left_out={}", slow.join(",")))
            }
            Some("all") => (parts.to_vec(), String::new()),
            Some(names) => (names.split(',').collect(), format!(" aquifer_parts={names}")),
        };
        if let Some(unknown) = expected.iter().find(|name| !parts.contains(name)) {
            panic!("{PARTS_VARIABLE}: there is no part '{unknown}' among {parts:?}");
        }
        let limit = if expected.iter().any(|part| slow.contains(part)) { limit * SLOW_TIMES } else { limit };
        self.kernel_words.push_str(&words);
        self.qemu.arg("-append").arg(self.kernel_words);
        let ended = run(self.qemu, limit);
        let console = &ended.stdout;
        assert!(ended.status.is_some(), "the guest has not ended within {limit:?}; its console:\n{console}");
        assert!(console.contains("GUEST-END"), "the guest did not come to its end; {}\n{console}", ended.stderr);
        let bad: Vec<_> = expected.iter().filter(|part| !console.contains(&format!("PART {part} PASSED"))).collect();
        let failed = failed_parts(console);
        assert!(bad.is_empty() && failed.is_empty(), "the guest's console:\n{console}\n{failed}not passed: {bad:?}");
        println!("{console}");
    }
}

/// What `guest/start.sh` prints of parts that failed: for each, that it did, and the last lines of its output.
fn failed_parts(console: &str) -> String {
    let mut lines = console.lines();
    let mut failed = String::new();
    while let Some(head) = lines.find(|line| line.starts_with("PART ") && line.contains(" FAILED")) {
        let output: Vec<&str> = lines.clone().take_while(|line| !is_head(line)).collect();
        let last = &output[output.len().saturating_sub(FAILED_LINES)..];
        [head].iter().chain(last).for_each(|line| failed.extend([line.trim_end(), "\n"]));
    }
    failed
}

/// Whether a line of the console begins what the next part prints, or ends the last one's output.
fn is_head(line: &str) -> bool {
    line.starts_with("PART ") || line.starts_with("GUEST-END")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_parts_printed_is_found_in_the_console() {
        let console = "PART a PASSED after 1 s\r\nPART b FAILED after 2 s\r\none\r\ntwo\r\nthree\r\nfour\r\nfive\r\nsix\r\n\
                       PART c PASSED after 1 s\r\nPART d FAILED after 0 s\r\nPART e FAILED after 0 s\r\nno\r\nGUEST-END\r\n";
        let expected = "PART b FAILED after 2 s\ntwo\nthree\nfour\nfive\nsix\n\
                        PART d FAILED after 0 s\nPART e FAILED after 0 s\nno\n";
        assert_eq!(failed_parts(console), expected);
        assert_eq!(failed_parts("PART a PASSED after 1 s\nGUEST-END\n"), "");
    }

    #[test]
    fn a_kernel_has_the_options_that_its_configuration_sets() {
        let config = "CONFIG_VFIO=m\nCONFIG_VFIO_GROUP=y\n# CONFIG_VFIO_NOIOMMU is not set\nCONFIG_VFIO_X=n\n";
        for (option, built) in [
            ("CONFIG_VFIO", true),
            ("CONFIG_VFIO_GROUP", true),
            ("CONFIG_VFIO_NOIOMMU", false),
            ("CONFIG_VFIO_X", false),
        ] {
            assert_eq!(is_built_with(config, option), built, "{option}");
        }
    }
}
