// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The members of an array: a table that related processes share.
//!
//! A *seat* is the number by which places name a member (`place.rs`). A seat belongs to one donor for as long as the
//! array lives, because a related process may have a connection for it: a donor that has left and joins again gets its
//! old seat. If one donor is two members at the same time, it has two seats, each with its own *ordinal*, and the donor
//! sees two borrowers. No slab is ever with two members of one donor.
//!
//! ```text
//! vacant ──► claimed ──► published ──► member ◄──► draining ──► left ──► claimed
//!    ▲                       │            └───────────────────────▲
//!    └───────────────────────┘ another process has claimed a seat for the same donor at the same time
//! ```
//!
//! A seat that has been left goes from claimed to member directly, and is not published. Any process of the family may
//! make these changes, or be killed at any instruction. A seat that a killed process has claimed stays claimed: the
//! array can have one donor fewer. Two processes that admit the same donor at the same time first publish their seats
//! and then look at the other seats, so at least one of them sees the other. A seat that is already a member's stays;
//! of two seats that are only published, the lower one does. Any contents of the table are possible, so nothing here
//! panics because of them.
//!
//! A thread holds a *pin* on a member's seat from before it chooses the member until the place names it, so that a
//! member that drains knows when no thread can name it any more.
//!
//! Threads: any, including signal handlers, except for `plan` and `claim`, which allocate. Locks nothing.
//!
//! | word  | meaning                                               |
//! |-------|-------------------------------------------------------|
//! | 0     | the state                                             |
//! | 1     | the key of the member                                 |
//! | 2     | the weight                                            |
//! | 3     | the ordinal                                           |
//! | 4     | the number of pins                                    |
//! | 5     | the number of slabs that the donor lends              |
//! | 6     | the length of the text in bytes                       |
//! | 7     | the token of the donor's reservation; 0 without one   |
//! | 8–9   | the donor's run, and who forgets the one before it    |
//! | 10–64 | the text: the address, a zero, the server name        |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::{MemberKey, MembershipFailure, Newcomer};

use super::layout::WEIGHT_MAX;
use super::place::Place;
use crate::donor::INCARNATION_WORDS;

/// Words of one seat.
const SEAT_WORDS: usize = 65;
const STATE: usize = 0;
const KEY: usize = 1;
const WEIGHT: usize = 2;
const ORDINAL: usize = 3;
const PINS: usize = 4;
const SLABS: usize = 5;
const TEXT_BYTES: usize = 6;
const RESERVATION: usize = 7;
const INCARNATION: usize = 8;
const TEXT: usize = INCARNATION + INCARNATION_WORDS;
/// The longest text that a seat has room for. A host's name has at most 253 characters.
const TEXT_BYTES_MAX: usize = (SEAT_WORDS - TEXT) * size_of::<u64>();

/// How many times a process that admits a donor checks whether another one, with a higher seat, has decided, and the
/// pause between two checks: a tenth of a second in all. The other process needs microseconds unless it was stopped.
const RIVAL_LOOKS_MAX: u32 = 100;
const RIVAL_PAUSE: Duration = Duration::from_millis(1);

/// The state of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum SeatState {
    Vacant,
    Claimed,
    Published,
    Member,
    Draining,
    Left,
}

impl SeatState {
    fn of(word: u64) -> SeatState {
        const ALL: [SeatState; 6] = [
            SeatState::Vacant,
            SeatState::Claimed,
            SeatState::Published,
            SeatState::Member,
            SeatState::Draining,
            SeatState::Left,
        ];
        ALL.get(word as usize).copied().unwrap_or(SeatState::Claimed)
    }
}

/// How a newcomer can be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// It already has this seat.
    Has(usize),
    /// Its donor had this seat and has left it.
    Again(usize),
    /// It needs a new seat.
    New {
        /// Which of its donor's members it will be, counted from 0.
        ordinal: u32,
    },
    /// Another process is admitting it.
    Wait,
}

/// The seats of an array.
pub(super) struct MemberTable {
    words: Words,
    /// Incremented after every change.
    changes: Words,
}

/// Keeps a member from leaving until the holder has named it in a place.
pub(super) struct Pin<'a> {
    pins: &'a AtomicU64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        // Zero only if somebody has overwritten the word.
        let _ = self.pins.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |pins| pins.checked_sub(1));
    }
}

impl MemberTable {
    /// Vacant seats.
    pub(super) fn new(seats: usize) -> Result<MemberTable, Errno> {
        let (words, changes) = Words::shared(seats * SEAT_WORDS + 1)?.split_at(seats * SEAT_WORDS);
        Ok(MemberTable { words, changes })
    }

