// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer fabric`: starts the program that steers a pool of far memory, with the arguments that this command has
//! checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `fabric-args`). `crates/fronts/fabric-cli`
//! does the rest.

use std::process;

use crate::companion::FABRIC;
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "fabric";

/// Replaces this process with the program, whose exit status is that of `aquifer fabric`.
pub fn fabric() -> Result<process::ExitCode, Failure> {
    FABRIC.replace_command(NAME)
}
