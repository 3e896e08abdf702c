// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Resolves one fault, on the thread that calls: the faulting thread itself, or a listener's.
//!
//! May run in a signal handler: does not allocate or log, takes no lock but the engine's. Every wait is bounded.
//!
//! Next on the path: `transfer.rs`, which fetches into a frame or, from a tier in memory, installs without one; and the
//! kernel's `install`.

use std::time::Duration;

use aquifer_core::engine::{Exchange, FaultStep};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::Arrival;
use aquifer_core::units::{BlockIndex, FrameIndex, PageIndex, Slot, ThreadIndex};

use crate::batch;
use crate::evict::evict;
use crate::fatal::Fatal;
use crate::inspect::{Guards, PAGES_MAX};
use crate::observer::{Count, FaultKind, Loss, Resolved};
use crate::planted::{self, Bug};
use crate::space::{Installed, Space};
use crate::transfer::{clean, fetch, install_stored};

/// How long a fault may wait for other threads in total. Longer than the time-outs of disks and networks, so that those
/// report first.
pub const WAIT_MAX: Duration = Duration::from_secs(120);
/// How long an operation waits before it checks whether a signal asks the process to end.
const HEED_AFTER: Duration = Duration::from_millis(200);
/// How many times the tier may refuse a block that it has refused before, while one fault searches for room. After that
/// the search gives up, because such blocks are tried only when no others are left.
const FAILURES_MAX: u32 = 16;
/// How long after the first failure the search may still try further blocks, once more than `FAILURES_MAX` write-backs
/// have failed.
const FAILED_WAIT_MAX: Duration = Duration::from_secs(5);
/// In one fault's search for room: how many victims the kernel may refuse (locked or pinned memory) before the search
/// pauses. Many, since each refusal costs only microseconds and other victims may succeed.
const REFUSALS_AT_ONCE: u32 = 64;
/// One such pause, and how long the search goes on while every victim is refused. A device pins memory for the length
/// of a request, which a slow and busy disk may draw out; locked memory stays locked. A victim that is released or
/// written back in between shows that there is room, though another thread may take it: then the search lasts
/// [`WAIT_MAX`] at most.
const REFUSED_WAIT_ONCE: Duration = Duration::from_millis(1);
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(5);
/// How many steps towards credit one fault takes at most: twice what it needs if no other thread takes what it makes,
/// which is to evict and write back 16 blocks of one page. Threads that take credit from each other thus end, and so
/// does a fault on a large block that meets victims of one page.
const CREDIT_STEPS_MAX: u32 = 64;

/// How often one fault gets room from another shard.
const LOANS_MAX: u32 = 8;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The thread can continue.
    Resolved,
    /// The page is not managed.
    Foreign,
    /// The block's contents are lost.
    Lost,
    /// Nothing could be evicted, because nothing could be written back.
    NoRoom,
}

/// What the engine is asked.
struct Asking {
    page: PageIndex,
    thread: ThreadIndex,
    write: bool,
    first: bool,
    /// Whether the fault may take a step towards credit.
    credit: bool,
}

/// The engine's answer, and the data that the step needs.
struct Decision {
    step: FaultStep,
    /// Whether the step is one towards credit, which the fault can do without.
    for_credit: bool,
    delivery: Delivery,
    /// For a block to be cleaned: whether its last write-back to the tier failed.
    failed_before: bool,
}

/// Victims that the kernel refused to release in one fault's search for room.
#[derive(Default)]
struct Refusals {
    count: u32,
    /// When the first one was refused, and the first one after the last progress.
    first: Option<u64>,
    since: Option<u64>,
}

impl Refusals {
    /// Counts one refusal. Pauses after every `REFUSALS_AT_ONCE` of them; false once the search has lasted too long.
    fn go_on(&mut self, space: &impl Space, ticket: u32) -> bool {
        let refused = space.now_ns();
        let (first, since) = (*self.first.get_or_insert(refused), *self.since.get_or_insert(refused));
        self.count += 1;
        if self.count.is_multiple_of(REFUSALS_AT_ONCE) {
            space.wait_at_most(ticket, REFUSED_WAIT_ONCE);
        }
        let now = space.now_ns();
        let lasted = |since: u64| Duration::from_nanos(now.saturating_sub(since));
        lasted(since) <= REFUSED_WAIT_MAX && lasted(first) <= WAIT_MAX
    }
}

