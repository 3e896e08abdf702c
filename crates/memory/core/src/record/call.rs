// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine's calls as values: one variant for each call that changes an engine.
//!
//! Pure. [`Call::apply`] makes the call on an engine. To add a call to the engine: add a variant here, an arm in
//! `apply`, its bytes in `event.rs`, and a method of the driver's `LockedEngine`, without which nobody can make the
//! call. Then raise [`super::VERSION`]; the golden recording fails until you do.

use super::answer::{Digest, Summary};
use super::runs::{Guarded, Runs};
use crate::engine::{Advice, Arrived, Changed, CleanVerdict, DiscardStep, Engine, FaultStep, Plan, Renewed, Transfers};
use crate::guard;
use crate::map::Delivery;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order, PageIndex, REGION_PAGES, SlabIndex, Slot, ThreadIndex};

/// One input of an engine: a report or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// [`Engine::add`].
    Add {
        /// First page.
        start: PageIndex,
        /// One past the last page.
        end: PageIndex,
        /// The block size at first.
        order: Order,
        /// How its faults are delivered.
        delivery: Delivery,
        /// For each block, in order, whether any of its pages was populated.
        present: Runs<'a>,
    },
    /// [`Engine::advise`].
    Advise {
        /// First page.
        start: PageIndex,
        /// One past the last page.
        end: PageIndex,
        /// The advice.
        advice: Advice,
    },
    /// [`Engine::await_arrivals`].
    AwaitArrivals {
        /// Whether callers wait for arrivals.
        are_awaited: bool,
    },
    /// [`Engine::begin_change`].
    BeginChange {
        /// The page.
        page: PageIndex,
    },
    /// [`Engine::cleaned`].
    Cleaned {
        /// The block.
        block: BlockIndex,
        /// The outcome of the comparison.
        verdict: CleanVerdict,
        /// How each page's guard compares with that of the tier's copy: one [`Guarded`] each.
        guards: Runs<'a>,
    },
    /// [`Engine::discard`], or [`Engine::remove`].
    Discard {
        /// First page.
        start: PageIndex,
        /// One past the last page.
        end: PageIndex,
        /// Whether the pages are unmapped as well.
        remove: bool,
    },
    /// [`Engine::dropped`].
    Dropped {
        /// The victim.
        block: BlockIndex,
    },
    /// [`Engine::emptied`].
    Emptied {
        /// The frame.
        frame: FrameIndex,
    },
    /// [`Engine::end_change`].
    EndChange {
        /// The page.
        page: PageIndex,
        /// Its new guard, compared with that before; `None` if the page is lost.
        guarded: Option<Guarded>,
    },
    /// [`Engine::evicted`].
    Evicted {
        /// The victim.
        block: BlockIndex,
    },
    /// [`Engine::eviction_refused`].
    EvictionRefused {
        /// The victim.
        block: BlockIndex,
    },
    /// [`Engine::fault`].
    Fault {
        /// The page.
        page: PageIndex,
        /// The thread that touched it.
        thread: ThreadIndex,
        /// Whether it may be a store.
        write: bool,
        /// Whether this is the first call for this fault.
        first: bool,
    },
    /// [`Engine::fault_without_credit`].
    FaultWithoutCredit {
        /// The page.
        page: PageIndex,
        /// The thread that touched it.
        thread: ThreadIndex,
        /// Whether it may be a store.
        write: bool,
    },
    /// [`Engine::fetch_failed`].
    FetchFailed {
        /// The block.
        block: BlockIndex,
        /// Whether a retry is pointless.
        lost: bool,
    },
    /// [`Engine::has_arrived`].
    HasArrived {
        /// The page.
        page: PageIndex,
    },
    /// [`Engine::installed_run`]; [`Engine::installed`] is a run of one.
    Installed {
        /// The first block.
        first: BlockIndex,
        /// How many blocks.
        count: u32,
        /// The kind of arrival to record for them.
        arrival: Arrival,
    },
    /// [`Engine::plan`].
    Plan {
        /// Maximum number of blocks that may use the tier.
        blocks: u32,
        /// Once the plan covers this many pages, no further block is added.
        pages: u32,
    },
    /// [`Engine::read_ahead_arrived`].
    ReadAheadArrived {
        /// The block.
        block: BlockIndex,
    },
    /// [`Engine::renew`].
    Renew {
        /// The page.
        page: PageIndex,
        /// Its guard in the file, compared with that before.
        guarded: Guarded,
    },
    /// [`Engine::set_file`].
    SetFile {
        /// First page of the mapping.
        start: PageIndex,
        /// One past its last page.
        end: PageIndex,
        /// First slab of the file.
        first: SlabIndex,
        /// For each page, whether it has other bytes than zeros.
        contents: Runs<'a>,
    },
    /// [`Engine::slot_for`].
    SlotFor {
        /// The block.
        block: BlockIndex,
    },
    /// [`Engine::try_again`].
    TryAgain,
}

