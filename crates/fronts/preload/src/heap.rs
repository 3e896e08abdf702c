// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's malloc: jemalloc over adopted memory.
//!
//! jemalloc keeps its bookkeeping apart from the objects, so that allocating and freeing does not touch cold memory.
//! Its one automatic arena is not managed: it serves libc's allocations inside the pager's threads, and jemalloc itself
//! while one of the hooks below runs. The program's threads are bound to arenas that take their extents from this file:
//! a few for small objects, one for big ones.
//!
//! Next on the path: `choice.rs`, which delivery each kind of object gets; `pager/src/adopt.rs`, which adopts the
//! extents.

#![allow(unsafe_code, reason = "the C ABI of malloc, and jemalloc's")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use aquifer_sys::memory::drop_pages;
use aquifer_sys::raw::syscall;
use aquifer_sys::signals;
use aquifer_sys::thread_slot;
use tikv_jemalloc_sys as je;

use crate::choice::{BIG_ALLOCATION_BYTES, Origin, delivery};
use crate::start::{instance, instance_inside};

/// Arenas for small objects. Threads take them in turn. jemalloc's own choice is four per CPU; eight is what that gives
/// on the machine where this was measured.
const SMALL_ARENAS: usize = 8;

/// jemalloc takes memory for small objects in pieces of at least this size, to divide them later.
const GROWTH_BYTES: usize = 2 << 20;
/// An arena gets no such piece until it has this much: most programs are shells and filters, which never need as much,
/// and what is managed takes its part of the budget of a tree, touched or not.
const SMALL_ARENA_BYTES: usize = 512 << 10;

/// Alignment of jemalloc's requests for its own bookkeeping, which is never managed: a thread that holds
/// one of its locks must not wait for the pager.
const BOOKKEEPING_ALIGNMENT: usize = 2 << 20;

#[repr(transparent)]
struct Configuration(*const c_char);
// SAFETY: points to a constant.
unsafe impl Sync for Configuration {}

/// jemalloc's settings. Freed memory is returned after a second, so that it neither stays in DRAM nor gets written to
/// the tier.
///
/// Objects of these sizes would be in slabs of 4 or 8 KiB, each with 128 bytes of bookkeeping, which is never managed:
/// up to 3 % of the heap beyond the budget. Slabs of 32 KiB take an eighth of that. Smaller objects keep their slabs:
/// with larger ones, a Python program with a heap of strings fetched a sixth more.
#[unsafe(no_mangle)]
static _rjem_malloc_conf: Configuration = Configuration(
    c"narenas:1,oversize_threshold:0,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:false,abort_conf:true,\
      slab_sizes:1024-1024:8|2048-2048:8|4096-4096:8|8192-8192:8"
        .as_ptr(),
);

/// The arena for big allocations; 0 until it exists.
static BIG_ARENA: AtomicU32 = AtomicU32::new(0);
/// The arenas for small objects; valid once the big arena exists.
static SMALL: [AtomicU32; SMALL_ARENAS] = [const { AtomicU32::new(0) }; SMALL_ARENAS];
/// Bytes that each of them has requested in extents below [`GROWTH_BYTES`].
static SMALL_TAKEN_BYTES: [AtomicUsize; SMALL_ARENAS] = [const { AtomicUsize::new(0) }; SMALL_ARENAS];
/// Hands out arenas to threads in turn.
static NEXT_ARENA: AtomicU32 = AtomicU32::new(0);

#[repr(transparent)]
struct Hooks(je::extent_hooks_t);
// SAFETY: a table of functions that is never written.
unsafe impl Sync for Hooks {}

const fn hooks(alloc: je::extent_alloc_t) -> Hooks {
    Hooks(je::extent_hooks_t {
        alloc: Some(alloc),
        dalloc: Some(keep),
        destroy: None,
        commit: None,
        decommit: None,
        purge_lazy: None,
        purge_forced: Some(purge),
        split: Some(allow_split),
        merge: Some(allow_merge),
    })
}

