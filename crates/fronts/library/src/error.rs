// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What can go wrong: opening a space, using it, closing it.

use std::fmt;

use aquifer_pager::memory_space::{OpenFailure as SpaceOpenFailure, SpaceFailure};
use aquifer_tiers::{OpenFailure as TierOpenFailure, SpecFailure};

/// Why a [`Space`](crate::Space) could not be opened. More variants may follow.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The block size is not valid. The text says why.
    BlockSize(String),
    /// The budget of DRAM is not a valid size, or is too small or too large. The text says why.
    Dram(String),
    /// No budget of DRAM was given: call [`Builder::dram`](crate::Builder::dram).
    NoDram,
    /// No tier was given: call [`Builder::tier`](crate::Builder::tier).
    NoTier,
    /// There is no such policy. The text lists the existing ones.
    Policy(String),
    /// The space could not be started. The text says why.
    Start(Box<dyn std::error::Error + Send + Sync>),
    /// A tier could not be opened. The text says which, and why.
    Tier(Box<dyn std::error::Error + Send + Sync>),
    /// A tier is not described as `aquifer run --tier` expects. The text says what is wrong.
    TierSpec(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockSize(why) => write!(f, "block size: {why}"),
            Self::Dram(why) => write!(f, "budget of DRAM: {why}"),
            Self::NoDram => f.write_str("no budget of DRAM; call dram(\"1GiB\"), for example"),
            Self::NoTier => f.write_str("no tier; call tier(\"flash:/var/tmp/cold\"), for example"),
            Self::Policy(why) => write!(f, "policy: {why}"),
            Self::Start(why) => why.fmt(f),
            Self::Tier(why) | Self::TierSpec(why) => write!(f, "tier: {why}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Start(why) | Self::Tier(why) | Self::TierSpec(why) => Some(&**why),
            _ => None,
        }
    }
}

impl OpenError {
    pub(crate) fn of_spec(failure: SpecFailure) -> Self {
        Self::TierSpec(failure.to_string().into())
    }

    pub(crate) fn of_tier(failure: TierOpenFailure) -> Self {
        Self::Tier(failure.to_string().into())
    }

    pub(crate) fn of_space(failure: SpaceOpenFailure) -> Self {
        match failure {
            SpaceOpenFailure::SmallBudget | SpaceOpenFailure::LargeBudget => Self::Dram(failure.to_string()),
            _ => Self::Start(failure.to_string().into()),
        }
    }
}

