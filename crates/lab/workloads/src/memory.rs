// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a workload, in DRAM or in a space.

use aquifer::{Mapping, Pattern, Space};

use crate::args::{Args, Way};
use crate::failure::Failure;

/// Where the bytes are.
pub enum Memory {
    /// All of them in DRAM.
    Dram(Vec<u64>),
    /// In a space with a budget.
    Far {
        /// The space.
        space: Space,
        /// The bytes.
        mapping: Mapping,
    },
}

impl Memory {
    /// This many words of zeros, in DRAM or in a space, as the arguments say. `ordinary_bytes` is what the workload
    /// takes in DRAM in any case, and is taken off the budget.
    pub fn open(args: &Args, words: usize, ordinary_bytes: u64) -> Result<Self, Failure> {
        if args.way == Way::Dram {
            return Ok(Self::Dram(vec![0; words]));
        }
        let missing = |flag: &str| Failure(format!("--way {} needs {flag}", args.way.name()));
        let dram_bytes = args.dram.ok_or_else(|| missing("--dram SIZE"))?.0;
        let tier = args.tier.as_deref().ok_or_else(|| missing("--tier SPEC"))?;
        let budget = dram_bytes.saturating_sub(ordinary_bytes);
        let space = Space::builder().dram(budget.to_string()).tier(tier).open();
        let space = space.map_err(|error| {
            Failure::of(&format!("a space with {budget} of {dram_bytes} bytes, beside ordinary memory"), error)
        })?;
        let mapping = space.map(words * 8)?;
        mapping.pattern(.., Pattern::Random)?;
        Ok(Self::Far { space, mapping })
    }

    /// All words, to be written.
    pub fn words_mut(&mut self) -> Result<&mut [u64], Failure> {
        match self {
            Self::Dram(words) => Ok(words),
            Self::Far { mapping, .. } => Ok(mapping.view_mut(..)?),
        }
    }

    /// All words, to be read by loads.
    pub fn words(&self) -> Result<&[u64], Failure> {
        match self {
            Self::Dram(words) => Ok(words),
            Self::Far { mapping, .. } => Ok(mapping.view(..)?),
        }
    }

    /// The space and its mapping.
    pub fn far(&self) -> Result<(&Space, &Mapping), Failure> {
        match self {
            Self::Dram(_) => Err(Failure("memory in DRAM has no hints; use --way dram".to_owned())),
            Self::Far { space, mapping } => Ok((space, mapping)),
        }
    }

    /// Bytes that were fetched so far.
    pub fn fetched_bytes(&self) -> u64 {
        match self {
            Self::Dram(_) => 0,
            Self::Far { space, .. } => space.statistics().fetched_bytes,
        }
    }
}
