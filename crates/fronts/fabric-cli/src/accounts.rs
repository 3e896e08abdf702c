// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sessions and accounts. Passwords come from standard input or the environment, never from an argument or a prompt.

use std::env;
use std::io::{self, Read};

use aquifer_fabric_args::{AccountCommand, Accounts, AddAccount, ChangeAccount, Login, Role};
use aquifer_manager_client::{Failure, Request, collection, failed, usage};
use serde_json::{Map, Value, json};

use crate::change::ask_or_plan;
use crate::session::{self, forget, keep};
use crate::show::{Session, cell};

const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
/// The variable with the password.
const VARIABLE: &str = "AQUIFER_FABRIC_PASSWORD";
/// Longest input of which the first line is a password. The manager takes 256 bytes.
const PASSWORD_INPUT_MAX: u64 = 4096;

/// Returns the password: the first line of standard input, or the variable.
fn password(from_stdin: bool) -> Result<String, Failure> {
    let missing = |what: &str| usage(format!("{what}; pipe it to --password-stdin, or set {VARIABLE}"));
    if !from_stdin {
        let value = env::var_os(VARIABLE).ok_or_else(|| missing("no password was given"))?;
        return value.into_string().map_err(|_| missing("the password is not UTF-8"));
    }
    let mut text = String::new();
    io::stdin()
        .take(PASSWORD_INPUT_MAX)
        .read_to_string(&mut text)
        .map_err(|error| failed(format!("the password cannot be read: {error}; pipe it to --password-stdin")))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(missing("standard input has no password")),
    }
}

pub(crate) fn login(session: &mut Session<'_>, args: &Login) -> Result<(), Failure> {
    let password = password(args.password.password_stdin)?;
    let body = json!({ "UserName": args.account, "Password": password });
    let answer = session.client.ask(&Request::post(SESSIONS, body))?;
    let (Some(token), Some(path)) = (answer.token, answer.location) else {
        return Err(failed("the answer has no token; check --url"));
    };
    let url = session.client.address.to_string();
    let account = args.account.to_string();
    keep(&session.client.address, &session::Session { url: url.clone(), account: account.clone(), path, token })?;
    session.show(&answer.body, |_| format!("{account} is logged in at {url}\n"))
}

/// Ends the session at the manager, and forgets its token even if the manager no longer knows it.
pub(crate) fn logout(session: &mut Session<'_>, kept: &session::Session) -> Result<(), Failure> {
    let request = Request { method: "DELETE", path: &kept.path, ..Request::default() };
    let ended = session.client.ask(&request);
    forget(&session.client.address)?;
    let answer = ended?;
    session.show(&answer.body, |_| format!("{} is logged out of {}\n", kept.account, kept.url))
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Administrator => "Administrator",
        Role::Operator => "Operator",
        Role::ReadOnly => "ReadOnly",
    }
}

fn row(account: &Value) -> Vec<String> {
    ["Id", "RoleId", "Enabled"].map(|name| cell(&account[name])).to_vec()
}

const TITLES: [&str; 3] = ["ACCOUNT", "ROLE", "ENABLED"];

pub(crate) fn accounts(session: &mut Session<'_>, args: &Accounts) -> Result<(), Failure> {
    match &args.command {
        None => {
            let answer = collection(&session.client, ACCOUNTS, "")?;
            session.show_table(&answer, &TITLES, |answer| {
                answer["Members"].as_array().into_iter().flatten().map(row).collect()
            })
        }
        Some(AccountCommand::Add(args)) => add(session, args),
        Some(AccountCommand::Change(args)) => change(session, args),
        Some(AccountCommand::Remove { account, dry_run }) => {
            let path = format!("{ACCOUNTS}/{account}");
            let request = Request { method: "DELETE", path: &path, ..Request::default() };
            let Some(answer) = ask_or_plan(session, request, *dry_run)? else { return Ok(()) };
            session.show(&answer, |_| format!("account {account} is removed\n"))
        }
    }
}

fn add(session: &mut Session<'_>, args: &AddAccount) -> Result<(), Failure> {
    let password = password(args.password.password_stdin)?;
    let body = json!({ "UserName": args.account, "Password": password, "RoleId": name(args.role) });
    let Some(answer) = ask_or_plan(session, Request::post(ACCOUNTS, body), args.dry_run)? else { return Ok(()) };
    session.show_table(&answer, &TITLES, |account| vec![row(account)])
}

fn change(session: &mut Session<'_>, args: &ChangeAccount) -> Result<(), Failure> {
    let mut body = Map::new();
    body.extend(args.role.map(|role| ("RoleId".to_owned(), name(role).into())));
    body.extend(args.enabled.map(|enabled| ("Enabled".to_owned(), enabled.into())));
    if args.password_stdin {
        body.insert("Password".to_owned(), password(true)?.into());
    }
    let path = format!("{ACCOUNTS}/{}", args.account);
    let request = Request { method: "PATCH", ..Request::post(&path, Value::Object(body)) };
    let Some(answer) = ask_or_plan(session, request, args.dry_run)? else { return Ok(()) };
    session.show_table(&answer, &TITLES, |account| vec![row(account)])
}
