// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the bytes of each slab are: a table that a tier made of several others keeps and that related processes share.
//!
//! A *place* is a number that only the tier interprets: it says which members have the slab, or which level of a chain.
//! 0 is none. The table lies in memory that fork(2) does not copy, so its rules must hold between processes, any of
//! which may be killed or stopped at any instruction:
//!
//! - **A reader** looks up the place, reads from it, and then checks that the place has not changed. If it has, the
//!   reader starts again.
//! - **A writer** enters first, and leaves when the bytes are stored. No move commits while a writer is inside.
//! - **A mover** begins, copies, and commits. The commit fails if somebody has written in the meantime or is writing
//!   now, because the copy may then be older than the write. Writers record which eighths of the slab they write to, so
//!   the mover copies these eighths again and commits again, or tries again later.
//! - **A change of a place** without a copy takes effect immediately and does not check for writers: either the slab
//!   had no place before, or the members that the change removes do not have the bytes anyway. A change ends a move
//!   that is in progress.
//!
//! Any of the processes may also overwrite the table. Any contents are a valid table, so nothing here panics; the tier
//! that interprets a place checks that it exists.
//!
//! Nothing here waits, and nothing is ever locked. If a process dies between `enter` and `leave`, the slab can no
//! longer be moved, but is read and written as before. If a process dies while it moves a slab, nobody can move that
//! slab until somebody has changed its place. If a process dies during a change, which takes a few instructions, the
//! slab keeps its place for good.
//!
//! Threads: any, including signal handlers.
//!
//! Each slab has three words: its state, and two places. The lowest bit of the version says which of the two is
//! current. Only the process that has set `CHANGING` writes the other one.
//!
//! | bits of the state | meaning                                                          |
//! |-------------------|------------------------------------------------------------------|
//! | 0–15              | the number of writers now                                        |
//! | 16                | somebody is moving the slab                                      |
//! | 18                | the place that is not current is being written                   |
//! | 24–31             | the eighths to which a write has begun since the mover began or last took note  |
//! | 32–63             | the version: the number of times that the place has changed      |

use aquifer_core::units::SlabIndex;

use crate::atomic::{AtomicU64, Ordering, Words, fence};

/// Words of one slab.
pub const PLACE_WORDS: usize = 3;
/// The maximum number of writers of one slab at a time: far more than the threads that a process has in the pager.
const WRITERS_MAX: u64 = u16::MAX as u64;

const WRITERS: u64 = 0xffff;
const MOVING: u64 = 1 << 16;
const CHANGING: u64 = 1 << 18;
const TOUCHED: u64 = 0xff << TOUCHED_SHIFT;
const TOUCHED_SHIFT: u32 = 24;
const VERSION_SHIFT: u32 = 32;

/// How many times a change is tried while another thread changes the same place, which takes a few instructions. A
/// caller that gets `Busy` may pause and try again.
const CHANGES_TRIED_MAX: u32 = 100;

/// A table with the place of each slab, in memory that related processes share.
#[derive(Debug)]
pub struct Places {
    words: Words,
}

/// A place as the caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The place. 0: none.
    pub place: u64,
    version: u32,
}

/// A set of eighths of a slab, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eighths(pub u8);

impl Eighths {
    /// The whole slab.
    pub const ALL: Eighths = Eighths(0xff);

    /// The eighths that `len` bytes starting at `within` touch, in a slab of `slab_bytes` bytes. The range must lie in
    /// the slab.
    pub fn of(within: u64, len: u64, slab_bytes: u64) -> Eighths {
        let one = slab_bytes / u64::from(u8::BITS);
        let last = (within + len.max(1) - 1) / one;
        Eighths((within / one..=last).fold(0, |mask, eighth| mask | 1 << eighth))
    }

    /// The numbers of the eighths in the set.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (0..u64::from(u8::BITS)).filter(move |number| self.0 & 1 << number != 0)
    }
}

/// Why a move cannot be committed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// Somebody has written to these eighths and has finished. The mover has to copy them, or copy them again.
    Touched(Eighths),
    /// Somebody is writing now.
    Busy,
    /// A change of the place has ended the move.
    Over,
}

/// Why a place was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The slab has another place by now.
    Changed(Seen),
    /// Another thread is changing the place: for a few instructions, or for good if that process was killed there.
    Busy,
}

/// A writer's stay at a slab. Leaves when it is dropped.
#[derive(Debug)]
#[must_use = "who does not stay is not protected"]
pub struct Stay<'a> {
    places: &'a Places,
    slab: SlabIndex,
}

