// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The commands for join tokens and certificates; and `join`, which runs on the joining machine, without an account.
//!
//! `join` makes the key, which never leaves the machine. It checks the manager against the fingerprint in the token,
//! and only then sends the token.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use aquifer_authority::{JoinToken, Request as SigningRequest, replace};
use aquifer_fabric_args::{CreateToken, DryRun, EndKind, Join, TokenCommand, Tokens};
use aquifer_manager_client::{Client, Failure, Request, collection, failed, usage};
use aquifer_terminal::Output;
use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access, geteuid};
use serde_json::{Value, json};

use crate::change::{ask_or_plan, plan_text};
use crate::show::{Session, cell};

const TOKENS: &str = "/redfish/v1/Oem/Aquifer/JoinTokens";
const CERTIFICATES: &str = "/redfish/v1/Oem/Aquifer/Certificates";
const JOIN: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Join";
/// Maximum length of the input whose first line is a token.
const TOKEN_INPUT_MAX: u64 = 4096;
/// The file with the key and its certificates.
const CREDENTIALS: &str = "credentials.pem";
const AUTHORITY: &str = "ca.pem";
const REVOCATIONS: &str = "revocations.pem";

const fn word(kind: EndKind) -> &'static str {
    match kind {
        EndKind::Donor => "donor",
        EndKind::Host => "host",
        EndKind::Manager => "manager",
    }
}

pub(crate) fn tokens(session: &mut Session<'_>, args: &Tokens) -> Result<(), Failure> {
    match &args.command {
        None => {
            let answer = collection(&session.client, TOKENS, "")?;
            session.show_table(&answer, &["ID", "KIND", "NAME", "USES", "EXPIRES", "BY"], |answer| {
                let members = answer["Members"].as_array().into_iter().flatten();
                let row = |one: &Value| {
                    ["Id", "Kind", "EndName", "UsesLeft", "Expires", "CreatedBy"].map(|name| cell(&one[name]))
                };
                members.map(|one| row(one).to_vec()).collect()
            })
        }
        Some(TokenCommand::Certificates(_)) => certificates(session),
        Some(TokenCommand::Create(args)) => create(session, args),
        Some(TokenCommand::Revoke { serial, dry_run }) => revoke(session, serial, *dry_run),
        Some(TokenCommand::Delete { id, dry_run }) => {
            let path = format!("{TOKENS}/{id}");
            let request = Request { method: "DELETE", path: &path, ..Request::default() };
            let Some(answer) = ask_or_plan(session, request, *dry_run)? else { return Ok(()) };
            session.show(&answer, |_| format!("token {id} is deleted\n"))
        }
    }
}

fn create(session: &mut Session<'_>, args: &CreateToken) -> Result<(), Failure> {
    let body = json!({
        "Kind": word(args.kind), "EndName": args.name, "Addresses": args.addresses, "ExpiresSeconds": args.expires,
        "Uses": args.uses,
    });
    let Some(answer) = ask_or_plan(session, Request::post(TOKENS, body), args.dry_run)? else { return Ok(()) };
    let none = || failed("the answer has no token; check --url");
    let token = answer["Token"].as_str().ok_or_else(none)?.to_owned();
    session.show(&answer, |_| format!("{token}\n"))
}

fn certificates(session: &mut Session<'_>) -> Result<(), Failure> {
    let answer = collection(&session.client, CERTIFICATES, "")?;
    session.show_table(&answer, &["SERIAL", "KIND", "NAME", "UNTIL", "REVOKED", "AUTHORITY"], |answer| {
        let members = answer["Members"].as_array().into_iter().flatten();
        let row = |one: &Value| {
            let authority = if one["IsOfOldAuthority"] == true { "old" } else { "" };
            let row = ["Id", "Kind", "EndName", "ValidNotAfter", "Revoked"].map(|name| cell(&one[name]));
            row.into_iter().chain([authority.to_owned()]).collect()
        };
        members.map(row).collect()
    })
}

fn revoke(session: &mut Session<'_>, serial: &str, dry_run: DryRun) -> Result<(), Failure> {
    let path = format!("{CERTIFICATES}/{serial}/Actions/AquiferCertificate.Revoke");
    let Some(answer) = ask_or_plan(session, Request::post(&path, json!({})), dry_run)? else { return Ok(()) };
    session.show(&answer, |_| format!("certificate {serial} is revoked\n"))
}

/// Reads the token from the argument, the variable or standard input.
fn token(args: &Join) -> Result<JoinToken, Failure> {
    let text = match (&args.token, args.token_stdin) {
        (Some(token), _) => token.clone(),
        (None, true) => {
            let mut text = String::new();
            io::stdin()
                .take(TOKEN_INPUT_MAX)
                .read_to_string(&mut text)
                .map_err(|error| failed(format!("the token cannot be read: {error}; pipe it to --token-stdin")))?;
            text.lines().next().unwrap_or_default().to_owned()
        }
        (None, false) => return Err(usage("no join token was given; pipe it to --token-stdin, or give --token")),
    };
    text.parse().map_err(usage)
}