/// Write-backs that failed in one fault's search for room.
#[derive(Default)]
struct Failures {
    count: u32,
    again: u32,
    since: Option<u64>,
}

impl Failures {
    /// Counts one failure; `again` if the same block failed before. False when the search must end.
    fn go_on(&mut self, space: &impl Space, again: bool) -> bool {
        let since = *self.since.get_or_insert_with(|| space.now_ns());
        self.count += 1;
        self.again += u32::from(again);
        let lasted = Duration::from_nanos(space.now_ns().saturating_sub(since));
        self.again <= FAILURES_MAX && (self.count <= FAILURES_MAX || lasted <= FAILED_WAIT_MAX)
    }
}

/// One fault's search for room and for credit.
#[derive(Default)]
struct Search {
    refusals: Refusals,
    failures: Failures,
    /// Steps towards credit that have been taken.
    credit_steps: u32,
    /// Whether such a step was refused. The next one would probably be, too, and the fault needs no credit.
    credit_was_refused: bool,
}

impl Search {
    /// Whether the fault may take another step towards credit.
    fn wants_credit(&self) -> bool {
        !self.credit_was_refused && self.credit_steps < CREDIT_STEPS_MAX
    }

    /// A step was to take victims away; `is_done` unless the kernel refused all of them. False when the search must
    /// end. A step towards credit never ends it.
    fn evicted(&mut self, space: &impl Space, ticket: u32, is_done: bool, for_credit: bool) -> bool {
        if is_done {
            self.refusals.since = None;
            return true;
        }
        self.credit_was_refused |= for_credit;
        for_credit || self.refusals.go_on(space, ticket)
    }

    /// A step was to write a block back; `again` if that failed before. False when the search must end.
    fn cleaned(&mut self, space: &impl Space, again: bool, is_done: bool, for_credit: bool) -> bool {
        if is_done {
            self.refusals.since = None;
            return true;
        }
        self.credit_was_refused |= for_credit;
        for_credit || self.failures.go_on(space, again)
    }
}

/// Resolves the fault at `page` for the thread `thread`. `write` is false only if the access is known to be a read. If
/// there is no room, because the resident blocks are pinned, gets some from another shard of the space.
pub fn resolve<S: Space>(space: &S, page: PageIndex, thread: ThreadIndex, write: bool) -> Result<Outcome, Fatal> {
    for _ in 0..LOANS_MAX {
        let outcome = resolve_in(space, page, thread, write)?;
        if outcome != Outcome::NoRoom || !space.borrow_room()? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::NoRoom)
}