    /// Seats that are all taken, each by a different donor.
    pub(super) fn taken(weights: &[u32]) -> Result<MemberTable, Errno> {
        let member_table = MemberTable::new(weights.len())?;
        for (seat, weight) in weights.iter().enumerate() {
            member_table.word(seat, KEY).store(seat as u64, Ordering::Relaxed);
            member_table.word(seat, WEIGHT).store((*weight).into(), Ordering::Relaxed);
            member_table.set(seat, SeatState::Member);
        }
        Ok(member_table)
    }

    fn word(&self, seat: usize, word: usize) -> &AtomicU64 {
        &self.words[seat * SEAT_WORDS + word]
    }

    pub(super) fn seats(&self) -> usize {
        self.words.len() / SEAT_WORDS
    }

    pub(super) fn state(&self, seat: usize) -> SeatState {
        SeatState::of(self.word(seat, STATE).load(Ordering::SeqCst))
    }

    /// The number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes[0].load(Ordering::SeqCst)
    }

    fn changed(&self) {
        self.changes[0].fetch_add(1, Ordering::SeqCst);
    }

    fn set(&self, seat: usize, state: SeatState) {
        self.word(seat, STATE).store(state as u64, Ordering::SeqCst);
        self.changed();
    }

    /// Changes the state of a seat. Returns false if it was not `from`.
    pub(super) fn turn(&self, seat: usize, from: SeatState, to: SeatState) -> bool {
        let state = self.word(seat, STATE);
        let done = state.compare_exchange(from as u64, to as u64, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if done {
            self.changed();
        }
        done
    }

    /// Whether slabs are given to the member of this seat.
    pub(super) fn is_member(&self, seat: usize) -> bool {
        self.state(seat) == SeatState::Member
    }

    /// Whether the member of this seat may have slabs.
    pub(super) fn is_in_use(&self, seat: usize) -> bool {
        matches!(self.state(seat), SeatState::Member | SeatState::Draining)
    }

    /// The seats in this state.
    pub(super) fn all(&self, state: SeatState) -> impl Iterator<Item = usize> {
        (0..self.seats()).filter(move |seat| self.state(*seat) == state)
    }

    /// The seats that have or had a member.
    fn named(&self) -> impl Iterator<Item = usize> {
        let is_named =
            |state| matches!(state, SeatState::Published | SeatState::Member | SeatState::Draining | SeatState::Left);
        (0..self.seats()).filter(move |seat| is_named(self.state(*seat)))
    }

    pub(super) fn key(&self, seat: usize) -> MemberKey {
        MemberKey(self.word(seat, KEY).load(Ordering::SeqCst))
    }

    /// The seat of a key.
    pub(super) fn seat_of(&self, key: MemberKey) -> Option<usize> {
        self.named().find(|seat| self.key(*seat) == key)
    }

    pub(super) fn weight(&self, seat: usize) -> u32 {
        (self.word(seat, WEIGHT).load(Ordering::Relaxed) as u32).clamp(1, WEIGHT_MAX)
    }

    /// The number of slabs that its donor lends.
    pub(super) fn slabs(&self, seat: usize) -> u64 {
        self.word(seat, SLABS).load(Ordering::Relaxed)
    }

    /// Which of its donor's members it is, counted from 0.
    pub(super) fn ordinal(&self, seat: usize) -> u32 {
        self.word(seat, ORDINAL).load(Ordering::Relaxed) as u32
    }

    /// Whether two seats are of one donor. Compares their texts, so that it does not matter which other seats existed
    /// when they were claimed. A seat without a text counts as a separate donor.
    fn is_same_donor(&self, one: usize, other: usize) -> bool {
        let word = |seat, word| self.word(seat, word).load(Ordering::Relaxed);
        let bytes = word(one, TEXT_BYTES).min(TEXT_BYTES_MAX as u64) as usize;
        let end = TEXT + bytes.div_ceil(size_of::<u64>());
        let alike = |at: usize| word(one, at) == word(other, at);
        one == other || bytes > 0 && alike(TEXT_BYTES) && (TEXT..end).all(alike)
    }

    /// The seats of all donors that have a slab at this place, one bit each.
    pub(super) fn same_donors(&self, place: Place) -> u64 {
        let donors = |seat: &usize| place.members().any(|member| self.is_same_donor(member, *seat));
        (0..self.seats()).filter(donors).fold(place.mask(), |mask, seat| mask | 1 << seat)
    }

    /// A pin on a seat, or `None` if its member gets no more slabs.
    pub(super) fn pin(&self, seat: usize) -> Option<Pin<'_>> {
        let pins = self.word(seat, PINS);
        pins.fetch_add(1, Ordering::SeqCst);
        let pin = Pin { pins };
        // Either this load sees that the member drains, or the thread that drains the member sees the pin.
        self.is_member(seat).then_some(pin)
    }

    /// Whether somebody holds a pin on a seat, or has died holding it.
    pub(super) fn is_pinned(&self, seat: usize) -> bool {
        self.word(seat, PINS).load(Ordering::SeqCst) != 0
    }

    /// The newcomer as it was admitted, for a process that has no connection to it.
    pub(super) fn newcomer(&self, seat: usize) -> Option<Newcomer> {
        let text = self.text(seat);
        let (address, server_name) = std::str::from_utf8(&text).ok()?.split_once('\0')?;
        Some(Newcomer {
            key: self.key(seat),
            address: address.to_owned(),
            server_name: server_name.to_owned(),
            weight: self.weight(seat),
            slabs: self.slabs(seat),
            reservation: self.word(seat, RESERVATION).load(Ordering::SeqCst),
        })
    }

    /// The word with the token of the reservation that the donor has made for the member of a seat. When the donor
    /// joins again, the word changes, and every process reconnects.
    pub(super) fn reservation(&self, seat: usize) -> Words {
        let word = seat * SEAT_WORDS + RESERVATION;
        self.words.part(word..word + 1)
    }

    /// The words with the run of the donor that has granted the leases of a seat (`donor/incarnation.rs`). A process of
    /// the family that connects later learns from them that the donor has been restarted since.
    pub(super) fn incarnation(&self, seat: usize) -> Words {
        let word = seat * SEAT_WORDS + INCARNATION;
        self.words.part(word..word + INCARNATION_WORDS)
    }

    fn text(&self, seat: usize) -> Vec<u8> {
        let len = self.word(seat, TEXT_BYTES).load(Ordering::SeqCst).min(TEXT_BYTES_MAX as u64) as usize;
        let words = (TEXT..SEAT_WORDS).map(|word| self.word(seat, word).load(Ordering::SeqCst).to_le_bytes());
        words.flatten().take(len).collect()
    }

    /// How a newcomer can be admitted now.
    pub(super) fn plan(&self, newcomer: &Newcomer) -> Plan {
        if let Some(seat) = self.seat_of(newcomer.key) {
            return if self.state(seat) == SeatState::Published { Plan::Wait } else { Plan::Has(seat) };
        }
        let text = text_of(newcomer);
        let same: Vec<usize> = self.named().filter(|seat| self.text(*seat) == text).collect();
        let left = same.iter().find(|seat| self.state(**seat) == SeatState::Left);
        let free = |ordinal: &u32| !same.iter().any(|seat| self.ordinal(*seat) == *ordinal);
        match left {
            Some(seat) => Plan::Again(*seat),
            None => Plan::New { ordinal: (0..).find(free).expect("there are more numbers than seats") },
        }
    }

    /// Gives a member that has left, or that drains, its seat back. Returns false if another process was faster.
    pub(super) fn readmit(&self, seat: usize, newcomer: &Newcomer) -> bool {
        if self.is_member(seat) {
            self.describe(seat, newcomer);
            return true;
        }
        if self.turn(seat, SeatState::Draining, SeatState::Member) {
            self.describe(seat, newcomer);
            self.changed();
            return true;
        }
        if !self.turn(seat, SeatState::Left, SeatState::Claimed) {
            return false;
        }
        self.describe(seat, newcomer);
        self.word(seat, KEY).store(newcomer.key.0, Ordering::SeqCst);
        self.turn(seat, SeatState::Claimed, SeatState::Member)
    }

    /// Completes an admission for a process that was killed. Called after a time in which a running process would have
    /// done so.
    pub(super) fn finish(&self, key: MemberKey) {
        if let Some(seat) = self.seat_of(key) {
            self.turn(seat, SeatState::Published, SeatState::Member);
        }
    }

    /// Claims a seat for a newcomer. `None` if another process has done so at the same time.
    pub(super) fn claim(&self, newcomer: &Newcomer, ordinal: u32) -> Result<Option<usize>, MembershipFailure> {
        let text = text_of(newcomer);
        if text.len() > TEXT_BYTES_MAX || newcomer.address.contains('\0') {
            return Err(MembershipFailure::BadDescription { address: newcomer.address.clone() });
        }
        let claimed = (0..self.seats()).find(|seat| self.turn(*seat, SeatState::Vacant, SeatState::Claimed));
        let Some(seat) = claimed else { return Err(MembershipFailure::TooMany { max: self.seats() }) };
        self.describe(seat, newcomer);
        self.word(seat, KEY).store(newcomer.key.0, Ordering::SeqCst);
        self.word(seat, ORDINAL).store(u64::from(ordinal), Ordering::SeqCst);
        self.incarnation(seat).iter().for_each(|word| word.store(0, Ordering::SeqCst));
        self.word(seat, TEXT_BYTES).store(text.len() as u64, Ordering::SeqCst);
        for (word, bytes) in (TEXT..).zip(text.chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            self.word(seat, word).store(u64::from_le_bytes(padded), Ordering::SeqCst);
        }
        self.turn(seat, SeatState::Claimed, SeatState::Published);
        let is_rival = |other: &usize| {
            let is_same_donor = self.text(*other) == text && self.ordinal(*other) == ordinal;
            *other != seat && (is_same_donor || self.key(*other) == newcomer.key)
        };
        if self.is_outranked(seat, is_rival) && self.turn(seat, SeatState::Published, SeatState::Vacant) {
            return Ok(None);
        }
        self.turn(seat, SeatState::Published, SeatState::Member);
        Ok(Some(seat))
    }

    /// Whether a published seat must give way to a rival. It gives way to a present or former member, and to a
    /// published rival with a lower seat. A published rival with a higher seat may have looked at the others before
    /// this seat was published; it soon becomes a member or gives up.
    fn is_outranked(&self, seat: usize, is_rival: impl Fn(&usize) -> bool) -> bool {
        for _ in 0..RIVAL_LOOKS_MAX {
            let is_undecided = |other: &usize| self.state(*other) == SeatState::Published && *other > seat;
            let rivals = || self.named().filter(|other| is_rival(other));
            if rivals().any(|other| !is_undecided(&other)) {
                return true;
            }
            if rivals().next().is_none() {
                return false;
            }
            std::thread::sleep(RIVAL_PAUSE);
        }
        // The other process was stopped or killed. This one gives up, and its caller tries again later.
        true
    }

    fn describe(&self, seat: usize, newcomer: &Newcomer) {
        self.word(seat, WEIGHT).store(newcomer.weight.clamp(1, WEIGHT_MAX).into(), Ordering::SeqCst);
        self.word(seat, SLABS).store(newcomer.slabs, Ordering::SeqCst);
        self.word(seat, RESERVATION).store(newcomer.reservation, Ordering::SeqCst);
    }
}

