// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer cache`: starts the program that serves Redis clients, with the arguments that this command has checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `cache-args`). `crates/fronts/cache` does
//! the rest.

use std::process;

use crate::companion::CACHE;
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "cache";

/// Replaces this process with the program, whose exit status is that of `aquifer cache`.
pub fn cache() -> Result<process::ExitCode, Failure> {
    CACHE.replace_command(NAME)
}
