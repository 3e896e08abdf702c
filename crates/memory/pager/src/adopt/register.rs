// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Registers adopted ranges with userfaultfd(2), and finds out which of their pages have contents.
//!
//! Threads: as in `adopt.rs`. Holds the locks of the budget's division and of all engines.

use std::io;
use std::sync::atomic::Ordering;

use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_stats::Gauge;
use aquifer_sys::memory::{RESIDENT_PAGES_MAX, advise, resident_pages};
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::{Partial, Uffd, mode};
use aquifer_sys::{pagemap, protection};

use super::{Adopter, Range, State};
use crate::abort::{Number, abort, say};
use crate::huge_blocks::parts;
use crate::pager::Pager;
use crate::signal;

/// What the kernel refuses to register.
#[derive(Default)]
struct Refused {
    /// Includes what is not mapped.
    bytes: u64,
    mapped_bytes: u64,
    last: Option<Errno>,
}

impl Refused {
    fn tell(&self) {
        let Some(errno) = self.last else { return };
        let size = Number::new(self.mapped_bytes >> 10);
        say(&[
            size.text(),
            " KiB of memory stays outside the budget: the kernel refuses to register it (",
            errno.name(),
            "); it counts as unmanaged",
        ]);
    }
}

impl Adopter {
    /// Registers ranges and reports their present pages to the engine. Faults on them wait for the engines' locks.
    pub(crate) fn register(&self, pager: &'static Pager, state: &mut State, ranges: &[Range]) {
        let with_huge = pager.gives_huge_blocks(&state.given_advice.huge);
        let must_pin = |range: &Range| pager.calls_must_pin(self.delivery(pager, *range));
        if self.watches_calls() || ranges.iter().any(must_pin) {
            // Before the locks: another thread may hold one of those that this takes, and wait for a fault.
            signal::trap_calls();
        }
        let mut budgets = pager.lock_budgets();
        let mut engines = pager.lock_all();
        let mut refused = Refused::default();
        for range in ranges.iter().flat_map(|range| self.register_pieces(pager, *range, &mut refused)) {
            let (start, len) = (range.start, range.end - range.start);
            let delivery = self.delivery(pager, range);
            let parts = match with_huge {
                true => parts(range.start, range.end, &state.given_advice.huge),
                false => vec![(range.start..range.end, false)],
            };
            // A child made without the library seeing the call must not read zeros (`fork.rs`); nor must a core dump
            // show them.
            let _ = advise(start, len, libc::MADV_DONTFORK);
            let _ = advise(start, len, libc::MADV_DONTDUMP);
            let present = match populated(pager.uffd(delivery), start, len) {
                Ok(present) => present,
                Err(error) => abort(&[
                    "cannot read /proc/self/pagemap (",
                    &error.to_string(),
                    "), or ask mincore(2), to find the pages of new memory that have contents; allow either, or give \
                     the program enough DRAM (--dram)",
                ]),
            };
            let origin = PageIndex::at(start);
            pager.note_scattered(present.iter().filter(|present| **present).count() as u64);
            let mut is_there = |page: PageIndex, count: u32| {
                let index = (page - origin) as usize;
                present[index..index + count as usize].iter().any(|present| *present)
            };
            for (part, is_huge) in parts {
                let (first, last) = (PageIndex::at(part.start), PageIndex::at(part.end));
                for (shard, first, last) in pager.stripes.parts(first, last) {
                    let engine = &mut engines[shard];
                    match is_huge {
                        true => pager.add_huge(engine, (first, last), delivery, &mut is_there),
                        false => engine.add(first, last, pager.order, delivery, &mut is_there),
                    }
                }
            }
            if pager.calls_must_pin(delivery) {
                // Release pairs with the Acquire in `may_need_pin`: the program may use the range from now on.
                self.pinned_low.fetch_min(start, Ordering::Release);
                self.pinned_high.fetch_max(range.end, Ordering::Release);
            }
            self.counters.increase(registered(delivery), 1);
        }
        aquifer_driver::settle(pager, &mut budgets, &mut engines);
        for (shard, engine) in pager.shards().zip(&engines) {
            shard.publish(engine);
            shard.publish_tables(engine);
        }
        drop((engines, budgets));
        pager.wake_workers();
        refused.tell();
        state.managed_bytes -= refused.bytes;
        self.counters.set_with_peak(Gauge::ManagedBytes, Gauge::ManagedBytesPeak, state.managed_bytes);
        self.announce_need(state);
    }

