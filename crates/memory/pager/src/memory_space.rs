// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A caller's own memory space: a budget of DRAM, a tier, and mappings whose cold blocks are in the tier.
//!
//! Several live side by side in one process, each with its own engine, threads, tier and counters; none waits for
//! another. What goes wrong in one is returned by its next call. A load or store of memory that is lost, or of a space
//! that cannot go on, cannot return anything: it gets SIGBUS. [`Mapping::read`] and [`Mapping::write`] return an error
//! instead.
//!
//! A closed space leaves nothing behind: no mapping, no descriptor, no thread, no slab of its tier. A forked child has
//! none of its parent's spaces: their memory is not mapped there, and their descriptors are closed before fork(3)
//! returns.

#![allow(unsafe_code, reason = "maps and unmaps memory, and frees a space that is no longer in use")]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use aquifer_core::block::State;
use aquifer_core::frames::BUDGET_PAGES_MAX;
use aquifer_core::map::Delivery;
use aquifer_core::map::presence::Presence;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, PAGE_BYTES, PageIndex, REGION_BYTES, ThreadIndex};
use aquifer_driver::{Access, Brought, Discard, Fatal, discard};
use aquifer_stats::{Counters, Snapshot};
use aquifer_sys::made_in::MadeIn;
use aquifer_sys::memory::{advise, map_anonymous, unmap};
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot;
use aquifer_sys::uffd::mode;
use aquifer_sys::uring;
use aquifer_tiers::Tier;

use crate::abort::abort;
use crate::exchange::Way;
use crate::family::Family;
use crate::fault_stacks;
use crate::pager::{Owner, Pager, Settings, THREADS_MAX, slabs_of};
use crate::signal;
use crate::spaces::{self, Listed, Unlisted};

mod failure;
mod gather;
mod hints;
mod in_place;
mod named;
mod page_reads;
mod sampled;
mod scratch_queues;
mod write_in_place;

pub use self::failure::{OpenFailure, SpaceFailure, StillInUse};
pub use self::gather::{Gathering, Part, Piece};
pub use self::hints::{BlockReport, LastingPin};
use self::in_place::InPlace;
pub use self::page_reads::{Begun, Done, PageReads, TOGETHER_MAX};
use self::scratch_queues::ScratchQueues;

/// Maximum number of bytes that one step of a read or write keeps resident.
const STEP_BYTES: usize = 64 << 10;
/// The largest mapping: 1 TiB, whose tables alone take gigabytes.
const MAPPING_BYTES_MAX: usize = 1 << 40;
/// How long a read or write waits while the reads and writes of other threads have pinned as much as is allowed.
const PIN_WAIT_MAX: Duration = Duration::from_secs(5);
const PIN_WAIT_ONCE: Duration = Duration::from_millis(1);
/// The smallest budget, as of `aquifer run --dram`.
pub const DRAM_BYTES_MIN: u64 = 16 << 20;
/// The largest budget of a space, in bytes: that of an engine.
pub const DRAM_BYTES_MAX: u64 = BUDGET_PAGES_MAX * PAGE_BYTES;

/// The settings of a space.
pub struct SpaceSettings {
    /// Local DRAM for the space's memory, in bytes; at least [`DRAM_BYTES_MIN`].
    pub dram_bytes: u64,
    /// The size of blocks, or `None` for a size that follows the accesses.
    pub order: Option<Order>,
    /// Chooses victims.
    pub policy: PolicyName,
    /// Stores cold blocks.
    pub tier: Box<dyn Tier>,
    /// How pages are exchanged; `None` selects the best way that the kernel supports.
    pub way: Option<Way>,
    /// Whether system calls may use memory that is not resident, if this process may serve them. Otherwise each thread
    /// resolves its own faults.
    pub system_calls: bool,
    /// Whether to read ahead.
    pub prefetch: bool,
    /// Where to record the engine's calls: a file that is made, or is empty. While it is recorded, the space has all of
    /// its budget for blocks, and the pager's own tables come on top.
    pub record: Option<String>,
}

/// A memory space of the caller's own: a budget of DRAM, a tier, and mappings whose cold blocks are in the tier.
pub struct MemorySpace {
    /// Freed only by `end`.
    pager: &'static Pager,
    /// `None` once the space has ended.
    listed: Option<Listed>,
    /// The process that has opened the space.
    made_in: MadeIn,
    in_place: InPlace,
    scratch_queues: ScratchQueues,
}

