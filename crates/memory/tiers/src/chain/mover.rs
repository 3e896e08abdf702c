// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves slabs between the levels of a chain, in parallel with the program: warm slabs up, cold slabs down.
//!
//! Slabs that a level is about to lose (`Tier::leaving`) come first. `core/src/tiering.rs` decides which other slabs
//! move, and how many. `relocate.rs` makes one move. After each move the mover rests as long as it has worked, so that
//! demand finds its levels idle at least half of the time.
//!
//! Threads: one of the pager's, in each process of a family. One process moves slabs at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aquifer_core::tiering::{Credit, Level as Room, Move, Survey, epoch_pages};
use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::spare_frames::SpareFrames;
use aquifer_tier::{Mover, PAGE, Waker};

use super::level::Level;
use super::levels::Levels;
use super::relocate::{COPY_PAGES, Leaves};

/// How often the mover checks while there is traffic.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The mover waits until it may make this many moves: two slabs that exchange places.
const MOVES_MIN: usize = 2;
/// How many slabs are saved from a level that loses them before the mover checks the rest of its work.
const SAVED_AT_ONCE: usize = 64;
/// If no slab was worth moving, the traffic before the next survey of all slabs, as a divisor of an epoch.
const QUIET_PART: u64 = 32;

/// Moves slabs between the levels of a chain: warm ones up, cold ones down.
pub(super) struct ChainMover {
    levels: Arc<Levels>,
    survey: Survey,
    credit: Credit,
    /// This process's traffic at the mover's last check.
    seen_bytes: u64,
    /// True: there was no traffic between the last two checks.
    is_quiet: bool,
    /// Pages of traffic until the next survey of all slabs.
    wait_pages: u64,
    /// One frame of `COPY_PAGES`, for copies.
    frame: SpareFrames,
}

impl ChainMover {
    /// A mover of these levels, with its own buffer.
    pub(super) fn new(levels: Arc<Levels>) -> Result<ChainMover, Errno> {
        let frame = SpareFrames::new(1, COPY_PAGES * PAGE)?;
        Ok(ChainMover {
            seen_bytes: levels.traffic_bytes(),
            levels,
            survey: Survey::new(),
            credit: Credit::default(),
            is_quiet: true,
            wait_pages: 0,
            frame,
        })
    }

    /// Adds the traffic since the last call; ends the family's epoch if that was enough. Returns its pages.
    fn note_traffic(&mut self) -> u64 {
        let bytes = self.levels.traffic_bytes();
        let pages = (bytes - self.seen_bytes) / PAGE_BYTES;
        self.seen_bytes = bytes;
        let epoch = self.levels.epoch_pages();
        let so_far = epoch.fetch_add(pages, Ordering::Relaxed).saturating_add(pages);
        if so_far >= epoch_pages(self.levels.used())
            && epoch.compare_exchange(so_far, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.cool();
        }
        pages
    }

    fn cool(&self) {
        for slab in self.levels.placed() {
            let heat = self.levels.heat(slab);
            let half = heat.load(Ordering::Relaxed).div_ceil(2);
            if half > 0 {
                // Fetches that happen now still count. A slab that was given back in the meantime must not become hot.
                let _ = heat.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(half)));
            }
        }
    }

    /// Whether it is this process's turn to move slabs. The others check again later.
    fn has_turn(&self) -> bool {
        let (next, now) = (self.levels.next_move_ns(), now_ns());
        let due = next.load(Ordering::Relaxed);
        let until = now + LOOK_EVERY.as_nanos() as u64;
        // Later than anybody sets it: somebody has overwritten the word.
        (now >= due || due > until) && next.compare_exchange(due, until, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Decides what moves now.
    fn decide(&mut self) -> Vec<Move> {
        let levels = &self.levels;
        let rooms: Vec<Room> = levels.all.iter().map(Level::room).collect();
        self.survey.begin(&rooms);
        for slab in levels.placed() {
            let place = levels.place(levels.places.see(slab).place);
            if let Some(place) = place.filter(|place| place.is_stored) {
                self.survey.see(slab, place.level, levels.heat(slab).load(Ordering::Relaxed));
            }
        }
        self.survey.decide(self.credit.moves()).to_vec()
    }

    /// Moves slabs away from a level that is about to lose them, as long as other levels have room.
    fn save(&mut self) {
        let levels = Arc::clone(&self.levels);
        if !levels.is_any_leaving() {
            return;
        }
        let mut saved = 0;
        for slab in levels.placed() {
            let place = levels.place(levels.places.see(slab).place);
            let Some(place) = place.filter(|place| place.is_stored && levels.is_leaving(place)) else { continue };
            let Some(to) = levels.refuge(place.level) else { return };
            saved += usize::from(self.make(&Move { slab, from: place.level, to }, Leaves::Yes));
            if saved == SAVED_AT_ONCE {
                return;
            }
        }
    }

    /// Moves one slab. Returns false if the slab stays where it is.
    pub(super) fn make(&mut self, planned: &Move, leaves: Leaves) -> bool {
        self.levels.relocate(planned, leaves, &self.frame)
    }
}

impl Mover for ChainMover {
    fn turn(&mut self) {
        self.save();
        let pages = self.note_traffic();
        self.is_quiet = pages == 0;
        self.credit.earn(pages);
        self.wait_pages = self.wait_pages.saturating_sub(pages);
        if self.credit.moves() < MOVES_MIN || self.wait_pages > 0 || !self.has_turn() {
            return;
        }
        let moves = self.decide();
        if moves.is_empty() {
            self.wait_pages = epoch_pages(self.levels.used()) / QUIET_PART;
        }
        for planned in &moves {
            let started = Instant::now();
            self.make(planned, Leaves::No);
            self.credit.spend();
            std::thread::sleep(started.elapsed());
        }
    }

    fn rest(&mut self) {
        if self.is_quiet {
            let (levels, seen_bytes) = (&self.levels, self.seen_bytes);
            levels.wakeup.sleep(|| levels.traffic_bytes() == seen_bytes && !levels.is_any_leaving());
        }
        std::thread::sleep(LOOK_EVERY);
    }

    fn waker(&self) -> Waker {
        let levels = Arc::clone(&self.levels);
        Box::new(move || levels.wakeup.wake())
    }
}
