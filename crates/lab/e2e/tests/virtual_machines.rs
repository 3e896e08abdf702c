// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! QEMU guests in 30 % of their memory: they read what they have written, and memory that they free is returned.
//!
//! The firmware guest needs QEMU and a C compiler, and also runs under KVM, if available. Linux needs a kernel: see
//! `src/guest.rs`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::evicted_memory::PROLOGUE;
use aquifer_e2e::guest::{BARE_RIGHT, QEMU_WORDS, bare, has_qemu, linux, skipped};
use aquifer_e2e::run::{Ended, LIMIT, aquifer, eventually, has_ended, managed, run, start, stats};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// QEMU's arguments to run the firmware in 96 MiB.
fn bare_words<'a>(firmware: &'a Path, accelerator: &'a str) -> Vec<&'a str> {
    let firmware = firmware.to_str().expect("the target directory is UTF-8");
    let words = ["-accel", accelerator, "-m", "96M", "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-bios"];
    [&QEMU_WORDS[..], &words, &[firmware]].concat()
}

/// Runs the firmware in 29 of its 96 MiB.
fn run_bare(firmware: &Path, accelerator: &str, delivery: &str) -> (Ended, Value) {
    let file = scratch(&format!("vm-{accelerator}-{delivery}")).join("stats.json");
    let name = file.display().to_string();
    let settings = ["--dram", "29MiB", "--tier", "dram:", "--delivery", delivery, "--stats-json", &name];
    let command = managed(&settings, Path::new("qemu-system-x86_64"), &bare_words(firmware, accelerator));
    (run(command, LIMIT), stats(&file))
}

#[track_caller]
fn found_nothing_wrong(ended: &Ended, stats: &Value, dram: u64) {
    assert!(ended.stdout.contains("guest: 0 wrong words"), "{}{}", ended.stdout, ended.stderr);
    let number = |name: &str| stats[name].as_u64().expect("a number");
    assert!(number("fetched_bytes") > 0, "nothing was evicted: {stats}");
    assert!(number("resident_bytes_peak") <= dram, "{stats}");
    assert_eq!(number("errors"), 0, "{stats}");
}

#[test]
fn a_guest_without_an_operating_system_keeps_its_memory() {
    let Some(firmware) = has_qemu().then(bare).flatten() else { return };
    for delivery in ["signal", "listener"] {
        let (ended, stats) = run_bare(&firmware, "tcg", delivery);
        ended.expect(BARE_RIGHT);
        found_nothing_wrong(&ended, &stats, 29 * MIB);
    }
}

/// Whether KVM runs the firmware natively: some machines have the device, but fail on the first instruction.
fn has_kvm(firmware: &Path) -> bool {
    let mut alone = Command::new("qemu-system-x86_64");
    alone.args(bare_words(firmware, "kvm"));
    let ended = run(alone, Duration::from_secs(60));
    ended.status == Some(BARE_RIGHT)
        || skipped(&format!("KVM does not run the firmware here: {:?} {}", ended.status, ended.stderr.trim()))
}

#[test]
fn under_kvm_the_kernel_takes_the_guests_faults() {
    let Some(firmware) = has_qemu().then(bare).flatten() else { return };
    if !has_kvm(&firmware) {
        return;
    }
    for delivery in ["auto", "signal"] {
        let (ended, stats) = run_bare(&firmware, "kvm", delivery);
        ended.expect(BARE_RIGHT);
        found_nothing_wrong(&ended, &stats, 29 * MIB);
        assert_eq!(stats["registered_mappings_signal"], 0, "{stats}");
    }
}

/// The counters of a running process; `None` if it has ended.
fn counters(process: u32) -> Option<Value> {
    let output = aquifer().args(["stat", "--json"]).output().expect("the command can be started");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut values = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("the statistics are JSON"));
    values.find(|value| value["pid"] == process)
}