impl MemorySpace {
    /// Opens a space, with nothing mapped yet.
    pub fn open(settings: SpaceSettings) -> Result<MemorySpace, OpenFailure> {
        if settings.dram_bytes < DRAM_BYTES_MIN {
            return Err(OpenFailure::SmallBudget);
        }
        if settings.dram_bytes > DRAM_BYTES_MAX {
            return Err(OpenFailure::LargeBudget);
        }
        let _blocked = Blocked::all();
        let made_in =
            MadeIn::this_process().map_err(|errno| OpenFailure::Memory(std::io::Error::from_raw_os_error(errno.0)))?;
        let counters = Arc::new(Counters::create().map_err(OpenFailure::Memory)?);
        let family = Family::of_one(slabs_of(&*settings.tier))
            .map_err(|errno| OpenFailure::Memory(std::io::Error::from_raw_os_error(errno.0)))?;
        let settings = Settings {
            owner: Owner::Caller,
            dram_bytes: settings.dram_bytes,
            order: settings.order.unwrap_or(Order::DEFAULT),
            elastic: settings.order.is_none(),
            shards: Some(1),
            policy: settings.policy,
            tier: settings.tier,
            family: Arc::new(family),
            ledger: None,
            way: settings.way,
            may_listen: settings.system_calls,
            prefetch: settings.prefetch,
            record: settings.record,
            time_lock: false,
            program: String::new(),
        };
        counters.set(aquifer_stats::Gauge::DramBudgetBytes, settings.dram_bytes);
        fault_stacks::prepare().map_err(|errno| OpenFailure::Memory(std::io::Error::from_raw_os_error(errno.0)))?;
        signal::install_handler().map_err(OpenFailure::Handler)?;
        forget_in_children();
        let pager: &'static Pager = Box::leak(Pager::open(settings, counters).map_err(OpenFailure::Start)?);
        let started = pager.start_listeners().and_then(|()| pager.start_threads()).map_err(OpenFailure::Start);
        let listed = started.and_then(|()| {
            spaces::list(pager).map_err(|unlisted| match unlisted {
                Unlisted::TooMany => OpenFailure::TooManySpaces,
                Unlisted::NoMemory(errno) => OpenFailure::Memory(std::io::Error::from_raw_os_error(errno.0)),
            })
        });
        match listed {
            Ok(listed) => Ok(MemorySpace {
                pager,
                listed: Some(listed),
                made_in,
                in_place: InPlace::default(),
                scratch_queues: ScratchQueues::default(),
            }),
            Err(failure) => {
                if pager.end_threads() {
                    pager.recorder.as_ref().inspect(|recorder| recorder.finish());
                    // SAFETY: leaked above; its threads have ended, and nothing else has seen it.
                    drop(unsafe { Box::from_raw(std::ptr::from_ref(pager).cast_mut()) });
                }
                Err(failure)
            }
        }
    }