static SMALL_HOOKS: Hooks = hooks(extent_for_small);
static BIG_HOOKS: Hooks = hooks(extent_for_big);

/// Makes the program's heap managed from now on.
pub fn manage() {
    for arena in &SMALL {
        arena.store(create(&SMALL_HOOKS), Ordering::Relaxed);
    }
    let big = create(&BIG_HOOKS);
    set_decay(big);
    BIG_ARENA.store(big, Ordering::Release);
}

/// Makes an arena that takes its extents through `hooks`.
fn create(hooks: &'static Hooks) -> c_uint {
    let (mut arena, mut pointer) = (0, std::ptr::from_ref(&hooks.0));
    if !control(c"arenas.create", Some(&mut arena), Some(&mut pointer)) {
        aquifer_pager::abort::refuse_to_start(
            "jemalloc does not make an arena; raise the limit on address space (ulimit -v)",
        );
    }
    arena
}

/// Calls mallctl(3), which reads into `old` and writes `new`. Returns whether it succeeded.
fn control<A, B>(name: &CStr, old: Option<&mut A>, new: Option<&mut B>) -> bool {
    let mut len = size_of::<A>();
    let (old, old_len) =
        old.map_or((std::ptr::null_mut(), std::ptr::null_mut()), |old| (std::ptr::from_mut(old), &raw mut len));
    let (new, new_len) = new.map_or((std::ptr::null_mut(), 0), |new| (std::ptr::from_mut(new), size_of::<B>()));
    // SAFETY: the types fit the names used in this file: see jemalloc's manual, MALLCTL NAMESPACE.
    unsafe { je::mallctl(name.as_ptr(), old.cast(), old_len, new.cast(), new_len) == 0 }
}

/// Makes an arena return freed memory to the kernel immediately, as glibc does with big allocations.
fn set_decay(arena: u32) {
    let Ok(name) = std::ffi::CString::new(format!("arena.{arena}.dirty_decay_ms")) else { return };
    let mut now = 0isize;
    control(&name, None::<&mut c_uint>, Some(&mut now));
}

fn extent(size: usize, alignment: usize, zero: *mut bool, commit: *mut bool, origin: Origin) -> *mut c_void {
    let Some(start) = map_aligned(size, alignment.max(4096)) else { return std::ptr::null_mut() };
    // SAFETY: jemalloc passes valid pointers; fresh pages are zero and usable.
    unsafe { (*zero, *commit) = (true, true) };
    if alignment < BOOKKEEPING_ALIGNMENT
        && let Some(instance) = instance_inside()
    {
        instance.adopter.has_appeared(start, size);
        instance.adopter.adopt(start, size, delivery(origin, instance.delivery));
    }
    std::ptr::with_exposed_provenance_mut(start)
}

/// Makes a new private mapping that starts at a multiple of `alignment`.
fn map_aligned(size: usize, alignment: usize) -> Option<usize> {
    let slack = if alignment > 4096 { alignment } else { 0 };
    let mapped = aquifer_sys::memory::map_anonymous(size.checked_add(slack)?).ok()?;
    let start = mapped.next_multiple_of(alignment);
    for (from, to) in [(mapped, start), (start + size, mapped + size + slack)] {
        if from < to {
            // SAFETY: both ends belong to the mapping made above, which nothing else uses yet.
            let _ = unsafe { syscall(libc::SYS_munmap, [from, to - from, 0, 0, 0, 0]) };
        }
    }
    Some(start)
}

extern "C" fn extent_for_small(
    _: *mut je::extent_hooks_t,
    new: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    arena: c_uint,
) -> *mut c_void {
    if !new.is_null() || (alignment < BOOKKEEPING_ALIGNMENT && refuses_growth(arena, size)) {
        return std::ptr::null_mut();
    }
    extent(size, alignment, zero, commit, Origin::SmallObjects)
}

