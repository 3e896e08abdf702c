// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer fmapi`: starts the program that speaks to CXL switches, with the arguments that this command has checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `fmapi-args`). `crates/fronts/fmapi-cli`
//! does the rest.

use std::process;

use crate::companion::FMAPI;
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "fmapi";

/// Replaces this process with the program, whose exit status is that of `aquifer fmapi`.
pub fn fmapi() -> Result<process::ExitCode, Failure> {
    FMAPI.replace_command(NAME)
}
