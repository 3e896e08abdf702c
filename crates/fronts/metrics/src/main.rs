// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The `aquifer-metrics` program: serves metrics over HTTP. `aquifer metrics` and `aquifer donor --metrics` start it,
//! and supply the numbers. It is a separate program, so that requests from untrusted clients are parsed in a process
//! that has neither the lent memory nor the statistics of others, and so that the command is not linked with an HTTP
//! server.
//!
//! Exit codes: 0 the command that started it has ended, or help or version; 1 it could not serve; 2 it was not started
//! by the command. Signals: SIGHUP, SIGINT and SIGTERM are blocked, because they are meant for the command: a donor
//! that is stopping is scraped until it has its memory back. This program exits when the command does.
//!
//! Threads: one. `server.rs` serves scrapers, `parent.rs` exchanges messages with the command.

#![forbid(unsafe_code)]

mod parent;
mod server;

use std::env;
use std::io::{self, stdin, stdout};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use nix::sys::signal::{SigSet, Signal};

const HELP: &str = "\
Serve metrics to Prometheus over HTTP

Started by 'aquifer metrics' and 'aquifer donor --metrics', which have the numbers; not by hand.

Usage: aquifer-metrics [--help|--version]";

fn main() -> ExitCode {
    match env::args_os().nth(1) {
        Some(word) if word == "--help" || word == "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(word) if word == "--version" || word == "-V" => {
            println!("aquifer-metrics {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Some(word) => {
            eprintln!("aquifer-metrics: unexpected argument '{}' found; see --help", word.display());
            return ExitCode::from(2);
        }
        None => {}
    }
    let Ok((listener, command)) = inherited() else {
        eprintln!("aquifer-metrics: this is not to be started by hand; use 'aquifer metrics --listen ADDRESS:PORT'");
        return ExitCode::from(2);
    };
    match serve(listener, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aquifer-metrics: no metrics are served: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the listening socket and the socket to the command. Fails if the standard streams are anything else.
fn inherited() -> io::Result<(TcpListener, UnixStream)> {
    let listener = TcpListener::from(stdin().as_fd().try_clone_to_owned()?);
    let command = UnixStream::from(stdout().as_fd().try_clone_to_owned()?);
    listener.local_addr()?;
    command.peer_addr()?;
    Ok((listener, command))
}

/// Serves until the command exits.
fn serve(listener: TcpListener, command: UnixStream) -> io::Result<()> {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]).thread_block()?;
    listener.set_nonblocking(true)?;
    command.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let (texts, parent) = parent::connect(tokio::net::UnixStream::from_std(command)?).await?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(server::accept(listener, texts));
        parent.await
    })
}
