// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer cache` as the server of YCSB's workloads: its names as a contender, and its command line. Pure, except that
//! it looks for the program's file.
//!
//! The cache needs less memory than Redis for the same records, so its local memory is the same fraction of its own
//! footprint: otherwise all of it would be local.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::library::{Tier, program_path};
use crate::size::MIB;

/// The file name of the program.
pub const PROGRAM: &str = "aquifer-cache";
/// How the names of the contenders are written.
pub const NAMES: &str = "cache (all of it in DRAM) and cache:TIER";

const NAME: &str = "cache";
/// Bytes of a record in YCSB's workloads, ten fields of 100 bytes: `--value` in the list of workloads.
const RECORD_BYTES: u64 = 1000;
/// What the cache takes for a record beside its bytes: a header of 16 in the log, a key of 16, 8 to the next multiple
/// of 16; and the key's part of the index (docs/cache.md).
const BESIDE_BYTES: u64 = 16 + 16 + 8 + 30;
/// Room in the log beyond the records, in per cent: half of the requests of workload A replace a record, and what is
/// replaced is there until it is cleaned.
const SPARE_PERCENT: u64 = 50;

/// The cache over one tier, as a contender.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InCache {
    /// `None`: everything fits into DRAM.
    tier: Option<Tier>,
}

impl InCache {
    /// The arguments of the program, for records of this many bytes in total. `place` is the file of a flash tier.
    pub fn words(&self, records_bytes: u64, local_percent: u32, place: &str) -> Vec<String> {
        let keys = records_bytes / RECORD_BYTES;
        let footprint_bytes = keys * (RECORD_BYTES + BESIDE_BYTES);
        let size_bytes = (footprint_bytes * (100 + SPARE_PERCENT) / 100 + 64 * MIB).next_multiple_of(MIB);
        let tier_bytes = (size_bytes + size_bytes / 4 + 64 * MIB).next_multiple_of(2 * MIB);
        let (dram_bytes, tier) = match &self.tier {
            Some(tier) => (footprint_bytes * u64::from(local_percent) / 100, tier.spec(place, tier_bytes)),
            None => (2 * size_bytes + 64 * MIB, Tier::Dram.spec(place, tier_bytes)),
        };
        let (dram, size, keys) = (dram_bytes.to_string(), size_bytes.to_string(), (keys + keys / 16 + 1).to_string());
        ["--dram", &dram, "--tier", &tier, "--size", &size, "--keys", &keys].map(str::to_owned).to_vec()
    }
}

impl fmt::Display for InCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tier {
            None => f.pad(NAME),
            Some(tier) => f.pad(&format!("{NAME}:{tier}")),
        }
    }
}

impl FromStr for InCache {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once(':') {
            None if text == NAME => Ok(Self { tier: None }),
            Some((NAME, tier)) => Ok(Self { tier: Some(tier.parse()?) }),
            _ => Err(()),
        }
    }
}

/// Why the cache cannot be started; None if it can.
pub fn obstacle(programs: &Path) -> Option<String> {
    let is_there = program_path(programs, PROGRAM).is_file();
    (!is_there).then(|| format!("{PROGRAM} is not built; run: make cache"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::Contender;

    #[test]
    fn names_go_there_and_back() {
        for name in ["cache", "cache:flash", "cache:dram", "cache:emulated:xl-flash-slc"] {
            assert_eq!(name.parse::<Contender>().unwrap().to_string(), name);
        }
        for wrong in ["cache:", "cache:tape", "cachet", "cache:emulated:"] {
            assert!(wrong.parse::<InCache>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_cache_has_its_part_of_its_own_footprint() {
        let words = |name: &str| name.parse::<InCache>().unwrap().words(1_000_000_000, 75, "/d/f");
        let number = |words: &[String], flag: &str| -> u64 {
            let at = words.iter().position(|word| word == flag).expect("it is there");
            words[at + 1].parse().expect("a number")
        };
        let far = words("cache:flash");
        assert_eq!(number(&far, "--dram"), 1_070_000_000 / 4 * 3);
        assert!(number(&far, "--size") > 1_070_000_000 && number(&far, "--keys") > 1_000_000);
        assert!(far[3].starts_with("flash:/d/f,size="), "{far:?}");
        let near = words("cache");
        assert!(number(&near, "--dram") > 2 * number(&near, "--size"), "{near:?}");
    }
}
