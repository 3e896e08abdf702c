// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! S3-FIFO without hit bits: a small queue for newcomers, a main queue for blocks worth keeping, and a running
//! comparison between the two that decides how fast main turns over. The default policy.
//!
//! Paper: Yang, Zhang, Qiu, Yue, Vinayak, "FIFO Queues are All You Need for Cache Eviction", SOSP 2023. Kept: newcomers
//! pass through a small queue (10 % of the pages), so that blocks used once are evicted soon; a block that is fetched
//! again goes to main. Changed, because hits on resident blocks are invisible here:
//!
//! - The second chance is the standby list: a victim touched there returns as `Rescued`, into main.
//! - The paper counts hits, and a block of main with hits goes round again. Here early returns are counted: rescues,
//!   and refaults at less than half of the mean distance. Each consecutive one doubles the rounds that the block makes
//!   in main before it is tested again, since a test costs two exchanges or a fetch. A later refault takes one off.
//! - No ghost queue: an absent block carries a note saying when it was evicted.
//! - The paper moves every ghost hit to main. On a cyclic scan a little larger than memory every arrival is a ghost
//!   hit, and main becomes a FIFO that never hits. Here a refaulting block enters main only if main has room, unless it
//!   refaults much sooner than others do.
//! - Main would then keep its first blocks for ever. So main and small hold *duels*: the oldest block of each is
//!   evicted at about the same time, and the block that is wanted again first wins. Where main wins (a cyclic scan:
//!   main's block is next used at a random moment, small's a full cycle later), main turns over very slowly and keeps
//!   its share of every pass. Where small wins (main holds leftovers of an earlier phase), main's oldest blocks are
//!   evicted faster and faster, and refaulting blocks take their room.
//!
//! Parameters: the constants below, chosen with `aquifer-sim`, whose table is the evidence.
//!
//! Called by `engine/victims.rs` through `policy.rs`. Next on the path: `standby.rs`, where a victim waits.

use super::{
    Arrival, Policy,
    list::{Lists, Note},
};
use crate::units::BlockIndex;

/// Newcomers.
const SMALL: usize = 0;
/// Blocks worth keeping.
const MAIN: usize = 1;
/// Parts of a victim that was split: they are evicted first.
const PARTS: usize = 2;

/// Shares and rates are in 1/1024.
const ONE: u32 = 1024;
/// Part of the pages that small may hold before victims come from it: at the start (the paper's 10 %), the minimum when
/// main wins every duel, and the maximum when small does.
const SMALL_SHARE: u32 = 102;
const SMALL_SHARE_MIN: u32 = 24;
const SMALL_SHARE_MAX: u32 = 205;
/// Part of the victims that comes from main while small is over its share. The rate reacts faster to a duel that main
/// loses than to one it wins, and with a jump: leftovers in main cost a fetch per visit, needless turnover costs one
/// fetch per block turned over.
const MAIN_RATE_MIN: u32 = ONE / 128;
const MAIN_RATE_JUMP: u32 = ONE / 32;
const MAIN_RATE_MAX: u32 = ONE * 3 / 4;
/// Maximum number of victims owed by main, times `ONE`.
const MAIN_DUE_MAX: u32 = 64 * ONE;
/// A refault is soon when its distance is below this part of the mean distance: a multiple of main's rate, up to a
/// limit.
const SOON_PER_RATE: u32 = 4;
const SOON_MAX: u32 = ONE * 3 / 4;

/// Maximum number of duels in progress.
const DUELS: usize = 256;
/// After about this many turnovers of the resident set, an undecided duel is a draw.
const DUEL_TURNOVERS: u32 = 4;

/// Read-ahead is at most `1 / AHEAD_PART` of memory. A block that was read ahead and is asked for within that many
/// evicted pages was therefore evicted before it was used. It is not hot, and proves nothing in a duel.
const AHEAD_PART: u64 = 8;

