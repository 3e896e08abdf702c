// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine's doors as values: one variant for each call that changes an engine.
//!
//! Pure. [`Told::tell`] makes the call. To add a door to the engine: a variant here, an arm in `tell`, its bytes in
//! `event.rs`, and a method of the pager's `EngineGuard`, which does not compile without. Then raise
//! [`super::VERSION`]: the golden recording asks for it.

use super::answer::{Digest, Summary};
use super::runs::{Guarded, Runs};
use crate::engine::{Advice, CleanVerdict, DiscardStep, Engine, Exchange, FaultStep, Plan, Transfers};
use crate::guard;
use crate::map::Delivery;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order, REGION_PAGES, ThreadIndex};

/// One thing that an engine is told, or asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// [`Engine::add`].
    Add {
        /// First page.
        start: u64,
        /// One past the last page.
        end: u64,
        /// The block size to begin with.
        order: Order,
        /// How its faults arrive.
        delivery: Delivery,
        /// For each block, in order, whether any of its pages was populated.
        present: Runs<'a>,
    },
    /// [`Engine::advise`].
    Advise {
        /// First page.
        start: u64,
        /// One past the last page.
        end: u64,
        /// What is foretold.
        advice: Advice,
    },
    /// [`Engine::cleaned`].
    Cleaned {
        /// The block.
        block: BlockIndex,
        /// What the comparison has shown.
        verdict: CleanVerdict,
        /// How each page's guard compares with the tier's: a [`Guarded`] each.
        guards: Runs<'a>,
    },
    /// [`Engine::discard`], or [`Engine::remove`].
    Discard {
        /// First page.
        start: u64,
        /// One past the last page.
        end: u64,
        /// Whether the addresses go, too.
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
        page: u64,
        /// Who touched it.
        thread: ThreadIndex,
        /// Whether it may be a store.
        write: bool,
        /// Whether this fault asks for the first time.
        first: bool,
    },
    /// [`Engine::fetch_failed`].
    FetchFailed {
        /// The block.
        block: BlockIndex,
        /// Whether trying again is pointless.
        lost: bool,
    },
    /// [`Engine::fetched`].
    Fetched {
        /// The block.
        block: BlockIndex,
        /// Whether the access may be a store.
        write: bool,
    },
    /// [`Engine::installed_run`]; [`Engine::installed`] is a run of one.
    Installed {
        /// The first block.
        first: BlockIndex,
        /// How many blocks.
        count: u32,
        /// How their arrival is judged.
        arrival: Arrival,
    },
    /// [`Engine::plan`].
    Plan {
        /// How many blocks may need the tier.
        blocks: u32,
        /// From so many pages on, no other block.
        pages: u32,
    },
    /// [`Engine::read_ahead_arrived`].
    ReadAheadArrived {
        /// The block.
        block: BlockIndex,
    },
    /// [`Engine::slot_for`].
    SlotFor {
        /// The block.
        block: BlockIndex,
    },
    /// [`Engine::try_again`].
    TryAgain,
}

/// What an engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a report that asks for nothing.
    Nothing,
    /// Whether others wait for the block.
    Wanted(bool),
    /// How a fetched block is to be installed.
    Exchange(Exchange),
    /// The next step of a fault.
    Step(FaultStep),
    /// The slot, unless the tier is full.
    Slot(Option<u64>),
    /// Whether a discard could be done, and what its slots and its step hash to.
    Discard(DiscardStep, Summary),
    /// The tasks are in the plan that was handed over.
    Plan(Summary),
}

impl Answer {
    /// What is kept of it.
    pub fn summary(&self) -> Summary {
        match self {
            Answer::Nothing => Summary::default(),
            Answer::Wanted(wanted) => Summary::of_flag(*wanted),
            Answer::Exchange(exchange) => Summary::of_exchange(*exchange),
            Answer::Step(step) => Summary::of_step(step),
            Answer::Slot(slot) => Summary::of_slot(*slot),
            Answer::Discard(_, summary) | Answer::Plan(summary) => *summary,
        }
    }
}

impl Told<'_> {
    /// Tells `engine`. `number` is the event's, and makes guards that no earlier event has made.
    ///
    /// As with the engine's own doors, what could not have happened is a bug, and a panic.
    pub fn tell(self, engine: &mut Engine, number: u64, plan: &mut Plan) -> Answer {
        match self {
            Told::Add { start, end, order, delivery, present } => {
                let mut flags = present.flags();
                engine.add(start, end, order, delivery, &mut |_, _| flags.next().unwrap_or(false));
                Answer::Nothing
            }
            Told::Advise { start, end, advice } => {
                engine.advise(start, end, advice);
                Answer::Nothing
            }
            Told::Cleaned { block, verdict, guards } => {
                let mut found = [guard::ZERO; REGION_PAGES as usize];
                let stored = engine.map().guards(block);
                let found = &mut found[..stored.len()];
                for ((found, stored), guarded) in found.iter_mut().zip(stored).zip(guards.guarded()) {
                    *found = match guarded {
                        Guarded::Zero => guard::ZERO,
                        Guarded::Same => *stored,
                        Guarded::Other => number + 1,
                    };
                }
                Answer::Wanted(engine.cleaned(block, verdict, found))
            }
            Told::Discard { start, end, remove } => {
                let mut freed = Digest::default();
                let mut each = |slot: u64, bytes: u64| freed.range(slot, bytes);
                let step = match remove {
                    true => engine.remove(start, end, &mut each),
                    false => engine.discard(start, end, &mut each),
                };
                Answer::Discard(step, Summary::of_discard(step, freed))
            }
            Told::Dropped { block } => Answer::Wanted(engine.dropped(block)),
            Told::Emptied { frame } => {
                engine.emptied(frame);
                Answer::Nothing
            }
            Told::Evicted { block } => Answer::Wanted(engine.evicted(block)),
            Told::EvictionRefused { block } => Answer::Wanted(engine.eviction_refused(block)),
            Told::Fault { page, thread, write, first } => Answer::Step(engine.fault(page, thread, write, first)),
            Told::FetchFailed { block, lost } => Answer::Wanted(engine.fetch_failed(block, lost)),
            Told::Fetched { block, write } => Answer::Exchange(engine.fetched(block, write)),
            Told::Installed { first, count, arrival } => Answer::Wanted(engine.installed_run(first, count, arrival)),
            Told::Plan { blocks, pages } => {
                engine.plan(plan, Transfers { blocks: blocks as usize, pages });
                Answer::Plan(Summary::of_plan(&plan.tasks, engine))
            }
            Told::ReadAheadArrived { block } => Answer::Wanted(engine.read_ahead_arrived(block)),
            Told::SlotFor { block } => Answer::Slot(engine.slot_for(block).map(|slot| slot.offset)),
            Told::TryAgain => {
                engine.try_again();
                Answer::Nothing
            }
        }
    }
}
