// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Join tokens, the requests of joining machines, and the certificates that they received.

use std::collections::BTreeSet;

use aquifer_authority::{EXPIRES_SECONDS_MAX, JoinToken, Kind, Subject, TokenRecord, USES_MAX};
use aquifer_fabric::Millis;
use serde_json::{Value, json};

use super::answer::{Answer, Problem};
use super::collection::collection;
use super::service::Call;
use super::{date, now};
use crate::issuance::{CERTIFICATES, Issuance, Issued, TOKENS, validity};
use crate::manager_store::Entry;
use crate::sessions::NotAllowed;

const TOKENS_PATH: &str = "/redfish/v1/Oem/Aquifer/JoinTokens";
const CERTIFICATES_PATH: &str = "/redfish/v1/Oem/Aquifer/Certificates";
/// The default lifetime of a token.
const EXPIRES_SECONDS: u64 = 3600;

fn issuance<'a>(call: &Call<'a>) -> Result<&'a std::sync::Arc<Issuance>, Problem> {
    let none = || {
        let remedy = "add [ca] to its configuration, or sign certificates with your own authority";
        Problem::new(409, "AquiferFabric.1.0.NoAuthority", "this manager has no authority", remedy)
    };
    call.service.issuance.as_ref().ok_or_else(none)
}

fn line(status: u16, id: &'static str, line: &str) -> Problem {
    let (message, remedy) = line.split_once("; ").unwrap_or((line, "look at the manager's log"));
    Problem::new(status, id, message, remedy)
}

fn token_body(id: &str, record: &TokenRecord) -> Value {
    json!({
        "@odata.id": format!("{TOKENS_PATH}/{id}"), "@odata.type": "#AquiferJoinToken.v1_0_0.AquiferJoinToken",
        "Id": id, "Name": "Join token", "Kind": record.subject.kind.word(), "EndName": record.subject.name,
        "Names": record.subject.names, "CreatedTime": date(record.created), "Expires": date(record.expires),
        "UsesLeft": record.uses_left, "CreatedBy": record.by, "IsUsable": record.uses_left > 0 && record.expires > now(),
    })
}

fn all_tokens(call: &Call<'_>) -> Result<Vec<(String, TokenRecord)>, Problem> {
    call.service.errand(|store| store.all::<TokenRecord>(TOKENS))
}

pub(super) fn tokens(call: &Call<'_>) -> Result<Answer, Problem> {
    let all = all_tokens(call)?;
    let ids: Vec<String> = all.iter().map(|(id, _)| id.clone()).collect();
    let body = |id: &str| all.iter().find(|(found, _)| found == id).map(|(id, record)| token_body(id, record));
    let body = collection(TOKENS_PATH, "AquiferJoinTokenCollection", "Join tokens", &call.query, &ids, body);
    Ok(Answer::of(200, body))
}

pub(super) fn token(call: &Call<'_>) -> Result<Answer, Problem> {
    let all = all_tokens(call)?;
    let found = all.iter().find(|(id, _)| id == call.name());
    found.map(|(id, record)| Answer::of(200, token_body(id, record))).ok_or_else(|| Problem::not_found(call.path))
}

/// Returns the number of a property, within bounds.
fn number(call: &Call<'_>, name: &str, default: u64, max: u64) -> Result<u64, Problem> {
    match call.body.get(name).and_then(Value::as_u64).unwrap_or(default) {
        number if (1..=max).contains(&number) => Ok(number),
        number => Err(Problem::value(name, format!("{number} is outside 1 to {max}; send a number within"))),
    }
}

