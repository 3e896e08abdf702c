// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer agent`: starts the program that gives programs of this host their volumes, with the arguments that this
//! command has checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `agent-args`). `crates/pool/agent` does the
//! rest.

use std::process;

use crate::companion::AGENT;
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "agent";

/// Replaces this process with the program, whose exit status is that of `aquifer agent`.
pub fn agent() -> Result<process::ExitCode, Failure> {
    AGENT.replace_command(NAME)
}
