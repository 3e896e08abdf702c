// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! S3-FIFO for a world without hit bits: a small queue for newcomers, a main queue for blocks worth
//! keeping, and a running comparison between the two that decides how fast main turns over. The default.
//!
//! Paper: Yang, Zhang, Qiu, Yue, Vinayak, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023.
//! Kept: newcomers pass through a small queue (10 % of the pages), so that what is used once leaves soon;
//! a block that comes back goes to main. Changed, because hits on resident blocks are invisible here:
//!
//! - Second chance is the standby list: a victim touched there comes back as `Rescued`, into main.
//! - The paper counts hits, and lets a block of main that has some go round again. Here the count is of rescues:
//!   each one in a row doubles the rounds that the block goes before it is asked again, since asking costs
//!   two exchanges.
//! - No ghost queue: an absent block carries a note saying when it left.
//! - The paper moves every ghost hit to main. On a cyclic scan a little larger than memory every arrival
//!   is a ghost hit, and main becomes a FIFO that never hits. Here a block that comes back takes only room
//!   that main has, unless it came back much sooner than others do.
//! - Main would then keep for ever what it held first. So main and small hold *duels*: the oldest block of
//!   each leaves at about the same time, and the one that is wanted back first wins. Where main wins (a cyclic
//!   scan: main's block is next used at a random moment, small's a full cycle later) main stands nearly
//!   still and keeps its share of every pass. Where small wins (main holds leftovers of an earlier phase)
//!   main's oldest leave faster and faster, and what comes back takes their room.
//!
//! Parameters: the constants below; chosen with `aquifer-sim`, whose table is the evidence.

use super::{
    Arrival, Policy,
    list::{Lists, Note},
};
use crate::units::BlockIndex;

/// Newcomers.
const SMALL: usize = 0;
/// Blocks worth keeping.
const MAIN: usize = 1;
/// Parts of a victim that was cut: they leave first.
const PARTS: usize = 2;

/// Shares and rates are in 1/1024.
const ONE: u32 = 1024;
/// Part of the pages that small may hold before victims come from it: at the start (the paper's 10 %),
/// when main wins every duel, and when small does.
const SMALL_SHARE: u32 = 102;
const SMALL_SHARE_MIN: u32 = 24;
const SMALL_SHARE_MAX: u32 = 205;
/// Part of the victims that comes from main while small is over its share.
/// A lost duel is answered faster than a won one, and with a jump: leftovers in main cost a fetch per visit,
/// needless turnover costs one fetch per block turned over.
const MAIN_RATE_MIN: u32 = ONE / 128;
const MAIN_RATE_JUMP: u32 = ONE / 32;
const MAIN_RATE_MAX: u32 = ONE * 3 / 4;
/// Victims that main owes at most, times `ONE`.
const MAIN_DUE_MAX: u32 = 64 * ONE;
/// A block comes back soon below this part of the mean distance: a multiple of main's rate, up to a limit.
const SOON_PER_RATE: u32 = 4;
const SOON_MAX: u32 = ONE * 3 / 4;

/// Duels that wait for their end at the same time.
const DUELS: usize = 256;
/// A duel waits for about this many turnovers of the resident set, then it is a draw.
const DUEL_TURNOVERS: u32 = 4;

/// Read-ahead is at most this part of memory, so a block that was read ahead and is asked for within so
/// many departures left before it was used. It is not hot, and proves nothing in a duel.
const AHEAD_PART: u64 = 8;

/// Mark of a block that was fetched ahead and not asked for since.
const UNTOUCHED: u8 = 1;
/// Rescues in a row that count, and what a mark has of them: rounds of main to go, in the higher bits.
const RESCUES_MOST: u8 = 4;
const RESCUE: u8 = 1 << 1;
const RESCUES: u8 = 7 << 1;
const ROUND: u8 = 1 << 4;
/// Blocks that one search for a victim sends round again at most.
const SEARCH_MOST: u32 = 64;
/// In the second word of a note: the first word says when the block left.
const LEFT: u32 = 1 << 30;
/// In the second word of a note: place of the block's duel plus one; 0 for none.
const DUEL_MASK: u32 = 0xffff;

/// Two blocks that left at about the same time. `None` is a place not taken.
#[derive(Clone, Copy, Default)]
struct Duel {
    main: Option<BlockIndex>,
    small: Option<BlockIndex>,
    /// What `left_pages` was when it began.
    begun: u32,
    /// Set when small won.
    won: Option<SmallWon>,
}

/// What to go back to when main's block turns up little later than small's after all.
#[derive(Clone, Copy)]
struct SmallWon {
    after_pages: u32,
    main_rate: u32,
    small_share: u32,
}

