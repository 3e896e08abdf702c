// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hardware that programs reach without the kernel in between, in a QEMU guest: a CXL switch's mailbox by VFIO, a tier
//! on a file with `-o dax`, and, by the kernel's DAMON, which memory of a far node is hot. `guest/direct.sh` has the
//! steps.
//!
//! The trouble that it guards against: structures and flags of the kernel that only a kernel can judge.
//!
//! Needs QEMU and `AQUIFER_E2E_CXL_KERNEL=DIR` (`src/scripted_guest.rs`). One boot for all parts but that without an
//! IOMMU.

use std::time::Duration;

use aquifer_e2e::direct_guest::direct;
use aquifer_e2e::guest::has_qemu;
use aquifer_e2e::scripted_guest::is_asked;

/// Long, because QEMU emulates the guest's processors.
const LIMIT: Duration = Duration::from_secs(1200);
const PARTS: [&str; 3] = ["fsdax-tier", "fsdax-shared", "damon-hot"];
/// The further part where QEMU has a switch with a mailbox.
const SWITCH_PART: &str = "vfio-mailbox";
/// The part of the guest without an IOMMU.
const BARE_PART: &str = "vfio-bare";

#[test]
fn a_guest_reaches_a_mailbox_by_vfio_and_memory_by_dax_files() {
    if !has_qemu() || !is_asked(&[&PARTS[..], &[SWITCH_PART]].concat()) {
        return;
    }
    let Some(direct) = direct(true) else { return };
    if !direct.has_switch {
        let why = "there is no QEMU with a CXL switch mailbox, which needs QEMU 8.2; AQUIFER_QEMU names another one";
        aquifer_test_support::skip_part("VFIO", why);
    }
    let parts: Vec<&str> = PARTS.into_iter().chain(direct.has_switch.then_some(SWITCH_PART)).collect();
    direct.guest.boot(&parts, &[], LIMIT);
}

/// The kernel refuses to give the function to vfio-pci, and the command says why. The rest needs a kernel with vfio's
/// unsafe mode, which Debian's is not: there, the mailbox gives the same answers by VFIO as by its file.
#[test]
fn without_an_iommu_the_mailbox_takes_the_unsafe_mode_of_vfio() {
    if !has_qemu() || !is_asked(&[BARE_PART]) {
        return;
    }
    let Some(direct) = direct(false) else { return };
    if !direct.has_switch {
        aquifer_test_support::skip_part("VFIO", "there is no QEMU with a CXL switch mailbox, which needs QEMU 8.2");
        return;
    }
    if !direct.has_unsafe_mode {
        let why = "this kernel has no CONFIG_VFIO_NOIOMMU: only that the command says so is tested";
        aquifer_test_support::skip_part("the mailbox by a group noiommu-N", why);
    }
    direct.guest.boot(&[BARE_PART], &[], LIMIT);
}
