// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that the program gives to a guest of KVM: see the kernel's Documentation/virt/kvm/api.rst, 4.35 and 4.140.
//!
//! `pager/src/adopt.rs` handles machines that exist when the pager starts. This file handles later ones. Runs in the
//! handler of trapped calls.

#![allow(unsafe_code, reason = "reads the structure of the program's call")]

use aquifer_pager::Adopter;

use crate::program_memory::load;

const KVM_SET_USER_MEMORY_REGION: usize = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: usize = 0x40a0_ae49;

/// The common start of both requests.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    len: u64,
    address: u64,
}

/// Returns whether a request of ioctl(2) gives memory to a guest. The upper half of the register is ignored.
pub fn takes_memory(request: usize) -> bool {
    matches!(request & 0xffff_ffff, KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2)
}

/// Returns whether the guest's accesses to that memory would fail.
///
/// # Safety
/// `region` is the argument of such a request.
pub unsafe fn would_fail(adopter: &'static Adopter, region: usize) -> bool {
    let Some(MemoryRegion { len, address, .. }) = load(region) else { return false };
    len > 0 && adopter.fails_the_kernel(address as usize, len as usize)
}