    /// Registers what the kernel accepts of `range`, and returns it. A call of the kernel's serves all of a range or
    /// fails, and a program may have mapped a file within, by the bare instruction: the rest of the range is managed
    /// all the same, one mapping of the kernel's after the other.
    fn register_pieces(&self, pager: &Pager, range: Range, refused: &mut Refused) -> Vec<Range> {
        let uffd = pager.uffd(self.delivery(pager, range));
        let register = |range: &Range| uffd.register(range.start, range.end - range.start, mode::MISSING | mode::WP);
        if register(&range).is_ok() {
            return vec![range];
        }
        let mapped = protection::mapped(range.start, range.end);
        let pieces = mapped.map_or_else(
            |_| vec![range],
            |parts| parts.iter().map(|part| Range { start: part.start, end: part.end, ..range }).collect(),
        );
        let mut accepted: Vec<Range> = Vec::new();
        refused.bytes += bytes(&range);
        for piece in pieces {
            match register(&piece) {
                Ok(()) => {
                    refused.bytes -= bytes(&piece);
                    add(&mut accepted, piece);
                }
                Err(errno) => {
                    (refused.mapped_bytes, refused.last) = (refused.mapped_bytes + bytes(&piece), Some(errno))
                }
            }
        }
        accepted
    }
}

/// Adds a range to ascending ones. Ranges that touch become one: each range takes at least one slab of the tier.
fn add(ranges: &mut Vec<Range>, range: Range) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn bytes(range: &Range) -> u64 {
    (range.end - range.start) as u64
}

fn registered(delivery: Delivery) -> Gauge {
    match delivery {
        Delivery::Signal => Gauge::RegisteredMappingsSignal,
        Delivery::Listener => Gauge::RegisteredMappingsListener,
    }
}

/// Which pages of a range that was registered with `uffd` have contents.
fn populated(uffd: &Uffd, start: usize, len: usize) -> io::Result<Vec<bool>> {
    match by_pagemap(start, len) {
        // A program that has changed its user may not open its own pagemap, and one at its limit of open files cannot
        // open another.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) =>
        {
            let mut present = vec![false; len / PAGE_BYTES as usize];
            resident(uffd, start, &mut present).map(|()| present)
        }
        outcome => outcome,
    }
}

/// Which pages of a range have contents, if the program may read its own pagemap.
pub(crate) fn by_pagemap(start: usize, len: usize) -> io::Result<Vec<bool>> {
    let mut present = vec![false; len / PAGE_BYTES as usize];
    pagemap::populated(start, present.len(), &mut |page| present[page] = true)?;
    Ok(present)
}

/// As [`populated`], but needs no privilege. If pages can be in swap, mincore(2) does not distinguish a swapped page
/// from an absent one: each such page is filled with zeros if it is absent, which is what a read of it would return
/// anyway.
fn resident(uffd: &Uffd, start: usize, present: &mut [bool]) -> io::Result<()> {
    let address = |page: usize| start + page * PAGE_BYTES as usize;
    for first in (0..present.len()).step_by(RESIDENT_PAGES_MAX) {
        let count = RESIDENT_PAGES_MAX.min(present.len() - first);
        let bits = resident_pages(address(first), count).map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))?;
        (0..count).for_each(|page| present[first + page] = bits >> page & 1 != 0);
    }
    if pagemap::may_be_swapped() {
        for (page, present) in present.iter_mut().enumerate().filter(|(_, present)| !**present) {
            match uffd.zeropage(address(page), PAGE_BYTES as usize) {
                Ok(()) | Err(Partial { errno: Errno(libc::EEXIST), .. }) => *present = true,
                // The mapping is gone, or the kernel refuses it: the page has no contents.
                Err(_) => {}
            }
        }
    }
    Ok(())
}