pub(crate) fn join(out: &mut dyn io::Write, json: bool, args: &Join) -> Result<(), Failure> {
    let token = token(args)?;
    let client = Client::pinned(&format!("https://{}", args.manager), &token.pin)?;
    check_free(&args.out, args.replace)?;
    if args.dry_run.dry_run {
        return rehearse(&mut Session { client, json, out, output: Output::default() }, args);
    }
    prepare(&args.out)?;
    let request = SigningRequest::new().map_err(failed)?;
    let body = json!({ "Token": token.reveal(), "CertificateSigningRequest": request.pem() });
    let answer = client.ask(&Request::post(JOIN, body))?.body;
    let text = |name: &str| {
        let none = || failed(format!("the answer has no {name}; is {} a fabric manager?", args.manager));
        answer[name].as_str().ok_or_else(none)
    };
    let chain = text("CertificateString")?;
    // Writes the key's file last: once it exists, the machine has joined.
    write(&args.out.join(AUTHORITY), text("Authority")?)?;
    write(&args.out.join(REVOCATIONS), text("RevocationList")?)?;
    write(&args.out.join(CREDENTIALS), &request.credentials(chain))?;
    let mut session = Session { client, json, out, output: Output::default() };
    let place = args.out.display().to_string();
    session.show(&answer, |answer| {
        let (kind, name, until) = (cell(&answer["Kind"]), cell(&answer["EndName"]), cell(&answer["ValidNotAfter"]));
        format!("{kind} {name} has joined; {place}/{CREDENTIALS} is valid until {until}, and is renewed before that\n")
    })
}

/// Shows what a join would do, and checks what can be checked without using the token: who the manager is, and whether
/// files can be written. Changes nothing.
fn rehearse(session: &mut Session<'_>, args: &Join) -> Result<(), Failure> {
    let existing = args.out.ancestors().map(or_here).find(|path| path.exists()).unwrap_or(Path::new("/"));
    let usable = match existing.is_dir() {
        true => access(existing, AccessFlags::W_OK | AccessFlags::X_OK).map_err(io::Error::from),
        false => Err(ErrorKind::NotADirectory.into()),
    };
    usable.map_err(|error| {
        let (out, existing) = (args.out.display(), existing.display());
        failed(format!("{out} cannot be used: {existing}: {error}; name another directory with --out"))
    })?;
    // A connection is made only with a manager of the authority that the token names.
    session.client.ask(&Request::get("/redfish/v1"))?;
    let (out, manager) = (args.out.display(), &args.manager);
    let change = format!("+ write {CREDENTIALS}, {AUTHORITY} and {REVOCATIONS} to {out}, signed by {manager}");
    let remark = "only the join itself shows whether the token can still be used";
    let plan = json!({ "Changes": [change], "Remarks": [remark] });
    session.show(&plan, plan_text)
}

/// Refuses a directory that has a certificate already, unless that is to be replaced.
fn check_free(out: &Path, replaces: bool) -> Result<(), Failure> {
    if replaces || !out.join(CREDENTIALS).exists() {
        return Ok(());
    }
    Err(failed(format!(
        "{} has a certificate already; add --replace, or name another directory with --out",
        out.display()
    )))
}

/// Makes the directory, and checks that files can be written there, before the token is used.
fn prepare(out: &Path) -> Result<(), Failure> {
    let shown = out.display();
    let failure = |error: io::Error| {
        failed(format!("{shown} cannot be used: {error}; name a directory with --out in which files can be written"))
    };
    make(out).map_err(failure)?;
    let probe = out.join("joining");
    replace(&probe, "").and_then(|()| fs::remove_file(&probe)).map_err(failure)
}

/// Makes the directory, which nobody but its owner can enter. Those above it can be entered by all: other services have
/// their directories there, too.
fn make(out: &Path) -> io::Result<()> {
    let above = above(out);
    if !above.exists() {
        make_for_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(out) {
        Ok(()) => give(out, above),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && out.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

fn make_for_all(directory: &Path) -> io::Result<()> {
    let above = above(directory);
    if !above.exists() {
        make_for_all(above)?;
    }
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

fn above(path: &Path) -> &Path {
    path.parent().map_or(Path::new("."), or_here)
}

/// The parent of a name without a slash is the current directory.
fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

/// Gives what root has just made to the owner of the directory that it is in: a donor or an agent reads it there, and
/// renews it. That owner may put something else in its place meanwhile, so only root's own file, under no other name,
/// is given away.
fn give(made: &Path, directory: &Path) -> io::Result<()> {
    let owner = fs::metadata(directory)?;
    if !geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(made)?;
    let found = file.metadata()?;
    if found.uid() != 0 || (found.is_file() && found.nlink() != 1) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "another user has replaced it"));
    }
    fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    File::sync_all(&file)
}

/// Lets a group read a file that was just made, under no other name.
fn show_group(made: &Path, group: u32) -> io::Result<()> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(made)?;
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != geteuid().as_raw() || found.nlink() != 1 {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "another user has replaced it"));
    }
    if found.gid() != group {
        fchown(&file, None, Some(group))?;
    }
    file.set_permissions(fs::Permissions::from_mode(0o640))
}

/// Writes a file. One that it replaces may have been readable for the group, through which programs of other users read
/// an agent's files: then the new one is, too.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let old = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    let group = old.filter(|old| old.mode() & 0o040 != 0).map(|old| old.gid());
    let placed = replace(path, text).and_then(|()| group.map_or(Ok(()), |group| show_group(path, group)));
    placed.and_then(|()| give(path, above(path))).map_err(|error| {
        failed(format!("{} cannot be written: {error}; free space, and join with another token", path.display()))
    })
}