pub(super) fn add_token(call: &Call<'_>) -> Result<Answer, Problem> {
    let issuance = issuance(call)?;
    let word = call.text("Kind").unwrap_or_default();
    let kind = Kind::named(word).ok_or_else(|| {
        Problem::value("Kind", format!("'{}' is not a kind; send donor, host or manager", word.escape_default()))
    })?;
    let texts = call.body.get("Addresses").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let more: Option<Vec<String>> = texts.iter().map(|one| one.as_str().map(str::to_owned)).collect();
    let more =
        more.ok_or_else(|| Problem::value("Addresses", "it has an element that is not a string; send strings"))?;
    let subject = Subject::new(kind, call.text("EndName").unwrap_or_default(), &issuance.config.domain, &more)
        .map_err(|not| Problem::value("EndName", not))?;
    let seconds = number(call, "ExpiresSeconds", EXPIRES_SECONDS, EXPIRES_SECONDS_MAX)?;
    let uses = number(call, "Uses", 1, u64::from(USES_MAX))?;
    let created = now();
    let expires = Millis(created.0 + seconds * 1000);
    if call.is_dry_run() {
        issuance.pin().map_err(|why| line(503, "Base.1.18.ServiceTemporarilyUnavailable", &why))?;
        let room = call.service.errand(move |store| Issuance::superfluous_tokens(store, created))?;
        room.map_err(|why| line(409, "Base.1.18.CreateLimitReachedForResource", &why))?;
        let (names, times) = (subject.names.join(", "), if uses == 1 { "use" } else { "uses" });
        let what = format!("create token for {subject} ({names}) with {uses} {times}, until {}", date(expires));
        return Ok(call.planned([what]));
    }
    let record = |secret_hash| TokenRecord {
        subject,
        secret_hash,
        created,
        expires,
        uses_left: u32::try_from(uses).unwrap_or(1),
        by: call.who().to_owned(),
    };
    let (token, record) =
        issuance.token(record).map_err(|why| line(503, "Base.1.18.ServiceTemporarilyUnavailable", &why))?;
    let mut body = token_body(&token.id, &record);
    let (issuance, id) = (std::sync::Arc::clone(issuance), token.id.clone());
    let kept = call.service.errand(move |store| issuance.keep_token(store, &id, &record, created))?;
    kept.map_err(|why| line(409, "Base.1.18.CreateLimitReachedForResource", &why))?;
    body["Token"] = token.reveal().into();
    Ok(Answer::of(201, body).with("location", format!("{TOKENS_PATH}/{}", token.id)))
}

pub(super) fn delete_token(call: &Call<'_>) -> Result<Answer, Problem> {
    let (id, who, is_dry_run) = (call.name().to_owned(), call.who().to_owned(), call.is_dry_run());
    let what = format!("delete token {id}");
    let entry = Entry::new(who, what.clone());
    let is_known = call.service.errand(move |store| {
        let key = format!("{TOKENS}{id}");
        let is_key = is_digits(&id);
        if !is_key || store.one::<TokenRecord>(&key)?.is_none() {
            return Ok(false);
        }
        if !is_dry_run {
            store.keep(&[(key, None)], &[entry], now())?;
        }
        Ok(true)
    })?;
    match (is_known, is_dry_run) {
        (false, _) => Err(Problem::not_found(call.path)),
        (true, false) => Ok(Answer::empty()),
        (true, true) => Ok(call.planned([what])),
    }
}

/// Lets a machine join. The machine has no account; its token admits it, so the limit for each address is applied
/// before the token is read.
pub(super) fn join(call: &Call<'_>) -> Result<Answer, Problem> {
    let issuance = std::sync::Arc::clone(issuance(call)?);
    issuance.begin(call.request.from, now()).map_err(NotAllowed::TooMany)?;
    let denied = |why: &str| line(403, "AquiferFabric.1.0.NotAdmitted", why);
    let token: JoinToken = call
        .text("Token")
        .unwrap_or_default()
        .parse()
        .map_err(|not: aquifer_authority::NotAToken| denied(&not.to_string()))?;
    let request = call.text("CertificateSigningRequest").unwrap_or_default().to_owned();
    let (authority, list) = (issuance.trusted(), issuance.current_list());
    let joined = call.service.errand(move |store| issuance.join(store, &token, &request, now()))?;
    let (subject, signed) = joined.map_err(|why| denied(&why))?;
    Ok(Answer::of(
        200,
        json!({
            "@odata.type": "#AquiferJoin.v1_0_0.AquiferJoin", "Id": signed.serial, "Name": "Certificate",
            "CertificateString": signed.chain, "CertificateType": "PEM", "Authority": authority, "RevocationList": list,
            "Kind": subject.kind.word(), "EndName": subject.name, "Names": subject.names,
            "ValidNotAfter": validity(&signed.chain).map(|validity| date(validity.until)),
        }),
    ))
}

