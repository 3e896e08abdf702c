// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Certificates and join tokens: signs, renews and revokes certificates, and keeps their records in the store.
//!
//! The inner error of a result is a line for the machine that joins, or for the caller.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

use aquifer_authority::{Facts, JoinToken, Revocations, Signed, Subject, TokenRecord, facts, pin};
use aquifer_control::{Issuer, Refused};
use aquifer_fabric::Millis;
use serde::{Deserialize, Serialize};

use super::second::{self, Role};
use super::{DAY_MS, Issuance, locked};
use crate::accounts::random;
use crate::manager_store::{Entry, ManagerStore, ManagerStoreFailure, json};
use crate::rest::now;
use crate::writer::Posted;

/// The prefix of tokens in the store.
pub(crate) const TOKENS: &str = "token/";
/// The prefix of certificates in the store.
pub(crate) const CERTIFICATES: &str = "certificate/";
/// Maximum number of tokens. Those that are used up or expired do not count.
const TOKENS_MAX: usize = 1000;
/// How long the record of an expired certificate is kept: longer than the largest error of a clock that we allow for.
const KEPT_MS: u64 = 7 * DAY_MS;

/// The event at the end of a change of the authority.
const NONE_IS_OLD: &str = "every end has a certificate of the new authority; remove ca.old-certificate and ca.old-key \
                           at each manager, and restart it";

/// How many old records one transaction deletes.
const DELETED_AT_ONCE: usize = 100;

/// A signed certificate, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Issued {
    pub(crate) subject: Subject,
    pub(crate) from: Millis,
    pub(crate) until: Millis,
    /// `true` if it replaces an earlier one.
    pub(crate) is_renewal: bool,
    pub(crate) revoked: Option<Millis>,
    /// The fingerprint of the authority that signed it; `None` if an earlier version recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authority: Option<String>,
    /// Whether its owner has stored a newer one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_replaced: bool,
}

impl Issuance {
    /// Makes a token. Returns it with its record, which the caller stores.
    pub(crate) fn token(&self, record: impl FnOnce(String) -> TokenRecord) -> Result<(JoinToken, TokenRecord), String> {
        let token = JoinToken::new(random(), random(), &self.pin()?);
        let record = record(token.secret_hash());
        Ok((token, record))
    }

    fn issued(&self, signed: &Signed, subject: &Subject, is_renewal: bool) -> Issued {
        let (from, until) = (signed.validity.from, signed.validity.until);
        let (authority, subject) = (Some(pin(self.authority.der())), subject.clone());
        Issued { subject, from, until, is_renewal, revoked: None, authority, is_replaced: false }
    }

    /// Signs a certificate for a token's holder, and stores its record together with the token's use. The inner error
    /// is a line for the joining machine.
    pub(crate) fn join(
        &self,
        store: &mut ManagerStore,
        token: &JoinToken,
        request: &str,
        now: Millis,
    ) -> Result<Result<(Subject, Signed), String>, ManagerStoreFailure> {
        let unknown = aquifer_authority::NotAdmitted::Unknown;
        let key = format!("{TOKENS}{}", token.id);
        let found = store.one::<TokenRecord>(&key)?;
        let admitted = found.ok_or(unknown).and_then(|record| record.admit(&token.secret_hash(), now));
        let record = match admitted {
            Ok(record) => record,
            Err(not) => return Ok(Err(not.to_string())),
        };
        let subject = record.subject.clone();
        let signed = match self.authority.sign(request, &subject, self.config.days, now) {
            Ok(signed) => signed,
            Err(not) => return Ok(Err(not.to_string())),
        };
        let entry = Entry::new(
            format!("token {}", token.id),
            format!("certificate {} for {subject} ({})", signed.serial, subject.names.join(", ")),
        );
        let issued = self.issued(&signed, &subject, false);
        let values = [(key, Some(json(&record))), (format!("{CERTIFICATES}{}", signed.serial), Some(json(&issued)))];
        store.keep(&values, &[entry], now)?;
        Ok(Ok((subject, signed)))
    }

