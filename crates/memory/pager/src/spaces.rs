// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which of the callers' spaces has an address: a table that the fault handler reads without a lock.
//!
//! Mappings of callers' spaces consist of whole 2 MiB regions, and no region has memory of two spaces. So one byte for
//! each region of the address space names the space. Memory in no such region belongs to the program's own space, if
//! there is one. The table is address space only, of which a page is allocated for each 8 GiB that have a mapping.
//!
//! A thread that resolves a fault counts as the space's user from before its second look at the table until it has
//! finished; a space that is closing leaves the table first, and then waits for its users.
//!
//! Threads: any, including signal handlers. Takes no lock there, and allocates nothing.

#![allow(unsafe_code, reason = "a table of bytes that is mapped once; pointers to spaces that their users keep")]

use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use aquifer_core::units::REGION_BYTES;
use aquifer_sys::memory::{map_anonymous, unmap};
use aquifer_sys::raw::{Errno, now_ns};

use crate::pager::Pager;

/// Spaces of callers in one process.
pub const SPACES_MAX: usize = 64;
/// Regions that have a byte: up to the end of what mmap(2) gives out, 2^47.
const REGIONS: usize = 1 << (47 - REGION_BYTES.trailing_zeros());
/// How long a closing space waits for faults in progress: longer than a fault may take.
const USERS_WAIT_MAX: Duration = Duration::from_secs(180);
const USERS_WAIT_ONCE: Duration = Duration::from_millis(1);

struct Entry {
    pager: AtomicPtr<Pager>,
    /// Threads that resolve a fault in this space.
    users: AtomicU32,
}

static ENTRIES: [Entry; SPACES_MAX] =
    [const { Entry { pager: AtomicPtr::new(null_mut()), users: AtomicU32::new(0) } }; SPACES_MAX];

/// The table's first byte; null until the first space is opened. Never unmapped.
static TABLE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// The bytes of the table; `None` until the first space is opened.
fn table() -> Option<&'static [AtomicU8]> {
    let start = NonNull::new(TABLE.load(Ordering::Acquire))?;
    // SAFETY: the mapping has this many bytes, all valid, and is never unmapped.
    Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), REGIONS) })
}

/// Without a lock, which a forked child could find held for ever.
fn make_table() -> Result<(), Errno> {
    if table().is_some() {
        return Ok(());
    }
    let new = map_anonymous(REGIONS)?;
    if TABLE.compare_exchange(null_mut(), new as *mut AtomicU8, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: mapped above, and nobody else has seen it.
        let _ = unsafe { unmap(new, REGIONS) };
    }
    Ok(())
}

/// Why a space is not known to the fault handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// There are [`SPACES_MAX`] already.
    TooMany,
    /// No address space is left.
    NoMemory(Errno),
}

/// A space's place in the table.
#[derive(Debug)]
pub(crate) struct Listed {
    /// The index of its entry.
    index: usize,
}

/// Makes `pager` known, without any memory yet.
pub(crate) fn list(pager: &'static Pager) -> Result<Listed, Unlisted> {
    claim(std::ptr::from_ref(pager).cast_mut())
}