/// Counts a request of `size`. Returns whether to refuse it, because the arena should not take so much for later;
/// jemalloc then requests only what it needs now. Only below the budget: later, memory counts when it is touched, and
/// each extent takes a mapping, tables and a slab of the tier.
fn refuses_growth(arena: c_uint, size: usize) -> bool {
    if instance_inside().is_some_and(|instance| instance.adopter.is_active()) {
        return false;
    }
    let Some(place) = SMALL.iter().position(|small| small.load(Ordering::Relaxed) == arena) else { return false };
    if size >= GROWTH_BYTES {
        return SMALL_TAKEN_BYTES[place].load(Ordering::Relaxed) < SMALL_ARENA_BYTES;
    }
    SMALL_TAKEN_BYTES[place].fetch_add(size, Ordering::Relaxed);
    false
}

extern "C" fn extent_for_big(
    _: *mut je::extent_hooks_t,
    new: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    if new.is_null() { extent(size, alignment, zero, commit, Origin::BigAllocation) } else { std::ptr::null_mut() }
}

/// Keeps the address space for reuse; its contents are purged.
extern "C" fn keep(_: *mut je::extent_hooks_t, _: *mut c_void, _: usize, _: bool, _: c_uint) -> bool {
    true
}

extern "C" fn purge(
    _: *mut je::extent_hooks_t,
    start: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    let start = start as usize + offset;
    // SAFETY: jemalloc guarantees that the range holds nothing of value.
    let empty = move || unsafe { drop_pages(start, len) };
    let emptied = match instance_inside() {
        Some(instance) => {
            crate::locks::forget(&instance.adopter, start, len);
            instance.adopter.discard(start, len, empty)
        }
        None => empty(),
    };
    emptied.is_err()
}

extern "C" fn allow_split(
    _: *mut je::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

extern "C" fn allow_merge(
    _: *mut je::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// Flags for an allocation of `size`: the big arena for big allocations, and the unmanaged arena for libc's allocations
/// while the thread is inside the pager or sets the program's locale. `None`: the thread's own arena.
fn apart(size: usize) -> Option<c_int> {
    const OF_KERNEL: usize = 0;
    let inside = thread_slot::inside();
    if size < BIG_ALLOCATION_BYTES && !inside {
        return None;
    }
    let arena = if inside { OF_KERNEL } else { BIG_ARENA.load(Ordering::Relaxed) as usize };
    (inside || arena != OF_KERNEL).then(|| je::MALLOCX_ARENA(arena) | je::MALLOCX_TCACHE_NONE)
}

/// Binds each thread of the program to a managed arena at its first allocation after the start. While the pager starts
/// its own threads, no thread is bound: the pager's threads allocate before they can be told apart.
fn bind_thread() {
    let started = BIG_ARENA.load(Ordering::Acquire) != 0 && !aquifer_pager::is_starting();
    if thread_slot::arena() == 0 && started && instance().is_some() {
        let turn = NEXT_ARENA.fetch_add(1, Ordering::Relaxed) as usize;
        let mut arena: c_uint = SMALL[turn % SMALL_ARENAS].load(Ordering::Relaxed);
        thread_slot::set_arena(arena);
        control(c"thread.arena", None::<&mut c_uint>, Some(&mut arena));
    }
}

fn out_of_memory(start: *mut c_void) -> *mut c_void {
    if start.is_null() {
        signals::set_errno(libc::ENOMEM);
    }
    start
}

/// Implements malloc(3).
///
/// # Safety
/// The same as for malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    bind_thread();
    match apart(size) {
        // SAFETY: the size is not zero.
        Some(flags) => out_of_memory(unsafe { je::mallocx(size.max(1), flags) }),
        // SAFETY: as malloc(3).
        None => unsafe { je::malloc(size) },
    }
}

/// Implements calloc(3).
///
/// # Safety
/// The same as for calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    bind_thread();
    let Some(total) = count.checked_mul(size) else { return out_of_memory(std::ptr::null_mut()) };
    match apart(total) {
        // SAFETY: the size is not zero.
        Some(flags) => out_of_memory(unsafe { je::mallocx(total.max(1), flags | je::MALLOCX_ZERO) }),
        // SAFETY: as calloc(3).
        None => unsafe { je::calloc(count, size) },
    }
}

