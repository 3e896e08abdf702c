// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! No write is lost, and no read returns a value older than the last completed write, in whatever order readers,
//! writers and movers run.
//!
//! A move that commits although somebody has written to the old place loses that write. The program then reads the
//! older bytes, once in a million times, and nothing reports it. So the table of places runs here under a scheduler
//! that tries the orders in which its steps can be taken: the product's file, compiled once more with atomics that the
//! scheduler sees. The tests have one slab, of one word, and two sites for it. A place is a set of sites: either of
//! them, or both.
//!
//! The scheduler models sequential consistency only, and every operation that is tested here is `SeqCst`.

use aquifer_core::units::SlabIndex;
use shuttle::sync::Arc;
use shuttle::thread;

#[path = "../src/places.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "the product's file")]
mod places;

/// The atomics that the scheduler sees.
mod atomic {
    pub use shuttle::sync::atomic::{AtomicU64, Ordering, fence};
    pub type Words = Box<[AtomicU64]>;
}

use atomic::AtomicU64;
use atomic::Ordering::SeqCst;
use places::{Eighths, PLACE_WORDS, Places, Unready};

/// The number of orders that are tried, which takes a few seconds.
const ORDERS: usize = 20_000;
/// Maximum number of preemptions in one order of steps.
const PREEMPTIONS: usize = 4;
/// The value that overwrites a slab's old site.
const SCRIBBLE: u64 = 1 << 40;
const SLAB: SlabIndex = SlabIndex(0);
const FIRST: u64 = 0b01;
const SECOND: u64 = 0b10;
/// The eighth of the slab that has its one word.
const HERE: Eighths = Eighths(0b100);

struct World {
    places: Places,
    sites: [AtomicU64; 2],
    /// The last value whose write has succeeded.
    done: AtomicU64,
}

