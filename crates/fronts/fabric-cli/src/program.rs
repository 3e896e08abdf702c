// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Carries out the command line: finds the session, asks, prints.

use std::io::Write;

use aquifer_fabric_args::{FabricArgs, FabricCommand};
use aquifer_manager_client::{Client, Failure, failed};
use aquifer_terminal::Output;

use crate::show::Session;
use crate::{accounts, audit, change, follow, joining, lists, serve, session, show, watch};

/// The exit code of `diff` that found differences.
const DIFFERS: u8 = 3;
/// The remedy where a command needs a session.
const LOGIN: &str = "run 'aquifer fabric login ACCOUNT'";

/// Carries out a command line, and prints to `out`, which shows what `output` says. Returns the exit code: 0, or 3 if
/// `diff` found differences or `audit --verify` damage.
pub fn run(args: &FabricArgs, out: &mut dyn Write, output: Output) -> Result<u8, Failure> {
    if let FabricCommand::Serve(args) = &args.command {
        return Err(serve::serve(args));
    }
    if let FabricCommand::Join(join) = &args.command {
        return joining::join(out, args.access.json, join).map(|()| 0);
    }
    let interval = watch::interval(&args.command)?;
    let client = Client::new(&args.access.url, args.access.ca.as_deref(), &args.access.members)?;
    let mut session = Session { client, json: args.access.json, out, output };
    if let FabricCommand::Login(args) = &args.command {
        return accounts::login(&mut session, args).map(|()| 0);
    }
    let address = session.client.address.to_string();
    let none = || failed(format!("nobody is logged in at {address}; {LOGIN}"));
    let kept = session::kept(&session.client.address)?.ok_or_else(none)?;
    session.client.token = Some(kept.token.clone());
    let shown = watch::repeat(interval, &mut session, |session| ask(session, &kept, &args.command));
    shown.map_err(|failure| match failure.needs_login {
        true => Failure { line: format!("{}; {LOGIN}", failure.line), ..failure },
        false => failure,
    })
}

fn ask(session: &mut Session<'_>, kept: &session::Session, command: &FabricCommand) -> Result<u8, Failure> {
    match command {
        FabricCommand::Accounts(args) => accounts::accounts(session, args),
        FabricCommand::Adopt(args) => change::adopt(session, *args),
        FabricCommand::Apply(args) => change::apply(session, args),
        FabricCommand::Audit(args) => return audit::audit(session, args),
        FabricCommand::Bind(args) => change::bind(session, args),
        FabricCommand::Create(args) => change::create(session, args),
        FabricCommand::DeclareGone(args) => change::declare_gone(session, args),
        FabricCommand::Devices(_) => lists::devices(session),
        FabricCommand::Ports(_) => lists::ports(session),
        FabricCommand::Diff(args) => {
            return change::diff(session, args).map(|is_other| if is_other { DIFFERS } else { 0 });
        }
        FabricCommand::Donors(_) => lists::donors(session),
        FabricCommand::Drain(args) => change::drain(session, args),
        FabricCommand::Events(args) => follow::events(session, args),
        FabricCommand::Export => show::export(session),
        FabricCommand::Grow(args) => change::resize(session, args, true),
        FabricCommand::Hosts(_) => lists::hosts(session),
        FabricCommand::Logout => accounts::logout(session, kept),
        FabricCommand::Move(args) => change::move_volume(session, args),
        FabricCommand::Plan(args) => change::plan(session, args),
        FabricCommand::Pools(_) => lists::pools(session),
        FabricCommand::Release(args) => change::release(session, args),
        FabricCommand::Shrink(args) => change::resize(session, args, false),
        FabricCommand::Status(args) => show::status(session, args),
        FabricCommand::Tasks(_) => lists::tasks(session),
        FabricCommand::Token(args) => joining::tokens(session, args),
        FabricCommand::Unbind(args) => change::unbind(session, args),
        FabricCommand::Volumes(_) => lists::volumes(session),
        FabricCommand::Zones(_) => lists::zones(session),
        // `run` has carried them out.
        FabricCommand::Join(_) | FabricCommand::Login(_) | FabricCommand::Serve(_) => Ok(()),
    }
    .map(|()| 0)
}