    /// Signs a new certificate for the owner of a verified one, unless that one is revoked.
    fn sign_again(
        &self,
        store: &mut ManagerStore,
        certificate: &[u8],
        request: &str,
        now: Millis,
    ) -> Result<Result<Signed, String>, ManagerStoreFailure> {
        let known = facts(certificate)
            .and_then(|facts| Some((Subject::of_names(&facts.names, &self.config.domain)?, facts.serial)));
        let Some((subject, serial)) = known else {
            return Ok(Err("the certificate is not one of this pool's authority; join again".into()));
        };
        let old = store.one::<Issued>(&format!("{CERTIFICATES}{serial}"))?;
        if old.is_some_and(|old| old.revoked.is_some()) {
            return Ok(Err(format!("certificate {serial} is revoked; join again")));
        }
        let signed = match self.authority.sign(request, &subject, self.config.days, now) {
            Ok(signed) => signed,
            Err(not) => return Ok(Err(not.to_string())),
        };
        let what = format!("certificate {} for {subject} renews {serial}", signed.serial);
        let issued = self.issued(&signed, &subject, true);
        let values = [(format!("{CERTIFICATES}{}", signed.serial), Some(json(&issued)))];
        store.keep(&values, &[Entry::new("aquifer-fabricd", what)], now)?;
        Ok(Ok(signed))
    }

    /// Stores that the owner of a certificate has stored a newer one.
    fn keep_replaced(&self, store: &mut ManagerStore, serial: &str, now: Millis) -> Result<(), ManagerStoreFailure> {
        let key = format!("{CERTIFICATES}{serial}");
        let Some(issued) = store.one::<Issued>(&key)? else { return Ok(()) };
        store.keep(&[(key, Some(json(&Issued { is_replaced: true, ..issued })))], &[], now)?;
        // A change that is over is an event.
        let is_old = self.second.as_ref().is_some_and(|second| second.role == Role::Old);
        if is_old && let Some(service) = self.service.get().and_then(Weak::upgrade) {
            let all = store.all::<Issued>(CERTIFICATES)?;
            if self.outstanding(&all, now).is_empty() {
                service.shared.events.add(now, "AuthorityReplaced", "OK", NONE_IS_OLD.into());
            }
        }
        Ok(())
    }

    /// Returns the serial numbers of valid certificates that are not of the authority that signs, and whose owners are
    /// not known to have a newer one. None before the authority changes.
    pub(crate) fn outstanding(&self, all: &[(String, Issued)], now: Millis) -> BTreeSet<String> {
        match self.second.as_ref().map(|second| second.role) {
            Some(Role::Next) => BTreeSet::new(),
            role => second::outstanding(all, &pin(self.authority.der()), role.is_some(), now),
        }
    }

    /// Returns what an operator must know about certificates of another authority than the one that signs: one line.
    pub(crate) fn about_old(&self, store: &ManagerStore, now: Millis) -> Result<Option<String>, ManagerStoreFailure> {
        let all = store.all::<Issued>(CERTIFICATES)?;
        let owners = second::owners(&all, &self.outstanding(&all, now));
        Ok(owners.map(|owners| match &self.second {
            Some(_) => format!(
                "these still have certificates of the old authority: {owners}; keep ca.old-certificate and ca.old-key \
                 until they have connected and renewed them, or have joined again"
            ),
            None => format!(
                "these have certificates of an authority that is not trusted here: {owners}; let them join again, or \
                 name that authority and its key with ca.old-certificate and ca.old-key"
            ),
        }))
    }

    /// Stores that a certificate is revoked, and makes the new list. Returns whether there is such a certificate; the
    /// inner error says that it is revoked, and that the file of the list cannot be written.
    pub(crate) fn revoke(
        &self,
        store: &mut ManagerStore,
        serial: &str,
        who: &str,
        now: Millis,
    ) -> Result<Result<bool, String>, ManagerStoreFailure> {
        let key = format!("{CERTIFICATES}{serial}");
        let Some(issued) = store.one::<Issued>(&key)? else { return Ok(Ok(false)) };
        if issued.revoked.is_none() {
            let what = format!("revoke certificate {serial} of {}", issued.subject);
            let revoked = Issued { revoked: Some(now), ..issued };
            store.keep(&[(key, Some(json(&revoked)))], &[Entry::new(who, what)], now)?;
        }
        Ok(self.read_list(store, now)?.map(|()| true))
    }

