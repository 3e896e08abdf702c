// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Far memory that the kernel knows, in a QEMU guest with a node without CPUs, a memory device and CXL devices:
//! programs spread over nodes with exact counts of their pages, tiers on a node and on memory devices, donors that lend
//! them, the kernel's tiering, CXL regions from nothing to a node and back, and what binds and unbinds of a fabric
//! manager do to the host. `guest/far-nodes.sh` and `guest/far-pool.sh` have the steps.
//!
//! The trouble that it guards against: memory that is on another node than requested, which only costs speed and is
//! noticed by nobody; and a device that is taken away while a program's memory is on it.
//!
//! Needs QEMU and `AQUIFER_E2E_CXL_KERNEL=DIR` (`src/scripted_guest.rs`). One boot for all parts.

use std::time::Duration;

use aquifer_e2e::far_guest::far;
use aquifer_e2e::guest::has_qemu;

/// Long, because QEMU emulates the guest's processors.
const LIMIT: Duration = Duration::from_secs(1800);
const PARTS: [&str; 10] = [
    "even-and-bound",
    "weighted",
    "node-tier",
    "refusals",
    "devdax-tier",
    "donor-and-chain",
    "tiering",
    "striped",
    "bench-memory",
    "bench-node",
];
/// The further parts where QEMU has volatile CXL memory.
const CXL_PARTS: [&str; 17] = [
    "cxl-region",
    "cxl-device",
    "cxl-online",
    "cxl-spread",
    "cxl-bench",
    "cxl-unbind",
    "pool-start",
    "pool-bind",
    "pool-busy",
    "pool-chain",
    "pool-spread",
    "pool-dax",
    "pool-misfit",
    "pool-refused",
    "pool-drained",
    "pool-rebound",
    "pool-pulled",
];
/// They measure, and take minutes.
const SLOW_PARTS: [&str; 2] = ["bench-memory", "cxl-bench"];

#[test]
fn a_guest_uses_far_nodes_memory_devices_and_cxl_regions() {
    if !has_qemu() {
        return;
    }
    let Some(far) = far() else { return };
    if !far.has_cxl {
        let why = "there is no QEMU with volatile CXL memory, which takes QEMU 8.1; AQUIFER_QEMU names another one";
        aquifer_test_support::skip_part("CXL regions", why);
    }
    let parts: Vec<&str> = PARTS.into_iter().chain(CXL_PARTS.into_iter().filter(|_| far.has_cxl)).collect();
    far.guest.boot(&parts, &SLOW_PARTS, LIMIT);
}
