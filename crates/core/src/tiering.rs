// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which slabs change levels in a chain of tiers: the warm ones up, the cold ones down.
//!
//! Pure. A slab's heat is the pages that were fetched from it, halved with each epoch. An epoch is one turnover of what
//! the chain holds, in pages, so the unit of time is traffic, as in `temperature.rs`: a scan that goes round heats
//! every slab alike, however long one round takes, and a program at rest does not cool.
//!
//! Slabs move between neighbouring levels, for two reasons. The faster one is nearly full: then what nobody has asked
//! for leaves it, so that new slabs find room there. Or a slab of the slower one is clearly warmer than the coldest of
//! the faster one: then they change places. What moves has been earned by traffic ([`Credit`]), so that moving costs a
//! part of what the program does, never more.
//!
//! Allocates when it is made, and never afterwards.

use crate::units::REGION_PAGES;

/// Levels of a chain at most: a donor, a device near by, a disk and one to spare. Each is a row of the statistics.
pub const LEVELS_MOST: usize = 4;

/// Moves that are decided on at once, at most: 32 MiB, which memory copies in some 10 ms and a disk writes in a tenth
/// of a second.
pub const MOVES_MOST: usize = 16;

/// Pages fetched, halved with each epoch.
pub type Heat = u32;

/// Heat of a slab that was just placed: as if half of it had been fetched. It has been evicted a moment ago.
pub const HEAT_PLACED: Heat = REGION_PAGES / 2;
/// What is no hotter leaves a level that is nearly full: placed, and not asked for in two epochs.
const HEAT_COLD: Heat = HEAT_PLACED / 4;
/// What is as hot is worth moving to where there is room: all of it was fetched once.
const HEAT_WORTH: Heat = REGION_PAGES;
/// To take another's place, a slab is so many times as hot, and hotter by [`HEAT_MARGIN`]. A scan that goes round makes
/// what it has just passed at most twice as hot as what it comes to next.
const HEAT_RATIO: u64 = 2;
const HEAT_MARGIN: u64 = REGION_PAGES as u64;

/// A level's slabs that are kept free for new ones: this part of it, within bounds.
const RESERVE_PART: u32 = 32;
const RESERVE_MOST: u32 = 64;

/// An epoch is not shorter than the turnover of so many slabs.
const EPOCH_SLABS_LEAST: u64 = 16;
/// One page of so many that were fetched or written may be moved.
const TRAFFIC_FOR_MOVES: u64 = 4;

/// Pages of traffic after which everything is half as hot, where `slabs` are in use.
pub fn epoch_pages(slabs: u64) -> u64 {
    slabs.max(EPOCH_SLABS_LEAST) * u64::from(REGION_PAGES)
}

/// What a level has room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Slabs that it can hold.
    pub slabs: u32,
    /// Of them, those that are free.
    pub free: u32,
    /// False: it has just refused to store something, so nothing moves there.
    pub takes: bool,
}

impl Level {
    /// Slabs that are kept free for new ones.
    pub fn reserve(&self) -> u32 {
        (self.slabs / RESERVE_PART).clamp(1, RESERVE_MOST)
    }
}

/// A slab that changes its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub slab: u32,
    /// Where it is.
    pub from: usize,
    /// Where it goes: a neighbour, and a faster one if its number is smaller.
    pub to: usize,
}

/// How many moves the traffic so far has paid for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credit {
    pages: u64,
}

impl Credit {
    /// So many pages were fetched or written.
    pub fn earn(&mut self, pages: u64) {
        let most = (MOVES_MOST as u64) * u64::from(REGION_PAGES);
        self.pages = (self.pages + pages / TRAFFIC_FOR_MOVES).min(most);
    }

    /// Moves that can be paid now.
    pub fn moves(&self) -> usize {
        (self.pages / u64::from(REGION_PAGES)) as usize
    }

    /// One was made, or tried.
    pub fn spend(&mut self) {
        self.pages = self.pages.saturating_sub(u64::from(REGION_PAGES));
    }
}

/// The first few of many slabs, in order.
#[derive(Debug)]
struct First {
    /// What they are ordered by, and which they are.
    slabs: Vec<(Heat, u32)>,
}

impl First {
    fn new() -> Self {
        Self { slabs: Vec::with_capacity(MOVES_MOST) }
    }

