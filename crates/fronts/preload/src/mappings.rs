// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's mmap family: private anonymous mappings become managed, all others stay with the kernel as before.
//!
//! Memory that becomes managed is handed to the pager; unmapping it, or mapping over it, takes it back. Calls that the
//! program makes with syscall(2) arrive through `by_number.rs`.
//!
//! Next on the path: `choice.rs`, which memory is managed; `pager/src/adopt.rs`, which takes it over.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};

use aquifer_core::engine::Advice;
use aquifer_pager::Adopter;
use aquifer_pager::advice::Withheld;
use aquifer_sys::raw::syscall;
use aquifer_sys::signals;

use crate::choice::{Origin, SMALLEST_MAPPING_BYTES, delivery};
use crate::kernel::call;
use crate::start::instance;

/// Returns whether a new mapping can be managed once it is writable: private anonymous memory.
fn is_plain(flags: c_int) -> bool {
    const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const NOT_OURS: c_int = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED;
    flags & PLAIN == PLAIN && flags & NOT_OURS == 0
}

/// The end of the addresses that a program can have (TASK_SIZE of x86-64 with four levels of page tables).
pub const ADDRESSES_END: usize = 0x7fff_ffff_f000;

/// Returns the end of `start..start + len`, in whole pages. Returns `None` if it is no range of pages: the kernel
/// refuses the call, so the pager must not release anything.
fn end(start: usize, len: usize) -> Option<usize> {
    let end = start.checked_add(len.checked_next_multiple_of(4096)?)?;
    (start.is_multiple_of(4096) && len > 0).then_some(end)
}

/// Returns whether the kernel can map or unmap `start..start + len` at all.
pub fn can_be_mapped(start: usize, len: usize) -> bool {
    end(start, len).is_some_and(|end| end <= ADDRESSES_END)
}

/// Wraps mmap(2).
///
/// # Safety
/// The same as for mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: as mmap(2).
    unsafe { map(address, len, protection, flags, descriptor, offset) }
}

/// Carries out the program's mmap(2). It has a separate name, since `mmap` means the kernel's inside this library: see
/// `build.rs`.
///
/// # Safety
/// The same as for mmap(2).
pub unsafe fn map(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let args = [address as usize, len, protection as usize, flags as usize, descriptor as usize, offset as usize];
    // SAFETY: as mmap(2).
    let map = move || unsafe { call(libc::SYS_mmap, args) };
    let Some(instance) = instance() else { return std::ptr::with_exposed_provenance_mut(map() as usize) };
    let replaces = flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    let replaces = replaces && can_be_mapped(address as usize, len);
    let stays_managed = replaces
        && is_plain(flags)
        && instance.adopter.manages_all(address as usize, len)
        && !instance.adopter.has_locked(address as usize, len);
    if stays_managed {
        let mapped = remap_fixed(&instance.adopter, args);
        return std::ptr::with_exposed_provenance_mut(mapped as usize);
    }
    let mapped = if replaces { instance.adopter.release(address as usize, len, map) } else { map() };
    if mapped != -1 && !replaces {
        instance.adopter.has_appeared(mapped as usize, len);
    }
    let delivery = delivery(Origin::Mapping, instance.delivery);
    if mapped != -1 && is_plain(flags) && protection & libc::PROT_WRITE == 0 {
        instance.adopter.reserve(mapped as usize, len);
    } else if mapped != -1 && is_plain(flags) && len >= SMALLEST_MAPPING_BYTES {
        instance.adopter.adopt(mapped as usize, len, delivery);
    } else if mapped != -1 && (flags & libc::MAP_SHARED != 0 || flags & libc::MAP_ANONYMOUS == 0) {
        instance.adopter.leave_alone(mapped as usize, len);
    }
    std::ptr::with_exposed_provenance_mut(mapped as usize)
}

/// Carries out an mmap(2) with MAP_FIXED that replaces managed plain memory by plain memory: the new memory is managed
/// like the old. Runtimes return memory to the kernel and reuse it in this way. With MAP_POPULATE, it is populated once
/// it is managed; a failure of that is not an error.
fn remap_fixed(adopter: &'static Adopter, args: [usize; 6]) -> isize {
    const POPULATE: usize = libc::MAP_POPULATE as usize;
    let [start, len, protection, flags, ..] = args;
    let mapped = adopter.remap_fixed(start, len, move |is_active| {
        let mut args = args;
        args[3] &= if is_active { !POPULATE } else { usize::MAX };
        // SAFETY: the program's own call.
        unsafe { call(libc::SYS_mmap, args) }
    });
    let advice = match protection as c_int & (libc::PROT_READ | libc::PROT_WRITE) {
        0 => None,
        libc::PROT_READ => Some(libc::MADV_POPULATE_READ),
        _ => Some(libc::MADV_POPULATE_WRITE),
    };
    let wants = flags & POPULATE != 0 && flags & libc::MAP_NONBLOCK as usize == 0;
    if let Some(advice) = advice.filter(|_| mapped != -1 && wants && adopter.is_active()) {
        let errno = signals::errno();
        populate(adopter, start, len, advice);
        signals::set_errno(errno);
    }
    mapped
}