/// Mark of a block that was fetched ahead and has not been asked for since.
const UNTOUCHED: u8 = 1;
/// Early returns are counted up to this maximum. A mark holds that count and, in the higher bits, the rounds of main
/// still to go.
const RETURNS_MAX: u8 = 4;
const RETURN: u8 = 1 << 1;
const RETURNS: u8 = 7 << 1;
const ROUND: u8 = 1 << 4;
/// Maximum number of blocks that one search for a victim sends round again.
const SEARCH_MAX: u32 = 64;
/// Set in the second word of a note once the block is evicted; the first word then has the time of the eviction.
const LEFT: u32 = 1 << 30;
/// Bits of the second word of a note: index of the block's duel plus one; 0 for none.
const DUEL_MASK: u32 = 0xffff;

/// Two blocks that were evicted at about the same time. `None` is an empty side.
#[derive(Clone, Copy, Default)]
struct Duel {
    main: Option<BlockIndex>,
    small: Option<BlockIndex>,
    /// The value of `left_pages` when the duel began.
    begun: u32,
    /// Set when small won.
    won: Option<SmallWon>,
}

/// The settings to restore if main's block is wanted again only a little later than small's.
#[derive(Clone, Copy)]
struct SmallWon {
    after_pages: u32,
    main_rate: u32,
    small_share: u32,
}

/// The S3-FIFO policy.
pub struct S3Fifo {
    lists: Lists<3>,
    /// The capacity of the resident set as the caller gave it.
    capacity_pages: u64,
    /// Pages held when a victim was last asked for: the real capacity of the resident set.
    full_pages: Option<u64>,
    /// Pages evicted so far; wraps.
    left_pages: u32,
    small_share: u32,
    /// Main's wins do not shrink small below this: with a smaller share, read-ahead was evicted before it was used.
    /// Decays slowly.
    small_floor: u32,
    main_rate: u32,
    /// Accumulated fractions of a victim that main owes.
    main_due: u32,
    /// Mean distance of refaults, in pages; 0 until known.
    distance_mean: u64,
    duels: Box<[Duel; DUELS]>,
    duel_place: usize,
    /// Victims until the next duel may start.
    duel_wait: u32,
    /// True while the newest duel lacks its block from small.
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

    /// Whether main is below its share and small is not. Without the second condition a loop forms: small is short, so
    /// a victim comes from main; main is short, so a block enters main; and main becomes a FIFO.
    fn main_has_room(&self, weight: u32) -> bool {
        let target = self.small_target();
        self.lists.pages(SMALL) >= target && self.lists.pages(MAIN) + u64::from(weight) + target <= self.full()
    }

    /// Whether the resident set is clearly below its capacity, so that any block may stay. One sixteenth is left for
    /// callers that evict in batches.
    fn filling(&self, weight: u32) -> bool {
        let full = self.full();
        let slack = if self.full_pages.is_some() { full / 16 } else { 0 };
        self.lists.pages_all() + u64::from(weight) <= full - slack
    }

