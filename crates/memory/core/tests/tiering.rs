// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves between the levels of a chain: warm slabs end on the fast level, moves stop, and a scan moves nothing.
//!
//! The trouble it guards against: two slabs of nearly the same temperature that change places for ever, and a program
//! that scans its memory in a cycle, where every slab is warmest just before the longest time without a use.

use aquifer_core::tiering::{Credit, HEAT_PLACED, Heat, LEVELS_MAX, Level, MOVES_MAX, Move, Survey, epoch_pages};
use aquifer_core::units::{REGION_PAGES, SlabIndex};
use proptest::prelude::*;

/// A chain as the decisions see it.
#[derive(Debug)]
struct Chain {
    levels: Vec<Level>,
    /// Level and heat of each slab.
    slabs: Vec<(usize, Heat)>,
    survey: Survey,
    credit: Credit,
    traffic: u64,
    moved: u64,
}

impl Chain {
    fn new(sizes: &[u32]) -> Chain {
        let levels = sizes.iter().map(|slabs| Level { slabs: *slabs, free: *slabs, takes: true }).collect();
        let (slabs, survey, credit) = (Vec::new(), Survey::new(), Credit::default());
        Chain { levels, slabs, survey, credit, traffic: 0, moved: 0 }
    }

    /// Places a new slab as a write-back does: on the fastest level with room.
    fn place(&mut self) {
        let level = self.levels.iter().position(|level| level.free > 0).expect("room for the test");
        self.levels[level].free -= 1;
        self.slabs.push((level, HEAT_PLACED));
        self.earn(REGION_PAGES.into());
    }

    fn fetch(&mut self, slab: usize, pages: u32) {
        self.slabs[slab].1 += pages;
        self.earn(pages.into());
    }

    fn earn(&mut self, pages: u64) {
        self.traffic += pages;
        self.credit.earn(pages);
        if self.traffic >= epoch_pages(self.slabs.len() as u64) {
            self.traffic = 0;
            self.slabs.iter_mut().for_each(|slab| slab.1 /= 2);
        }
    }

    fn decide(&mut self, max: usize) -> Vec<Move> {
        self.survey.begin(&self.levels);
        for (slab, (level, heat)) in self.slabs.iter().enumerate() {
            self.survey.see(SlabIndex(slab as u32), *level, *heat);
        }
        self.survey.decide(max).to_vec()
    }

    /// Makes the moves, and checks each of them.
    fn make(&mut self, moves: &[Move]) {
        for Move { slab, from, to } in moves.iter().copied() {
            let slab = &mut self.slabs[slab.index()];
            assert_eq!(slab.0, from);
            assert_eq!(from.abs_diff(to), 1, "levels are next to each other");
            assert!(self.levels[to].free > 0 && self.levels[to].takes, "a move to where there is no room");
            slab.0 = to;
            self.levels[from].free += 1;
            self.levels[to].free -= 1;
            self.moved += 1;
            self.credit.spend();
        }
    }

    fn turn(&mut self) -> usize {
        let moves = self.decide(self.credit.moves());
        self.make(&moves);
        moves.len()
    }

    fn on(&self, level: usize) -> usize {
        self.slabs.iter().filter(|slab| slab.0 == level).count()
    }
}

/// A generator that produces the same numbers in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Slabs with Zipf's frequencies: slab `n` is drawn in proportion to `1 / (n + 1)`.
struct Zipf {
    until: Vec<u64>,
    chance: Chance,
}

impl Zipf {
    fn new(slabs: u64) -> Zipf {
        let mut sum = 0;
        let until = (1..=slabs)
            .map(|rank| {
                sum += 1_000_000 / rank;
                sum
            })
            .collect();
        Zipf { until, chance: Chance(88_172_645_463_325_252) }
    }

    fn next(&mut self) -> usize {
        let at = self.chance.below(*self.until.last().expect("at least one slab"));
        self.until.partition_point(|until| *until <= at)
    }
}

const BLOCK_PAGES: u32 = 4;
/// Fetches between two surveys.
const FETCHES: usize = 2000;

