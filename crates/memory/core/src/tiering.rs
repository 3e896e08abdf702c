// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which slabs change levels in a chain of tiers: warm slabs move up, cold slabs move down.
//!
//! Pure. A slab's heat is the number of pages fetched from it, halved with each epoch. An epoch is one turnover of the
//! chain's contents, in pages, so the unit of time is traffic, as in `temperature.rs`: a cyclic scan heats every slab
//! equally, however long one cycle takes, and an idle program does not cool.
//!
//! Slabs move between neighbouring levels, for two reasons. When the faster level is nearly full, its cold slabs move
//! down so that new slabs find room there. When a slab of the slower level is clearly warmer than the coldest of the
//! faster level, the two change places. Traffic earns the moves ([`Credit`]), so that moving costs a fraction of the
//! program's own traffic, never more.
//!
//! Allocates only in its constructors.

use crate::units::{REGION_PAGES, SlabIndex};

/// Maximum number of levels of a chain: a donor, a nearby device, a disk and one to spare. Each is a row of the
/// statistics.
pub const LEVELS_MAX: usize = 4;

/// Maximum number of moves decided at a time: 32 MiB, which memory copies in about 10 ms and a disk writes in a tenth
/// of a second.
pub const MOVES_MAX: usize = 16;

/// Pages fetched, halved with each epoch.
pub type Heat = u32;

/// Heat of a slab that has just been placed: as if half of it had been fetched, because it was evicted a moment ago.
pub const HEAT_PLACED: Heat = REGION_PAGES / 2;
/// Slabs no hotter than this leave a level that is nearly full: placed, and not asked for in two epochs.
const HEAT_COLD: Heat = HEAT_PLACED / 4;
/// Slabs at least this hot are worth moving to a level with room: all of the slab was fetched once.
const HEAT_WORTH: Heat = REGION_PAGES;
/// To take another slab's place, a slab must be this many times as hot, and hotter by [`HEAT_MARGIN`]. A cyclic scan
/// makes the slabs it has just passed at most twice as hot as those it reaches next.
const HEAT_RATIO: u64 = 2;
const HEAT_MARGIN: u64 = REGION_PAGES as u64;

/// Slabs of a level that are kept free for new ones: `1 / RESERVE_PART` of the level, within bounds.
const RESERVE_PART: u32 = 32;
const RESERVE_MAX: u32 = 64;

/// An epoch is never shorter than the turnover of this many slabs.
const EPOCH_SLABS_MIN: u64 = 16;
/// One page may be moved for this many pages fetched or written.
const TRAFFIC_FOR_MOVES: u64 = 4;

/// Pages of traffic after which every heat is halved, where `slabs` are in use.
pub fn epoch_pages(slabs: u64) -> u64 {
    slabs.max(EPOCH_SLABS_MIN) * u64::from(REGION_PAGES)
}

/// The capacity of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Slabs that it can hold.
    pub slabs: u32,
    /// How many of them are free.
    pub free: u32,
    /// False when the level has just refused a write: then nothing moves there.
    pub takes: bool,
}

impl Level {
    /// Number of slabs that are kept free for new ones.
    pub fn reserve(&self) -> u32 {
        (self.slabs / RESERVE_PART).clamp(1, RESERVE_MAX)
    }
}

/// A slab that changes its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The slab.
    pub slab: SlabIndex,
    /// Its present level.
    pub from: usize,
    /// Its new level: a neighbour, and a faster one if the number is smaller.
    pub to: usize,
}

/// How many moves the traffic so far has earned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credit {
    pages: u64,
}

impl Credit {
    /// Records that `pages` were fetched or written.
    pub fn earn(&mut self, pages: u64) {
        let max = (MOVES_MAX as u64) * u64::from(REGION_PAGES);
        self.pages = (self.pages + pages / TRAFFIC_FOR_MOVES).min(max);
    }

    /// Number of moves that can be made now.
    pub fn moves(&self) -> usize {
        (self.pages / u64::from(REGION_PAGES)) as usize
    }

    /// Pays for one move, made or tried.
    pub fn spend(&mut self) {
        self.pages = self.pages.saturating_sub(u64::from(REGION_PAGES));
    }
}

/// The first few of many slabs, in order of rank.
#[derive(Debug)]
struct First {
    /// Each with its rank.
    slabs: Vec<(Heat, SlabIndex)>,
}

impl First {
    fn new() -> Self {
        Self { slabs: Vec::with_capacity(MOVES_MAX) }
    }

    /// Among slabs of the same rank, the one that was seen first stays in front.
    fn see(&mut self, rank: Heat, slab: SlabIndex) {
        if self.slabs.len() == MOVES_MAX {
            if self.slabs.last().is_some_and(|last| last.0 <= rank) {
                return;
            }
            self.slabs.pop();
        }
        let place = self.slabs.partition_point(|other| other.0 <= rank);
        self.slabs.insert(place, (rank, slab));
    }
}