    /// Returns the keys of the tokens that can no longer be used. The inner error is a line for the caller: there are
    /// so many others that no token can be added.
    pub(crate) fn superfluous_tokens(
        store: &ManagerStore,
        now: Millis,
    ) -> Result<Result<Vec<String>, String>, ManagerStoreFailure> {
        let tokens = store.all::<TokenRecord>(TOKENS)?;
        let (over, live): (Vec<_>, Vec<_>) =
            tokens.into_iter().partition(|(_, one)| one.uses_left == 0 || one.expires.0 <= now.0);
        Ok(match live.len() < TOKENS_MAX {
            true => Ok(over.into_iter().map(|(id, _)| format!("{TOKENS}{id}")).collect()),
            false => Err(format!("there are {TOKENS_MAX} join tokens; delete one first")),
        })
    }

    /// Stores a new token. Records of certificates that expired long ago, and of tokens that can no longer be used, are
    /// deleted with it: so neither grows without a bound. The inner error is a line for the caller.
    pub(crate) fn keep_token(
        &self,
        store: &mut ManagerStore,
        id: &str,
        record: &TokenRecord,
        now: Millis,
    ) -> Result<Result<(), String>, ManagerStoreFailure> {
        let over = match Issuance::superfluous_tokens(store, now)? {
            Ok(over) => over,
            Err(why) => return Ok(Err(why)),
        };
        let past = store.all::<Issued>(CERTIFICATES)?.into_iter();
        let past = past.filter(|(_, issued)| issued.until.0.saturating_add(KEPT_MS) < now.0);
        let keys = over.into_iter().chain(past.map(|(serial, _)| format!("{CERTIFICATES}{serial}")));
        let mut values: Vec<(String, Option<Vec<u8>>)> = keys.take(DELETED_AT_ONCE).map(|key| (key, None)).collect();
        values.push((format!("{TOKENS}{id}"), Some(json(record))));
        let what = format!("create token {id} for {} ({} uses)", record.subject, record.uses_left);
        store.keep(&values, &[Entry::new(&record.by, what)], now)?;
        Ok(Ok(()))
    }
}

/// The authority's interface for control channels.
pub(crate) struct Renewals(pub(crate) Arc<Issuance>);

impl Issuer for Renewals {
    fn is_due(&self, certificate: &[u8]) -> bool {
        let is_old = |facts: &Facts| self.0.second.as_ref().is_some_and(|second| second.has_signed_old(facts));
        facts(certificate).is_some_and(|facts| facts.validity.is_due(now()) || is_old(&facts))
    }

    fn renew(&self, certificate: &[u8], request: String) -> Receiver<Result<String, Refused>> {
        let (sender, receiver) = sync_channel(1);
        let (issuance, certificate) = (Arc::clone(&self.0), certificate.to_vec());
        let errand = move |store: &mut ManagerStore| {
            let signed = issuance.sign_again(store, &certificate, &request, now())?;
            send(&sender, signed.map(|signed| signed.chain));
            Ok(())
        };
        // Dropping the sender ends this attempt; the channel tries again.
        if let Some(service) = self.0.service.get().and_then(Weak::upgrade) {
            let _ = service.post(Posted::Errand(Box::new(errand)));
        }
        receiver
    }

    fn replaced(&self, certificate: &[u8]) {
        let Some(serial) = facts(certificate).map(|facts| facts.serial) else { return };
        let issuance = Arc::clone(&self.0);
        let errand = move |store: &mut ManagerStore| issuance.keep_replaced(store, &serial, now());
        // If it is not stored, the certificate counts as in use until it expires.
        if let Some(service) = self.0.service.get().and_then(Weak::upgrade) {
            let _ = service.post(Posted::Errand(Box::new(errand)));
        }
    }

    fn revocations(&self) -> Option<Revocations> {
        locked(&self.0.listed).as_ref().map(|listed| listed.list.clone())
    }
}

fn send(sender: &SyncSender<Result<String, Refused>>, outcome: Result<String, String>) {
    if let Err(why) = &outcome {
        eprintln!("aquifer-fabricd: a certificate is not renewed: {why}");
    }
    // The channel may have ended.
    let _ = sender.send(outcome.map_err(Refused::new));
}