    /// Maps at least `bytes` bytes of zeros.
    pub fn map(&self, bytes: usize) -> Result<Mapping<'_>, SpaceFailure> {
        self.check()?;
        let len = bytes.checked_next_multiple_of(REGION_BYTES as usize).filter(|len| *len > 0);
        let len = len.filter(|len| *len <= MAPPING_BYTES_MAX).ok_or(SpaceFailure::OutOfRange)?;
        let _blocked = Blocked::all();
        let start = map_regions(len).map_err(SpaceFailure::System)?;
        let start_pointer = NonNull::new(start as *mut u8).expect("mapped");
        let mut mapping =
            Mapping { space: self, start: start_pointer, len: bytes, mapped: len, presence: Arc::default() };
        let delivery = self.delivery();
        // A child must not read zeros, nor a core dump show them.
        let registered = advise(start, len, libc::MADV_DONTFORK)
            .and_then(|()| advise(start, len, libc::MADV_DONTDUMP))
            .and_then(|()| self.pager.uffd(delivery).register(start, len, mode::MISSING | mode::WP));
        registered.map_err(SpaceFailure::System)?;
        self.listed().add(start..start + len);
        let pages = mapping.pages();
        let mut engine = self.pager.undivided().engine();
        mapping.presence = engine.publish_presence(pages.start, pages.end);
        engine.add(pages.start, pages.end, self.pager.order, delivery, &mut |_, _| false);
        self.pager.undivided().publish(&engine);
        Ok(mapping)
    }

    /// Why the space cannot go on, if it cannot.
    pub fn failure(&self) -> Option<Fatal> {
        self.pager.failure()
    }

    /// What the space has counted.
    pub fn statistics(&self) -> Snapshot {
        self.pager.counters.snapshot()
    }

    /// Closes the space: ends its threads, and gives back its memory, its descriptors, and its slabs of the tier.
    pub fn close(mut self) -> Result<(), StillInUse> {
        self.end()
    }

    fn end(&mut self) -> Result<(), StillInUse> {
        let Some(listed) = self.listed.take() else { return Ok(()) };
        if self.is_forked() {
            // This value is only a copy, and there is nothing to end.
            self.in_place.leave();
            self.scratch_queues.leave();
            return Ok(());
        }
        self.scratch_queues.close();
        if !self.pager.end_threads() || !listed.wait_for_users() {
            return Err(StillInUse);
        }
        self.pager.recorder.as_ref().inspect(|recorder| recorder.finish());
        // Before the tier is gone, so that a device learns what it no longer has to keep.
        self.pager.trim_all();
        listed.unlist();
        // SAFETY: `open` has leaked it. No mapping is left, since each borrows `self`; no thread of the space is left,
        // and no fault in it is under way, so this is the only reference.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(self.pager).cast_mut()) });
        Ok(())
    }

    fn listed(&self) -> &Listed {
        self.listed.as_ref().expect("only `end` takes it")
    }

    /// Whether this process is a forked child, and the space its parent's. Costs two loads. In a child, a lock may be
    /// held for ever by a thread that the child does not have: so ask this before taking one.
    pub fn is_forked(&self) -> bool {
        !self.made_in.is_this_process()
    }

    /// The process that has opened the space.
    pub fn made_in(&self) -> MadeIn {
        self.made_in
    }

    /// The failure that every call on the space returns from now on, if there is one.
    pub fn check(&self) -> Result<(), SpaceFailure> {
        if self.is_forked() {
            return Err(SpaceFailure::Forked);
        }
        self.pager.failure().map_or(Ok(()), |fatal| Err(SpaceFailure::Ended(fatal)))
    }

    /// By a listener if there is one: then system calls may use the memory, too.
    fn delivery(&self) -> Delivery {
        if self.pager.listener_uffd().is_some() { Delivery::Listener } else { Delivery::Signal }
    }

    /// An error that ends the space, as its callers see it.
    fn ended(&self, fatal: Fatal) -> SpaceFailure {
        self.pager.cannot_go_on(fatal);
        SpaceFailure::Ended(fatal)
    }
}

impl Drop for MemorySpace {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for MemorySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a space over {}, {:?}", self.pager.tier.name(), self.listed)
    }
}

/// Maps whole 2 MiB regions, of which no other mapping has a part.
fn map_regions(len: usize) -> Result<usize, Errno> {
    let align = REGION_BYTES as usize;
    let mapped = map_anonymous(len.checked_add(align).ok_or(Errno(libc::ENOMEM))?)?;
    let (start, end) = (mapped.next_multiple_of(align), mapped + len + align);
    // SAFETY: both ends belong to the mapping that was just made, and nothing uses them yet.
    unsafe {
        unmap(mapped, start - mapped)?;
        unmap(start + len, end - start - len)?;
    }
    Ok(start)
}

/// Memory of a space. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping<'s> {
    space: &'s MemorySpace,
    start: NonNull<u8>,
    /// The length that was asked for.
    len: usize,
    /// The length that is mapped: whole regions. 0 once it is unmapped.
    mapped: usize,
    presence: Arc<Presence>,
}

// SAFETY: the value is a range of addresses, like a pointer and a length; code that dereferences it
// states its own reasons.
unsafe impl Send for Mapping<'_> {}
// SAFETY: as above. `read` and `write` copy as the kernel does: concurrent calls for the same bytes may mix them.
unsafe impl Sync for Mapping<'_> {}

