// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the memory of a range is, and how hot it is.

use std::ops::Range;

use aquifer_core::block::State;
use aquifer_core::temperature::{self, class_of};
use aquifer_core::units::PAGE_BYTES;
use aquifer_pager::memory_space::BlockReport;

/// Number of classes of temperature.
pub const CLASSES: usize = temperature::CLASSES;

/// The temperatures of each class, as text: class 0 is temperature 0, class `n` is `2^(n-1)..2^n`.
pub const CLASS_NAMES: [&str; CLASSES] = temperature::CLASS_NAMES;

/// Where some memory was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The memory was never written to, or was discarded: it reads as zeros, and takes neither DRAM nor room in a tier.
    Empty,
    /// The memory is on its way from the tier.
    Fetching,
    /// A tier has lost the memory. A load or store gets SIGBUS.
    Lost,
    /// The memory is on its way within DRAM, or to the tier.
    Moving,
    /// The memory is in DRAM, at its address.
    Resident {
        /// True if the tier is known to have the same bytes. Otherwise it may have them: the space finds out when it
        /// evicts the block.
        is_clean: bool,
    },
    /// The memory is in DRAM, but not at its address: a touch brings it back without a transfer.
    Standby {
        /// The same as in `Resident`.
        is_clean: bool,
    },
    /// The memory is only in a tier.
    Stored {
        /// The level in the chain of tiers, of which the fastest is 0. If there is only one tier, it is level 0.
        level: usize,
    },
}

impl Status {
    pub(crate) fn of(block: &BlockReport) -> Self {
        let is_clean = block.is_known_clean;
        match block.state {
            State::Empty => Self::Empty,
            State::Fetching => Self::Fetching,
            State::Poisoned => Self::Lost,
            State::Changing | State::Cleaning | State::Installing | State::Leaving => Self::Moving,
            State::Resident => Self::Resident { is_clean },
            State::Standby => Self::Standby { is_clean },
            State::Stored => Self::Stored { level: block.level.unwrap_or(0) },
        }
    }
}

/// Adjacent memory with one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRun {
    /// Its bytes, counted from the start of the mapping.
    pub range: Range<usize>,
    /// Where the bytes were.
    pub status: Status,
}

/// Adjacent memory with one temperature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemperatureRun {
    /// Its bytes, counted from the start of the mapping.
    pub range: Range<usize>,
    /// 0 is cold, 255 the hottest. Only the order of two temperatures has a meaning, not their difference.
    pub temperature: u8,
}

/// Adds a block to runs: extends the last run if that is `same`.
pub(crate) fn extend<R>(
    runs: &mut Vec<R>,
    block: Range<usize>,
    same: impl Fn(&R) -> bool,
    range_of: impl Fn(&mut R) -> &mut Range<usize>,
    new: impl FnOnce(Range<usize>) -> R,
) {
    match runs.last_mut().filter(|last| same(last)) {
        Some(last) => range_of(last).end = block.end,
        None => runs.push(new(block)),
    }
}

/// Bytes with contents, by class of temperature ([`CLASS_NAMES`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// In DRAM, at their addresses.
    pub resident_bytes: [u64; CLASSES],
    /// Elsewhere: on standby, in a tier, or on their way.
    pub away_bytes: [u64; CLASSES],
}

impl Histogram {
    pub(crate) fn of_pages(pages: &temperature::Histogram) -> Self {
        let bytes = |pages: [u64; CLASSES]| pages.map(|pages| pages * PAGE_BYTES);
        Self { resident_bytes: bytes(pages.resident), away_bytes: bytes(pages.away) }
    }

    pub(crate) fn count(&mut self, block: &BlockReport) {
        let classes = match block.state {
            State::Empty => return,
            State::Resident => &mut self.resident_bytes,
            _ => &mut self.away_bytes,
        };
        classes[class_of(block.temperature)] += block.bytes.len() as u64;
    }
}