/// Examines all slabs once, and decides which should move.
#[derive(Debug)]
pub struct Survey {
    levels: [Level; LEVELS_MAX],
    count: usize,
    /// One entry for each level.
    coldest: [First; LEVELS_MAX],
    /// One entry for each level; ranked by the difference from the greatest heat.
    warmest: [First; LEVELS_MAX],
    moves: Vec<Move>,
}

impl Default for Survey {
    fn default() -> Self {
        Self::new()
    }
}

impl Survey {
    /// Creates a survey that has seen no slab.
    pub fn new() -> Self {
        Self {
            levels: [Level::default(); LEVELS_MAX],
            count: 0,
            coldest: std::array::from_fn(|_| First::new()),
            warmest: std::array::from_fn(|_| First::new()),
            moves: Vec::with_capacity(MOVES_MAX),
        }
    }

    /// Starts a new survey of a chain of these levels, the fastest first.
    pub fn begin(&mut self, levels: &[Level]) {
        self.count = levels.len();
        self.levels[..levels.len()].copy_from_slice(levels);
        self.coldest.iter_mut().chain(&mut self.warmest).for_each(|first| first.slabs.clear());
        self.moves.clear();
    }

    /// Records a slab on `level` with this `heat`. Ignores levels that the chain does not have.
    pub fn see(&mut self, slab: SlabIndex, level: usize, heat: Heat) {
        if level + 1 < self.count {
            self.coldest[level].see(heat, slab);
        }
        if (1..self.count).contains(&level) {
            self.warmest[level].see(Heat::MAX - heat, slab);
        }
    }

    /// The moves to make, in this order; at most `max` slabs.
    pub fn decide(&mut self, max: usize) -> &[Move] {
        let max = max.min(MOVES_MAX);
        let pairs = self.count.saturating_sub(1);
        // From the slowest pair up, so that a lower level has room when the level above needs it.
        (0..pairs).rev().for_each(|upper| self.make_room(upper, max));
        (0..pairs).for_each(|upper| self.exchange(upper, max));
        &self.moves
    }

    /// Moves cold slabs out of a level that is nearly full.
    fn make_room(&mut self, upper: usize, max: usize) {
        let mut next = 0;
        while self.moves.len() < max
            && self.levels[upper].free < self.levels[upper].reserve()
            && self.has_room(upper + 1)
            && let Some((heat, slab)) = self.next_cold(upper, &mut next)
            && heat <= HEAT_COLD
        {
            self.plan(slab, upper, upper + 1);
        }
    }

    /// Moves warm slabs of the lower level up, in exchange for cold slabs where there is no spare room.
    fn exchange(&mut self, upper: usize, max: usize) {
        let lower = upper + 1;
        let (mut next_warm, mut next_cold) = (0, 0);
        while self.levels[upper].takes
            && let Some((heat, warm)) = self.next_warm(lower, &mut next_warm)
        {
            if self.levels[upper].free > self.levels[upper].reserve() {
                if heat < HEAT_WORTH || self.moves.len() >= max {
                    return;
                }
                self.plan(warm, lower, upper);
                continue;
            }
            let Some((colder, cold)) = self.next_cold(upper, &mut next_cold) else { return };
            let wanted = HEAT_RATIO * u64::from(colder) + HEAT_MARGIN;
            if u64::from(heat) < wanted || self.moves.len() + 2 > max || !self.levels[lower].takes {
                return;
            }
            if self.has_room(lower) {
                self.plan(cold, upper, lower);
                self.plan(warm, lower, upper);
            } else if self.has_room(upper) {
                self.plan(warm, lower, upper);
                self.plan(cold, upper, lower);
            } else {
                return;
            }
        }
    }

    fn has_room(&self, level: usize) -> bool {
        self.levels[level].takes && self.levels[level].free > 0
    }

    fn next_cold(&self, level: usize, next: &mut usize) -> Option<(Heat, SlabIndex)> {
        self.next(&self.coldest[level], next)
    }

    fn next_warm(&self, level: usize, next: &mut usize) -> Option<(Heat, SlabIndex)> {
        self.next(&self.warmest[level], next).map(|(rank, slab)| (Heat::MAX - rank, slab))
    }

    /// The next slab that has not been chosen to move already.
    fn next(&self, first: &First, next: &mut usize) -> Option<(Heat, SlabIndex)> {
        loop {
            let found = *first.slabs.get(*next)?;
            *next += 1;
            if self.moves.iter().all(|planned| planned.slab != found.1) {
                return Some(found);
            }
        }
    }

    fn plan(&mut self, slab: SlabIndex, from: usize, to: usize) {
        self.levels[from].free += 1;
        self.levels[to].free -= 1;
        self.moves.push(Move { slab, from, to });
    }
}