/// See the module.
pub struct S3Fifo {
    lists: Lists<3>,
    /// What the caller said the resident set may hold.
    capacity_pages: u64,
    /// What was held when a victim was last asked for: what the resident set holds in truth.
    full_pages: Option<u64>,
    /// Pages that left so far; wraps.
    left_pages: u32,
    small_share: u32,
    /// Main's victories shrink small no further: below it, read-ahead left before it was used. Sinks slowly.
    small_floor: u32,
    main_rate: u32,
    /// Fractions of a main victim that are due.
    main_due: u32,
    /// Mean distance at which blocks come back, in pages; 0 until known.
    distance_mean: u64,
    duels: Box<[Duel; DUELS]>,
    duel_place: usize,
    /// Victims until the next duel may start.
    duel_wait: u32,
    /// The newest duel lacks its block from small.
    duel_half: bool,
}

impl Default for S3Fifo {
    fn default() -> Self {
        S3Fifo {
            lists: Lists::default(),
            capacity_pages: 0,
            full_pages: None,
            left_pages: 0,
            small_share: SMALL_SHARE,
            small_floor: SMALL_SHARE_MIN,
            main_rate: MAIN_RATE_MIN,
            main_due: 0,
            distance_mean: 0,
            duels: Box::new([Duel::default(); DUELS]),
            duel_place: 0,
            duel_wait: 0,
            duel_half: false,
        }
    }
}

impl S3Fifo {
    /// Pages that the resident set holds when it is full.
    fn full(&self) -> u64 {
        self.full_pages.map_or(self.capacity_pages, |full| full.min(self.capacity_pages))
    }

    /// Pages that small may hold.
    fn small_target(&self) -> u64 {
        self.full() * u64::from(self.small_share) / u64::from(ONE)
    }

    /// Main is below its share, and small is not. Without the second half a loop forms: a victim from main
    /// because small is short, a block into main because main is short, and main is a FIFO.
    fn main_has_room(&self, weight: u32) -> bool {
        let target = self.small_target();
        self.lists.pages(SMALL) >= target && self.lists.pages(MAIN) + u64::from(weight) + target <= self.full()
    }

    /// The resident set is clearly below what it can hold, so that there is nothing to be choosy about.
    /// One sixteenth is left for callers that evict in batches.
    fn filling(&self, weight: u32) -> bool {
        let full = self.full();
        let slack = if self.full_pages.is_some() { full / 16 } else { 0 };
        self.lists.pages_all() + u64::from(weight) <= full - slack
    }

    /// Tells the duel that `block` is part of, if any, that it came back. `wanted` is false when it came back
    /// as something new: then there is nothing to compare.
    fn came_back(&mut self, block: BlockIndex, note: Note, wanted: bool) {
        let Some(place) = ((note.1 & DUEL_MASK) as usize).checked_sub(1) else { return };
        let duel = self.duels[place];
        let from_main = duel.main == Some(block);
        if !from_main && duel.small != Some(block) {
            return; // The place was given to another duel: this one was a draw.
        }
        if place == self.duel_place && self.duel_half {
            self.duel_half = false; // Back before its opponent even left.
        }
        let after_pages = self.left_pages.wrapping_sub(duel.begun);
        self.duels[place] = Duel::default();
        match (wanted, from_main, duel.won) {
            (false, ..) => {}
            (true, true, None) => self.main_wins(),
            (true, true, Some(won)) => self.undo(won, after_pages),
            (true, false, _) => {
                let won = Some(SmallWon { after_pages, main_rate: self.main_rate, small_share: self.small_share });
                self.duels[place] = Duel { small: None, won, ..duel };
                self.small_wins();
            }
        }
    }

    fn main_wins(&mut self) {
        self.main_rate = (self.main_rate * 4 / 5).max(MAIN_RATE_MIN);
        self.small_floor = (self.small_floor - self.small_floor / 64).max(SMALL_SHARE_MIN);
        self.small_share = (self.small_share * 15 / 16).max(self.small_floor);
    }

    fn small_wins(&mut self) {
        self.main_rate = (self.main_rate * 3 / 2).clamp(MAIN_RATE_JUMP, MAIN_RATE_MAX);
        self.small_share = (self.small_share * 17 / 16 + 1).min(SMALL_SHARE_MAX);
    }

    /// A block that was read ahead left before the program came to it: small is too short for read-ahead.
    fn left_too_early(&mut self) {
        self.small_share = (self.small_share * 9 / 8 + 1).min(SMALL_SHARE_MAX);
        self.small_floor = self.small_share;
    }

