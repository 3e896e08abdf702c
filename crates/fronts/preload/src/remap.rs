// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! mremap(2) of managed memory. The kernel cannot do it while part of the memory is evicted, so the library does. To
//! grow a mapping in place, it adds a new mapping after it. To move a mapping, it copies the contents and keeps the
//! protection of each page. Locked memory is locked at its new address.
//!
//! Unlike the kernel's mremap, this is not atomic: a thread that reads either address range during the call may see
//! memory that is readable but not yet written.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};

use aquifer_sys::protection::{self, Part};
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::{own_stack, signals};

use crate::kernel::libc_result;
use crate::locks;
use crate::mappings::{advise, can_be_mapped, map, unmap};
use crate::start::instance;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Wraps mremap(2). While memory may be evicted, a managed mapping is moved by copying.
///
/// # Safety
/// The same as for mremap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    // SAFETY: as mremap(2).
    std::ptr::with_exposed_provenance_mut(unsafe { remap(address, old_len, new_len, flags, target as usize) } as usize)
}

/// Carries out the program's mremap(2). It has a separate name, since `mremap` means the kernel's inside this library:
/// see `build.rs`.
///
/// # Safety
/// The same as for mremap(2).
pub unsafe fn remap(address: *mut c_void, old_len: usize, new_len: usize, flags: c_int, target: usize) -> isize {
    let args = [address as usize, old_len, new_len, flags as usize, target, 0];
    // SAFETY: as mremap(2).
    let remap = move || unsafe { syscall(libc::SYS_mremap, args) };
    let result = match instance() {
        Some(instance) if instance.adopter.manages(address as usize, old_len.max(1)) => {
            remap_managed(address as usize, old_len, new_len, flags, target)
        }
        // The memory that was at the target is gone.
        Some(instance) if flags & libc::MREMAP_FIXED != 0 && can_be_mapped(target, new_len) => {
            instance.adopter.release(target, new_len, remap)
        }
        Some(instance) => remap().inspect(|new| {
            let stayed = if *new == address as usize { old_len.next_multiple_of(4096) } else { 0 };
            instance.adopter.has_appeared(new + stayed, new_len.saturating_sub(stayed));
        }),
        None => remap(),
    };
    if let (Ok(new), Some(instance)) = (result, instance()) {
        instance.adopter.has_moved(address as usize, old_len, new, new_len);
    }
    libc_result(result)
}

/// Refuses the same calls as the kernel: `check_mremap_params` in mm/mremap.c.
fn remap_managed(old: usize, old_len: usize, new_len: usize, flags: c_int, target: usize) -> Result<usize, Errno> {
    const KNOWN: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let is = |flag: c_int| flags & flag != 0;
    let (fixed, stays) = (is(libc::MREMAP_FIXED), is(libc::MREMAP_DONTUNMAP));
    let possible = can_be_mapped(old, old_len) && can_be_mapped(if fixed { target } else { 0 }, new_len);
    if flags & !KNOWN != 0 || !possible || ((fixed || stays) && !is(libc::MREMAP_MAYMOVE)) {
        return Err(Errno(libc::EINVAL));
    }
    let (old_len, new_len) = (old_len.next_multiple_of(4096), new_len.next_multiple_of(4096));
    let overlap = target < old.saturating_add(old_len) && old < target.saturating_add(new_len);
    if (fixed && overlap) || (stays && new_len != old_len) {
        return Err(Errno(libc::EINVAL));
    }
    if !fixed && !stays && new_len <= old_len {
        if new_len < old_len {
            give_back(old + new_len, old_len - new_len)?;
        }
        return Ok(old);
    }
    // Boxed, because the result is two words.
    let parts = (*own_stack::call(move || Box::new(protection::of(old, old + old_len.min(new_len)))))?;
    let is_locked = instance().is_some_and(|instance| instance.adopter.is_locked(old, old_len));
    if !fixed && !stays {
        let grown = grow(old + old_len, new_len - old_len, &parts);
        if grown.is_ok() && is_locked {
            let (end, more) = (old + old_len, new_len - old_len);
            lock(end, more).inspect_err(|_| _ = give_back(end, more))?;
        }
        if grown.is_ok() || !is(libc::MREMAP_MAYMOVE) {
            return grown.map(|()| old).map_err(|_| Errno(libc::ENOMEM));
        }
    }
    let new = copy(old, &parts, new_len, fixed.then_some(target))?;
    if is_locked {
        lock_instead((old, old_len), (new, new_len)).inspect_err(|_| _ = give_back(new, new_len))?;
    }
    let left = if stays { empty(old, old_len) } else { give_back(old, old_len) };
    left.inspect_err(|_| _ = give_back(new, new_len))?;
    Ok(new)
}

