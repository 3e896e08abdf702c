// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The steps that an engine asks for, divided where another thread could intervene.
//!
//! Each call of [`Work::advance`] does one thing: one effect on memory, or one report to the engine.

use aquifer_core::engine::{CleanVerdict, Engine, Exchange, FaultStep, Task};
use aquifer_core::map::{OwnSlot, Pages};
use aquifer_core::policy::Arrival;
use aquifer_core::units::{BlockIndex, FrameIndex};

use crate::memory::{GARBAGE, Memory, guard};

/// What may go wrong, as a percentage of the opportunities.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// A fetch fails.
    pub fetch: u32,
    /// A write-back fails, perhaps halfway.
    pub write: u32,
    /// The kernel refuses to release a victim.
    pub refuse: u32,
    /// Every write-back to a byte of the tier below this one fails.
    pub bad_until: u64,
}

/// The progress of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It continues.
    More,
    /// It ended.
    Done,
    /// It ended without success: a write-back that failed.
    Failed,
    /// It ended: the block's contents are lost.
    Lost,
}

/// One step in progress. `Install` and the variants before it end with the block at the program's address.
#[derive(Clone, Debug)]
pub enum Work {
    Clean { block: BlockIndex, pages: Pages, frame: FrameIndex, known_clean: bool },
    Cleaned { block: BlockIndex, verdict: CleanVerdict, guards: Vec<u64> },
    Empty { frame: FrameIndex },
    Emptied { frame: FrameIndex },
    Evict { block: BlockIndex, pages: Pages, frame: FrameIndex, copied: bool },
    Evicted { block: BlockIndex, refused: bool },
    Drop { block: BlockIndex, pages: Pages },
    Dropped { block: BlockIndex },
    Fetch { block: BlockIndex, pages: Pages, frame: FrameIndex, slot: u64, access: Option<bool> },
    FetchFailed { block: BlockIndex, pages: Pages, lost: bool },
    Fetched { block: BlockIndex, pages: Pages, frame: FrameIndex, access: Option<bool> },
    Fill { block: BlockIndex, pages: Pages, frame: FrameIndex, fresh: bool, exchange: Option<Exchange> },
    FillHole { block: BlockIndex, pages: Pages, page: u64, sealed: bool },
    Install { block: BlockIndex, count: u32, pages: Pages, frame: FrameIndex, arrival: Arrival, exchange: Exchange },
    Installed { block: BlockIndex, count: u32, arrival: Arrival },
}

impl Work {
    /// What a faulting thread does next. `None` for answers that involve no work.
    pub fn of_step(step: FaultStep, write: bool) -> Option<Work> {
        Some(match step {
            FaultStep::Clean { block, pages, frame, known_clean } => Work::Clean { block, pages, frame, known_clean },
            FaultStep::Empty { frame } => Work::Empty { frame },
            FaultStep::Evict { block, pages, frame } => Work::Evict { block, pages, frame, copied: false },
            FaultStep::Fetch { block, pages, frame, slot, .. } => {
                Work::Fetch { block, pages, frame, slot, access: Some(write) }
            }
            FaultStep::Fill { block, pages, frame, fresh, exchange } => {
                Work::Fill { block, pages, frame, fresh, exchange: Some(exchange) }
            }
            FaultStep::FillHole { block, pages, page, sealed } => Work::FillHole { block, pages, page, sealed },
            FaultStep::Rescue { block, count, pages, frame, arrival, exchange } => {
                Work::Install { block, count, pages, frame, arrival, exchange }
            }
            _ => return None,
        })
    }

    /// What the worker does next.
    pub fn of_task(task: Task) -> Work {
        match task {
            Task::Clean { block, pages, frame, known_clean } => Work::Clean { block, pages, frame, known_clean },
            Task::Empty { frame } => Work::Empty { frame },
            Task::Evict { block, pages, frame, copied } => Work::Evict { block, pages, frame, copied },
            Task::Drop { block, pages } => Work::Drop { block, pages },
            Task::Fetch { block, pages, frame, slot, .. } => Work::Fetch { block, pages, frame, slot, access: None },
            Task::Fill { block, pages, frame, fresh } => Work::Fill { block, pages, frame, fresh, exchange: None },
        }
    }