    /// Reports the return of `block` to its duel, if it has one. `wanted` is false when the block returned with new
    /// contents: then there is nothing to compare.
    fn came_back(&mut self, block: BlockIndex, note: Note, wanted: bool) {
        let Some(place) = ((note.1 & DUEL_MASK) as usize).checked_sub(1) else { return };
        let duel = self.duels[place];
        let from_main = duel.main == Some(block);
        if !from_main && duel.small != Some(block) {
            return; // The slot was reused for another duel: this one was a draw.
        }
        if place == self.duel_place && self.duel_half {
            self.duel_half = false; // It returned before its opponent was evicted.
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

    /// A read-ahead block was evicted before the program reached it: small is too short for read-ahead.
    fn left_too_early(&mut self) {
        self.small_share = (self.small_share * 9 / 8 + 1).min(SMALL_SHARE_MAX);
        self.small_floor = self.small_share;
    }

    /// Main's block has returned too. If it took at most a quarter longer than small's, the duel was a draw: when a
    /// scan passes main's oldest blocks, both are next used a full cycle later, and main has lost nothing.
    fn undo(&mut self, won: SmallWon, after_pages: u32) {
        if after_pages <= won.after_pages.saturating_add(won.after_pages / 4) {
            self.main_rate = self.main_rate.min(won.main_rate);
            self.small_share = self.small_share.min(won.small_share);
        }
    }

    /// Whether a block that refaults after `distance` pages belongs in main: when main has room, or when the refault is
    /// soon. The limit for "soon" follows the duels: as long as main wins them, it is 1/32 of the mean distance. With a
    /// fixed half of the mean, every turnover of main on a scan caused half of the next one.
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

    /// Writes the note on a block just evicted from `list`, and enters the block into a duel when one is due.
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
        for _ in 0..SEARCH_MAX {
            let Some(block) = self.lists.oldest(MAIN) else { return };
            let Some(mark) = self.lists.mark(block).checked_sub(ROUND) else { return };
            let weight = self.lists.weight(block);
            self.lists.remove(block);
            self.lists.push(MAIN, block, weight);
            self.lists.set_mark(block, mark);
        }
    }

    /// Chooses the queue that the next victim comes from.
    fn victim_list(&mut self) -> usize {
        // Half the target, not all of it: if every rescue took its room from main, it would evict the block that a scan
        // reaches next, whose rescue would evict the one after, and so on through all of main.
        if self.lists.pages(SMALL) * 2 < self.small_target() || self.lists.oldest(SMALL).is_none() {
            return MAIN;
        }
        // Below half its share, main has been drained already; taking more would teach nothing.
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

/// The new mark of a block that arrives with the mark `before`, when refaults have this mean distance.
fn mark_of(before: u8, arrival: Arrival, distance_mean: u64) -> u8 {
    let before = (before & RETURNS) / RETURN;
    let more = (before + 1).min(RETURNS_MAX);
    // A refault cost a fetch, so it gets about twice the rounds of a rescue.
    let (returns, rounds) = match arrival {
        Arrival::Prefetched => return UNTOUCHED,
        Arrival::Fresh => (0, 0),
        Arrival::Rescued => (more, (1 << (more - 1)) - 1),
        Arrival::Refault { distance } => {
            let returns = if distance < distance_mean / 2 { more } else { before.saturating_sub(1) };
            (returns, (1 << returns) - 1)
        }
    };
    returns * RETURN + rounds * ROUND
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
        let mark = if too_early { 0 } else { mark_of(self.lists.mark(block), arrival, self.distance_mean) };
        self.lists.set_mark(block, mark);
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
        self.left_pages = self.left_pages.wrapping_sub(weight); // Its pages were counted with the whole block.
        self.lists.push_oldest(PARTS, block, weight);
        self.lists.set_mark(block, 0);
    }

    fn resident_pages(&self) -> u64 {
        self.lists.pages_all()
    }

    fn reserved_bytes(&self) -> u64 {
        self.lists.reserved_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: u32 = 32;

    /// Plays visits to blocks against the policy without standby; returns hits.
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
    fn blocks_that_return_early_stay_for_more_rounds() {
        // By a law like Zipf's: the logarithm of the rank is uniform. Popular blocks lie anywhere.
        let (blocks, frames) = (2048u32, 600);
        let mut random = 1u64;
        let mut draw = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let part = (random >> 11) as f64 / (1u64 << 53) as f64;
            (f64::from(blocks).powf(part) as u32).wrapping_mul(1_237) % blocks
        };
        let (mut policy, mut state) = start(blocks, frames);
        play(&mut policy, &mut state, (0..20_000).map(|_| draw()));
        let hits = play(&mut policy, &mut state, (0..20_000).map(|_| draw()));
        assert!(hits >= 15_600, "{hits} of 20,000");
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