/// The fast level has room for half of the slabs, and the warm slabs were placed last, on the slow level. Returns the
/// share of the last fetches that the fast level served, and the number of moves made while they were counted.
fn zipf_share(moves: bool) -> (f64, u64) {
    let (slabs, mut chain) = (200, Chain::new(&[100, 150]));
    (0..slabs).for_each(|_| chain.place());
    let mut zipf = Zipf::new(slabs);
    let (mut fast, mut all, mut before) = (0, 0, 0);
    for round in 0..600 {
        if round == 500 {
            before = chain.moved;
        }
        for _ in 0..FETCHES {
            let slab = slabs as usize - 1 - zipf.next();
            chain.fetch(slab, BLOCK_PAGES);
            if round >= 500 {
                all += 1;
                fast += u64::from(chain.slabs[slab].0 == 0);
            }
        }
        if moves {
            chain.turn();
        }
    }
    (fast as f64 / f64::from(all), chain.moved - before)
}

#[test]
fn a_slab_on_a_level_that_does_not_exist_is_ignored() {
    for level in [2, LEVELS_MAX, usize::MAX - 1] {
        let mut survey = Survey::new();
        survey.begin(&[Level { slabs: 8, free: 8, takes: true }; 2]);
        survey.see(SlabIndex(0), level, Heat::MAX);
        assert_eq!(survey.decide(MOVES_MAX), []);
    }
}

#[test]
fn slabs_fetched_often_reach_the_fast_level_and_then_moves_stop() {
    let (without, _) = zipf_share(false);
    let (share, moves) = zipf_share(true);
    // The hundred warmest of two hundred slabs get 0.88 of Zipf's fetches, and the fast level keeps a few slabs free.
    println!("share of the fast level: {share:.3}, without moves {without:.3}; {moves} moves in the end");
    assert!(without < 0.2, "{without}");
    assert!(share > 0.82, "{share}");
    // 200 000 fetches of four pages are the traffic of 1500 slabs.
    assert!(moves <= 20, "{moves} moves although nothing changes");
}

#[test]
fn a_scan_that_goes_round_moves_next_to_nothing() {
    for pages in [BLOCK_PAGES, 32, REGION_PAGES] {
        let (slabs, mut chain) = (200, Chain::new(&[100, 150]));
        (0..slabs).for_each(|_| chain.place());
        // Two rounds, after which the slabs placed first are as cold as possible.
        let scan = |chain: &mut Chain, rounds: usize| {
            let mut moved = 0;
            for step in 0..rounds * slabs * (REGION_PAGES / pages) as usize {
                chain.fetch(step / (REGION_PAGES / pages) as usize % slabs, pages);
                if step % (FETCHES / pages as usize) == 0 {
                    moved += chain.turn();
                }
            }
            moved
        };
        scan(&mut chain, 2);
        let moved = scan(&mut chain, 20);
        assert!(moved <= 4, "{moved} moves in 20 rounds, {pages} pages at a time");
    }
}

#[test]
fn new_slabs_find_room_on_the_fast_level_once_old_ones_are_cold() {
    let mut chain = Chain::new(&[32, 200]);
    (0..60).for_each(|_| chain.place());
    assert_eq!(chain.levels[0].free, 0);
    assert_eq!(chain.turn(), 0, "what was placed a moment ago is not cold");
    // Fetches from one slow slab until the slabs on the fast level are cold.
    for _ in 0..4 * 60 * REGION_PAGES / BLOCK_PAGES {
        chain.fetch(59, BLOCK_PAGES);
    }
    chain.turn();
    assert!(chain.levels[0].free >= chain.levels[0].reserve(), "{:?}", chain.levels);
    assert_eq!(chain.slabs[59].0, 0, "and the one that is hot has come up");
}