#[test]
fn linux_keeps_its_memory_and_what_it_frees_goes_back() {
    let Some((kernel, initramfs)) = has_qemu().then(linux).flatten() else { return };
    let directory = scratch("vm-linux");
    let (file, tier) = (directory.join("stats.json"), format!("flash:{}", directory.display()));
    let mut command = aquifer();
    command.args(["vm", "--dram", "76MiB", "--memory", "256MiB", "--cpus", "2", "--accel", "tcg", "--tier", &tier]);
    command.arg("--stats-json").arg(&file).arg("--").args(QEMU_WORDS).arg("-kernel").arg(kernel);
    let disk = directory.join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(48 * MIB)).expect("the scratch directory can be written");
    command.arg("-drive").arg(format!("file={},if=virtio,format=raw,cache=unsafe", disk.display()));
    command.arg("-initrd").arg(initramfs).args(["-append", "console=ttyS0 quiet panic=-1 no_timer_check stay"]);
    // no_timer_check: Linux counts the timer's interrupts for some milliseconds, and panics if QEMU delivers them late
    // on a busy machine.
    let running = start(command);
    let qemu = running.program();
    // The guest tests its memory, then frees it, and its balloon reports the free pages some seconds later.
    let (mut max, mut left, mut discarded) = (0, 0, 0);
    eventually("the discard of what the guest has given back", || {
        std::thread::sleep(Duration::from_millis(200));
        if let Some(counters) = counters(qemu) {
            let number = |name: &str| counters[name].as_u64().expect("a number");
            (left, discarded) = (number("stored_bytes"), number("discarded_bytes"));
            max = max.max(left);
        }
        discarded >= 100 * MIB || has_ended(qemu)
    });
    let _ = Command::new("kill").arg(qemu.to_string()).status();
    let ended = running.wait(LIMIT);
    assert_eq!(ended.status, Some(0), "{}{}", ended.stdout, ended.stderr);
    found_nothing_wrong(&ended, &stats(&file), 76 * MIB);
    assert!(ended.stdout.contains("guest: wrote and read 48 MiB of its disk"), "{}", ended.stdout);
    assert!(discarded >= 100 * MIB, "{discarded} bytes were discarded; {}", ended.stdout);
    assert!(max - left >= 100 * MIB, "the tier held {max} bytes, and then {left}");
}

/// If a virtual machine exists when the pager starts, listeners serve all memory. That is so for QEMU above, because
/// the guest's RAM is what outgrows the budget. If a virtual machine is created later, adding managed memory to it is
/// refused with an error, so that no guest fails.
#[test]
fn a_later_guest_is_refused_memory_with_signal_delivery() {
    let body = r#"
        int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
        if (kvm < 0) return 77;
        unsigned char *early = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        evicted(1);
        int machine = ioctl(kvm, KVM_CREATE_VM, 0);
        if (machine < 0) return 77;
        unsigned char *late = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct kvm_userspace_memory_region region = {.memory_size = 8 << 20, .userspace_addr = (uintptr_t)late};
        must(ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region) == -1 && errno == ENOSYS, "is refused");
        region.userspace_addr = (uintptr_t)early;
        must(ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region) == 0, "what is not managed is not refused");
        return 0;"#;
    let headers = "#include <linux/kvm.h>\n#include <sys/ioctl.h>";
    let source = format!("{PROLOGUE}\n{headers}\nint main(void) {{{body}\n}}\n");
    let Some(program) = compile_text("late-guest", &source) else { return };
    let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", "signal"];
    let ended = run(managed(&words, &program, &[]), LIMIT);
    if ended.status == Some(77) {
        skipped("there is no KVM that makes a virtual machine");
        return;
    }
    ended
        .expect(0)
        .expect_line("aquifer: KVM is refused (ENOSYS) memory with signal delivery; run with --delivery listener");
}

/// No device of vhost is needed: the call is refused before the kernel sees it.
#[test]
fn vhost_is_refused_memory_with_signal_delivery() {
    let body = r#"
        unsigned char *early = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        unsigned char *late = evicted(8 << 20);
        struct { struct vhost_memory head; struct vhost_memory_region regions[2]; } table = {.head = {.nregions = 2}};
        table.regions[0].memory_size = table.regions[1].memory_size = 8 << 20;
        table.regions[0].userspace_addr = (uintptr_t)early;
        table.regions[1].userspace_addr = (uintptr_t)late;
        int file = open("/dev/null", O_RDWR);
        must(ioctl(file, VHOST_SET_MEM_TABLE, &table) == -1 && errno == ENOSYS, "is refused");
        table.head.nregions = 1;
        must(ioctl(file, VHOST_SET_MEM_TABLE, &table) == -1 && errno == ENOTTY, "what is not managed is not refused");
        return 0;"#;
    let source = format!("{PROLOGUE}\n#include <linux/vhost.h>\nint main(void) {{{body}\n}}\n");
    let Some(program) = compile_text("late-vhost", &source) else { return };
    let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", "signal"];
    run(managed(&words, &program, &[]), LIMIT)
        .expect(0)
        .expect_line("aquifer: vhost is refused (ENOSYS) memory with signal delivery; run with --delivery listener");
}
