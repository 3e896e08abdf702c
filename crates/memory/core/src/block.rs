// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The states of one block, and the transitions between them.
//!
//! Pure. Everything that happens to a block is one of the arrows below. [`State::may_become`] expresses the same
//! diagram in code, and a test checks that the two agree.
//!
//! ```text
//! STATES
//!   Empty      -> Installing            first touch: a zeroed frame is being made visible
//!   Installing -> Resident              visible at the program's address
//!   Resident   -> Installing            a hole inside it is being filled with zeros
//!   Resident   -> Leaving               chosen as victim, its pages are being taken away
//!   Leaving    -> Standby               out of the program's reach, still in DRAM
//!   Leaving    -> Stored                it was clean, and a fetch costs no more than a rescue
//!   Leaving    -> Empty                 the same, and all zero
//!   Leaving    -> Resident              the kernel would not give the pages (pinned): it stays
//!   Standby    -> Installing            touched in time: rescued
//!   Standby    -> Cleaning              its frame is wanted: are the tier's bytes the same?
//!   Cleaning   -> Standby               wanted meanwhile, or the write failed (unwritable): nothing is lost
//!   Cleaning   -> Stored                the tier holds the same bytes, the frame is free
//!   Cleaning   -> Empty                 all zero: needs no bytes at all
//!   Stored     -> Fetching              fault or read-ahead
//!   Stored     -> Changing              a write in place: one page's bytes in the tier are being replaced
//!   Empty      -> Fetching              read-ahead: a zeroed frame is being prepared
//!   Fetching   -> Resident              arrived, checked, and visible at the program's address
//!   Fetching   -> Standby               read ahead: arrived and checked, waits for its touch
//!   Fetching   -> Stored                could not be fetched now; may be tried again
//!   Fetching   -> Poisoned              lost: a touch is an error
//!   Changing   -> Stored                the page's guard is that of the tier's bytes again
//!   Changing   -> Poisoned              the write failed halfway: a touch is an error
//!   Stored     -> Empty                 discarded by the program
//!   Standby    -> Empty                 discarded by the program
//!   Resident   -> Empty                 discarded by the program
//!   Poisoned   -> Empty                 discarded by the program
//! END
//! ```
//!
//! Next on the path: `engine/`, which drives every arrow; most of them in `reports.rs`.

use crate::temperature::Reading;
use crate::units::{FrameIndex, Order};

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never written, or discarded: reads as zeros, needs neither a frame nor a slot.
    Empty,
    /// A frame with its bytes is being made visible.
    Installing,
    /// In local DRAM at the program's address.
    Resident,
    /// Being moved out of the program's reach.
    Leaving,
    /// In local DRAM, out of the program's reach; a touch restores it without I/O.
    Standby,
    /// Being compared with the tier's copy, and written back if it differs.
    Cleaning,
    /// In the tier only.
    Stored,
    /// Being read from the tier, or zero-filled ahead of the first touch.
    Fetching,
    /// Lost. A touch is an error.
    Poisoned,
    /// In the tier only, where a page of it is being changed.
    Changing,
}

impl State {
    /// Every state, for tables and tests.
    pub const ALL: [State; 10] = [
        State::Empty,
        State::Installing,
        State::Resident,
        State::Leaving,
        State::Standby,
        State::Cleaning,
        State::Stored,
        State::Fetching,
        State::Poisoned,
        State::Changing,
    ];

    /// Whether the diagram above has an arrow from this state to `next`.
    pub fn may_become(self, next: State) -> bool {
        use State::*;
        match self {
            Empty => matches!(next, Installing | Fetching),
            Installing => matches!(next, Resident),
            Resident => matches!(next, Installing | Leaving | Empty),
            Leaving => matches!(next, Standby | Stored | Empty | Resident),
            Standby => matches!(next, Installing | Cleaning | Empty),
            Cleaning => matches!(next, Standby | Stored | Empty),
            Stored => matches!(next, Fetching | Changing | Empty),
            Fetching => matches!(next, Resident | Standby | Stored | Poisoned),
            Poisoned => matches!(next, Empty),
            Changing => matches!(next, Stored | Poisoned),
        }
    }

    /// Whether a thread is working on the block, so that every other thread must wait.
    pub fn is_busy(self) -> bool {
        matches!(self, State::Installing | State::Leaving | State::Cleaning | State::Fetching | State::Changing)
    }
}

