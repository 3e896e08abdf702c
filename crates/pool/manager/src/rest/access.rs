// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Who may do what: sessions, accounts, roles.

use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::service::{Call, Request, Service};
use super::{date, now};
use crate::account_changes::Pending;
use crate::accounts::{Role, check_password, hash, verify};
use crate::first_account::ADMIN;
use crate::sessions::{AccountChange, NotAllowed, Who};

const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";
const ACCOUNTS: &str = "/redfish/v1/AccountService/Accounts";
const ROLES: &str = "/redfish/v1/AccountService/Roles";

/// Returns the caller of a request, by its token or by name and password (Basic).
pub(super) fn recognise(service: &Service, request: &Request) -> Result<Who, Problem> {
    if let Some(token) = request.header("x-auth-token") {
        return Ok(service.sessions().recognise(token, now())?);
    }
    let basic = request.header("authorization").and_then(|value| value.strip_prefix("Basic "));
    let decoded = basic.and_then(base64).and_then(|bytes| String::from_utf8(bytes).ok());
    match decoded.as_deref().and_then(|pair| pair.split_once(':')) {
        Some((name, password)) => log_in(service, request, name, password),
        None => Err(NotAllowed::Token.into()),
    }
}

/// Checks a password, within the limits of strangers.
fn log_in(service: &Service, request: &Request, name: &str, password: &str) -> Result<Who, Problem> {
    let account = service.sessions().begin(request.from, name, now())?;
    // Hashing takes long, so it is outside the lock.
    let mut permit = service.hashing.begin().ok_or(NotAllowed::Busy)?;
    let is_right = verify(account.as_ref(), password, &mut permit.memory);
    drop(permit);
    let ended = service.sessions().end(request.from, account, name, is_right, now());
    let entry = match ended {
        Ok(who) => return Ok(who),
        Err(entry) => entry,
    };
    if let Some(entry) = entry {
        let pending = Pending { entries: vec![entry], ..Pending::default() };
        service.keep(move |_| Ok(((), pending)))?;
    }
    Err(NotAllowed::Login.into())
}

/// Decodes Base64, as Basic uses it (RFC 7617).
fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let value = DIGITS.iter().position(|one| *one == digit)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

fn session_body(id: &str, account: &str, created: aquifer_fabric::Millis) -> Value {
    json!({
        "@odata.id": format!("{SESSIONS}/{id}"), "@odata.type": "#Session.v1_7_1.Session",
        "Id": id, "Name": "Session", "UserName": account, "CreatedTime": date(created),
    })
}

pub(super) fn login(call: &Call<'_>) -> Result<Answer, Problem> {
    let (name, password) = (call.text("UserName").unwrap_or_default(), call.text("Password").unwrap_or_default());
    let who = log_in(call.service, call.request, name, password)?;
    let account = who.name.clone();
    let (id, token) = call.service.keep(move |sessions| sessions.create(&who, now()))?;
    let answer = Answer::of(201, session_body(&id, &account, now()));
    Ok(answer.with("location", format!("{SESSIONS}/{id}")).with("x-auth-token", token))
}

/// Returns the sessions that a caller may see: an administrator all, others their own.
fn visible(call: &Call<'_>) -> Vec<(String, Value)> {
    let who = call.who.as_ref();
    let sessions = call.service.sessions();
    let all = sessions.sessions.iter();
    let mine = all
        .filter(|(_, session)| who.is_some_and(|who| who.role == Role::Administrator || who.name == session.account));
    mine.map(|(id, session)| (id.clone(), session_body(id, &session.account, session.created))).collect()
}

pub(super) fn sessions(call: &Call<'_>) -> Result<Answer, Problem> {
    let all = visible(call);
    let ids: Vec<String> = all.iter().map(|(id, _)| id.clone()).collect();
    let body = |id: &str| all.iter().find(|(found, _)| found == id).map(|(_, body)| body.clone());
    Ok(Answer::of(200, collection(SESSIONS, "SessionCollection", "Sessions", &call.query, &ids, body)))
}