/// Why a space cannot go on. Its text says the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndReason(String);

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a call on a space or its memory failed. More variants may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// More was asked for than would stay in DRAM until it is used. Ask for parts, one after the other.
    BeyondBudget {
        /// What was asked for, in bytes.
        asked_bytes: usize,
        /// What can be asked for at a time.
        bytes_max: usize,
    },
    /// A block has a power of two of bytes, from 4096 to 2 MiB.
    BlockSize {
        /// The size that was given.
        bytes: usize,
    },
    /// The destination is longer or shorter than the bytes to be copied.
    BufferSize {
        /// The length of the destination.
        bytes: usize,
        /// The length of what is to be copied.
        needed_bytes: usize,
    },
    /// The mapping has been dropped.
    Closed,
    /// The range has no bytes. Reads and writes of no bytes succeed.
    EmptyRange,
    /// The space cannot go on. Close it; what it contained is lost.
    Ended(EndReason),
    /// The space belongs to the process that forked this one.
    Forked,
    /// A tier has lost bytes of the range. [Discard](crate::Mapping::discard) it, then write it again.
    Lost,
    /// A mapping has at least one byte, and at most 1 TiB.
    MappingSize {
        /// What was asked for, in bytes.
        bytes: usize,
    },
    /// There is no room: nothing more can be written back. Give the tier more room, or unmap something.
    NoRoom,
    /// The range ends outside the mapping, or ends before it begins.
    OutOfRange {
        /// Where the range begins.
        start: usize,
        /// One past its last byte.
        end: usize,
        /// The length of the mapping.
        len: usize,
    },
    /// The range is pinned, in whole or in part. Drop the pin first.
    Pinned,
    /// As much is pinned as the budget allows. A pin counts with all the blocks that it keeps resident.
    PinnedTooMuch {
        /// What may be pinned, in bytes.
        bytes_max: usize,
    },
    /// The kernel refuses, with this errno. Check the limits (`ulimit -a`).
    System {
        /// The error number, as in errno(3).
        errno: i32,
    },
    /// The range does not begin and end where an element or a page does.
    Unaligned {
        /// Where the range begins.
        start: usize,
        /// One past its last byte.
        end: usize,
        /// The size or the alignment of which these must be multiples.
        unit: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeyondBudget { asked_bytes, bytes_max } => write!(
                f,
                "{asked_bytes} bytes are more than can be fetched ahead under this budget; ask for at most {bytes_max} \
                 at a time"
            ),
            Self::BlockSize { bytes } => {
                write!(f, "a block cannot have {bytes} bytes; choose a power of two from 4096 to 2097152")
            }
            Self::BufferSize { bytes, needed_bytes } => {
                write!(f, "the destination has {bytes} bytes; give it {needed_bytes}, as many as the items have")
            }
            Self::Closed => f.write_str("the mapping is gone; keep it for as long as its hints are used"),
            Self::EmptyRange => f.write_str("the range has no bytes; give it at least one"),
            Self::Ended(why) => write!(f, "the space cannot go on: {why}; close it"),
            Self::Forked => SpaceFailure::Forked.fmt(f),
            Self::Lost => SpaceFailure::Lost.fmt(f),
            Self::MappingSize { bytes } => write!(f, "no mapping has {bytes} bytes; ask for 1 byte to 1 TiB"),
            Self::NoRoom => SpaceFailure::NoRoom.fmt(f),
            Self::OutOfRange { start, end, len } => {
                write!(f, "the range {start}..{end} is not within the mapping, which has {len} bytes")
            }
            Self::Pinned => SpaceFailure::Pinned.fmt(f),
            Self::PinnedTooMuch { bytes_max } => write!(
                f,
                "at most {bytes_max} bytes may be pinned, in whole blocks; drop a pin, use smaller blocks, or raise the \
                 budget"
            ),
            Self::System { errno } => write!(f, "the kernel refuses (errno {errno}); check the limits (ulimit -a)"),
            Self::Unaligned { start, end, unit } => {
                write!(f, "the range {start}..{end} must begin and end at multiples of {unit} bytes")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<SpaceFailure> for Error {
    /// Callers check ranges, sizes and alignment, and know the limits, so that they can name the numbers.
    fn from(failure: SpaceFailure) -> Self {
        match failure {
            SpaceFailure::Ended(fatal) => Self::Ended(EndReason(fatal.to_string())),
            SpaceFailure::Forked => Self::Forked,
            SpaceFailure::Lost => Self::Lost,
            SpaceFailure::NoRoom => Self::NoRoom,
            SpaceFailure::OutOfRange => Self::OutOfRange { start: 0, end: 0, len: 0 },
            SpaceFailure::Pinned => Self::Pinned,
            SpaceFailure::System(errno) => Self::System { errno: errno.0 },
            SpaceFailure::TooMuchPinned => Self::PinnedTooMuch { bytes_max: 0 },
            SpaceFailure::Unaligned => Self::Unaligned { start: 0, end: 0, unit: crate::range::PAGE },
        }
    }
}

/// Why a space was not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseError {
    /// The space has mappings, pins, or other handles. It closes when the last of them is dropped.
    InUse,
    /// The tier does not answer a thread of the space. The space's memory is not given back.
    NoAnswer,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("the space is in use; it closes when its mappings, pins and clones are dropped"),
            Self::NoAnswer => aquifer_pager::memory_space::StillInUse.fmt(f),
        }
    }
}

impl std::error::Error for CloseError {}
