// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line of `aquifer fabric`, without the code that carries it out.
//!
//! `aquifer fabric` checks its arguments and then starts the program `aquifer-fabric` with them. Both parse them with
//! this table, which is also the source of help, completions and the manual.

#![forbid(unsafe_code)]

mod args;

pub use args::account::{AccountCommand, Accounts, AddAccount, ChangeAccount, Login, PasswordFrom, Role};
pub use args::change::{
    Apply, Bind, Class, Create, DeclareGone, Drain, DryRun, Kind, Move, OfVolume, Ranges, Release, Resize, Spread,
    redundancy,
};
pub use args::joining::{CreateToken, EndKind, Join, TokenCommand, Tokens};
pub use args::watch::Watch;
pub use args::{Audit, Compare, Events, FabricArgs, FabricCommand, ManagerAccess, Serve, Status};