/// As [`resolve`], with the room that the shard has.
fn resolve_in<S: Space>(space: &S, page: PageIndex, thread: ThreadIndex, write: bool) -> Result<Outcome, Fatal> {
    let started = space.now_ns();
    let mut kind = None;
    let mut search = Search::default();
    let (mut fresh_blocks, mut rescued_blocks) = (0, 0);
    let mut first = true;
    let mut guards: Guards = [0; PAGES_MAX];
    loop {
        let ticket = space.ticket();
        let asking = Asking { page, thread, write, first: std::mem::take(&mut first), credit: search.wants_credit() };
        let Decision { step, for_credit, delivery, failed_before } = decide(space, asking, &mut guards);
        search.credit_steps += u32::from(for_credit);
        if kind.is_none() {
            kind = Some(kind_of(&step));
        }
        let goes_on = match step {
            FaultStep::Foreign => return Ok(Outcome::Foreign),
            FaultStep::Poisoned => return Ok(Outcome::Lost),
            FaultStep::Wait => {
                space.count(Count::Waits, 1);
                check_timeout(space, started)?;
                space.wait(ticket);
                true
            }
            FaultStep::Credit { step } => unreachable!("a step towards credit is taken as one for room: {step:?}"),
            FaultStep::Empty { frames } => {
                batch::empty(space, frames.frames())?;
                true
            }
            FaultStep::Evict { block, pages, frame } => {
                let is_done = evict(space, block, pages, frame, delivery)?;
                search.evicted(space, ticket, is_done, for_credit)
            }
            FaultStep::Drop { victims } => {
                let is_done = batch::drop_victims(space, victims.blocks())?;
                search.evicted(space, ticket, is_done, for_credit)
            }
            FaultStep::Clean { block, pages, frame, known_clean } => {
                let is_done = clean(space, block, pages, frame, known_clean, &guards)?;
                search.cleaned(space, failed_before, is_done, for_credit)
            }
            FaultStep::FillHole { block, pages, page, sealed } => {
                if !planted::is(Bug::ForgottenProtection) {
                    space.lift_protection(delivery, pages)?;
                }
                fill_hole(space, block, (!sealed).then_some(page), delivery)?;
                break;
            }
            FaultStep::Fill { block, pages, frame, fresh, exchange } => {
                space.zero(frame, pages.bytes() as usize, fresh)?;
                let zeros = Arriving { block, count: 1, pages, frame, arrival: Arrival::Fresh };
                install(space, zeros, delivery, exchange)?;
                fresh_blocks = 1;
                break;
            }
            FaultStep::Rescue { block, count, pages, frame, arrival, exchange } => {
                rescued_blocks = u64::from(arrival == Arrival::Rescued);
                install(space, Arriving { block, count, pages, frame, arrival }, delivery, exchange)?;
                space.touched(pages, pages.count / count);
                break;
            }
            FaultStep::Fetch { block, pages, frame, slot, fresh, exchange, arrival } => {
                let what = Arriving { block, count: 1, pages, frame, arrival };
                let stored = Stored { slot, guards: &guards[..pages.count as usize] };
                if !fetch_and_install(space, what, stored, fresh, delivery, exchange)? {
                    return Ok(Outcome::Lost);
                }
                break;
            }
        };
        if !goes_on {
            return Ok(Outcome::NoRoom);
        }
    }
    let kind = kind.unwrap_or(FaultKind::Wait);
    space.resolved(Resolved { kind, fresh_blocks, rescued_blocks, ns: space.now_ns() - started });
    Ok(Outcome::Resolved)
}

/// Asks the engine for the next step, and copies what the step needs while the lock is held: the delivery of the
/// block's mapping and the guards of the tier's copy.
fn decide<S: Space>(space: &S, asking: Asking, guards: &mut Guards) -> Decision {
    let Asking { page, thread, write, first, credit } = asking;
    let mut engine = space.engine();
    if space.is_paused() && !planted::is(Bug::IgnoredPause) {
        return Decision { step: FaultStep::Wait, for_credit: false, delivery: Delivery::Signal, failed_before: false };
    }
    let step = match credit {
        true => engine.fault(page, thread, write, first),
        false => engine.fault_without_credit(page, thread, write),
    };
    let (step, for_credit) = match step {
        FaultStep::Credit { step } => (step.for_room(), true),
        step => (step, false),
    };
    let (mut delivery, mut failed_before) = (Delivery::Signal, false);
    match &step {
        FaultStep::Fetch { block, .. } | FaultStep::Clean { block, .. } => {
            failed_before = engine.has_failed(*block);
            let stored = engine.map().guards(*block);
            guards[..stored.len()].copy_from_slice(stored);
            delivery = engine.map().region_of(*block).delivery;
        }
        FaultStep::Fill { block, .. }
        | FaultStep::FillHole { block, .. }
        | FaultStep::Rescue { block, .. }
        | FaultStep::Evict { block, .. } => delivery = engine.map().region_of(*block).delivery,
        FaultStep::Credit { .. }
        | FaultStep::Drop { .. }
        | FaultStep::Empty { .. }
        | FaultStep::Wait
        | FaultStep::Poisoned
        | FaultStep::Foreign => {}
    }
    let wants_worker = engine.wants_worker();
    drop(engine);
    if wants_worker {
        space.wake_worker();
    }
    Decision { step, for_credit, delivery, failed_before }
}

