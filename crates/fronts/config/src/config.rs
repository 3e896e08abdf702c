// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The configuration itself, its encoding, and the ways in which it can be invalid.

use std::ffi::CStr;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::keywords::{BlockSize, Delivery, Exchange, PolicyName};

/// The environment variable that carries the configuration.
pub const VARIABLE: &str = "AQUIFER_CONFIG";

/// The version of the object. A change of any field's name or meaning is a new version.
pub const VERSION: u32 = 6;

/// The number of eight-byte words in the ledger of a tree's budget. `aquifer-pager` defines their
/// contents.
pub const LEDGER_WORDS: usize = 4096;
/// Index of the word with the sum of the shares that the tree's processes have, in pages.
pub const LEDGER_GIVEN_WORD: usize = 0;
/// Index of the word whose first half counts events: processes sleep on it, by futex(2).
pub const LEDGER_EVENTS_WORD: usize = 1;
/// Index of the word with the budget, in pages.
pub const LEDGER_BUDGET_WORD: usize = 4;
/// Index of the word with the largest value that the budget can have, in pages.
pub const LEDGER_BUDGET_MAX_WORD: usize = 5;
/// Index of the word that says until when touches are to be sampled, in nanoseconds of the monotonic clock.
pub const LEDGER_SAMPLED_UNTIL_WORD: usize = 6;
/// The name of the ledger's segment.
pub const LEDGER_NAME: &CStr = c"aquifer-ledger";

/// Everything that the pager inside the program needs at its start. `aquifer run` checks it beforehand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The [`VERSION`] of the program that has written the object.
    pub version: u32,
    /// How much local DRAM the program's managed memory may take.
    pub dram_bytes: u64,
    /// The tiers for cold blocks, each as given to `--tier`, the fastest first. Empty: an unlinked file under
    /// `state_dir`.
    pub tiers: Vec<String>,
    /// Chooses the blocks to evict.
    pub policy: PolicyName,
    /// How many bytes move together.
    pub block: BlockSize,
    /// Who resolves a fault.
    pub delivery: Delivery,
    /// How pages move to and from the program's address.
    pub exchange: Exchange,
    /// Whether blocks are fetched ahead of their faults.
    pub prefetch: bool,
    /// How many shards, each with a lock of its own, the memory is divided into. `None`: as many as fit the CPUs and
    /// the budget.
    #[serde(deserialize_with = "Option::deserialize")]
    pub shards: Option<u32>,
    /// The inherited descriptor of the statistics segment. `None`: the pager creates a segment. If a program closed the
    /// descriptor before an `execve`, this number is not open, or belongs to another file.
    #[serde(deserialize_with = "Option::deserialize")]
    pub stats_fd: Option<i32>,
    /// The inherited descriptor of the budget's ledger, which the processes of the tree share: a segment of
    /// [`LEDGER_WORDS`] words, initially zero except for the budget. `None`: each process has the whole budget for
    /// itself.
    #[serde(deserialize_with = "Option::deserialize")]
    pub ledger_fd: Option<i32>,
    /// The file to which the pager records its engine's inputs, for replay; `None` if they are not recorded.
    #[serde(deserialize_with = "Option::deserialize")]
    pub record: Option<String>,
    /// Whether to time the use of the engine's lock, which costs two readings of the clock for each.
    pub time_lock: bool,
    /// The number by which donors identify the processes of this tree; it cannot be guessed. Only processes that share
    /// the statistics segment use it, because the launcher can find out when the last of those has ended. `None`:
    /// donors do not identify the tree.
    #[serde(deserialize_with = "Option::deserialize")]
    pub tree: Option<u64>,
    /// An existing, writable directory on disk for the default tier.
    pub state_dir: String,
    /// Whether memory that would escape the budget is refused instead of only reported.
    pub strict: bool,
    /// How much to print on standard error: 0 is only what the user must know.
    pub verbose: u8,
}

impl Default for Config {
    /// Returns the defaults of the command line; budget and state directory still have to be set.
    fn default() -> Self {
        Config {
            version: VERSION,
            dram_bytes: 0,
            tiers: Vec::new(),
            policy: PolicyName::default(),
            block: BlockSize::default(),
            delivery: Delivery::default(),
            exchange: Exchange::default(),
            prefetch: true,
            shards: None,
            stats_fd: None,
            ledger_fd: None,
            record: None,
            time_lock: false,
            tree: None,
            state_dir: String::new(),
            strict: false,
            verbose: 0,
        }
    }
}

