// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of `aquifer agent`, without the code that carries it out.
//!
//! `aquifer agent` checks its arguments and then starts the program `aquifer-agentd` with them. Both parse them with
//! this table, which is also the source of help, completions and the manual.

#![forbid(unsafe_code)]

mod args;

pub use args::AgentArgs;
