// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a space could not be opened, why a call on it failed, and why it could not be closed.

use std::fmt;

use aquifer_driver::Fatal;
use aquifer_sys::raw::Errno;

use super::DRAM_BYTES_MIN;
use crate::pager::StartFailure;
use crate::spaces::SPACES_MAX;

/// Why a space could not be opened.
#[derive(Debug)]
pub enum OpenFailure {
    /// The budget is below [`DRAM_BYTES_MIN`].
    SmallBudget,
    /// The budget is above [`DRAM_BYTES_MAX`](super::DRAM_BYTES_MAX).
    LargeBudget,
    /// There are [`SPACES_MAX`] spaces in this process; close one.
    TooManySpaces,
    /// The space's counters or tables could not be mapped.
    Memory(std::io::Error),
    /// The fault handler could not be installed.
    Handler(Errno),
    /// The space could not be started.
    Start(StartFailure),
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SmallBudget => write!(f, "it is below {} MiB; give it more", DRAM_BYTES_MIN >> 20),
            Self::LargeBudget => f.write_str("it is not below 1 TiB, the most that a space can have; give it less"),
            Self::TooManySpaces => write!(f, "this process has {SPACES_MAX} spaces open; close one first"),
            Self::Memory(error) => {
                write!(f, "no memory for the space's counters and tables ({error}); check the limits (ulimit -a)")
            }
            Self::Handler(errno) => write!(f, "the fault handler cannot be installed ({errno})"),
            Self::Start(failure) => failure.fmt(f),
        }
    }
}

impl std::error::Error for OpenFailure {}

/// Why a call on a space failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceFailure {
    /// The space cannot go on. Close it; what it held is lost.
    Ended(Fatal),
    /// This process was forked, and the space is its parent's.
    Forked,
    /// The tier has lost bytes of the range.
    Lost,
    /// There is no room: nothing more can be written back. Give the tier more room, or unmap something.
    NoRoom,
    /// The range is not within the mapping; or a mapping of no bytes was asked for, or of more than 1 TiB.
    OutOfRange,
    /// The range is pinned, or part of it is.
    Pinned,
    /// The kernel refuses, with this error.
    System(Errno),
    /// As much as the budget allows is pinned already.
    TooMuchPinned,
    /// The range does not begin and end at multiples of the page size.
    Unaligned,
}

impl fmt::Display for SpaceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(fatal) => write!(f, "the space cannot go on: {fatal}; close it"),
            Self::Forked => f.write_str("the space belongs to the process that forked this one; open one here"),
            Self::Lost => f.write_str("the tier has lost bytes of this range; discard it, then write it again"),
            Self::NoRoom => {
                f.write_str("nothing more can be written back; give the tier more room, or unmap something")
            }
            Self::OutOfRange => {
                f.write_str("the range is not within the mapping; a mapping has at least one byte, and at most 1 TiB")
            }
            Self::Pinned => f.write_str("the range is pinned, in whole or in part; release the pin first"),
            Self::System(errno) => write!(f, "the kernel refuses ({errno}); check the limits (ulimit -a)"),
            Self::TooMuchPinned => {
                f.write_str("half of the budget may be pinned, in whole blocks; release a pin, or raise the budget")
            }
            Self::Unaligned => f.write_str("the range must begin and end at multiples of 4096 bytes"),
        }
    }
}

impl std::error::Error for SpaceFailure {}

/// A space's thread, or a fault in it, does not end: the tier or the kernel does not answer. The space stays in memory,
/// so that nothing that is still in use is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillInUse;

impl fmt::Display for StillInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a thread of the space waits for its tier and does not end; the space's memory is not given back")
    }
}

impl std::error::Error for StillInUse {}