    /// Main's block is back too. Within a quarter of the time that small's took it was a draw: when a scan passes
    /// main's oldest blocks, both are next used a full cycle later, and main has lost nothing.
    fn undo(&mut self, won: SmallWon, after_pages: u32) {
        if after_pages <= won.after_pages.saturating_add(won.after_pages / 4) {
            self.main_rate = self.main_rate.min(won.main_rate);
            self.small_share = self.small_share.min(won.small_share);
        }
    }

    /// Whether a block that came back after `distance` pages belongs into main: when main has room, or when
    /// the block came back soon. What is soon follows the duels: as long as main wins them, 1/32 of the mean
    /// distance. With a fixed half of the mean every turnover of main on a scan caused half of the next one.
    fn worth_keeping(&mut self, weight: u32, distance: u64) -> bool {
        let mean = self.distance_mean;
        self.distance_mean = if mean == 0 { distance } else { mean - mean / 64 + distance / 64 };
        let soon = u64::from((self.main_rate * SOON_PER_RATE).min(SOON_MAX));
        let soon = distance * u64::from(ONE) < mean * soon && distance <= self.lists.pages(MAIN);
        let room = self.main_has_room(weight);
        if soon && !room {
            self.main_due = (self.main_due + ONE).min(MAIN_DUE_MAX); // Main pays for it.
        }
        soon || room
    }

    /// Writes the note on a block that just left `list`, and enters it into a duel when one is due.
    fn record_departure(&mut self, block: BlockIndex, list: usize) {
        self.left_pages = self.left_pages.wrapping_add(self.lists.weight(block));
        let mut note = Note(self.left_pages, LEFT);
        if list == MAIN {
            if self.duel_wait == 0 && !self.duel_half {
                self.duel_place = (self.duel_place + 1) % DUELS;
                self.duels[self.duel_place] = Duel { main: Some(block), begun: self.left_pages, ..Duel::default() };
                self.duel_half = true;
                self.duel_wait = self.lists.blocks_all() * DUEL_TURNOVERS / DUELS as u32;
                note.1 |= self.duel_place as u32 + 1;
            }
        } else if self.duel_half {
            self.duels[self.duel_place].small = Some(block);
            self.duel_half = false;
            note.1 |= self.duel_place as u32 + 1;
        }
        self.duel_wait = self.duel_wait.saturating_sub(1);
        self.lists.set_note(block, note);
    }

    /// Moves main's oldest blocks to its newest end while they have rounds to go.
    fn send_round(&mut self) {
        for _ in 0..SEARCH_MOST {
            let Some(block) = self.lists.oldest(MAIN) else { return };
            let Some(mark) = self.lists.mark(block).checked_sub(ROUND) else { return };
            let weight = self.lists.weight(block);
            self.lists.remove(block);
            self.lists.push(MAIN, block, weight);
            self.lists.set_mark(block, mark);
        }
    }

    /// Which queue the next victim comes from.
    fn victim_list(&mut self) -> usize {
        // Half, not all: a rescue that always took its room from main would take the block that a scan comes to
        // next, whose rescue would take the one after, and so through all of main.
        if self.lists.pages(SMALL) * 2 < self.small_target() || self.lists.oldest(SMALL).is_none() {
            return MAIN;
        }
        // Main below half its share has been drained already; taking more would teach nothing.
        if self.lists.pages(MAIN) * 2 + self.small_target() < self.full() {
            return SMALL;
        }
        self.main_due += self.main_rate;
        if self.main_due < ONE {
            return SMALL;
        }
        self.main_due -= ONE;
        MAIN
    }
}