/// Manages reserved memory that becomes writable, before `start..start + len` gets its new protection.
pub fn open(adopter: &'static Adopter, start: usize, len: usize, protection: usize) {
    if protection & libc::PROT_WRITE as usize != 0
        && can_be_mapped(start, len)
        && let Some(instance) = instance()
    {
        adopter.open(start, len, delivery(Origin::Mapping, instance.delivery));
    }
}

/// Wraps mprotect(2).
///
/// # Safety
/// The same as for mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: as mprotect(2).
    unsafe { protect(address as usize, len, protection as usize) }
}

/// Carries out the program's mprotect(2), under a separate name: see `map`.
///
/// # Safety
/// The same as for mprotect(2).
pub unsafe fn protect(start: usize, len: usize, protection: usize) -> c_int {
    instance().inspect(|instance| open(&instance.adopter, start, len, protection));
    // SAFETY: as mprotect(2).
    unsafe { call(libc::SYS_mprotect, [start, len, protection, 0, 0, 0]) as c_int }
}

/// Wraps pkey_mprotect(2).
///
/// # Safety
/// The same as for pkey_mprotect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(address: *mut c_void, len: usize, protection: c_int, key: c_int) -> c_int {
    // SAFETY: as pkey_mprotect(2).
    unsafe { protect_with_key(address as usize, len, protection as usize, key) }
}

/// Carries out the program's pkey_mprotect(2), under a separate name: see `map`.
///
/// # Safety
/// The same as for pkey_mprotect(2).
pub unsafe fn protect_with_key(start: usize, len: usize, protection: usize, key: c_int) -> c_int {
    instance().inspect(|instance| open(&instance.adopter, start, len, protection));
    // The C library avoids the newer call where it can.
    let number = if key == -1 { libc::SYS_mprotect } else { libc::SYS_pkey_mprotect };
    // SAFETY: as pkey_mprotect(2).
    unsafe { call(number, [start, len, protection, key as usize, 0, 0]) as c_int }
}

/// Wraps mmap64, which is the same as mmap(2) on this target.
///
/// # Safety
/// The same as for mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: as mmap(2).
    unsafe { map(address, len, protection, flags, descriptor, offset) }
}

/// Wraps munmap(2).
///
/// # Safety
/// The same as for munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    // SAFETY: as munmap(2).
    unsafe { unmap(address, len) }
}

/// Carries out the program's munmap(2), under a separate name: see `map`.
///
/// # Safety
/// The same as for munmap(2).
pub unsafe fn unmap(address: *mut c_void, len: usize) -> c_int {
    // SAFETY: as munmap(2).
    let unmap = move || unsafe { call(libc::SYS_munmap, [address as usize, len, 0, 0, 0, 0]) } as c_int;
    match instance() {
        Some(instance) if can_be_mapped(address as usize, len) => {
            instance.adopter.release(address as usize, len, unmap)
        }
        _ => unmap(),
    }
}

/// Wraps madvise(2). Advice that discards contents also discards them in the tier.
///
/// # Safety
/// The same as for madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: as madvise(2).
    unsafe { advise(address, len, advice) }
}

/// Carries out the program's madvise(2), under a separate name: see `map`.
///
/// # Safety
/// The same as for madvise(2).
pub unsafe fn advise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: as madvise(2).
    let advise =
        move |advice: c_int| unsafe { call(libc::SYS_madvise, [address as usize, len, advice as usize, 0, 0, 0]) }
            as c_int;
    let Some(instance) = instance() else { return advise(advice) };
    let (adopter, start) = (&instance.adopter, address as usize);
    if end(start, len).is_none() || !(adopter.manages(start, len) || adopter.reserves(start, len)) {
        return advise(advice);
    }
    let active = adopter.is_active();
    match advice {
        // The kernel frees lazily, and a page that it has freed must not be fetched again, so the pages are freed
        // immediately once the pager has started, which may be now.
        libc::MADV_FREE => adopter.discard(start, len, move || {
            advise(if adopter.is_active() { libc::MADV_DONTNEED } else { libc::MADV_FREE })
        }),
        libc::MADV_DONTNEED => adopter.discard(start, len, move || advise(advice)),
        MADV_DONTNEED_LOCKED => adopter.discard_locked(start, len, move || advise(advice)),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE if active && adopter.watches_calls() => {
            populate(adopter, start, len, advice)
        }
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => {
            // Blocks of managed memory get huge pages from the pager.
            let huge = advice == libc::MADV_HUGEPAGE;
            let result = if huge && active { 0 } else { advise(advice) };
            if result == 0 {
                adopter.prefer_huge(start, len, huge);
            }
            result
        }
        // A collapse would take memory beyond the budget, and merged pages cannot be moved.
        libc::MADV_MERGEABLE | MADV_COLLAPSE if active => 0,
        // A core dump would show zeros for evicted pages.
        libc::MADV_DODUMP if active => 0,
        MADV_GUARD_INSTALL => guard(adopter, start, len, advise),
        _ => match (announced(advice), withheld(advice)) {
            (Some(what), _) => announce(adopter, start, len, (advice, what), advise),
            (_, Some((what, withheld))) => {
                // Managed memory keeps MADV_DONTFORK in the kernel until the pager itself handles a fork(2).
                let kept = active && advice == libc::MADV_DOFORK && adopter.manages_all(start, len);
                let result = advise(if kept { libc::MADV_DONTFORK } else { advice });
                if result == 0 {
                    adopter.withhold(start, len, what, withheld);
                }
                result
            }
            _ => advise(advice),
        },
    }
}