#[test]
fn a_level_that_refuses_gets_nothing_and_a_chain_without_room_stays_as_it_is() {
    let mut chain = Chain::new(&[8, 40]);
    (0..40).for_each(|_| chain.place());
    chain.slabs.iter_mut().for_each(|slab| slab.1 = if slab.0 == 0 { 0 } else { 10_000 });
    chain.levels[0].takes = false;
    let up = chain.decide(MOVES_MAX).iter().filter(|it| it.to == 0).count();
    assert_eq!(up, 0);
    chain.levels[0].takes = true;
    chain.levels[1].takes = false;
    assert_eq!(chain.decide(MOVES_MAX), []);
    let mut full = Chain::new(&[8, 8]);
    (0..16).for_each(|_| full.place());
    full.slabs.iter_mut().for_each(|slab| slab.1 = if slab.0 == 0 { 0 } else { 10_000 });
    assert_eq!(full.decide(MOVES_MAX), []);
    // One free slab is enough to exchange all of them.
    full.slabs.pop();
    full.levels[1].free = 1;
    while full.decide(MOVES_MAX).len() > 1 {
        let moves = full.decide(MOVES_MAX);
        full.make(&moves);
    }
    assert!(full.slabs.iter().filter(|slab| slab.1 == 0).all(|slab| slab.0 == 1), "{:?}", full.slabs);
}

#[test]
fn moves_are_earned() {
    let mut credit = Credit::default();
    assert_eq!(credit.moves(), 0);
    credit.earn(4 * u64::from(REGION_PAGES));
    assert_eq!(credit.moves(), 1);
    credit.spend();
    assert_eq!(credit.moves(), 0);
    credit.earn(1 << 40);
    assert_eq!(credit.moves(), MOVES_MAX);
}

fn chains() -> impl Strategy<Value = Chain> {
    let sizes = prop::collection::vec(1u32..40, 2..=LEVELS_MAX);
    let heat = prop_oneof![Just(0u32), 0..300u32, 0..5000u32];
    (sizes, prop::collection::vec(heat, 0..140), any::<u8>()).prop_map(|(sizes, heats, refusing)| {
        let mut chain = Chain::new(&sizes);
        for heat in heats {
            if chain.levels.iter().all(|level| level.free == 0) {
                break;
            }
            chain.place();
            chain.slabs.last_mut().expect("just placed").1 = heat;
        }
        for (index, level) in chain.levels.iter_mut().enumerate() {
            level.takes = refusing & 3 << (2 * index) != 0;
        }
        chain
    })
}

proptest! {
    /// `make` checks that each move has room and goes to a neighbour.
    #[test]
    fn moves_fit_and_are_as_many_as_asked_for(mut chain in chains(), max in 0..40usize) {
        let moves = chain.decide(max);
        prop_assert!(moves.len() <= max.min(MOVES_MAX));
        let mut slabs: Vec<SlabIndex> = moves.iter().map(|planned| planned.slab).collect();
        slabs.sort_unstable();
        slabs.dedup();
        prop_assert_eq!(slabs.len(), moves.len(), "a slab moves once");
        chain.make(&moves);
    }

    /// For any heats that do not change, moves end.
    #[test]
    fn nothing_goes_back_and_forth(mut chain in chains()) {
        for _ in 0..chain.slabs.len() * LEVELS_MAX + 1 {
            let moves = chain.decide(MOVES_MAX);
            if moves.is_empty() {
                return Ok(());
            }
            chain.make(&moves);
        }
        prop_assert!(false, "moves do not end: {:?}", chain.slabs);
    }

    /// A slab that moves up is warmer than every slab that stays on its old level, and than the slab that made way for
    /// it.
    #[test]
    fn the_warmest_go_up(mut chain in chains()) {
        let moves = chain.decide(MOVES_MAX);
        let heat = |slab: SlabIndex| chain.slabs[slab.index()].1;
        for up in moves.iter().filter(|planned| planned.to < planned.from) {
            for (slab, (level, other)) in chain.slabs.iter().enumerate() {
                let stays = *level == up.from && moves.iter().all(|planned| planned.slab.index() != slab);
                prop_assert!(!stays || *other <= heat(up.slab));
            }
        }
        prop_assert!(chain.on(0) <= chain.levels[0].slabs as usize);
    }
}