pub(super) fn session(call: &Call<'_>) -> Result<Answer, Problem> {
    let found = visible(call).into_iter().find(|(id, _)| id == call.name());
    found.map(|(_, body)| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

pub(super) fn logout(call: &Call<'_>) -> Result<Answer, Problem> {
    session(call)?;
    let (id, who) = (call.name().to_owned(), call.who().to_owned());
    call.service.keep(move |sessions| sessions.delete(&id, &who))?;
    Ok(Answer::empty())
}

fn account_body(call: &Call<'_>, name: &str) -> Option<Value> {
    let sessions = call.service.sessions();
    let account = sessions.accounts.get(name)?;
    Some(json!({
        "@odata.id": format!("{ACCOUNTS}/{name}"), "@odata.type": "#ManagerAccount.v1_12_1.ManagerAccount",
        "@odata.etag": account.etag(),
        "Id": name, "Name": "Account", "UserName": name, "Password": null, "RoleId": account.role.name(),
        "Enabled": account.is_enabled, "AccountTypes": ["Redfish"],
        "Links": { "Role": { "@odata.id": format!("{ROLES}/{}", account.role.name()) } },
    }))
}

pub(super) fn accounts(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids: Vec<String> = call.service.sessions().accounts.keys().cloned().collect();
    let body = |name: &str| account_body(call, name);
    Ok(Answer::of(200, collection(ACCOUNTS, "ManagerAccountCollection", "Accounts", &call.query, &ids, body)))
}

/// Refuses access to another account, unless the caller is an administrator.
fn check_own(call: &Call<'_>) -> Result<(), Problem> {
    let who = call.who.as_ref();
    if who.is_some_and(|who| who.role == Role::Administrator || who.name == call.name()) {
        return Ok(());
    }
    let message = format!("account {} may change only itself", call.who());
    Err(Problem::new(403, "Base.1.18.InsufficientPrivilege", message, "ask an administrator"))
}

pub(super) fn account(call: &Call<'_>) -> Result<Answer, Problem> {
    check_own(call)?;
    let body = account_body(call, call.name()).ok_or_else(|| Problem::not_found(call.path))?;
    let tag = body["@odata.etag"].as_str().unwrap_or_default().to_owned();
    Ok(Answer::of(200, body).with("etag", tag))
}

/// Returns the ETag in `If-Match` that the account must still have.
fn if_match(call: &Call<'_>) -> Option<String> {
    call.request.header("if-match").map(str::to_owned)
}

fn role_of(call: &Call<'_>) -> Result<Option<Role>, Problem> {
    let Some(name) = call.text("RoleId") else { return Ok(None) };
    let unknown = || Problem::value("RoleId", "there is no such role; use ReadOnly, Operator or Administrator");
    Role::named(name).map(Some).ok_or_else(unknown)
}

/// Hashes a new password, within the limit on concurrent hashing. This takes long, so it is not the writer's. A dry run
/// only checks the password.
fn hash_new(call: &Call<'_>, password: &str) -> Result<String, NotAllowed> {
    if call.is_dry_run() {
        return check_password(password).map(|()| String::new()).map_err(NotAllowed::Invalid);
    }
    let mut permit = call.service.hashing.begin().ok_or(NotAllowed::Busy)?;
    hash(password, &mut permit.memory).map_err(NotAllowed::Invalid)
}

pub(super) fn add_account(call: &Call<'_>) -> Result<Answer, Problem> {
    let (name, password) = (call.text("UserName").unwrap_or_default(), call.text("Password").unwrap_or_default());
    let role = role_of(call)?.unwrap_or(Role::ReadOnly);
    let hash = hash_new(call, password)?;
    let (added, who) = (name.to_owned(), call.who().to_owned());
    if let Some(plan) = call.keep_or_plan(move |sessions| sessions.add_account(&added, role, &hash, &who))? {
        return Ok(plan);
    }
    let body = account_body(call, name).unwrap_or_default();
    Ok(Answer::of(201, body).with("location", format!("{ACCOUNTS}/{name}")))
}

pub(super) fn change_account(call: &Call<'_>) -> Result<Answer, Problem> {
    check_own(call)?;
    let (role, is_enabled) = (role_of(call)?, call.body.get("Enabled").and_then(Value::as_bool));
    let is_administrator = call.who.as_ref().is_some_and(|who| who.role == Role::Administrator);
    if !is_administrator && (role.is_some() || is_enabled.is_some()) {
        return Err(Problem::new(
            403,
            "Base.1.18.InsufficientPrivilege",
            "only administrators change roles",
            "ask one",
        ));
    }
    let hash = call.text("Password").map(|password| hash_new(call, password)).transpose()?;
    let change = AccountChange { hash, role, is_enabled };
    let (name, who) = (call.name().to_owned(), call.who().to_owned());
    let if_match = if_match(call);
    let plan = call.keep_or_plan(move |sessions| {
        sessions.check_match(&name, if_match.as_deref())?;
        sessions.change_account(&name, &change, &who)
    })?;
    if let Some(plan) = plan {
        return Ok(plan);
    }
    forget_first(call);
    Ok(Answer::of(200, account_body(call, call.name()).unwrap_or_default()))
}

/// Removes the file with the first password, if the first account was changed and has another one now.
fn forget_first(call: &Call<'_>) {
    // Looking takes as long as a login, with the lock of the sessions, so that nobody else may have it done.
    if call.name() == ADMIN {
        crate::first_account::forget(&call.service.sessions(), &call.service.directory);
    }
}

pub(super) fn delete_account(call: &Call<'_>) -> Result<Answer, Problem> {
    let (name, who) = (call.name().to_owned(), call.who().to_owned());
    let if_match = if_match(call);
    let plan = call.keep_or_plan(move |sessions| {
        sessions.check_match(&name, if_match.as_deref())?;
        sessions.delete_account(&name, &who)
    })?;
    if let Some(plan) = plan {
        return Ok(plan);
    }
    forget_first(call);
    Ok(Answer::empty())
}

fn role_body(name: &str) -> Option<Value> {
    let role = Role::named(name)?;
    Some(json!({
        "@odata.id": format!("{ROLES}/{name}"), "@odata.type": "#Role.v1_3_2.Role", "Id": name, "Name": name,
        "RoleId": name, "IsPredefined": true, "AssignedPrivileges": role.privileges(),
    }))
}

pub(super) fn roles(call: &Call<'_>) -> Result<Answer, Problem> {
    let ids = Role::ALL.map(|role| role.name().to_owned());
    Ok(Answer::of(200, collection(ROLES, "RoleCollection", "Roles", &call.query, &ids, role_body)))
}

pub(super) fn role(call: &Call<'_>) -> Result<Answer, Problem> {
    role_body(call.name()).map(|body| Answer::of(200, body)).ok_or_else(|| Problem::not_found(call.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_64_is_decoded() {
        assert_eq!(base64("YWRtaW46cGFzcw=="), Some(b"admin:pass".to_vec()));
        assert_eq!(base64("YW\u{e4}"), None);
    }
}