    /// The block whose cleaning ends next.
    pub fn cleaned(&self) -> Option<BlockIndex> {
        if let Work::Cleaned { block, .. } = self { Some(*block) } else { None }
    }

    /// Whether the fault that asked for this work is resolved when it is done.
    pub fn resolves(&self) -> bool {
        !matches!(
            self,
            Work::Clean { .. }
                | Work::Cleaned { .. }
                | Work::Empty { .. }
                | Work::Emptied { .. }
                | Work::Evict { .. }
                | Work::Evicted { .. }
        )
    }

    /// Does one thing. `luck` decides what goes wrong.
    pub fn advance(&mut self, engine: &mut Engine, memory: &mut Memory, trouble: Trouble, luck: u32) -> Progress {
        let unlucky = |percent: u32| luck % 100 < percent;
        let next = match self.clone() {
            Work::Clean { block, pages, frame, known_clean } => {
                let (verdict, guards) = clean(engine, memory, (block, pages, frame, known_clean), trouble, luck);
                Work::Cleaned { block, verdict, guards }
            }
            Work::Cleaned { block, verdict, guards } => {
                engine.cleaned(block, verdict, &guards);
                return if verdict == CleanVerdict::Failed { Progress::Failed } else { Progress::Done };
            }
            Work::Empty { frame } => {
                memory.empty_frame(frame);
                Work::Emptied { frame }
            }
            Work::Emptied { frame } => {
                engine.emptied(frame);
                return Progress::Done;
            }
            // A block that is not moved, and is sealed.
            Work::Evict { block, pages, copied: false, .. }
                if engine.map().block(block).sealed && luck.is_multiple_of(3) =>
            {
                memory.drop_sealed(pages);
                Work::Dropped { block }
            }
            Work::Evict { block, pages, frame, copied } => {
                let refused = unlucky(trouble.refuse);
                match (refused, copied) {
                    (true, _) => {}
                    (false, true) => memory.copy_away(pages, frame),
                    (false, false) => memory.take_away(pages, frame),
                }
                Work::Evicted { block, refused }
            }
            Work::Evicted { block, refused } => {
                if refused {
                    engine.eviction_refused(block);
                } else {
                    engine.evicted(block);
                }
                return Progress::Done;
            }
            Work::Drop { block, .. } if unlucky(trouble.refuse) => Work::Evicted { block, refused: true },
            Work::Drop { block, pages } => {
                memory.drop_sealed(pages);
                Work::Dropped { block }
            }
            Work::Dropped { block } => {
                engine.dropped(block);
                return Progress::Done;
            }
            Work::Fetch { block, pages, frame, slot, access } => {
                // The frame's old contents are overwritten, or garbage after a failure.
                for at in 0..pages.count as usize {
                    memory.set_frame(frame, at, GARBAGE - 1);
                }
                if unlucky(trouble.fetch) {
                    // Read-ahead leaves the verdict to the fault that wants the block.
                    Work::FetchFailed { block, pages, lost: access.is_some() && luck.is_multiple_of(2) }
                } else {
                    fetch(engine, memory, (block, pages, frame, slot));
                    Work::Fetched { block, pages, frame, access }
                }
            }
            Work::FetchFailed { block, pages, lost } => {
                engine.fetch_failed(block, lost);
                if lost {
                    for page in pages.start..pages.start + u64::from(pages.count) {
                        memory.pages.get_mut(&page).expect("managed").lost = true;
                    }
                }
                return if lost { Progress::Lost } else { Progress::Failed };
            }
            Work::Fetched { block, access: None, .. } => {
                engine.read_ahead_arrived(block);
                return Progress::Done;
            }
            Work::Fetched { block, pages, frame, access: Some(write) } => {
                let exchange = engine.fetched(block, write);
                Work::Install { block, count: 1, pages, frame, arrival: engine.refault(block), exchange }
            }
            Work::Fill { block, pages, frame, fresh, exchange } => {
                for at in 0..pages.count as usize {
                    assert!(!fresh || memory.frame_value(frame, at) == 0, "a fresh frame has contents");
                    memory.set_frame(frame, at, 0);
                }
                match exchange {
                    None => Work::Fetched { block, pages, frame, access: None },
                    Some(exchange) => {
                        Work::Install { block, count: 1, pages, frame, arrival: Arrival::Fresh, exchange }
                    }
                }
            }
            Work::FillHole { block, pages, page, sealed } => {
                memory.lift_protection(pages);
                let there = memory.pages.get(&page).expect("managed").there.is_some();
                assert!(there || !sealed, "page {page} of a sealed block is not there");
                if memory.pages.get(&page).expect("managed").there.is_none() {
                    memory.put(page, 0);
                }
                Work::Installed { block, count: 1, arrival: Arrival::Rescued }
            }
            Work::Install { block, count, pages, frame, arrival, exchange } => {
                match exchange {
                    Exchange::Move => memory.install(pages, frame),
                    Exchange::Copy { seal } => memory.copy(pages, frame, seal),
                }
                Work::Installed { block, count, arrival }
            }
            Work::Installed { block, count, arrival } => {
                engine.installed_run(block, count, arrival);
                return Progress::Done;
            }
        };
        *self = next;
        Progress::More
    }
}