/// Maps `more` bytes at `end`, after a range of `parts`, with the protection of its last part. An error if the
/// addresses are in use.
fn grow(end: usize, more: usize, parts: &[Part]) -> Result<(), Errno> {
    let place = make(Some(end), more, libc::MAP_FIXED_NOREPLACE)?;
    if place != end {
        // Before Linux 4.17 the flag is only a hint.
        give_back(place, more)?;
        return Err(Errno(libc::EEXIST));
    }
    let protection = parts.last().map_or(READ_WRITE, |part| part.protection);
    permit(end, more, protection).inspect_err(|_| _ = give_back(end, more))
}

/// Copies the memory of `parts` to a new mapping of `new_len` bytes, at `target` if given.
fn copy(old: usize, parts: &[Part], new_len: usize, target: Option<usize>) -> Result<usize, Errno> {
    let new = make(target, new_len, if target.is_some() { libc::MAP_FIXED } else { 0 })?;
    let outcome = parts.iter().enumerate().try_for_each(|(index, part)| {
        let (len, place) = (part.end - part.start, new + (part.start - old));
        copy_part(part, place)?;
        let is_last = index + 1 == parts.len();
        permit(place, if is_last { new + new_len - place } else { len }, part.protection)
    });
    outcome.inspect_err(|_| _ = give_back(new, new_len)).map(|()| new)
}

/// Copies one part to `place`, even if the program may not read it.
fn copy_part(part: &Part, place: usize) -> Result<(), Errno> {
    let len = part.end - part.start;
    let is_closed = part.protection & libc::PROT_READ == 0;
    if is_closed {
        permit(part.start, len, libc::PROT_READ)?;
    }
    // SAFETY: both ranges are the program's, do not overlap, and may be read and written. Faults on them are resolved
    // as for any access of the program.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance::<u8>(part.start),
            std::ptr::with_exposed_provenance_mut(place),
            len,
        );
    }
    if is_closed { permit(part.start, len, part.protection) } else { Ok(()) }
}

/// Makes a new readable and writable mapping of the program.
fn make(place: Option<usize>, len: usize, how: c_int) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let place = std::ptr::with_exposed_provenance_mut(place.unwrap_or(0));
    // SAFETY: changes no existing mapping, except those that the program wants replaced.
    let new = unsafe { map(place, len, READ_WRITE, flags, -1, 0) };
    if new == libc::MAP_FAILED { Err(Errno(signals::errno())) } else { Ok(new as usize) }
}

/// Sets the protection of a range, unless they are those that a new mapping has.
fn permit(start: usize, len: usize, protection: c_int) -> Result<(), Errno> {
    if protection == READ_WRITE {
        return Ok(());
    }
    // SAFETY: the program's memory, which the program has asked to move.
    unsafe { syscall(libc::SYS_mprotect, [start, len, protection as usize, 0, 0, 0]) }.map(drop)
}

/// Locks the second range instead of the first, whose unlocking makes room for it. If the second exceeds the memory
/// that may be locked, returns an error and keeps the first locked.
fn lock_instead(old: (usize, usize), new: (usize, usize)) -> Result<(), Errno> {
    locks::unlock([old.0, old.1, 0, 0, 0, 0]);
    lock(new.0, new.1).inspect_err(|_| _ = lock(old.0, old.1))
}

/// Works like mlock(2), with the error of mremap(2).
fn lock(start: usize, len: usize) -> Result<(), Errno> {
    let result = locks::lock(libc::SYS_mlock, [start, len, 0, 0, 0, 0]);
    if result == 0 { Ok(()) } else { Err(Errno(libc::EAGAIN)) }
}

/// Unmaps a range, such as the one that the program's memory has moved away from. An error if mseal(2) has sealed it.
fn give_back(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the program unmaps its own memory.
    in_libcs_manner(unsafe { unmap(std::ptr::with_exposed_provenance_mut(start), len) })
}

/// Empties the range that the program's memory has moved away from, and keeps it mapped.
fn empty(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: as above.
    in_libcs_manner(unsafe { advise(std::ptr::with_exposed_provenance_mut(start), len, libc::MADV_DONTNEED) })
}

fn in_libcs_manner(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno(signals::errno())) }
}