impl World {
    fn new(place: u64) -> Arc<World> {
        let words: Vec<AtomicU64> = (0..PLACE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let places = Places::over(words.into());
        places.change(SLAB, places.see(SLAB), place).expect("nobody else is here");
        Arc::new(World { places, sites: [AtomicU64::new(0), AtomicU64::new(0)], done: AtomicU64::new(0) })
    }

    fn sites(&self, place: u64) -> impl Iterator<Item = &AtomicU64> {
        (0..2).filter(move |at| place & 1 << at != 0).map(|at| &self.sites[at])
    }

    fn write(&self, value: u64) {
        let stay = self.places.enter(SLAB, HERE).expect("few writers");
        self.sites(stay.see().place).for_each(|site| site.store(value, SeqCst));
        drop(stay);
        self.done.store(value, SeqCst);
    }

    /// Writes while the member `lost` fails: it gets nothing, and is removed from the place before the write succeeds.
    fn write_degraded(&self, value: u64, lost: u64) {
        let stay = self.places.enter(SLAB, HERE).expect("few writers");
        let seen = stay.see();
        self.sites(seen.place & !lost).for_each(|site| site.store(value, SeqCst));
        let mut seen = seen;
        while seen.place & lost != 0 {
            seen = match self.places.change(SLAB, seen, seen.place & !lost) {
                Ok(seen) => seen,
                Err(_) => stay.see(),
            };
            thread::yield_now();
        }
        drop(stay);
        self.done.store(value, SeqCst);
    }

    fn read(&self) {
        let min = self.done.load(SeqCst);
        loop {
            let seen = self.places.see(SLAB);
            let value = self.sites(seen.place).last().expect("it is somewhere").load(SeqCst);
            if self.places.holds(SLAB, seen) {
                assert!(value >= min && value != SCRIBBLE, "{value} was read after {min} had been written");
                return;
            }
            thread::yield_now();
        }
    }

    /// Moves the slab to the other site, unless somebody writes to it. With `is_alone`, no other thread may move it
    /// back: then the old site is overwritten after the move, so that a late read of it is found.
    fn move_over(&self, is_alone: bool) {
        let Some(going) = self.places.begin_move(SLAB) else { return };
        let from = going.from();
        let to = if from == FIRST { SECOND } else { FIRST };
        let value = self.sites(from).last().expect("it is somewhere").load(SeqCst);
        self.sites(to).for_each(|site| site.store(value, SeqCst));
        if going.commit(to) && is_alone {
            self.sites(from).for_each(|site| site.store(SCRIBBLE, SeqCst));
        }
    }

    /// Makes a second copy, which includes what is written meanwhile.
    fn catch_up(&self) {
        let Some(going) = self.places.begin_move(SLAB) else { return };
        let from = going.from();
        loop {
            let value = self.sites(from).last().expect("it is somewhere").load(SeqCst);
            self.sites(!from).for_each(|site| site.store(value, SeqCst));
            // No other thread uses the copy before the commit, and none waits for it.
            match going.try_commit(FIRST | SECOND) {
                Err(Unready::Touched(eighths)) => assert_eq!(eighths, HERE),
                Ok(()) | Err(Unready::Busy | Unready::Over) => return,
            }
        }
    }

    /// Makes a second copy, if nobody writes.
    fn copy(&self) {
        let Some(going) = self.places.begin_move(SLAB) else { return };
        let from = going.from();
        let value = self.sites(from).last().expect("it is somewhere").load(SeqCst);
        self.sites(!from).for_each(|site| site.store(value, SeqCst));
        going.commit(FIRST | SECOND);
    }
}

/// Runs these at the same time, then checks that every copy has the last write.
fn together(place: u64, stories: &[fn(&World)]) {
    let world = World::new(place);
    let threads: Vec<_> = stories
        .iter()
        .map(|story| {
            let (world, story) = (Arc::clone(&world), *story);
            thread::spawn(move || story(&world))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let place = world.places.see(SLAB).place;
    let done = world.done.load(SeqCst);
    world.sites(place).for_each(|site| assert_eq!(site.load(SeqCst), done, "every copy is of the last write"));
}

#[test]
fn a_move_never_loses_a_write() {
    shuttle::check_pct(|| together(FIRST, &[|it| it.write(1), |it| it.move_over(true)]), ORDERS, PREEMPTIONS);
    let twice: fn(&World) = |it| {
        it.write(1);
        it.write(2);
    };
    let moves: fn(&World) = |it| it.move_over(false);
    shuttle::check_pct(move || together(FIRST, &[twice, moves, moves]), ORDERS, PREEMPTIONS);
}

#[test]
fn a_read_is_never_older_than_what_was_written_before_it() {
    let reads: fn(&World) = |it| {
        it.read();
        it.read();
    };
    let moves: fn(&World) = |it| {
        it.move_over(true);
        it.move_over(true);
    };
    shuttle::check_pct(move || together(FIRST, &[|it| it.write(1), reads, moves]), ORDERS, PREEMPTIONS);
}

#[test]
fn a_copy_and_a_loss_at_the_same_time_leave_what_was_written_last() {
    let story = || together(FIRST, &[|it| it.write(1), |it| it.copy(), |it| it.read()]);
    shuttle::check_pct(story, ORDERS, PREEMPTIONS);
    let story = || together(FIRST | SECOND, &[|it| it.write_degraded(1, SECOND), |it| it.copy(), |it| it.read()]);
    shuttle::check_pct(story, ORDERS, PREEMPTIONS);
}

#[test]
fn a_copy_that_catches_up_with_writers_has_what_they_wrote() {
    let twice: fn(&World) = |it| {
        it.write(1);
        it.write(2);
    };
    shuttle::check_pct(move || together(FIRST, &[twice, |it| it.catch_up(), |it| it.read()]), ORDERS, PREEMPTIONS);
    let story = || together(FIRST | SECOND, &[|it| it.write_degraded(1, SECOND), |it| it.catch_up(), |it| it.read()]);
    shuttle::check_pct(story, ORDERS, PREEMPTIONS);
}