impl Config {
    /// Returns one line of JSON for [`VARIABLE`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a struct of numbers and strings is always JSON")
    }

    /// Reads what [`Config::to_json`] wrote.
    pub fn from_json(text: &str) -> Result<Config, ConfigError> {
        /// Only the version, so that the error for another version names the version, not its first unknown field.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }

        // The parser quotes names as they are, line breaks included; a message is one line.
        let malformed = |error: serde_json::Error| ConfigError::Malformed {
            cause: error.to_string().replace(char::is_control, "?"),
        };
        let Versioned { version } = serde_json::from_str(text).map_err(malformed)?;
        if version != VERSION {
            return Err(ConfigError::Version { found: version });
        }
        serde_json::from_str(text).map_err(malformed)
    }

    /// Reads the environment of this process. `None`: this program was not started by `aquifer run`.
    pub fn from_environment() -> Option<Result<Config, ConfigError>> {
        match std::env::var(VARIABLE) {
            Ok(text) => Some(Config::from_json(&text)),
            Err(std::env::VarError::NotPresent) => None,
            Err(std::env::VarError::NotUnicode(_)) => {
                Some(Err(ConfigError::Malformed { cause: "it is not UTF-8".to_owned() }))
            }
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not JSON, lacks a field, has an unknown field, or a field has a value out of its range.
    Malformed {
        /// What the parser said.
        cause: String,
    },
    /// Another release has written the object.
    Version {
        /// The version in the object.
        found: u32,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Malformed { cause } => {
                write!(f, "{VARIABLE} cannot be read: {cause}; start the program with 'aquifer run', which sets it")
            }
            ConfigError::Version { found } => write!(
                f,
                "{VARIABLE} has version {found} and this library knows version {VERSION}; \
                 use 'aquifer' and its preload library from one release"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Config {
        Config {
            version: VERSION,
            dram_bytes: 300 << 20,
            tiers: vec!["dram:size=1GiB".to_owned(), "flash:/var/tmp/far,size=4GiB".to_owned()],
            policy: PolicyName::Clock,
            block: BlockSize::Bytes(131_072),
            delivery: Delivery::Signal,
            exchange: Exchange::Copy,
            prefetch: false,
            shards: Some(4),
            stats_fd: Some(100),
            ledger_fd: Some(101),
            record: Some("/tmp/record".into()),
            time_lock: true,
            tree: Some(0x1122_3344_5566_7788),
            state_dir: "/var/lib/aquifer".into(),
            strict: true,
            verbose: 2,
        }
    }

    #[test]
    fn a_written_configuration_is_read_back() {
        for config in [full(), Config::default()] {
            assert_eq!(Config::from_json(&config.to_json()), Ok(config));
        }
    }

    /// Golden: a change of this file is a change of [`VERSION`].
    #[test]
    fn the_bytes_are_pinned() {
        assert_eq!(full().to_json(), include_str!("../tests/golden/config_v6.json").trim_end());
    }

    #[test]
    fn unknown_and_missing_fields_are_refused() {
        let text = full().to_json();
        let extra = text.replacen('{', r#"{"colour":"blue","#, 1);
        assert!(Config::from_json(&extra).unwrap_err().to_string().contains("unknown field `colour`"));

        let broken_line = text.replacen('{', "{\"a\\r\\nb\":1,", 1);
        assert!(Config::from_json(&broken_line).unwrap_err().to_string().contains("`a??b`"));

        let later = text.replacen("\"version\":6", "\"version\":7,\"colour\":0", 1);
        assert_eq!(Config::from_json(&later), Err(ConfigError::Version { found: 7 }));

        let missing = text.replacen("\"verbose\":2", "\"prefetch\":true", 1);
        assert!(Config::from_json(&missing).is_err());

        let no_tier = text.replacen(r#""tiers":["dram:size=1GiB","flash:/var/tmp/far,size=4GiB"],"#, "", 1);
        assert!(Config::from_json(&no_tier).unwrap_err().to_string().contains("missing field `tiers`"));

        let odd_block = text.replacen("131072", "5000", 1);
        assert!(Config::from_json(&odd_block).unwrap_err().to_string().contains("power of two"));

        for nonsense in ["", "x", "[]", "{}", "{\"version\":\"1\"}"] {
            assert!(matches!(Config::from_json(nonsense), Err(ConfigError::Malformed { .. })), "{nonsense}");
        }
    }
}