/// Why a block is on standby. There is one list for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Waiting {
    /// A victim: stays until its frame is needed.
    Evicted,
    /// Was read ahead: stays until the first touch that the engine sees.
    ReadAhead,
    /// Its write-back failed: stays until the tier accepts writes again.
    Unwritable,
}

impl Waiting {
    /// Every reason, by its number.
    const ALL: [Waiting; 3] = [Waiting::Evicted, Waiting::ReadAhead, Waiting::Unwritable];
}

/// No frame.
pub const NONE: u32 = u32::MAX;

/// What the engine records about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its current state.
    pub state: State,
    /// Its size. The same in the entries of all its units.
    pub order: Order,
    /// True while a thread waits for the current work on it to end.
    pub wanted: bool,
    /// On standby, the list it is on; while it is being cleaned, the list it came from.
    pub waiting: Waiting,
    /// True when its bytes are known to equal the tier's. On standby this is about the bytes in the frame; at the
    /// program's address it can be true only while the block is sealed.
    pub known_clean: bool,
    /// True while it is resident, was installed write-protected and has not been written to since.
    pub sealed: bool,
    /// True while some of its pages may be write-protected: while it is sealed, and afterwards until the protection is
    /// lifted. The kernel's own stores to such pages fail until a write fault lifts the protection.
    pub protected: bool,
    /// True while it is exchanged by copying, so that its pages are accounted for at both ends.
    pub copied: bool,
    /// True if a store, or a call that pinned it, ended its last seal. It is not sealed then, because that would most
    /// likely cost another fault, until a seal is tried again (`engine/reports.rs`).
    pub seal_ended: bool,
    /// Its temperature.
    pub(crate) reading: Reading,
    /// The frame, in the states that have one; otherwise [`NONE`].
    pub frame: u32,
    /// Low bits of the engine's count of evicted pages when the block was last evicted.
    pub evicted_at: u32,
}

/// A block as the map stores it. A block as it is at first, of the map's usual size, is all zeros, so that memory that
/// the program has never touched takes none for its description.
///
/// | word | bits  | what                                                                        |
/// |------|-------|-----------------------------------------------------------------------------|
/// | 0    | 0-3   | state                                                                       |
/// |      | 4-7   | exponent of the size, exclusive or with that of the map's usual size         |
/// |      | 8-9   | waiting                                                                     |
/// |      | 10-15 | wanted, known_clean, sealed, protected, copied, seal_ended                 |
/// |      | 16-23 | temperature                                                                 |
/// | 1    | 0-31  | frame, plus one                                                             |
/// | 2    | 0-31  | evicted_at                                                                  |
/// | 3    | 0-15  | stamp of the temperature                                                    |
pub(crate) type Entry = [u32; 4];

/// The map has one entry for each unit of managed memory (one page, or four pages). With 16 bytes here, 12 in the
/// policy and 8 for a page's guard, a unit of one page costs 36 bytes, which is less than 1 % of the page; four entries
/// fill a cache line, and none is in two.
const _: () = assert!(size_of::<Entry>() == 16);

