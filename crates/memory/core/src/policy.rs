// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which resident block is evicted next. One file per policy, one trait, one conformance suite.
//!
//! Pure and allocation-free after [`Policy::grow`]: called with the engine's lock held, on the fault path.
//!
//! What a policy can see: hardware does not report hits on resident blocks to user space. A policy learns of a block
//! when it arrives after a fault, and by testing it: a victim first waits on the *standby* list, still in DRAM, and if
//! the program touches it there it returns as [`Arrival::Rescued`]. This replaces the hardware's "accessed" bit.
//!
//! Sizes differ: a block has `weight` pages, and shares of the resident set are counted in pages.
//!
//! [`PolicyName`] has the policies themselves. The type of the same name in `config/src/keywords.rs` has the words that
//! a user may write, and knows no policy, because `config` depends on no crate. `preload/src/start.rs` (`start`) turns
//! the configured word into a [`PolicyName`] and builds the policy.
//!
//! Called by `engine/victims.rs`. Next on the path: `standby.rs`, where a victim waits.

use std::{fmt, str::FromStr};

use crate::units::BlockIndex;

pub mod clock;
pub mod fifo;
pub mod list;
pub mod lru;
pub mod s3fifo;

/// Why a block enters the resident set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// First touch ever: it had no contents.
    Fresh,
    /// Fetched by the prefetcher ahead of a fault, and not yet known to be touched.
    Prefetched,
    /// Fetched by a fault.
    Refault {
        /// Pages evicted between this block's eviction and now.
        distance: u64,
    },
    /// Touched while it waited on the standby list: it is hot.
    Rescued,
}

/// Chooses victims. The module says what a policy may assume.
pub trait Policy: Send {
    /// The word for `--policy`, metrics and messages.
    fn name(&self) -> &'static str;

    /// Makes room for block indices below `blocks`, and for a resident set of `resident_pages`. The only call that may
    /// allocate. Called again whenever either changes; both may also shrink.
    fn grow(&mut self, blocks: u32, resident_pages: u64);

    /// Adds `block`, of `weight` pages, which is resident from now on. The policy does not hold it yet.
    fn arrived(&mut self, block: BlockIndex, weight: u32, arrival: Arrival);

    /// Removes a block that was not chosen as a victim: unmapped, discarded, pinned. No-op for blocks that the policy
    /// does not hold.
    fn removed(&mut self, block: BlockIndex);

    /// Removes and returns the next victim. `None` only when the policy holds no block. If the block turns out to be
    /// hot, the caller reports it with `arrived(.., Rescued)`; otherwise it reports nothing.
    fn victim(&mut self) -> Option<BlockIndex>;

    /// Returns `block`, of `weight` pages, to the policy: a part of the last victim, which was split and of which this
    /// part is not evicted yet. The policy does not hold it. What was put back last is the next victim.
    fn put_back(&mut self, block: BlockIndex, weight: u32);

    /// Pages of all blocks held now.
    fn resident_pages(&self) -> u64;

    /// Bytes of addresses that its tables have. Each block that has arrived takes 12 bytes of memory there.
    fn reserved_bytes(&self) -> u64;
}

/// Every policy. To add one: its file, a line here, a line in each `match` below, and the docs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// [`clock::Clock`].
    Clock,
    /// [`fifo::Fifo`].
    Fifo,
    /// [`lru::Lru`].
    Lru,
    /// [`s3fifo::S3Fifo`].
    #[default]
    S3Fifo,
}

impl PolicyName {
    /// All of them, the default first.
    pub const ALL: [PolicyName; 4] = [PolicyName::S3Fifo, PolicyName::Clock, PolicyName::Lru, PolicyName::Fifo];

    /// The word for `--policy`, metrics and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            PolicyName::Clock => "clock",
            PolicyName::Fifo => "fifo",
            PolicyName::Lru => "lru",
            PolicyName::S3Fifo => "s3fifo",
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|name| name.as_str() == text).ok_or_else(|| {
            let choices = Self::ALL.map(PolicyName::as_str).join(", ");
            format!("'{text}' is not a policy; choose one of {choices}")
        })
    }
}

/// Makes an empty policy. Call [`Policy::grow`] before anything else.
pub fn build(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Clock => Box::new(clock::Clock::default()),
        PolicyName::Fifo => Box::new(fifo::Fifo::default()),
        PolicyName::Lru => Box::new(lru::Lru::default()),
        PolicyName::S3Fifo => Box::new(s3fifo::S3Fifo::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for name in PolicyName::ALL {
            assert_eq!(name.to_string().parse(), Ok(name));
            assert_eq!(build(name).name(), name.as_str());
        }
        assert_eq!(PolicyName::default(), PolicyName::ALL[0]);
    }

    #[test]
    fn an_unknown_name_lists_the_choices() {
        let error = "arc".parse::<PolicyName>().unwrap_err();
        assert_eq!(error, "'arc' is not a policy; choose one of s3fifo, clock, lru, fifo");
    }
}