/// Implements realloc(3).
///
/// # Safety
/// The same as for realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    bind_thread();
    match apart(size) {
        // SAFETY: as realloc(3).
        Some(_) if old.is_null() => unsafe { malloc(size) },
        // SAFETY: `old` came from this allocator, the size is not zero.
        Some(flags) if size > 0 => out_of_memory(unsafe { je::rallocx(old, size, flags) }),
        // SAFETY: as realloc(3).
        _ => unsafe { je::realloc(old, size) },
    }
}

/// Implements free(3).
///
/// # Safety
/// The same as for free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(start: *mut c_void) {
    // SAFETY: as free(3).
    unsafe { je::free(start) }
}

/// Implements posix_memalign(3).
///
/// # Safety
/// The same as for posix_memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    bind_thread();
    if apart(size).is_some() && alignment.is_power_of_two() && alignment >= size_of::<usize>() {
        // SAFETY: as memalign(3), just checked.
        let start = unsafe { memalign(alignment, size) };
        if start.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: the caller's pointer, as posix_memalign(3).
        unsafe { *result = start };
        return 0;
    }
    // SAFETY: as posix_memalign(3).
    unsafe { je::posix_memalign(result, alignment, size) }
}

/// Implements aligned_alloc(3).
///
/// # Safety
/// The same as for aligned_alloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: as memalign(3).
    unsafe { memalign(alignment, size) }
}

/// Implements memalign(3).
///
/// # Safety
/// The same as for memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    bind_thread();
    match apart(size) {
        Some(flags) if alignment.is_power_of_two() => {
            // SAFETY: the size is not zero and the alignment is a power of two.
            out_of_memory(unsafe { je::mallocx(size.max(1), flags | je::MALLOCX_ALIGN(alignment)) })
        }
        // SAFETY: as aligned_alloc(3).
        _ => unsafe { je::aligned_alloc(alignment, size) },
    }
}

/// Implements valloc(3).
///
/// # Safety
/// The same as for valloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as memalign(3).
    unsafe { memalign(4096, size) }
}

/// Implements pvalloc(3).
///
/// # Safety
/// The same as for pvalloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // SAFETY: as memalign(3).
    unsafe { memalign(4096, size.next_multiple_of(4096).max(4096)) }
}

/// Implements malloc_usable_size(3).
///
/// # Safety
/// The same as for malloc_usable_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(start: *const c_void) -> usize {
    // SAFETY: as malloc_usable_size(3).
    unsafe { je::malloc_usable_size(start) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    /// The defect: 128 bytes for each slab of 4 KiB, so that a heap of small objects exceeded its budget by 3 %.
    #[test]
    fn objects_share_slabs_that_are_large_beside_their_bookkeeping() {
        let mut bins: c_uint = 0;
        assert!(control(c"arenas.nbins", Some(&mut bins), None::<&mut c_uint>));
        for bin in 0..bins {
            let figure = |name: &str| {
                let (name, mut value) = (CString::new(format!("arenas.bin.{bin}.{name}")).expect("no zeros"), 0usize);
                assert!(control(&name, Some(&mut value), None::<&mut c_uint>), "{name:?}");
                value
            };
            let (object, slab) = (figure("size"), figure("slab_size"));
            assert!(object < 1024 || slab >= 12 << 10, "objects of {object} bytes have slabs of {slab}");
            assert_eq!(slab % object, 0, "objects of {object} bytes do not fill slabs of {slab}");
        }
    }
}