/// Returns whether a text from a path can be a part of a key: a serial number, or a token's first part.
fn is_digits(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn certificate_body(serial: &str, issued: &Issued, outstanding: &BTreeSet<String>) -> Value {
    let path = format!("{CERTIFICATES_PATH}/{serial}");
    json!({
        "@odata.id": path, "@odata.type": "#AquiferCertificate.v1_0_0.AquiferCertificate",
        "Id": serial, "Name": "Certificate", "SerialNumber": serial, "Kind": issued.subject.kind.word(),
        "EndName": issued.subject.name, "Names": issued.subject.names, "ValidNotBefore": date(issued.from),
        "ValidNotAfter": date(issued.until), "IsRenewal": issued.is_renewal, "Revoked": issued.revoked.map(date),
        "IsOfOldAuthority": outstanding.contains(serial),
        "Actions": { "#AquiferCertificate.Revoke": { "target": format!("{path}/Actions/AquiferCertificate.Revoke") } },
    })
}

/// Returns the certificates that must be renewed before the old authority is dropped.
fn outstanding(call: &Call<'_>, all: &[(String, Issued)]) -> BTreeSet<String> {
    call.service.issuance.as_ref().map(|issuance| issuance.outstanding(all, now())).unwrap_or_default()
}

pub(super) fn certificates(call: &Call<'_>) -> Result<Answer, Problem> {
    let all = call.service.errand(|store| store.all::<Issued>(CERTIFICATES))?;
    let ids: Vec<String> = all.iter().map(|(serial, _)| serial.clone()).collect();
    let old = outstanding(call, &all);
    let body = |id: &str| {
        let found = all.iter().find(|(found, _)| found == id);
        found.map(|(id, issued)| certificate_body(id, issued, &old))
    };
    let body = collection(CERTIFICATES_PATH, "AquiferCertificateCollection", "Certificates", &call.query, &ids, body);
    Ok(Answer::of(200, body))
}

pub(super) fn certificate(call: &Call<'_>) -> Result<Answer, Problem> {
    let all = call.service.errand(|store| store.all::<Issued>(CERTIFICATES))?;
    let found = all.iter().find(|(serial, _)| serial == call.name());
    let old = outstanding(call, &all);
    let found = found.map(|(serial, issued)| Answer::of(200, certificate_body(serial, issued, &old)));
    found.ok_or_else(|| Problem::not_found(call.path))
}

pub(super) fn revoke(call: &Call<'_>) -> Result<Answer, Problem> {
    let issuance = std::sync::Arc::clone(issuance(call)?);
    let (serial, who) = (call.name().to_owned(), call.who().to_owned());
    if !is_digits(&serial) {
        return Err(Problem::not_found(call.path));
    }
    if call.is_dry_run() {
        return plan_revocation(call, &serial);
    }
    let revoked = call.service.errand(move |store| issuance.revoke(store, &serial, &who, now()))?;
    let is_known = revoked.map_err(|why| {
        let why = format!("the certificate is revoked, and the file of the list cannot be written: {why}");
        line(503, "Base.1.18.ServiceTemporarilyUnavailable", &why)
    })?;
    if is_known { Ok(Answer::empty()) } else { Err(no_certificate()) }
}

fn no_certificate() -> Problem {
    line(404, "Base.1.18.ResourceNotFound", "there is no such certificate; list them")
}

/// Answers what a revocation would do: nothing, if the certificate is revoked already.
fn plan_revocation(call: &Call<'_>, serial: &str) -> Result<Answer, Problem> {
    let key = format!("{CERTIFICATES}{serial}");
    let issued = call.service.errand(move |store| store.one::<Issued>(&key))?.ok_or_else(no_certificate)?;
    let change = issued.revoked.is_none().then(|| format!("revoke certificate {serial} of {}", issued.subject));
    Ok(call.planned(change))
}
