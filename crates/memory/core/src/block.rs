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
//!   Empty      -> Fetching              read-ahead: a zeroed frame is being prepared
//!   Fetching   -> Resident              arrived, checked, and visible at the program's address
//!   Fetching   -> Standby               read ahead: arrived and checked, waits for its touch
//!   Fetching   -> Stored                could not be fetched now; may be tried again
//!   Fetching   -> Poisoned              lost: a touch is an error
//!   Stored     -> Empty                 discarded by the program
//!   Standby    -> Empty                 discarded by the program
//!   Resident   -> Empty                 discarded by the program
//!   Poisoned   -> Empty                 discarded by the program
//! END
//! ```
//!
//! Next on the path: `engine/`, which drives every arrow; most of them in `reports.rs`.

use crate::temperature::Reading;
use crate::units::{FrameIndex, Order, RegionIndex};

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
}

impl State {
    /// Every state, for tables and tests.
    pub const ALL: [State; 9] = [
        State::Empty,
        State::Installing,
        State::Resident,
        State::Leaving,
        State::Standby,
        State::Cleaning,
        State::Stored,
        State::Fetching,
        State::Poisoned,
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
            Stored => matches!(next, Fetching | Empty),
            Fetching => matches!(next, Resident | Standby | Stored | Poisoned),
            Poisoned => matches!(next, Empty),
        }
    }

    /// Whether a thread is working on the block, so that every other thread must wait.
    pub fn is_busy(self) -> bool {
        matches!(self, State::Installing | State::Leaving | State::Cleaning | State::Fetching)
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

/// No block, no frame: the end of a list.
pub const NONE: u32 = u32::MAX;

/// What the engine records about one block.
#[derive(Clone, Copy, Debug)]
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
    /// Its temperature, in bytes that the fields around it would leave as padding.
    pub(crate) reading: Reading,
    /// The frame, in the states that have one; otherwise [`NONE`].
    pub frame: u32,
    /// Its region.
    pub region: RegionIndex,
    /// Low bits of the engine's count of evicted pages when the block was last evicted.
    pub evicted_at: u32,
    /// Neighbours on the standby list.
    pub(crate) previous: u32,
    pub(crate) next: u32,
}

/// The map has one entry for each unit of managed memory (one page, or four pages), so the size matters.
const _: () = assert!(size_of::<Block>() == 32);

impl Block {
    pub(crate) fn new(region: RegionIndex, order: Order) -> Self {
        Self {
            state: State::Empty,
            order,
            wanted: false,
            waiting: Waiting::Evicted,
            known_clean: false,
            sealed: false,
            protected: false,
            copied: false,
            reading: Reading::default(),
            frame: NONE,
            region,
            evicted_at: 0,
            previous: NONE,
            next: NONE,
        }
    }

    /// Whether its bytes are in the tier or nowhere, and no thread is working on it. Only then may its size change.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.state, State::Stored | State::Empty)
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

#[cfg(test)]
mod tests {
    use super::*;

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