fn text_of(newcomer: &Newcomer) -> Vec<u8> {
    [newcomer.address.as_bytes(), &[0], newcomer.server_name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newcomer(key: u64, address: &str) -> Newcomer {
        let address = address.to_owned();
        let server_name = "donor.example".into();
        Newcomer { key: MemberKey(key), address, server_name, weight: 3, slabs: 7, reservation: 100 + key }
    }

    fn admit(member_table: &MemberTable, newcomer: &Newcomer) -> usize {
        match member_table.plan(newcomer) {
            Plan::Has(seat) | Plan::Again(seat) => {
                assert!(member_table.readmit(seat, newcomer));
                seat
            }
            Plan::New { ordinal } => member_table.claim(newcomer, ordinal).unwrap().unwrap(),
            Plan::Wait => panic!("nobody else admits"),
        }
    }

    #[test]
    fn a_donor_that_joins_again_gets_its_seat_again() {
        let member_table = MemberTable::new(3).unwrap();
        let one = newcomer(10, "a:1");
        assert_eq!((admit(&member_table, &one), admit(&member_table, &newcomer(11, "b:1"))), (0, 1));
        assert_eq!(member_table.plan(&one), Plan::Has(0));
        assert_eq!(member_table.newcomer(0), Some(one));
        assert!(
            member_table.turn(0, SeatState::Member, SeatState::Draining)
                && member_table.turn(0, SeatState::Draining, SeatState::Left)
        );
        assert_eq!(member_table.plan(&newcomer(12, "a:1")), Plan::Again(0));
        assert_eq!(admit(&member_table, &newcomer(12, "a:1")), 0);
        assert_eq!((member_table.key(0), member_table.seat_of(MemberKey(10))), (MemberKey(12), None));
        assert_eq!(member_table.reservation(0)[0].load(Ordering::SeqCst), 112, "it borrows from what is set aside now");
    }

    #[test]
    fn two_members_of_one_donor_are_known_as_such() {
        let member_table = MemberTable::new(3).unwrap();
        assert_eq!(admit(&member_table, &newcomer(1, "a:1")), 0);
        assert_eq!(member_table.plan(&newcomer(2, "a:1")), Plan::New { ordinal: 1 });
        assert_eq!(admit(&member_table, &newcomer(2, "a:1")), 1);
        assert_eq!(admit(&member_table, &newcomer(3, "b:1")), 2);
        assert_eq!((member_table.ordinal(0), member_table.ordinal(1), member_table.ordinal(2)), (0, 1, 0));
        assert_eq!(member_table.same_donors(Place::NOWHERE.with(1)), 0b011);
        assert_eq!(member_table.same_donors(Place::NOWHERE.with(2)), 0b100);
        let many = member_table.claim(&newcomer(4, "c:1"), 0).unwrap_err();
        assert_eq!(many, MembershipFailure::TooMany { max: 3 });
        let long = member_table.claim(&newcomer(4, &"x".repeat(500)), 0).unwrap_err();
        assert!(matches!(long, MembershipFailure::BadDescription { .. }));
    }

    /// The seat of ordinal 0 had given up when the second member was admitted. So the two members were mistaken for
    /// members of two donors, and both copies of a slab could be on one donor.
    #[test]
    fn two_members_of_one_donor_are_known_as_such_although_the_seat_seen_first_gave_up() {
        let member_table = MemberTable::new(3).unwrap();
        assert_eq!(admit(&member_table, &newcomer(1, "a:1")), 0);
        assert_eq!(admit(&member_table, &newcomer(2, "a:1")), 1);
        assert!(member_table.turn(0, SeatState::Member, SeatState::Vacant));
        assert_eq!(admit(&member_table, &newcomer(3, "b.example:1")), 0, "the vacant seat is given to another donor");
        assert_eq!(admit(&member_table, &newcomer(4, "a:1")), 2);
        assert_eq!(member_table.same_donors(Place::NOWHERE.with(1)), 0b110);
        assert_eq!(member_table.same_donors(Place::NOWHERE.with(0)), 0b001);
    }

    #[test]
    fn a_member_that_drains_knows_who_may_still_name_it() {
        let member_table = MemberTable::taken(&[1, 1]).unwrap();
        let pin = member_table.pin(0).unwrap();
        assert!(member_table.turn(0, SeatState::Member, SeatState::Draining) && member_table.is_pinned(0));
        assert!(member_table.pin(0).is_none() && member_table.pin(1).is_some());
        drop(pin);
        assert!(!member_table.is_pinned(0) && member_table.is_in_use(0) && !member_table.is_member(0));
    }

    /// Several processes of a family admit the same donors at the same time.
    #[test]
    fn the_same_donor_never_has_two_seats_for_one_key() {
        for round in 0..200 {
            let member_table = MemberTable::new(16).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for key in 0..3 {
                            let newcomer = newcomer(key, &format!("a:{}", key / 2));
                            while !matches!(member_table.plan(&newcomer), Plan::Has(_)) {
                                if let Plan::New { ordinal } = member_table.plan(&newcomer) {
                                    let _ = member_table.claim(&newcomer, ordinal).unwrap();
                                }
                            }
                        }
                    });
                }
            });
            let mut seats: Vec<(u64, u32)> = member_table
                .all(SeatState::Member)
                .map(|seat| (member_table.key(seat).0, member_table.ordinal(seat)))
                .collect();
            seats.sort_unstable();
            let keys: Vec<u64> = seats.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, [0, 1, 2], "round {round}");
            assert_ne!(seats[0].1, seats[1].1, "round {round}: two members of one donor");
        }
    }

    #[test]
    fn whatever_the_words_contain_is_a_member_table() {
        let member_table = MemberTable::new(2).unwrap();
        for pattern in [u64::MAX, 0x0101_0101_0101_0101, 5] {
            member_table.words.iter().for_each(|word| word.store(pattern, Ordering::SeqCst));
            for seat in 0..2 {
                let _ = (
                    member_table.state(seat),
                    member_table.newcomer(seat),
                    member_table.pin(seat).is_some(),
                    member_table.weight(seat),
                );
            }
            let _ = member_table.plan(&newcomer(1, "a:1"));
            let _ = member_table.same_donors(Place::NOWHERE.with(1));
        }
    }
}
