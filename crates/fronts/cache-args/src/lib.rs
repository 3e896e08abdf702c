// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of `aquifer cache`, without the code that carries it out.
//!
//! `aquifer cache` checks its arguments and then starts the program `aquifer-cache` with them. Both parse them with
//! this table, which is also the source of help, completions and the manual.

#![forbid(unsafe_code)]

mod args;

pub use args::CacheArgs;