impl Mapping<'_> {
    /// The first byte. A load or store of a lost page gets SIGBUS.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn pages(&self) -> Range<PageIndex> {
        let first = PageIndex::at(self.start.as_ptr() as usize);
        first..first + self.mapped as u64 / PAGE_BYTES
    }

    /// Copies the bytes from `at` on.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), SpaceFailure> {
        let to = into.as_mut_ptr();
        self.each_step(at, into.len(), Access::Read, |from, done, len| {
            // SAFETY: the step's bytes are mapped until this returns, and a load that faults is served like any other;
            // `to` has room for all of them.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(done), len) };
        })
    }

    /// Copies bytes within one page, if the page is at its address. False if it is not.
    fn read_present(&self, at: usize, into: &mut [u8]) -> bool {
        let from = self.start.as_ptr() as usize + at;
        let Some(_pinned) = self.pin_present(PageIndex::at(from), PageIndex::end_at(from + into.len())) else {
            return false;
        };
        // SAFETY: the caller has checked that the bytes are within the mapping; the rest is as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        true
    }

    /// Overwrites the bytes from `at` on. After an error, some of them may have been written.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), SpaceFailure> {
        let from = bytes.as_ptr();
        self.each_step(at, bytes.len(), Access::Write, |to, done, len| {
            // SAFETY: as in `read`, with the directions exchanged.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), to, len) };
        })
    }

    /// Calls `step` with each part of the range while it is resident and cannot be evicted: its address, how much came
    /// before it, and its length.
    fn each_step(
        &self,
        at: usize,
        len: usize,
        access: Access,
        mut step: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), SpaceFailure> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(SpaceFailure::OutOfRange);
        }
        let mut done = 0;
        while done < len {
            let here = self.start.as_ptr() as usize + at + done;
            let part = (STEP_BYTES - here % STEP_BYTES).min(len - done);
            let pinned = self.pin(here, part, access)?;
            step(here as *mut u8, done, part);
            drop(pinned);
            done += part;
        }
        Ok(())
    }

    /// Makes a range resident until the value is dropped.
    fn pin(&self, start: usize, len: usize, access: Access) -> Result<Pinned<'_>, SpaceFailure> {
        self.space.check()?;
        let pager = self.space.pager;
        let (first, last) = (PageIndex::at(start), PageIndex::end_at(start + len));
        if access == Access::Read
            && let Some(pinned) = self.pin_present(first, last)
        {
            return Ok(pinned);
        }
        let _blocked = Blocked::all();
        let pinned = Pinned { pager, slot: claim_pin(pager, first, last)? };
        self.bring(first, last, access).map(|()| pinned)
    }

    /// Pins pages that are at their addresses, without asking the engine. `None` if some are not.
    fn pin_present(&self, first: PageIndex, last: PageIndex) -> Option<Pinned<'_>> {
        let start = self.pages().start;
        let are_here = || self.presence.has(first - start, last - start);
        if !are_here() {
            return None;
        }
        let pinned = Pinned { pager: self.space.pager, slot: self.space.pager.claim_pin(first, last)? };
        // Pairs with `Pins::cover`: an eviction unpublishes its block and then looks for pins. So either it finds this
        // one, or the block is no longer published here.
        fence(Ordering::SeqCst);
        are_here().then_some(pinned)
    }

    /// Makes pages resident for this access. Called with signals blocked.
    fn bring(&self, first: PageIndex, last: PageIndex, access: Access) -> Result<(), SpaceFailure> {
        let (pager, thread) = (self.space.pager, ThreadIndex(thread_slot::index(THREADS_MAX)));
        match pager.make_resident(first, last, thread, access) {
            Ok(Brought::Present) => Ok(()),
            Ok(Brought::AsFarAsManaged) => {
                let engine = pager.undivided().engine();
                let mut blocks = engine.map().blocks_in(first, last);
                let is_lost = blocks.any(|block| engine.map().block(block).state == State::Poisoned);
                if is_lost { Err(SpaceFailure::Lost) } else { Ok(()) }
            }
            Ok(Brought::NoRoom) => Err(SpaceFailure::NoRoom),
            Err(fatal) => Err(self.space.ended(fatal)),
        }
    }

    /// Empties the mapping: it reads as zeros, even where bytes were lost.
    pub fn discard(&self) -> Result<(), SpaceFailure> {
        self.discard_pages(0, self.mapped)
    }

    /// Empties a part that begins and ends at multiples of the page size; the end may also be that of the mapping.
    pub fn discard_part(&self, at: usize, len: usize) -> Result<(), SpaceFailure> {
        let end = at.checked_add(len).filter(|end| *end <= self.len).ok_or(SpaceFailure::OutOfRange)?;
        let page = PAGE_BYTES as usize;
        if !at.is_multiple_of(page) || (!end.is_multiple_of(page) && end != self.len) {
            return Err(SpaceFailure::Unaligned);
        }
        if self.is_pinned(at, len) {
            return Err(SpaceFailure::Pinned);
        }
        if len == 0 {
            return Ok(());
        }
        let end = end.next_multiple_of(page);
        // What is left of a block must be in DRAM, which can fail: better now than half way.
        let _first = self.pin_what_is_left(at, at..end)?;
        let _last = self.pin_what_is_left(end - page, at..end)?;
        self.discard_pages(at, end - at)
    }

    /// Pins the block of the page at `at`, if a discard of the range leaves contents in it.
    fn pin_what_is_left(&self, at: usize, range: Range<usize>) -> Result<Option<Pinned<'_>>, SpaceFailure> {
        let start = self.start.as_ptr() as usize;
        let is_left = || {
            let _blocked = Blocked::all();
            let (first, last) = (PageIndex::at(start + range.start), PageIndex::end_at(start + range.end));
            self.space.pager.undivided().engine().leaves_part(PageIndex::at(start + at), first, last)
        };
        if !is_left() {
            return Ok(None);
        }
        match self.pin(start + at, 1, Access::Write) {
            // The tier lost it just now.
            Err(SpaceFailure::Lost) if !is_left() => Ok(None),
            pinned => pinned.map(Some),
        }
    }

    fn discard_pages(&self, at: usize, len: usize) -> Result<(), SpaceFailure> {
        self.space.check()?;
        let start = self.start.as_ptr() as usize + at;
        let pages = PageIndex::at(start)..PageIndex::end_at(start + len);
        // SAFETY: the caller gives up the contents, and the engine has no frame with them at this moment.
        self.give_up(pages, false, || unsafe { aquifer_sys::memory::drop_pages(start, len) })
    }

    /// Unmaps the memory, and returns what went wrong; the memory is gone in any case.
    pub fn unmap(mut self) -> Result<(), SpaceFailure> {
        let unmapped = self.end();
        // So that the drop, which frees the rest, does not unmap what may be another mapping by then.
        self.mapped = 0;
        unmapped
    }

    fn end(&self) -> Result<(), SpaceFailure> {
        if self.space.is_forked() {
            return Ok(());
        }
        let (start, len) = (self.start.as_ptr() as usize, self.mapped);
        self.space.listed().remove(start..start + len);
        // SAFETY: the mapping's own memory, to which no pointer may be used any more.
        let unmap = || unsafe { unmap(start, len) };
        if self.space.check().is_ok() {
            return self.give_up(self.pages(), true, unmap);
        }
        unmap().map_err(SpaceFailure::System)
    }

    /// Makes the engine forget the contents while `act` takes them away.
    fn give_up(
        &self,
        pages: Range<PageIndex>,
        remove: bool,
        act: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), SpaceFailure> {
        let _blocked = Blocked::all();
        let act = || {
            let result = act();
            (result, result.is_ok())
        };
        match discard(&[self.space.pager.undivided()], pages.start, pages.end, remove, act, |_, _| ()) {
            Ok(Discard { result, .. }) => result.map_err(SpaceFailure::System),
            Err(fatal) => Err(self.space.ended(fatal)),
        }
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if self.mapped > 0 {
            let _ = self.end();
        }
    }
}

