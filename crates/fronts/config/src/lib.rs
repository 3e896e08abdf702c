// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The configuration that `aquifer run` passes to the pager inside the program: one JSON object in one environment
//! variable.
//!
//! The two ends are built and installed together, but a preload library of another version may be found first. So the
//! object has a version, and anything that one end does not know is an error, never a guess.
//!
//! ```
//! use aquifer_config::{Config, Delivery};
//!
//! let config = Config { dram_bytes: 300 << 20, ..Config::default() };
//! let text = config.to_json();
//! assert_eq!(Config::from_json(&text).unwrap(), config);
//! assert_eq!(config.delivery, Delivery::Auto);
//! ```
//!
//! [`ordinary_memory`] is what the preload library offers to `libaquifer` in the same process.
//!
//! [`scrape`] is the protocol between the command and the program that serves its metrics.

#![forbid(unsafe_code)]

mod config;
mod keywords;
pub mod ordinary_memory;
pub mod scrape;

pub use config::{
    Config, ConfigError, LEDGER_BUDGET_MAX_WORD, LEDGER_BUDGET_WORD, LEDGER_EVENTS_WORD, LEDGER_GIVEN_WORD,
    LEDGER_NAME, LEDGER_SAMPLED_UNTIL_WORD, LEDGER_WORDS, VARIABLE, VERSION,
};
pub use keywords::{BlockSize, Budget, Delivery, Exchange, PolicyName, UnknownWord};
