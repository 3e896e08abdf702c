// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The torture program in a QEMU guest whose kernel (Debian's 6.1) has neither UFFDIO_MOVE nor UFFDIO_POISON nor
//! asynchronous write protection. All other tests of exchange by copying run on kernels that have all three.
//!
//! Needs QEMU and `AQUIFER_E2E_KERNEL=DIR`, which `.ci/guest-kernel DIR` fills.

use std::process::Command;
use std::time::Duration;

use aquifer_e2e::guest::{QEMU_WORDS, has_qemu};
use aquifer_e2e::rdma_guest::older;
use aquifer_e2e::run::run;

/// Long, because QEMU emulates the guest's processors.
const LIMIT: Duration = Duration::from_secs(1800);
const PARTS: [&str; 5] = ["signal-auto", "signal-copy", "listener-auto", "listener-copy", "move-refused"];

#[test]
fn every_byte_is_right_on_a_kernel_that_cannot_move_pages() {
    if !has_qemu() {
        return;
    }
    let Some((kernel, initramfs)) = older() else { return };
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(QEMU_WORDS).args(["-machine", "q35", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max,la57=off"]);
    qemu.args(["-smp", "2", "-m", "1G", "-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off"]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
    let ended = run(qemu, LIMIT);
    let console = &ended.stdout;
    assert!(ended.status.is_some(), "the guest has not ended within {LIMIT:?}; its console:\n{console}");
    assert!(console.contains("GUEST-END"), "the guest did not come to its end; {}\n{console}", ended.stderr);
    let bad: Vec<_> = PARTS.iter().filter(|part| !console.contains(&format!("PART {part} PASSED"))).collect();
    assert!(bad.is_empty(), "{bad:?}; the guest's console:\n{console}");
    println!("{console}");
}
