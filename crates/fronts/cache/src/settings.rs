// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The settings of a cache, checked: how one budget of DRAM is divided between the index and the values. Pure.

use std::fmt;
use std::net::SocketAddr;

use aquifer_cache_args::CacheArgs;

use crate::index::Index;
use crate::spans::{SPAN_BYTES, SPANS_MIN};

/// The default size of the log, in multiples of the budget.
const SIZE_PER_DRAM: u64 = 4;
/// The default number of keys: one for each of this many bytes of the log.
const BYTES_PER_KEY: u64 = 1024;
/// The largest log: what a mapping can have.
const SIZE_BYTES_MAX: u64 = 1 << 40;
/// The smallest budget of a space.
const SPACE_BYTES_MIN: u64 = 16 << 20;
/// The smallest sum of buffers: some more than what one request and its reply take, whose buffers grow by doubling.
const BUFFERS_BYTES_MIN: u64 = 128 << 20;
const MIB: u64 = 1 << 20;

/// The settings of a cache, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address to serve.
    pub listen: SocketAddr,
    /// The budget of the values' space: DRAM without the index.
    pub space_bytes: u64,
    /// The tiers, as `aquifer run` takes them.
    pub tiers: Vec<String>,
    /// Bytes of the log.
    pub size_bytes: u64,
    /// Maximum number of keys.
    pub keys_max: u64,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum size of the buffers of all connections together.
    pub buffers_max: usize,
}

/// Why settings are invalid. Its text says the cause and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsFailure {
    /// `--buffers` leaves less room than one connection can need. The number is its bytes.
    Buffers(u64),
    /// `--dram` is less than the index and the smallest space need. All numbers are bytes.
    Dram {
        /// The DRAM that was given.
        given: u64,
        /// The bytes that the index of these keys takes.
        index: u64,
    },
    /// The log would be too small or too large.
    Size {
        /// Its bytes.
        bytes: u64,
        /// `true`: `--size` was not given, and follows from `--dram`.
        is_default: bool,
    },
}

impl fmt::Display for SettingsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffers(bytes) => write!(
                f,
                "--buffers {}MiB has no room for one request and its reply; give at least {}MiB",
                bytes / MIB,
                BUFFERS_BYTES_MIN / MIB
            ),
            Self::Dram { given, index } => write!(
                f,
                "--dram {}MiB is too little for an index of {}MiB and {}MiB for values; raise --dram, or lower --keys \
                 or --size",
                given / MIB,
                index.div_ceil(MIB),
                SPACE_BYTES_MIN / MIB
            ),
            Self::Size { bytes, is_default } => {
                let (mib, min, max) = (bytes / MIB, SPANS_MIN * SPAN_BYTES / MIB, SIZE_BYTES_MAX >> 30);
                match is_default {
                    true => write!(
                        f,
                        "without --size it is {SIZE_PER_DRAM} times --dram, and {mib}MiB is out of range; give a --size \
                         of {min}MiB to {max}GiB, or another --dram"
                    ),
                    false => write!(f, "--size {mib}MiB is out of range; give {min}MiB to {max}GiB"),
                }
            }
        }
    }
}

impl std::error::Error for SettingsFailure {}

impl Settings {
    /// Checks what was typed.
    pub fn from_args(args: &CacheArgs) -> Result<Self, SettingsFailure> {
        let smallest = SPANS_MIN * SPAN_BYTES;
        let asked = args.size.map_or(args.dram.0.saturating_mul(SIZE_PER_DRAM), |size| size.0);
        let size_bytes = asked / SPAN_BYTES * SPAN_BYTES;
        if !(smallest..=SIZE_BYTES_MAX).contains(&size_bytes) {
            return Err(SettingsFailure::Size { bytes: asked, is_default: args.size.is_none() });
        }
        if args.buffers.0 < BUFFERS_BYTES_MIN {
            return Err(SettingsFailure::Buffers(args.buffers.0));
        }
        let keys_max = args.keys.unwrap_or(size_bytes / BYTES_PER_KEY);
        let index = Index::bytes_for(keys_max);
        let space_bytes = args.dram.0.saturating_sub(index);
        if space_bytes < SPACE_BYTES_MIN {
            return Err(SettingsFailure::Dram { given: args.dram.0, index });
        }
        Ok(Self {
            listen: args.listen,
            space_bytes,
            tiers: args.tier.clone(),
            size_bytes,
            keys_max,
            connections_max: args.connections as usize,
            buffers_max: args.buffers.0 as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        cache: CacheArgs,
    }

    fn settings(words: &str) -> Result<Settings, SettingsFailure> {
        let words = format!("cache --tier dram:size=1GiB {words}");
        Settings::from_args(&Probe::try_parse_from(words.split(' ')).unwrap().cache)
    }

    #[test]
    fn the_index_is_part_of_the_budget() {
        let settings = settings("--dram 1GiB --size 10GiB").unwrap();
        assert_eq!((settings.size_bytes, settings.keys_max), (10 << 30, 10 << 20));
        assert_eq!(settings.space_bytes, (1 << 30) - 30 * (10 << 20));
        assert!(settings.listen.ip().is_loopback());
    }

    #[test]
    fn the_size_follows_the_budget() {
        let settings = settings("--dram 32MiB --keys 1000").unwrap();
        assert_eq!((settings.size_bytes, settings.keys_max), (128 << 20, 1000));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        for (words, message) in [
            ("--dram 16MiB", "--dram 16MiB is too little for an index of 2MiB and 16MiB for values; raise --dram"),
            ("--dram 64MiB --buffers 1MiB", "--buffers 1MiB has no room for one request and its reply; give at least"),
            ("--dram 64MiB --size 16MiB", "--size 16MiB is out of range; give 48MiB to 1024GiB"),
            ("--dram 1MiB", "without --size it is 4 times --dram, and 4MiB is out of range; give a --size of 48MiB to"),
            ("--dram 64MiB --size 2TiB", "--size 2097152MiB is out of range; give"),
        ] {
            assert!(settings(words).unwrap_err().to_string().starts_with(message), "{words}");
        }
    }
}
