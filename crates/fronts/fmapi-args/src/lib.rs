// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of `aquifer fmapi`, without the code that carries it out.
//!
//! `aquifer fmapi` checks its arguments and then starts the program `aquifer-fmapi` with them. Both parse them with
//! this table, which is also the source of help, completions and the manual.

#![forbid(unsafe_code)]

mod args;

pub use args::{Allocate, At, Bench, Bind, Check, FmapiArgs, FmapiCommand, Format, Log, Peer, Removal, Unbind};
