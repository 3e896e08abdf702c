// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A CXL switch in software, as a program: the FM API over TCP and Unix sockets, and a control socket to inject
//! failures.
//!
//! The switch itself is pure (`aquifer-cxl-switch`). Here are its clock, its sockets and its threads: two for each
//! connection, one that advances the switch's time, and one that writes to standard error. `server.rs` has the threads,
//! `stderr.rs` the lines for standard error, `peer.rs` the connections, `control.rs` the commands of the control
//! socket, `args.rs` the command line.

#![forbid(unsafe_code)]

mod args;
mod control;
mod endpoint;
mod listen;
mod peer;
mod server;
mod stderr;

pub use args::{Args, DialectName, Ended, Failure, run};
pub use listen::{Sockets, serve, spawn};
pub use server::Server;
