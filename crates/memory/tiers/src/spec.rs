// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The checked description of a tier: what `spec/grammar.rs` parses, and `open.rs` opens.
//!
//! Pure: nothing is opened here. Several `--tier` options form a chain of tiers, the fastest first.

mod donors;
mod grammar;
mod pool;
mod rules;
mod similar;

use std::fmt::{self, Write};
use std::path::PathBuf;

use aquifer_borrower::{ArraySpec, DonorSpec};
use aquifer_core::units::ByteSize;
use aquifer_tier::FailurePlan;

use crate::compressed::Codec;
use crate::pool::PoolSpec;

/// The description of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierSpec {
    /// The memory of several other machines.
    Array(ArraySpec),
    /// Compressed local memory.
    Compressed {
        /// The memory that it takes; by default half of the memory available.
        size: Option<ByteSize>,
        /// How pages are compressed.
        codec: Codec,
    },
    /// A memory device, or a file on one.
    Dax {
        /// The device or file.
        path: PathBuf,
        /// Capacity; by default all of it.
        size: Option<ByteSize>,
    },
    /// A donor's memory.
    Donor(DonorSpec),
    /// Local memory.
    Dram {
        /// Capacity; by default half of the memory available.
        size: Option<ByteSize>,
    },
    /// Local memory that answers only when a device would have answered.
    Emulated {
        /// The name of a built-in profile, or the path of a profile.
        profile: String,
        /// Capacity; by default half of the memory available.
        size: Option<ByteSize>,
    },
    /// Another tier, with its contents sealed.
    Encrypted {
        /// The tier underneath.
        inner: Box<TierSpec>,
    },
    /// Another tier, with injected failures. A test aid.
    Failing {
        /// What fails when.
        plan: FailurePlan,
        /// The tier underneath.
        inner: Box<TierSpec>,
    },
    /// A file or block device.
    Flash(FlashSpec),
    /// A volume of the pool.
    Pool(PoolSpec),
    /// The memory of one NUMA node.
    Node {
        /// Its number.
        number: u32,
        /// Capacity; by default nine tenths of what it has available.
        size: Option<ByteSize>,
    },
}

impl TierSpec {
    /// Makes every process that opens this tier borrow as a member of this process tree.
    pub fn belong_to(&mut self, tree: u64) {
        match self {
            TierSpec::Array(array) => array.members.iter_mut().for_each(|member| member.donor.tree = Some(tree)),
            TierSpec::Donor(donor) => donor.tree = Some(tree),
            TierSpec::Pool(pool) => pool.tree = Some(tree),
            TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. } => inner.belong_to(tree),
            TierSpec::Compressed { .. }
            | TierSpec::Dax { .. }
            | TierSpec::Dram { .. }
            | TierSpec::Emulated { .. }
            | TierSpec::Flash(_)
            | TierSpec::Node { .. } => {}
        }
    }

    /// Whether both would store their bytes in the same place, as far as their descriptions show.
    pub(crate) fn is_same_place(&self, other: &TierSpec) -> bool {
        match (self, other) {
            (TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. }, other)
            | (other, TierSpec::Encrypted { inner } | TierSpec::Failing { inner, .. }) => inner.is_same_place(other),
            (TierSpec::Array(array), TierSpec::Donor(donor)) | (TierSpec::Donor(donor), TierSpec::Array(array)) => {
                array.members.iter().any(|member| member.donor.address == donor.address)
            }
            (TierSpec::Array(one), TierSpec::Array(other)) => one.members.iter().any(|member| {
                let address = &member.donor.address;
                other.members.iter().any(|member| member.donor.address == *address)
            }),
            (TierSpec::Donor(one), TierSpec::Donor(other)) => one.address == other.address,
            (TierSpec::Compressed { .. }, TierSpec::Compressed { .. })
            | (TierSpec::Dram { .. }, TierSpec::Dram { .. }) => true,
            (TierSpec::Emulated { profile: one, .. }, TierSpec::Emulated { profile: other, .. }) => one == other,
            (TierSpec::Flash(one), TierSpec::Flash(other)) => one.path == other.path,
            (TierSpec::Pool(one), TierSpec::Pool(other)) => one.volume == other.volume,
            (TierSpec::Dax { path: one, .. }, TierSpec::Dax { path: other, .. }) => one == other,
            (TierSpec::Node { number: one, .. }, TierSpec::Node { number: other, .. }) => one == other,
            _ => false,
        }
    }
}

/// The description of a flash tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashSpec {
    /// A directory, a file or a block device.
    pub path: PathBuf,
    /// Capacity; by default what fits, but at most four times the machine's memory.
    pub size: Option<ByteSize>,
    /// `true`: data that is not ours may be destroyed.
    pub overwrite: bool,
    /// `true`: uses the page cache even where direct I/O works. For comparisons and tests.
    pub buffered: bool,
    /// `true`: queues do not use io_uring even where it works. For comparisons and tests.
    pub plain_queue: bool,
}

impl FlashSpec {
    /// A tier at `path` with defaults for everything else.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), size: None, overwrite: false, buffered: false, plain_queue: false }
    }
}

/// What is wrong with a description, and what to write instead: one line, to print after the name of the flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFailure {
    reason: String,
}

impl SpecFailure {
    pub(crate) fn new(reason: String) -> SpecFailure {
        SpecFailure { reason }
    }
}

impl fmt::Display for SpecFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The reason quotes what was typed. Its own quotation marks stay as they are.
        for character in self.reason.chars() {
            if character.is_control() { write!(f, "{}", character.escape_debug())? } else { f.write_char(character)? }
        }
        Ok(())
    }
}

impl std::error::Error for SpecFailure {}