// Not in libc yet. They exist since Linux 5.18, 6.1 and 6.13.
const MADV_DONTNEED_LOCKED: c_int = 24;
pub const MADV_COLLAPSE: c_int = 25;
const MADV_GUARD_INSTALL: c_int = 102;

/// Returns the future use that an advice announces.
fn announced(advice: c_int) -> Option<Advice> {
    Some(match advice {
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_NORMAL => Advice::Normal,
        libc::MADV_PAGEOUT => Advice::PageOut,
        libc::MADV_RANDOM => Advice::Random,
        libc::MADV_SEQUENTIAL => Advice::Sequential,
        libc::MADV_WILLNEED => Advice::WillNeed,
        _ => return None,
    })
}

/// Returns what an advice withholds from forked children (true), or no longer withholds (false).
fn withheld(advice: c_int) -> Option<(Withheld, bool)> {
    Some(match advice {
        libc::MADV_DONTFORK => (Withheld::Range, true),
        libc::MADV_DOFORK => (Withheld::Range, false),
        libc::MADV_WIPEONFORK => (Withheld::Contents, true),
        libc::MADV_KEEPONFORK => (Withheld::Contents, false),
        _ => return None,
    })
}

/// Carries out advice that the pager follows itself. The kernel only checks whether the range is valid: it would
/// otherwise swap out pages that the pager manages, and split its mappings for flags that mean nothing to memory
/// without a file.
fn announce(
    adopter: &'static Adopter,
    start: usize,
    len: usize,
    (given, what): (c_int, Advice),
    advise: impl Fn(c_int) -> c_int,
) -> c_int {
    if matches!(what, Advice::Cold | Advice::PageOut) && adopter.is_locked(start, len) {
        signals::set_errno(libc::EINVAL);
        return -1;
    }
    let ours = adopter.is_active() && adopter.manages_all(start, len);
    let result = advise(if ours { libc::MADV_NORMAL } else { given });
    if result == 0 && len > 0 {
        adopter.announce(start, len, what);
    }
    result
}

/// Guard pages have no contents, and a block that is installed around one would overwrite it. So guard pages, and any
/// later use of their addresses, are left to the kernel from now on.
fn guard(adopter: &'static Adopter, start: usize, len: usize, advise: impl Fn(c_int) -> c_int + 'static) -> c_int {
    // SAFETY: advice about an empty range. It tells whether the kernel knows guard pages.
    let known = unsafe { syscall(libc::SYS_madvise, [start, 0, MADV_GUARD_INSTALL as usize, 0, 0, 0]) }.is_ok();
    if !known || !start.is_multiple_of(4096) || len == 0 || adopter.is_locked(start, len) {
        return advise(MADV_GUARD_INSTALL);
    }
    adopter.surrender(start, len.next_multiple_of(4096), move || advise(MADV_GUARD_INSTALL))
}

/// Carries out MADV_POPULATE_READ or MADV_POPULATE_WRITE, in pieces that are made resident and pinned: under signal
/// delivery the kernel cannot fetch them itself. If the range exceeds the budget, the first pieces are evicted again.
fn populate(adopter: &'static Adopter, start: usize, len: usize, advice: c_int) -> c_int {
    let piece = (adopter.pin_bytes_max() & !4095).max(4096);
    for done in (0..len).step_by(piece) {
        let (start, len) = (start + done, piece.min(len - done));
        let mut pins = adopter.call_pins();
        pins.iter_mut().for_each(|pins| pins.add(start, len));
        // SAFETY: the program's own call, for a part of its range; it changes no byte.
        let result = unsafe { call(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) } as c_int;
        if result != 0 {
            return result;
        }
    }
    0
}

/// Carries out the program's trapped mmap(2) over managed or reserved memory, and does not adopt the new memory.
pub fn replace(args: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let map = move || unsafe { syscall(libc::SYS_mmap, args) };
    let instance = instance().filter(|_| can_be_mapped(args[0], args[1]));
    let mapped = instance.map_or_else(map, |instance| instance.adopter.release(args[0], args[1], map));
    mapped.map_or_else(|errno| -(errno.0 as isize), |start| start as isize)
}