/// A move in progress. Dropping it without [`commit`](Move::commit) abandons the move.
#[derive(Debug)]
#[must_use = "a move that is dropped is given up"]
pub struct Move<'a> {
    places: &'a Places,
    slab: SlabIndex,
    seen: Seen,
}

impl Places {
    /// A table in these words, [`PLACE_WORDS`] for each slab. They are zero at first: no slab has a place.
    pub const fn over(words: Words) -> Places {
        Places { words }
    }

    /// The words of the table, as every process of the family can change them.
    pub fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// The number of slabs that the table has room for.
    pub fn count(&self) -> usize {
        self.words.len() / PLACE_WORDS
    }

    fn state(&self, slab: SlabIndex) -> &AtomicU64 {
        &self.words[slab.index() * PLACE_WORDS]
    }

    fn place(&self, slab: SlabIndex, version: u32) -> &AtomicU64 {
        &self.words[slab.index() * PLACE_WORDS + 1 + (version & 1) as usize]
    }

    /// The place of a slab. Before relying on bytes that were read from it, check [`holds`](Self::holds).
    pub fn see(&self, slab: SlabIndex) -> Seen {
        // SeqCst here and below: this is cheap compared with what follows, and the places match a version only if the
        // version is loaded first.
        let version = version_of(self.state(slab).load(Ordering::SeqCst));
        Seen { place: self.place(slab, version).load(Ordering::SeqCst), version }
    }

    /// Whether nobody is writing to a slab, moving it or changing its place now, and nobody has died doing so.
    pub fn is_still(&self, slab: SlabIndex) -> bool {
        self.state(slab).load(Ordering::SeqCst) & (WRITERS | MOVING | CHANGING) == 0
    }

    /// Whether the place is still the one that was seen. If it is, the bytes that were read from it in between were the
    /// slab's.
    pub fn holds(&self, slab: SlabIndex, seen: Seen) -> bool {
        // Keeps the reads before this call from moving after the load below.
        fence(Ordering::SeqCst);
        version_of(self.state(slab).load(Ordering::SeqCst)) == seen.version
    }

    /// Begins a write to these eighths. `None` when there are too many writers already. A writer looks up the place
    /// after it has entered.
    pub fn enter(&self, slab: SlabIndex, where_to: Eighths) -> Option<Stay<'_>> {
        self.count_in(slab, where_to).then(|| Stay { places: self, slab })
    }

    /// As [`enter`](Self::enter), for a caller that leaves by calling [`count_out`](Self::count_out) itself.
    pub fn count_in(&self, slab: SlabIndex, where_to: Eighths) -> bool {
        let next = |state: u64| {
            let touched = if state & MOVING != 0 { u64::from(where_to.0) << TOUCHED_SHIFT } else { 0 };
            (state & WRITERS < WRITERS_MAX).then(|| (state | touched) + 1)
        };
        self.state(slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    /// Ends what [`count_in`](Self::count_in) began.
    pub fn count_out(&self, slab: SlabIndex) {
        // The number is zero only if somebody has overwritten the word: the next bits must stay as they are.
        let next = |state: u64| (state & WRITERS > 0).then(|| state - 1);
        let _ = self.state(slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }

    /// Changes a place that is still the one that was seen, regardless of writers and movers: the module says when that
    /// is right. Returns the place as it is now.
    pub fn change(&self, slab: SlabIndex, seen: Seen, place: u64) -> Result<Seen, Refused> {
        self.begin_change(slab, seen, |_| true)?;
        let version = self.write_next(slab, seen, place);
        // No other thread ends this change; only the number of writers may vary meanwhile.
        let end = |state: u64| Some(at_version(state & !(CHANGING | MOVING | TOUCHED), version));
        let _ = self.state(slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, end);
        Ok(Seen { place, version })
    }

    /// Begins to move a slab. `None` while somebody writes to it, moves it or changes its place, or has died doing so.
    pub fn begin_move(&self, slab: SlabIndex) -> Option<Move<'_>> {
        let begin = |state: u64| (state & (WRITERS | MOVING | CHANGING) == 0).then_some(state & !TOUCHED | MOVING);
        let state = self.state(slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, begin).ok()?;
        // Only a change can alter the place now, and a change ends the move.
        let version = version_of(state);
        let place = self.place(slab, version).load(Ordering::SeqCst);
        Some(Move { places: self, slab, seen: Seen { place, version } })
    }

    /// Sets `CHANGING` if the place is still the one that was seen and `may` allows it in this state.
    fn begin_change(&self, slab: SlabIndex, seen: Seen, may: impl Fn(u64) -> bool) -> Result<(), Refused> {
        for _ in 0..CHANGES_TRIED_MAX {
            let state = self.state(slab).load(Ordering::SeqCst);
            if version_of(state) != seen.version {
                return Err(Refused::Changed(self.see(slab)));
            }
            if state & CHANGING == 0 {
                if !may(state) {
                    return Err(Refused::Busy);
                }
                let begun = state | CHANGING;
                if self.state(slab).compare_exchange(state, begun, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    return Ok(());
                }
            }
            std::hint::spin_loop();
        }
        Err(Refused::Busy)
    }

    /// Writes the place that becomes current with the returned version. Called only after this caller has set
    /// `CHANGING`.
    fn write_next(&self, slab: SlabIndex, seen: Seen, place: u64) -> u32 {
        let version = seen.version.wrapping_add(1);
        self.place(slab, version).store(place, Ordering::SeqCst);
        version
    }
}

impl Stay<'_> {
    /// The place now. No move commits while this value lives.
    pub fn see(&self) -> Seen {
        self.places.see(self.slab)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.places.count_out(self.slab);
    }
}

