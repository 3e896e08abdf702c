// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hardware that programs reach without the kernel in between, in a QEMU guest: a CXL switch's mailbox by VFIO, a tier
//! on a file with `-o dax`, and, by the kernel's DAMON, which memory of a far node is hot. `guest/direct.sh` has the
//! steps.
//!
//! The trouble that it guards against: structures and flags of the kernel that only a kernel can judge.
//!
//! Needs QEMU and `AQUIFER_E2E_CXL_KERNEL=DIR` (`src/scripted_guest.rs`). One boot for all parts.

use std::time::Duration;

use aquifer_e2e::direct_guest::direct;
use aquifer_e2e::guest::has_qemu;

/// Long, because QEMU emulates the guest's processors.
const LIMIT: Duration = Duration::from_secs(1200);
const PARTS: [&str; 3] = ["fsdax-tier", "fsdax-shared", "damon-hot"];
/// The further part where QEMU has a switch with a mailbox.
const SWITCH_PART: &str = "vfio-mailbox";

#[test]
fn a_guest_reaches_a_mailbox_by_vfio_and_memory_by_dax_files() {
    if !has_qemu() {
        return;
    }
    let Some(direct) = direct() else { return };
    if !direct.has_switch {
        let why = "there is no QEMU with a CXL switch mailbox, which takes QEMU 8.2; AQUIFER_QEMU names another one";
        aquifer_test_support::skip_part("VFIO", why);
    }
    let parts: Vec<&str> = PARTS.into_iter().chain(direct.has_switch.then_some(SWITCH_PART)).collect();
    direct.guest.boot(&parts, &[], LIMIT);
}