/// The mark of a block that had `before` and arrives now.
fn mark_of(before: u8, arrival: Arrival) -> u8 {
    match arrival {
        Arrival::Prefetched => UNTOUCHED,
        Arrival::Fresh | Arrival::Refault { .. } => 0,
        Arrival::Rescued => {
            let rescues = ((before & RESCUES) / RESCUE + 1).min(RESCUES_MOST);
            rescues * RESCUE + ((1 << (rescues - 1)) - 1) * ROUND
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn grow(&mut self, blocks: u32, resident_pages: u64) {
        self.lists.grow(blocks);
        self.capacity_pages = resident_pages;
        self.full_pages = None;
    }

    fn arrived(&mut self, block: BlockIndex, weight: u32, arrival: Arrival) {
        assert!(self.lists.list_of(block).is_none(), "{block:?} arrived twice");
        let note = self.lists.note(block);
        let distance = match arrival {
            Arrival::Fresh => None,
            Arrival::Prefetched => (note.1 & LEFT != 0).then(|| u64::from(self.left_pages.wrapping_sub(note.0))),
            Arrival::Refault { distance } => Some(distance),
            Arrival::Rescued => Some(0),
        };
        let too_early =
            self.lists.mark(block) & UNTOUCHED != 0 && distance.is_some_and(|it| it <= self.full() / AHEAD_PART);
        self.came_back(block, note, distance.is_some() && !too_early);
        let to_main = if too_early {
            self.left_too_early();
            false
        } else {
            match distance {
                _ if arrival == Arrival::Rescued || self.filling(weight) => true,
                None => false,
                Some(distance) => self.worth_keeping(weight, distance),
            }
        };
        self.lists.push(if to_main { MAIN } else { SMALL }, block, weight);
        self.lists.set_mark(block, mark_of(self.lists.mark(block), arrival));
    }

    fn removed(&mut self, block: BlockIndex) {
        self.lists.remove(block);
    }

    fn victim(&mut self) -> Option<BlockIndex> {
        self.full_pages = Some(self.lists.pages_all());
        if let Some(part) = self.lists.pop(PARTS) {
            self.record_departure(part, SMALL);
            return Some(part);
        }
        let list = self.victim_list();
        if list == MAIN {
            self.send_round();
        }
        let block = self.lists.pop(list).or_else(|| self.lists.pop(SMALL))?;
        self.record_departure(block, list);
        Some(block)
    }

    fn put_back(&mut self, block: BlockIndex, weight: u32) {
        self.left_pages = self.left_pages.wrapping_sub(weight); // It was counted with the whole.
        self.lists.push_oldest(PARTS, block, weight);
        self.lists.set_mark(block, 0);
    }

    fn resident_pages(&self) -> u64 {
        self.lists.pages_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: u32 = 32;

    /// Plays visits of blocks against the policy without standby; returns hits.
    fn play(policy: &mut S3Fifo, state: &mut State, visits: impl Iterator<Item = u32>) -> u32 {
        let mut hits = 0;
        for block in visits {
            if state.resident[block as usize] {
                hits += 1;
                continue;
            }
            if policy.resident_pages() + u64::from(WEIGHT) > state.pages {
                let victim = policy.victim().expect("blocks are held").0 as usize;
                state.resident[victim] = false;
                state.left += u64::from(WEIGHT);
                state.left_at[victim] = Some(state.left);
            }
            let arrival = match state.left_at[block as usize] {
                None => Arrival::Fresh,
                Some(then) => Arrival::Refault { distance: state.left - then },
            };
            policy.arrived(BlockIndex(block), WEIGHT, arrival);
            state.resident[block as usize] = true;
        }
        hits
    }

    struct State {
        resident: Vec<bool>,
        left_at: Vec<Option<u64>>,
        left: u64,
        pages: u64,
    }

    fn start(blocks: u32, frames: u32) -> (S3Fifo, State) {
        let mut policy = S3Fifo::default();
        let pages = u64::from(frames * WEIGHT);
        policy.grow(blocks, pages);
        let state =
            State { resident: vec![false; blocks as usize], left_at: vec![None; blocks as usize], left: 0, pages };
        (policy, state)
    }

    #[test]
    fn a_cyclic_scan_keeps_nine_tenths_of_what_fits() {
        for percent in [30, 50, 70, 90] {
            let (blocks, frames) = (2000, 2000 * percent / 100);
            let (mut policy, mut state) = start(blocks, frames);
            (0..6).for_each(|_| _ = play(&mut policy, &mut state, 0..blocks));
            let hits: u32 = (0..10).map(|_| play(&mut policy, &mut state, 0..blocks)).sum();
            assert!(hits * 10 >= frames * 10 * 9, "{percent} %: {hits} of {}", frames * 10);
        }
    }

    #[test]
    fn leftovers_give_way_to_a_working_set_that_fits() {
        let (mut policy, mut state) = start(4000, 1200);
        play(&mut policy, &mut state, 0..4000);
        (0..8).for_each(|_| _ = play(&mut policy, &mut state, 3000..4000));
        (0..8).for_each(|_| _ = play(&mut policy, &mut state, 1000..2000));
        let hits = play(&mut policy, &mut state, 1000..2000);
        assert!(hits >= 900, "{hits} of 1000 after eight passes");
    }

    #[test]
    fn blocks_fetched_ahead_stay_out_of_main() {
        let (mut policy, mut state) = start(3000, 1000);
        play(&mut policy, &mut state, 0..2000);
        let main = policy.lists.pages(MAIN);
        for block in 2000..3000 {
            policy.victim();
            policy.arrived(BlockIndex(block), WEIGHT, Arrival::Prefetched);
        }
        assert!(policy.lists.pages(MAIN) <= main);
    }
}
