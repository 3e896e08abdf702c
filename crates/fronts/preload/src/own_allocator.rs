// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pager's own heap, separate from the program's.
//!
//! The program's heap is managed: an access to it in the fault path would fault again. So everything this library
//! allocates comes from dlmalloc over address ranges that are never adopted.
//!
//! The lock is held with signals blocked, so a handler of the program cannot find it taken by its own thread.
//!
//! Large allocations are mappings of their own: their zeros take no memory until they are written to, they grow without
//! a copy, and freed memory goes back to the kernel at once. The tables of managed memory depend on the first of these
//! properties.

#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use aquifer_sys::memory::OWN_HEAP_BYTES;
use aquifer_sys::own_stack;
use aquifer_sys::raw::syscall;
use dlmalloc::{Allocator, Dlmalloc};

/// dlmalloc gets its ranges from here: straight from the kernel.
struct Ranges;

// SAFETY: every range handed out is a fresh private mapping of exactly the size reported, and stays mapped
// until `free` is called with it.
unsafe impl Allocator for Ranges {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match aquifer_sys::memory::map_anonymous(size) {
            Ok(start) => {
                OWN_HEAP_BYTES.fetch_add(size as u64, Ordering::Relaxed);
                (std::ptr::with_exposed_provenance_mut(start), size, 0)
            }
            Err(_) => (std::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        // SAFETY: dlmalloc gives back a whole range that it got from `alloc` and no longer uses.
        let freed = unsafe { syscall(libc::SYS_munmap, [start as usize, size, 0, 0, 0, 0]) }.is_ok();
        OWN_HEAP_BYTES.fetch_sub(if freed { size as u64 } else { 0 }, Ordering::Relaxed);
        freed
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// From this size on, an allocation is a separate mapping. The tables of `core/src/table.rs` have chunks of 128 KiB
/// and more; rounding up to whole pages wastes at most 1/32 of that.
const LARGE_BYTES: usize = 128 << 10;
const PAGE: usize = 4096;

/// Returns the length of the mapping for a large allocation; `None` for any other.
fn mapping_len(layout: &Layout) -> Option<usize> {
    (layout.size() >= LARGE_BYTES && layout.align() <= PAGE).then(|| layout.size().next_multiple_of(PAGE))
}

/// Maps a large allocation: zeros, without huge pages, which would take memory for pages that are never written.
fn map_large(len: usize) -> *mut u8 {
    let Ok(start) = aquifer_sys::memory::map_anonymous(len) else { return std::ptr::null_mut() };
    // If the kernel has no huge pages, it refuses the advice, which is then not needed.
    let _ = aquifer_sys::memory::advise(start, len, libc::MADV_NOHUGEPAGE);
    OWN_HEAP_BYTES.fetch_add(len as u64, Ordering::Relaxed);
    std::ptr::with_exposed_provenance_mut(start)
}

struct OwnHeap(Mutex<Dlmalloc<Ranges>>);

// SAFETY: dlmalloc keeps the contract of `GlobalAlloc`; the lock serialises its callers.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(len) = mapping_len(&layout) {
            return map_large(len);
        }
        // SAFETY: size and alignment come from a valid layout.
        with_heap(move |heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(len) = mapping_len(&layout) {
            return map_large(len);
        }
        // SAFETY: size and alignment come from a valid layout.
        with_heap(move |heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if let Some(len) = mapping_len(&layout) {
            // SAFETY: the mapping is that of this allocation, which the caller gives back.
            if unsafe { aquifer_sys::memory::unmap(start.expose_provenance(), len) }.is_ok() {
                OWN_HEAP_BYTES.fetch_sub(len as u64, Ordering::Relaxed);
            }
            return;
        }
        // SAFETY: the caller gives back what `alloc` returned for this layout.
        with_heap(move |heap| unsafe { heap.free(start, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        let (before, after) = (mapping_len(&layout), mapping_len(&new));
        if let (Some(before), Some(after)) = (before, after) {
            // SAFETY: the mapping is that of this allocation, whose old address the caller gives up.
            return match unsafe { aquifer_sys::memory::remap(start.expose_provenance(), before, after) } {
                Ok(moved) => {
                    OWN_HEAP_BYTES.fetch_add(after as u64, Ordering::Relaxed);
                    OWN_HEAP_BYTES.fetch_sub(before as u64, Ordering::Relaxed);
                    std::ptr::with_exposed_provenance_mut(moved)
                }
                Err(_) => std::ptr::null_mut(),
            };
        }
        if before.is_some() || after.is_some() {
            // SAFETY: `new` is a valid layout, and the caller's allocation is at `start`.
            let target = unsafe { self.alloc(new) };
            if !target.is_null() {
                // SAFETY: both have at least this many bytes, and the new one was just made.
                unsafe { std::ptr::copy_nonoverlapping(start, target, layout.size().min(size)) };
                // SAFETY: the caller gives the old allocation up.
                unsafe { self.dealloc(start, layout) };
            }
            return target;
        }
        // SAFETY: as in `dealloc`.
        with_heap(move |heap| unsafe { heap.realloc(start, layout.size(), layout.align(), size) })
    }
}

/// Calls `act` with the heap locked. It runs on the library's own stack with signals blocked, since the caller's stack
/// may be managed: so the thread that has the lock is not interrupted, and does not fault.
fn with_heap<T: 'static>(act: impl FnOnce(&mut Dlmalloc<Ranges>) -> T + 'static) -> T {
    own_stack::call(move || act(&mut HEAP.0.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Calls `act` while no other thread is in this heap, so that a child forked by `act` finds the heap usable. `act` must
/// not allocate.
pub fn at_rest<T>(act: impl FnOnce() -> T) -> T {
    let _heap = HEAP.0.lock().unwrap_or_else(PoisonError::into_inner);
    act()
}

#[global_allocator]
static HEAP: OwnHeap = OwnHeap(Mutex::new(Dlmalloc::new_with_allocator(Ranges)));