/// Takes a free entry, without a lock.
fn claim(pager: *mut Pager) -> Result<Listed, Unlisted> {
    make_table().map_err(Unlisted::NoMemory)?;
    let takes =
        |entry: &Entry| entry.pager.compare_exchange(null_mut(), pager, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let index = ENTRIES.iter().position(takes).ok_or(Unlisted::TooMany)?;
    Ok(Listed { index })
}

impl Listed {
    fn byte(&self) -> u8 {
        self.index as u8 + 1
    }

    /// Faults in these addresses, which are whole regions, are the space's from now on.
    pub(crate) fn add(&self, addresses: Range<usize>) {
        self.set(addresses, self.byte());
    }

    /// No space has them from now on.
    pub(crate) fn remove(&self, addresses: Range<usize>) {
        self.set(addresses, 0);
    }

    fn set(&self, addresses: Range<usize>, byte: u8) {
        let regions = addresses.start / REGION_BYTES as usize..addresses.end / REGION_BYTES as usize;
        // SeqCst pairs with `find`: either `find` sees the byte, or the thread that closes the space sees the use.
        table().expect("it was mapped for the space")[regions].iter().for_each(|it| it.store(byte, Ordering::SeqCst));
    }

    /// Called when no address of the space is in the table any more: waits until no thread resolves a fault in the
    /// space. False if a thread does not finish within the time limit.
    pub(crate) fn wait_for_users(&self) -> bool {
        let started = now_ns();
        while ENTRIES[self.index].users.load(Ordering::SeqCst) > 0 {
            if Duration::from_nanos(now_ns() - started) > USERS_WAIT_MAX {
                return false;
            }
            std::thread::sleep(USERS_WAIT_ONCE);
        }
        true
    }

    /// Frees the entry, which has no users any more.
    pub(crate) fn unlist(self) {
        ENTRIES[self.index].pager.store(null_mut(), Ordering::Release);
    }
}

/// A thread's use of a space.
pub(crate) struct Use {
    entry: &'static Entry,
}

/// The space of a caller's that has this address. It is not closed while the value lives.
pub(crate) fn find(address: usize) -> Option<Use> {
    let byte = table()?.get(address / REGION_BYTES as usize)?;
    let number = byte.load(Ordering::Acquire);
    let entry = ENTRIES.get(usize::from(number).checked_sub(1)?)?;
    entry.users.fetch_add(1, Ordering::SeqCst);
    let found = Use { entry };
    (byte.load(Ordering::SeqCst) == number).then_some(found)
}

impl Use {
    pub(crate) fn pager(&self) -> &Pager {
        // SAFETY: the address was in the table after this use was counted, so the space is closed only after the use
        // has ended.
        unsafe { &*self.entry.pager.load(Ordering::Acquire) }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.entry.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// After fork(2), in the child, which has none of its parent's spaces. Calls `each` with every space of the parent.
pub(crate) fn forget_all(mut each: impl FnMut(&Pager)) {
    for entry in &ENTRIES {
        let pager = entry.pager.swap(null_mut(), Ordering::AcqRel);
        entry.users.store(0, Ordering::Release);
        // SAFETY: the parent had the space open when it forked, and the child has a copy of its data, which nothing
        // frees: `MemorySpace` does nothing in another process than its own.
        if let Some(pager) = unsafe { pager.as_ref() } {
            each(pager);
        }
    }
    // The old table names the parent's spaces. The first space that is opened here maps a new, empty table.
    TABLE.store(null_mut(), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use aquifer_sys::raw::exit_process;

    use super::*;
    use crate::{fault_stacks, signal};

    const FORKS: usize = 200;
    /// How long a child may take, in seconds: SIGALRM ends one that waits for ever.
    const CHILD_SECONDS: u32 = 20;

    /// Does what opening a space does with the words of this process.
    fn open_and_close() {
        fault_stacks::prepare().expect("address space");
        signal::install_handler().expect("a handler can be installed");
        // Never dereferenced: no address is its.
        claim(std::ptr::dangling_mut()).expect("a free entry").unlist();
    }

    /// The defect: the entries and the stacks had locks. A child that was forked while another thread had one of them
    /// waited for it for ever when it opened a space of its own.
    #[test]
    fn a_child_opens_spaces_whatever_other_threads_were_doing_at_the_fork() {
        let is_over = AtomicBool::new(false);
        let bad = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        open_and_close();
                    }
                });
            }
            let bad = (0..FORKS).map(|_| fork_and(open_and_close)).find(|status| *status != 0);
            is_over.store(true, Ordering::Relaxed);
            bad
        });
        assert_eq!(bad, None, "as of waitpid(2): 14 is SIGALRM");
    }

    /// Runs `act` in a forked child. Returns the child's status as of waitpid(2).
    fn fork_and(act: impl FnOnce()) -> i32 {
        // SAFETY: the child makes system calls only, and ends by exit_group(2). No handler of pthread_atfork(3) runs.
        let child = unsafe { libc::syscall(libc::SYS_fork) } as i32;
        assert!(child >= 0, "the test can fork");
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(CHILD_SECONDS) };
            act();
            exit_process(0);
        }
        let mut status = 0;
        // SAFETY: waitpid(2) writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }
}