/// An error if an operation that started at `started` has waited for too long. Ends the process if a signal asks for
/// that.
pub fn check_timeout(space: &impl Space, started: u64) -> Result<(), Fatal> {
    let waited = Duration::from_nanos(space.now_ns().saturating_sub(started));
    if waited > WAIT_MAX {
        return Err(Fatal::NoAnswer);
    }
    if waited > HEED_AFTER {
        space.heed()?;
    }
    Ok(())
}

/// Wakes the waiting threads if the engine says that a thread waits for the block.
pub(crate) fn report(space: &impl Space, wanted: bool) {
    if wanted && !planted::is(Bug::LostWakeup) {
        space.signal();
    }
}

/// Blocks to be installed, whose frames are adjacent.
#[derive(Clone, Copy)]
struct Arriving {
    block: BlockIndex,
    count: u32,
    pages: Pages,
    frame: FrameIndex,
    arrival: Arrival,
}

/// Where the tier has a block's bytes, and their guards.
struct Stored<'g> {
    slot: Slot,
    guards: &'g [u64],
}

/// Fetches a block and installs it: without a frame, if the tier is in memory and the exchange copies. `fresh` frames
/// have no pages yet. False if the block is lost.
#[inline]
fn fetch_and_install<S: Space>(
    space: &S,
    what: Arriving,
    stored: Stored<'_>,
    fresh: bool,
    delivery: Delivery,
    exchange: Exchange,
) -> Result<bool, Fatal> {
    let (Arriving { block, pages, frame, .. }, Stored { slot, guards }) = (what, stored);
    // A frame without pages gets them below: the engine counts it as one that has them.
    if let (Exchange::Copy { seal }, false) = (exchange, fresh)
        && install_stored(space, delivery, pages, slot, guards, seal)?
    {
        installed(space, &what);
        space.touched(pages, pages.count);
        return Ok(true);
    }
    space.prepare(frame, pages.bytes() as usize, fresh)?;
    if let Err(loss) = fetch(space, pages, frame, slot, guards) {
        lose(space, block, pages, loss);
        return Ok(false);
    }
    install(space, what, delivery, exchange)?;
    space.touched(pages, pages.count);
    Ok(true)
}

/// Installs the bytes of the blocks, and reports.
fn install<S: Space>(space: &S, what: Arriving, delivery: Delivery, exchange: Exchange) -> Result<(), Fatal> {
    let Arriving { pages, frame, .. } = what;
    if space.install(delivery, exchange, pages, frame)? == Installed::CopiedInstead {
        space.count(Count::ExchangeFallbacks, 1);
    }
    installed(space, &what);
    Ok(())
}

/// Reports that the blocks are at the program's address.
fn installed<S: Space>(space: &S, what: &Arriving) {
    let mut engine = space.engine();
    let wanted = engine.installed(what.block, what.count, what.arrival);
    space.publish_if_due(&engine);
    drop(engine);
    report(space, wanted);
}

/// Installs the zero page at the one page that a resident block lacks, if any. At the first store the kernel replaces
/// it with a real page, which is counted as resident already, since whole blocks are counted.
fn fill_hole<S: Space>(space: &S, block: BlockIndex, page: Option<PageIndex>, delivery: Delivery) -> Result<(), Fatal> {
    if let Some(page) = page {
        space.install_zero_page(delivery, page)?;
    }
    let wanted = space.engine().installed(block, 1, Arrival::Rescued);
    report(space, wanted);
    Ok(())
}

/// A block is lost: reports it, and wakes all waiting threads, so that those that wait for the block get the error.
fn lose<S: Space>(space: &S, block: BlockIndex, pages: Pages, why: Loss) {
    space.lost(pages, why);
    space.engine().fetch_failed(block, true);
    space.signal();
}

fn kind_of(step: &FaultStep) -> FaultKind {
    match step {
        FaultStep::Fill { .. } | FaultStep::FillHole { .. } => FaultKind::Fresh,
        FaultStep::Rescue { .. } => FaultKind::Rescue,
        FaultStep::Wait => FaultKind::Wait,
        _ => FaultKind::Fetch,
    }
}