/// An engine's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to a report that needs none.
    Nothing,
    /// Where a page that was asked for is.
    Arrived(Arrived),
    /// Whether other threads wait for the block; for a change, whether it begins.
    Wanted(bool),
    /// The next step of a fault.
    Step(FaultStep),
    /// The slot, unless the tier is full.
    Slot(Option<Slot>),
    /// The outcome of a discard, and the digest of its slabs and its step.
    Discard(DiscardStep, Summary),
    /// The tasks are in the plan passed to the call.
    Plan(Summary),
}

impl Answer {
    /// The recorded form of the answer.
    pub fn summary(&self) -> Summary {
        match self {
            Answer::Nothing => Summary::default(),
            Answer::Arrived(arrived) => Summary::of_arrived(*arrived),
            Answer::Wanted(wanted) => Summary::of_flag(*wanted),
            Answer::Step(step) => Summary::of_step(step),
            Answer::Slot(slot) => Summary::of_slot(*slot),
            Answer::Discard(_, summary) | Answer::Plan(summary) => *summary,
        }
    }
}

impl Call<'_> {
    /// Makes the call on `engine`. `number` is the event's number, from which guards are made that no earlier event has
    /// made.
    ///
    /// As with the engine's own calls, an input that could not have happened is a bug and panics.
    pub fn apply(self, engine: &mut Engine, number: u64, plan: &mut Plan) -> Answer {
        match self {
            Call::Add { start, end, order, delivery, present } => {
                let mut flags = present.flags();
                engine.add(start, end, order, delivery, &mut |_, _| flags.next().unwrap_or(false));
                Answer::Nothing
            }
            Call::Advise { start, end, advice } => {
                engine.advise(start, end, advice);
                Answer::Nothing
            }
            Call::AwaitArrivals { are_awaited } => {
                engine.await_arrivals(are_awaited);
                Answer::Nothing
            }
            Call::BeginChange { page } => Answer::Wanted(engine.begin_change(page).is_some()),
            Call::Cleaned { block, verdict, guards } => {
                let mut found = [guard::ZERO; REGION_PAGES as usize];
                let stored = engine.map().guards(block);
                let found = &mut found[..stored.len()];
                for ((found, stored), guarded) in found.iter_mut().zip(stored).zip(guards.guarded()) {
                    *found = guarded.guard(*stored, number);
                }
                Answer::Wanted(engine.cleaned(block, verdict, found))
            }
            Call::Discard { start, end, remove } => {
                let mut freed = Digest::default();
                let mut each = |slab: SlabIndex| freed.slab(slab);
                let step = match remove {
                    true => engine.remove(start, end, &mut each),
                    false => engine.discard(start, end, &mut each),
                };
                Answer::Discard(step, Summary::of_discard(step, freed))
            }
            Call::Dropped { block } => Answer::Wanted(engine.dropped(block)),
            Call::Emptied { frame } => {
                engine.emptied(frame);
                Answer::Nothing
            }
            Call::EndChange { page, guarded } => {
                let stored = engine.guard_of(page);
                let guard = guarded.map(|guarded| guarded.guard(stored, number));
                Answer::Wanted(engine.end_change(page, guard.map_or(Changed::Lost, Changed::To)))
            }
            Call::Evicted { block } => Answer::Wanted(engine.evicted(block)),
            Call::EvictionRefused { block } => Answer::Wanted(engine.eviction_refused(block)),
            Call::Fault { page, thread, write, first } => Answer::Step(engine.fault(page, thread, write, first)),
            Call::FaultWithoutCredit { page, write, .. } => Answer::Step(engine.fault_without_credit(page, write)),
            Call::FetchFailed { block, lost } => Answer::Wanted(engine.fetch_failed(block, lost)),
            Call::HasArrived { page } => Answer::Arrived(engine.has_arrived(page)),
            Call::Installed { first, count, arrival } => Answer::Wanted(engine.installed_run(first, count, arrival)),
            Call::Plan { blocks, pages } => {
                engine.plan(plan, Transfers { blocks: blocks as usize, pages });
                Answer::Plan(Summary::of_plan(&plan.tasks, engine))
            }
            Call::ReadAheadArrived { block } => Answer::Wanted(engine.read_ahead_arrived(block)),
            Call::Renew { page, guarded } => {
                let guard = guarded.guard(engine.guard_of(page), number);
                Answer::Wanted(engine.renew(page, guard) == Renewed::Busy)
            }
            Call::SetFile { start, end, first, contents } => {
                let mut flags = contents.flags();
                let mut guard = |_| if flags.next().unwrap_or(false) { number + 1 } else { guard::ZERO };
                engine.set_file(start, end, first, &mut guard);
                Answer::Nothing
            }
            Call::SlotFor { block } => Answer::Slot(engine.slot_for(block).map(|own| own.slot)),
            Call::TryAgain => {
                engine.try_again();
                Answer::Nothing
            }
        }
    }
}
