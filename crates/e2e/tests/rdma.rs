// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! RDMA against a real device, in a guest of QEMU's with Soft-RoCE: the tests of the transports, a program whose memory
//! a donor has that serves no byte of it, leases that are revoked, and donors that are killed. `guest/rdma.sh` is what
//! happens there.
//!
//! The trouble it guards against: memory that a borrower reaches although it is another one's by now, since the donor's
//! processor is not asked; and a device that waits for a peer that is gone.
//!
//! Takes QEMU and `AQUIFER_E2E_RDMA_KERNEL=DIR` (`src/rdma_guest.rs`), and some minutes where there is no KVM.

use std::process::Command;
use std::time::Duration;

use aquifer_e2e::guest::{QEMU_WORDS, has_qemu};
use aquifer_e2e::rdma_guest::rdma;
use aquifer_e2e::run::run;

/// Without KVM, and on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(1200);
const PARTS: [&str; 9] = [
    "verbs",
    "leases",
    "transports",
    "doctor",
    "no-such-device",
    "donor-without-rdma",
    "verifying",
    "revoked",
    "killed",
];
/// Judged by a clock, which an emulated machine that shares its processors does not keep.
const TIMED: [&str; 1] = ["mirrored"];

#[test]
fn a_guest_with_soft_roce_lends_and_borrows_past_the_donors_processor() {
    if !has_qemu() {
        return;
    }
    let Some((kernel, initramfs)) = rdma() else { return };
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(QEMU_WORDS).args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]);
    qemu.args(["-smp", "2", "-m", "2G", "-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off"]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    let ended = run(qemu, LIMIT);
    println!("{}", ended.stdout);
    assert!(ended.stdout.contains("GUEST-END"), "the guest did not come to its end");
    for part in PARTS.iter().chain(&TIMED) {
        let has = |outcome: &str| ended.stdout.contains(&format!("PART {part} {outcome}"));
        assert!(has("PASSED"), "{part} has {}", if has("FAILED") { "failed" } else { "not been run" });
    }
}