impl Block {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            state: State::Empty,
            order,
            wanted: false,
            waiting: Waiting::Evicted,
            known_clean: false,
            sealed: false,
            protected: false,
            copied: false,
            seal_ended: false,
            reading: Reading::default(),
            frame: NONE,
            evicted_at: 0,
        }
    }

    /// The entry of this block in a map whose usual size is `usual`.
    #[inline]
    pub(crate) fn to_entry(self, usual: Order) -> Entry {
        let order = (self.order.exponent() ^ usual.exponent()) as u32;
        let (temperature, stamp) = self.reading.parts();
        let flags = [self.wanted, self.known_clean, self.sealed, self.protected, self.copied, self.seal_ended];
        let flags = flags.iter().enumerate().fold(0, |bits, (place, flag)| bits | u32::from(*flag) << place);
        let first =
            self.state as u32 | order << 4 | (self.waiting as u32) << 8 | flags << 10 | u32::from(temperature) << 16;
        [first, self.frame.wrapping_add(1), self.evicted_at, u32::from(stamp)]
    }

    /// The block of an entry.
    #[inline]
    pub(crate) fn of_entry(entry: Entry, usual: Order) -> Self {
        let [first, frame, evicted_at, stamp] = entry;
        let flag = |place: u32| first >> (10 + place) & 1 != 0;
        Self {
            state: State::ALL[(first & 0xf) as usize],
            order: order_of(first, usual),
            wanted: flag(0),
            waiting: Waiting::ALL[(first >> 8 & 3) as usize],
            known_clean: flag(1),
            sealed: flag(2),
            protected: flag(3),
            copied: flag(4),
            seal_ended: flag(5),
            reading: Reading::of_parts((first >> 16) as u8, stamp as u16),
            frame: frame.wrapping_sub(1),
            evicted_at,
        }
    }

    /// The size of the block of an entry.
    #[inline]
    pub(crate) fn order_of_entry(entry: &Entry, usual: Order) -> Order {
        order_of(entry[0], usual)
    }

    /// Whether its bytes are in the tier or nowhere, and no thread is working on it. Only then may its size change.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.state, State::Stored | State::Empty)
    }

    /// Whether its bytes are at the program's address: it is resident, or resident except that a hole in it is being
    /// filled. Whatever is being installed from elsewhere has a frame.
    pub fn is_in_place(&self) -> bool {
        self.state == State::Resident || (self.state == State::Installing && self.frame == NONE)
    }

    /// Follows one arrow of the diagram. A missing arrow is a bug and ends the process.
    pub(crate) fn become_state(&mut self, next: State) {
        assert!(self.state.may_become(next), "block went from {:?} to {next:?}", self.state);
        self.state = next;
    }

    pub(crate) fn take_frame(&mut self) -> FrameIndex {
        assert!(self.frame != NONE, "block in {:?} has no frame", self.state);
        let frame = FrameIndex(self.frame);
        self.frame = NONE;
        frame
    }
}

#[inline]
fn order_of(first: u32, usual: Order) -> Order {
    Order::new((first >> 4 & 0xf) as u8 ^ usual.exponent() as u8).expect("an entry has a valid size")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_order() -> impl Strategy<Value = Order> {
        (0..=Order::MAX.exponent() as u8).prop_map(|exponent| Order::new(exponent).expect("up to the largest"))
    }

    proptest! {
        #[test]
        fn an_entry_holds_all_of_a_block(
            state in 0..State::ALL.len(),
            waiting in 0..Waiting::ALL.len(),
            (order, usual) in (any_order(), any_order()),
            flags in any::<[bool; 6]>(),
            (temperature, stamp) in any::<(u8, u16)>(),
            (frame, evicted_at) in any::<(u32, u32)>(),
        ) {
            let [wanted, known_clean, sealed, protected, copied, seal_ended] = flags;
            let block = Block {
                state: State::ALL[state],
                order,
                wanted,
                waiting: Waiting::ALL[waiting],
                known_clean,
                sealed,
                protected,
                copied,
                seal_ended,
                reading: Reading::of_parts(temperature, stamp),
                frame,
                evicted_at,
            };
            let entry = block.to_entry(usual);
            prop_assert_eq!(Block::of_entry(entry, usual), block);
            prop_assert_eq!(Block::order_of_entry(&entry, usual), order);
        }
    }

    #[test]
    fn the_initial_state_of_a_block_is_encoded_as_zeros() {
        assert_eq!(Block::new(Order::DEFAULT).to_entry(Order::DEFAULT), [0; 4]);
        assert_eq!(Block::of_entry([0; 4], Order::UNIT), Block::new(Order::UNIT));
        for (number, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, number);
        }
        for (number, waiting) in Waiting::ALL.into_iter().enumerate() {
            assert_eq!(waiting as usize, number);
        }
    }

    #[test]
    fn the_drawing_and_the_transition_function_agree() {
        let source = include_str!("block.rs");
        let start = source.find("STATES\n").expect("the drawing has a start");
        let end = source.find("//! END").expect("the drawing has an end");
        let mut drawn = Vec::new();
        for line in source[start..end].lines().filter(|line| line.contains("->")) {
            let words: Vec<&str> = line.trim_start_matches("//!").split_whitespace().collect();
            drawn.push((words[0].to_owned(), words[2].to_owned()));
        }
        assert!(drawn.len() > 15);
        for from in State::ALL {
            for to in State::ALL {
                let arrow = (format!("{from:?}"), format!("{to:?}"));
                assert_eq!(drawn.contains(&arrow), from.may_become(to), "{arrow:?}");
            }
        }
    }
}
