// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Repeats the kernel's transfers of pages, which may end early, with a limit for each reason.
//!
//! May run in a signal handler: does not allocate, and takes no lock.
//!
//! Linux 6.18 reports fewer pages than it has moved if it meets a page that is being migrated (compaction, NUMA
//! balancing), or whose accessed bit has just changed. It retries and moves that page and those after it, but then
//! returns to them with the old EAGAIN still set, and stops at EEXIST (`move_pages` in mm/userfaultfd.c). If nothing
//! had moved before, it reports EEXIST; otherwise it reports a part, without these pages, and the next call may fail
//! for another reason: EINVAL, if mprotect(2) has come in between. Both ends belong to this thread, so a page that is
//! at the target and not at the source has been moved ([`moved_already`]). Taking such an error for a refusal would
//! lose the page: the copy that follows would write the zeros of a missing page.

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::Partial;

use crate::own_memory::{AT_ONCE, PageTable};

/// Tries before an EAGAIN of the kernel counts as a refusal. EAGAIN means that another thread is changing the address
/// space; each change is short.
pub const EAGAIN_MAX: u32 = 10_000;

/// Tries before EBUSY counts as a refusal. After a direct read the kernel may keep the frame's pages pinned for a
/// moment longer than the read itself takes.
pub(super) const EBUSY_MAX: u32 = 64;

/// Tries while evicting a block: fewer, because EBUSY then means that its pages are shared, or pinned for as long as a
/// request takes. None for a sealed block: its pages were copied in, so a pin on them is not the brief one
/// of a direct read.
pub(super) const EBUSY_AWAY_MAX: u32 = 4;
pub(super) const EBUSY_SEALED_MAX: u32 = 0;

/// Repeats a transfer that may end early. `done` is the progress in bytes; EBUSY is retried `busy_max` times.
pub(super) fn retry(
    len: usize,
    done: &mut usize,
    busy_max: u32,
    mut step: impl FnMut(usize) -> Result<(), Partial>,
) -> Result<(), Errno> {
    let (mut again, mut busy) = (0, 0);
    while *done < len {
        match step(*done) {
            Ok(()) => return Ok(()),
            Err(partial) => {
                *done += partial.done;
                match partial.errno {
                    _ if partial.done > 0 => {}
                    Errno(libc::EAGAIN) if again < EAGAIN_MAX => again += 1,
                    Errno(libc::EBUSY) if busy < busy_max => busy += 1,
                    errno => return Err(errno),
                }
                std::hint::spin_loop();
            }
        }
    }
    Ok(())
}

/// Repeats a move from `source` to `target` that may end early.
pub(super) fn move_all(
    target: usize,
    source: usize,
    len: usize,
    done: &mut usize,
    busy_max: u32,
    mut step: impl FnMut(usize) -> Result<(), Partial>,
) -> Result<(), Errno> {
    loop {
        let Err(errno) = retry(len, done, busy_max, &mut step) else { return Ok(()) };
        let is_taken = errno == Errno(libc::EEXIST);
        let unsaid = is_taken || *done > 0;
        let moved = if unsaid { moved_already(target + *done, source + *done, len - *done) } else { 0 };
        *done += moved;
        if *done == len {
            return Ok(());
        }
        if !is_taken || moved == 0 {
            return Err(errno);
        }
    }
}

/// How many bytes from `target` on are present there and no longer at `source`: see the module.
fn moved_already(target: usize, source: usize, len: usize) -> usize {
    let page_bytes = PAGE_BYTES as usize;
    let (pages, mut moved) = (len / page_bytes, 0);
    let table = PageTable::open();
    while moved < pages {
        let count = (pages - moved).min(AT_ONCE);
        let at = |start: usize| table.contents(start + moved * page_bytes, count);
        let (Ok(there), Ok(left)) = (at(target), at(source)) else { break };
        let run = (!(there & !left)).trailing_zeros() as usize;
        moved += run.min(count);
        if run < count {
            break;
        }
    }
    moved * page_bytes
}