impl Move<'_> {
    /// The slab's place until the move is committed.
    pub fn from(&self) -> u64 {
        self.seen.place
    }

    /// Whether nobody has written since the move began or last took note, and no change has ended it.
    pub fn is_undisturbed(&self) -> bool {
        may_commit(self.places.state(self.slab).load(Ordering::SeqCst)) && self.places.holds(self.slab, self.seen)
    }

    /// Makes `place` the slab's place from now on. Returns false when somebody has written in the meantime or the place
    /// was changed: then nothing has happened, and the copy must not be used.
    pub fn commit(self, place: u64) -> bool {
        // `self` is dropped here, which ends the move if it was not committed.
        self.try_commit(place).is_ok()
    }

    /// As [`commit`](Self::commit), but the move goes on when it fails: the caller copies what was written in the
    /// meantime again and retries.
    pub fn try_commit(&self, place: u64) -> Result<(), Unready> {
        self.take_note()?;
        let (places, slab, seen) = (self.places, self.slab, self.seen);
        match places.begin_change(slab, seen, may_commit) {
            Ok(()) => {}
            Err(Refused::Busy) => return Err(Unready::Busy),
            Err(Refused::Changed(_)) => return Err(Unready::Over),
        }
        let version = places.write_next(slab, seen, place);
        // A writer that has entered since sees the old place and writes there, so the move must not commit.
        let end = |state: u64| {
            may_commit(state & !CHANGING).then_some(at_version(state & !(CHANGING | MOVING | TOUCHED), version))
        };
        let committed = places.state(slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, end);
        committed.map(|_| ()).map_err(|_| {
            places.state(slab).fetch_and(!CHANGING, Ordering::SeqCst);
            Unready::Busy
        })
    }

    /// Takes note of what was written since the last call, at a moment when nobody writes: whatever is copied from now
    /// on includes it.
    fn take_note(&self) -> Result<(), Unready> {
        let state = self.places.state(self.slab);
        let note = |state: u64| {
            let is_ours = state & (WRITERS | MOVING | CHANGING) == MOVING && version_of(state) == self.seen.version;
            is_ours.then_some(state & !TOUCHED)
        };
        match state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, note) {
            Ok(before) if before & TOUCHED == 0 => Ok(()),
            Ok(before) => Err(Unready::Touched(Eighths((before >> TOUCHED_SHIFT) as u8))),
            Err(state) if state & MOVING == 0 || version_of(state) != self.seen.version => Err(Unready::Over),
            Err(_) => Err(Unready::Busy),
        }
    }

    /// Whether the move is worth continuing: no change has ended it.
    pub fn is_under_way(&self) -> bool {
        let state = self.places.state(self.slab).load(Ordering::SeqCst);
        state & MOVING != 0 && version_of(state) == self.seen.version
    }
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        let end = |state: u64| {
            let ours = state & MOVING != 0 && version_of(state) == self.seen.version;
            ours.then_some(state & !(MOVING | TOUCHED))
        };
        let _ = self.places.state(self.slab).fetch_update(Ordering::SeqCst, Ordering::SeqCst, end);
    }
}

/// Whether a move in this state may be committed.
fn may_commit(state: u64) -> bool {
    state & (WRITERS | MOVING | TOUCHED | CHANGING) == MOVING
}

fn version_of(state: u64) -> u32 {
    (state >> VERSION_SHIFT) as u32
}

fn at_version(state: u64, version: u32) -> u64 {
    state & ((1 << VERSION_SHIFT) - 1) | u64::from(version) << VERSION_SHIFT
}