    /// Of those with the same rank, the one that was seen first stays in front.
    fn see(&mut self, rank: Heat, slab: u32) {
        if self.slabs.len() == MOVES_MOST {
            if self.slabs.last().is_some_and(|last| last.0 <= rank) {
                return;
            }
            self.slabs.pop();
        }
        let place = self.slabs.partition_point(|other| other.0 <= rank);
        self.slabs.insert(place, (rank, slab));
    }
}

/// Looks at all slabs once, and says which shall move.
#[derive(Debug)]
pub struct Survey {
    levels: [Level; LEVELS_MOST],
    count: usize,
    /// Of each level.
    coldest: [First; LEVELS_MOST],
    /// Of each level; ranked by what is missing to the greatest heat.
    warmest: [First; LEVELS_MOST],
    moves: Vec<Move>,
}

impl Default for Survey {
    fn default() -> Self {
        Self::new()
    }
}

impl Survey {
    /// Has seen nothing yet.
    pub fn new() -> Self {
        Self {
            levels: [Level::default(); LEVELS_MOST],
            count: 0,
            coldest: std::array::from_fn(|_| First::new()),
            warmest: std::array::from_fn(|_| First::new()),
            moves: Vec::with_capacity(MOVES_MOST),
        }
    }

    /// A new look, at a chain of these levels, the fastest first.
    pub fn begin(&mut self, levels: &[Level]) {
        self.count = levels.len();
        self.levels[..levels.len()].copy_from_slice(levels);
        self.coldest.iter_mut().chain(&mut self.warmest).for_each(|first| first.slabs.clear());
        self.moves.clear();
    }

    /// There is a slab on `level`, as hot as `heat`.
    pub fn see(&mut self, slab: u32, level: usize, heat: Heat) {
        if level + 1 < self.count {
            self.coldest[level].see(heat, slab);
        }
        if level > 0 {
            self.warmest[level].see(Heat::MAX - heat, slab);
        }
    }

    /// What shall move, in this order; `most` slabs at most.
    pub fn decide(&mut self, most: usize) -> &[Move] {
        let most = most.min(MOVES_MOST);
        let pairs = self.count.saturating_sub(1);
        // From below, so that there is room below when a level above needs it.
        (0..pairs).rev().for_each(|upper| self.make_room(upper, most));
        (0..pairs).for_each(|upper| self.exchange(upper, most));
        &self.moves
    }

    /// Cold slabs leave a level that is nearly full.
    fn make_room(&mut self, upper: usize, most: usize) {
        let mut next = 0;
        while self.moves.len() < most
            && self.levels[upper].free < self.levels[upper].reserve()
            && self.has_room(upper + 1)
            && let Some((heat, slab)) = self.next_cold(upper, &mut next)
            && heat <= HEAT_COLD
        {
            self.plan(slab, upper, upper + 1);
        }
    }

    /// Warm slabs of the lower level go to the upper one, in the place of cold ones where there is no room to spare.
    fn exchange(&mut self, upper: usize, most: usize) {
        let lower = upper + 1;
        let (mut next_warm, mut next_cold) = (0, 0);
        while self.levels[upper].takes
            && let Some((heat, warm)) = self.next_warm(lower, &mut next_warm)
        {
            if self.levels[upper].free > self.levels[upper].reserve() {
                if heat < HEAT_WORTH || self.moves.len() >= most {
                    return;
                }
                self.plan(warm, lower, upper);
                continue;
            }
            let Some((colder, cold)) = self.next_cold(upper, &mut next_cold) else { return };
            let wanted = HEAT_RATIO * u64::from(colder) + HEAT_MARGIN;
            if u64::from(heat) < wanted || self.moves.len() + 2 > most || !self.levels[lower].takes {
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

    fn next_cold(&self, level: usize, next: &mut usize) -> Option<(Heat, u32)> {
        self.next(&self.coldest[level], next)
    }

    fn next_warm(&self, level: usize, next: &mut usize) -> Option<(Heat, u32)> {
        self.next(&self.warmest[level], next).map(|(rank, slab)| (Heat::MAX - rank, slab))
    }

    /// The next one that does not move already.
    fn next(&self, first: &First, next: &mut usize) -> Option<(Heat, u32)> {
        loop {
            let found = *first.slabs.get(*next)?;
            *next += 1;
            if self.moves.iter().all(|planned| planned.slab != found.1) {
                return Some(found);
            }
        }
    }

    fn plan(&mut self, slab: u32, from: usize, to: usize) {
        self.levels[from].free += 1;
        self.levels[to].free -= 1;
        self.moves.push(Move { slab, from, to });
    }
}
