// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory of a virtual machine that the program gives to the kernel: to KVM, for the guest's own accesses (the kernel's
//! Documentation/virt/kvm/api.rst, 4.35 and 4.140), or to vhost, for a device's (`linux/vhost.h`).
//!
//! `pager/src/adopt.rs` handles KVM virtual machines that exist when the pager starts. This file handles later ones.
//! Runs in the handler of trapped calls.

#![allow(unsafe_code, reason = "reads the structures of the program's call")]

use aquifer_pager::Adopter;

use crate::program_memory::load;

const KVM_SET_USER_MEMORY_REGION: usize = 0x4020_ae46;
const KVM_SET_USER_MEMORY_REGION2: usize = 0x40a0_ae49;
const VHOST_SET_MEM_TABLE: usize = 0x4008_af03;

/// Regions of a table that are checked. vhost itself takes 64, unless `max_mem_regions` of its module says otherwise.
const VHOST_REGIONS_MAX: u32 = 512;

/// The common start of both requests of KVM.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    len: u64,
    address: u64,
}

/// The start of vhost's table; its regions follow.
#[repr(C)]
#[derive(Clone, Copy)]
struct VhostTable {
    regions: u32,
    padding: u32,
}

/// One of vhost's regions.
#[repr(C)]
#[derive(Clone, Copy)]
struct VhostRegion {
    guest_address: u64,
    len: u64,
    address: u64,
    flags: u64,
}

/// The part of the kernel that accesses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessor {
    Kvm,
    Vhost,
}

/// If this request of ioctl(2) gives KVM or vhost memory that it could not access once it is evicted, returns which.
///
/// # Safety
/// `argument` is the argument of the request.
pub unsafe fn accessor_to_refuse(adopter: &'static Adopter, request: usize, argument: usize) -> Option<Accessor> {
    let would_fail = |len: u64, address: u64| len > 0 && adopter.fails_the_kernel(address as usize, len as usize);
    // The kernel ignores the upper half of the register.
    match request & 0xffff_ffff {
        KVM_SET_USER_MEMORY_REGION | KVM_SET_USER_MEMORY_REGION2 => {
            let MemoryRegion { len, address, .. } = load(argument)?;
            would_fail(len, address).then_some(Accessor::Kvm)
        }
        VHOST_SET_MEM_TABLE => {
            let VhostTable { regions, .. } = load(argument)?;
            let mut addresses = (argument + size_of::<VhostTable>()..).step_by(size_of::<VhostRegion>());
            let mut regions = addresses.by_ref().take(regions.min(VHOST_REGIONS_MAX) as usize);
            let fails = |region: VhostRegion| would_fail(region.len, region.address);
            regions.any(|region| load(region).is_some_and(fails)).then_some(Accessor::Vhost)
        }
        _ => None,
    }
}
