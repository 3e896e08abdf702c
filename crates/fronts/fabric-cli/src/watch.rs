// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Repeats the commands that list a state, for `--watch`. Nothing else knows about it.

use std::thread;
use std::time::Duration;

use aquifer_fabric_args::{FabricCommand, TokenCommand};
use aquifer_manager_client::{Failure, usage};

use crate::show::Session;

/// Returns the time between two updates; `None` for a command that is carried out once.
pub(crate) fn interval(command: &FabricCommand) -> Result<Option<Duration>, Failure> {
    let (watch, is_list) = match command {
        FabricCommand::Accounts(args) => (args.watch, args.command.is_none()),
        FabricCommand::Devices(watch)
        | FabricCommand::Donors(watch)
        | FabricCommand::Hosts(watch)
        | FabricCommand::Pools(watch)
        | FabricCommand::Ports(watch)
        | FabricCommand::Tasks(watch)
        | FabricCommand::Volumes(watch)
        | FabricCommand::Zones(watch) => (*watch, true),
        FabricCommand::Status(args) => (args.watch, true),
        FabricCommand::Token(args) => match &args.command {
            Some(TokenCommand::Certificates(watch)) if !args.watch.watch => (*watch, true),
            command => (args.watch, command.is_none()),
        },
        _ => return Ok(None),
    };
    match (watch.watch, is_list) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(Duration::from_secs(watch.interval))),
        (true, false) => Err(usage("--watch repeats the list alone; leave it out, or write it after the last word")),
    }
}

/// Calls `show` once, or repeatedly until it fails. People get an empty line between two updates; with `--json`, each
/// line is a document.
pub(crate) fn repeat(
    interval: Option<Duration>,
    session: &mut Session<'_>,
    mut show: impl FnMut(&mut Session<'_>) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    loop {
        let code = show(session)?;
        let Some(interval) = interval else { return Ok(code) };
        if !session.json {
            session.print("\n")?;
        }
        thread::sleep(interval);
    }
}
