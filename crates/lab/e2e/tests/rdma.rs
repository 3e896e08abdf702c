// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! RDMA against a real device, in a QEMU guest with Soft-RoCE: the tests of the transports, a program with memory on a
//! donor, whose processor transfers none of its bytes, leases that are revoked, and donors that are killed.
//! `guest/rdma.sh` has the steps in the guest.
//!
//! Guards against two failures: a borrower can still access memory that now belongs to another, which the donor's
//! processor cannot prevent because it is not involved; and a device waits for a peer that no longer exists.
//!
//! Needs QEMU and `AQUIFER_E2E_RDMA_KERNEL=DIR` (`src/rdma_guest.rs`), and takes some minutes, because QEMU emulates
//! the guest's processors. `AQUIFER_E2E_RDMA_STEPS=leases,lending` runs only those steps.

use std::process::Command;
use std::time::Duration;

use aquifer_e2e::guest::{QEMU_WORDS, has_qemu};
use aquifer_e2e::rdma_guest::rdma;
use aquifer_e2e::run::run;

/// Long enough for emulated processors on a busy machine: a run took five and a half minutes on two processors that
/// also ran builds.
const LIMIT: Duration = Duration::from_secs(1800);
/// Names the steps to run; by default all.
const STEPS_VARIABLE: &str = "AQUIFER_E2E_RDMA_STEPS";
/// The steps of `guest/rdma.sh`, in order, and the parts that each step reports. The last step also limits the longest
/// access to two seconds, which an emulated machine with shared processors may exceed.
const STEPS: [(&str, &[&str]); 8] = [
    ("verbs", &["verbs"]),
    ("leases", &["leases"]),
    ("transports", &["transports"]),
    ("doctor", &["doctor"]),
    ("refused", &["no-such-device", "donor-without-rdma"]),
    ("lending", &["verifying", "revoked"]),
    ("killed", &["killed"]),
    ("mirrored", &["mirrored"]),
];

#[test]
fn a_guest_with_soft_roce_lends_and_borrows_past_the_donors_processor() {
    if !has_qemu() {
        return;
    }
    let Some((kernel, initramfs)) = rdma() else { return };
    let asked = std::env::var(STEPS_VARIABLE).unwrap_or_else(|_| STEPS.map(|(step, _)| step).join(","));
    let parts = asked.split(',').flat_map(|asked| {
        let step = STEPS.iter().find(|(step, _)| *step == asked);
        step.unwrap_or_else(|| panic!("{STEPS_VARIABLE}: there is no step '{asked}' among {STEPS:?}")).1
    });
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(QEMU_WORDS).args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]);
    let words = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off";
    qemu.args(["-smp", "2", "-m", "2G", "-append", &format!("{words} aquifer_steps={asked}")]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    let ended = run(qemu, LIMIT);
    let console = &ended.stdout;
    assert!(ended.status.is_some(), "the guest has not ended within {LIMIT:?}; its console:\n{console}");
    assert!(console.contains("GUEST-END"), "the guest did not come to its end; {}\n{console}", ended.stderr);
    let has = |part: &str, outcome: &str| console.contains(&format!("PART {part} {outcome}"));
    let bad: Vec<String> = parts
        .filter(|part| !has(part, "PASSED"))
        .map(|part| format!("{part} has {}", if has(part, "FAILED") { "failed" } else { "not been run" }))
        .collect();
    assert!(bad.is_empty(), "{}; the guest's console:\n{console}", bad.join(", "));
    println!("{console}");
}