/// Reads a block from the tier. The bytes must match the guards: nothing here corrupts bytes, so a mismatch means that
/// the engine mistook the tier's contents for the block's.
fn fetch(engine: &Engine, memory: &mut Memory, (block, pages, frame, slot): (BlockIndex, Pages, FrameIndex, u64)) {
    let stored = engine.map().guards(block).to_vec();
    for (at, expected) in stored.iter().enumerate() {
        let value = if *expected == aquifer_core::guard::ZERO { 0 } else { memory.stored(slot, at) };
        let page = pages.start + at as u64;
        assert_eq!(guard(value), *expected, "guard mismatch: the tier does not hold page {page}");
        memory.set_frame(frame, at, value);
    }
}

/// Compares a frame with the tier's copy and writes the differences, unless `luck` makes the write fail.
fn clean(
    engine: &mut Engine,
    memory: &mut Memory,
    (block, pages, frame, known_clean): (BlockIndex, Pages, FrameIndex, bool),
    trouble: Trouble,
    luck: u32,
) -> (CleanVerdict, Vec<u64>) {
    let stored = engine.map().guards(block).to_vec();
    let values: Vec<u32> = (0..pages.count as usize).map(|at| memory.frame_value(frame, at)).collect();
    let found: Vec<u64> = values.iter().map(|value| guard(*value)).collect();
    if known_clean {
        assert_eq!(found, stored, "a block that is known to be clean is not");
        return (CleanVerdict::Stored, stored);
    }
    if values.iter().all(|value| *value == 0) {
        return (CleanVerdict::Zero, found);
    }
    let dirty: Vec<usize> = (0..found.len()).filter(|at| found[*at] != stored[*at] && values[*at] != 0).collect();
    if dirty.is_empty() {
        return (CleanVerdict::Stored, found);
    }
    let Some(OwnSlot { offset: slot, moved }) = engine.slot_for(block) else { return (CleanVerdict::Failed, found) };
    let all: Vec<usize> = (0..found.len()).filter(|at| values[*at] != 0).collect();
    let dirty = if moved { all } else { dirty };
    let fails = luck % 100 < trouble.write || slot < trouble.bad_until;
    let good = if fails { luck as usize / 100 % dirty.len() } else { dirty.len() };
    for at in &dirty[..good] {
        memory.store(slot, *at, values[*at]);
    }
    if fails && luck.is_multiple_of(2) {
        memory.store(slot, dirty[good], GARBAGE);
    }
    (if fails { CleanVerdict::Failed } else { CleanVerdict::Stored }, found)
}