/// Claims a pin, once other threads have released enough of theirs.
fn claim_pin(pager: &Pager, first: PageIndex, last: PageIndex) -> Result<usize, SpaceFailure> {
    let started = now_ns();
    loop {
        let ticket = pager.undivided().shard.progress.ticket();
        if let Some(slot) = pager.claim_pin(first, last) {
            return Ok(slot);
        }
        if Duration::from_nanos(now_ns() - started) > PIN_WAIT_MAX {
            return Err(SpaceFailure::NoRoom);
        }
        pager.undivided().shard.progress.sleep(ticket, PIN_WAIT_ONCE);
    }
}

/// A range that stays resident.
struct Pinned<'p> {
    pager: &'p Pager,
    slot: usize,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.pager.release_pin(self.slot);
    }
}

/// From now on a forked child closes what its parent's spaces have open, before fork(3) returns there. Threads that
/// open the first spaces at the same time may each register that, which changes nothing: the first run leaves nothing
/// to do. None waits for another, which a forked child would not have.
fn forget_in_children() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_child() {
        fault_stacks::reset_in_child();
        uring::close_inherited();
        spaces::forget_all(|pager| {
            if pager.give_up_in_child().is_err() {
                abort(&["a forked process cannot give up its parent's descriptors; raise its limits (ulimit -a)"]);
            }
        });
    }
    if !IS_REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the function may be called in any child. If there is no memory to register it, a child is no worse
        // off than one that was made by clone(2).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        IS_REGISTERED.store(true, Ordering::Release);
    }
}
