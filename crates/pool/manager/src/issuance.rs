// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool's authority in a manager: its files, and the certificates that it has signed and revoked.
//!
//! | key | value, as JSON |
//! |---|---|
//! | `token/ID` | a join token, without its secret (`aquifer_authority::TokenRecord`) |
//! | `certificate/SERIAL` | the subject of a certificate, its validity, its authority, and when it was revoked |
//!
//! The manager hands a certificate out only after one transaction has stored its record and the token's use: so a token
//! with one use gives one certificate, whichever process is killed. Tokens and records are read from the store each
//! time; the list of revoked certificates is also kept in memory, and in a file for the control port. While the
//! authority is replaced (`issuance/second.rs`), two are trusted, and each signs a list: serial numbers are random, so
//! both lists have all of them.
//!
//! Threads: any thread may call; only the writer's thread changes the store. No lock is held during an operation of the
//! store.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use aquifer_authority::{
    Authority, Facts, JoinToken, Kind, LIST_DAYS, Request, Revocations, Signed, Subject, TokenRecord, Validity, facts,
    first_of, pin, replace,
};
use aquifer_control::{Issuer, Patterns, Refused};
use aquifer_fabric::Millis;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::accounts::random;
use crate::config::{CaConfig, Config, SessionsConfig, TlsConfig};
use crate::login_attempts::{Attempts, TooMany};
use crate::manager_store::{Entry, ManagerStore, ManagerStoreFailure, json};
use crate::rest::{Service, now};
use crate::writer::Posted;
use second::{Role, Second};

mod second;

/// The prefix of tokens in the store.
pub(crate) const TOKENS: &str = "token/";
/// The prefix of certificates in the store.
pub(crate) const CERTIFICATES: &str = "certificate/";
/// Maximum number of tokens. Those that are used up or expired do not count.
pub(crate) const TOKENS_MAX: usize = 1000;
/// How long the record of an expired certificate is kept: longer than the largest error of a clock that we allow for.
const KEPT_MS: u64 = 7 * DAY_MS;
const DAY_MS: u64 = 86_400_000;

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

/// The list of revoked certificates, as this manager has made it last.
struct Listed {
    list: Revocations,
    /// Serial numbers, and when each certificate was revoked.
    revoked: Vec<(String, Millis)>,
    validity: Validity,
}

/// The authority and its files.
pub(crate) struct Issuance {
    /// The authority that signs.
    authority: Authority,
    second: Option<Second>,
    pub(crate) config: CaConfig,
    directory: PathBuf,
    /// The file of the certificate that REST clients see.
    served: PathBuf,
    /// `None` while this manager does not lead: another one may have revoked more since.
    listed: Mutex<Option<Listed>>,
    /// The number of the last list.
    number: AtomicU64,
    attempts: Mutex<Attempts>,
    service: OnceLock<Weak<Service>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the daemon")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}; name a file that can be read", path.display()))
}

impl Issuance {
    /// Opens the authority, or creates it in the state directory. Adds its files to the configuration.
    pub(crate) fn open(config: &mut Config) -> Result<Option<Issuance>, String> {
        let Some(ca) = config.ca.clone() else { return Ok(None) };
        let directory = config.state.directory().join("ca");
        crate::leadership::make_directory(&directory)?;
        let authority = match (&ca.certificate, &ca.key) {
            (Some(certificate), Some(key)) => Authority::load(&read(certificate)?, &read(key)?, now()),
            _ => Authority::load(&make_or_read(&directory, &ca)?, &read(&directory.join("ca-key.pem"))?, now()),
        };
        let authority = authority.map_err(|unusable| unusable.to_string())?;
        let second = Second::open(&ca, &authority, now())?;
        let place = |name: &str| directory.join(name);
        if !place("ca-key.pem").exists() {
            // Not in place of the certificate of an authority that was made here: that one may be the old one.
            write(&place("ca.pem"), authority.pem())?;
        }
        write(&place("trusted.pem"), &trusted(&authority, second.as_ref()))?;
        let own = place("manager.pem");
        let tls = config.tls.get_or_insert(TlsConfig { certificate: own.clone(), key: own.clone() }).clone();
        if let Some(control) = &mut config.control {
            if control.certificate.is_none() {
                (control.certificate, control.key) = (Some(own.clone()), Some(own));
                control.authority = Some(place("trusted.pem"));
            }
            if control.revocations.is_none() && control.authority == Some(place("trusted.pem")) {
                control.revocations = Some(place("revocations.pem"));
            }
            for (patterns, kind) in [(&mut control.donors, Kind::Donor), (&mut control.hosts, Kind::Host)] {
                if *patterns == Patterns::default() {
                    *patterns = Patterns(vec![format!("dns:{{id}}.{kind}.{}", ca.domain)]);
                }
            }
        }
        let issuance = Issuance {
            authority,
            second,
            config: ca,
            directory,
            served: tls.certificate,
            listed: Mutex::default(),
            number: AtomicU64::default(),
            attempts: Mutex::default(),
            service: OnceLock::new(),
        };
        issuance.renew_own(now())?;
        if !issuance.place("revocations.pem").exists() {
            // For the control port. What the store says is read before that is opened.
            issuance.list(Vec::new(), now())?;
            issuance.forget_list();
        }
        Ok(Some(issuance))
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the certificates of the authorities that ends must trust, in PEM.
    pub(crate) fn trusted(&self) -> String {
        trusted(&self.authority, self.second.as_ref())
    }

    /// Sets the writer that stores renewals.
    pub(crate) fn serve(&self, service: &Arc<Service>) {
        let _ = self.service.set(Arc::downgrade(service));
    }

    /// Renews what is due of both, whether or not the other can be renewed. Returns the first error.
    pub(crate) fn renew(&self, now: Millis) -> Result<(), String> {
        let (own, list) = (self.renew_own(now), self.renew_list(now));
        own.and(list)
    }

    /// Renews this manager's own certificate if a renewal is due, or if its names are not those in the configuration.
    pub(crate) fn renew_own(&self, now: Millis) -> Result<(), String> {
        let path = self.place("manager.pem");
        let subject = self.config.subject().map_err(|not| not.to_string())?;
        let found = fs::read_to_string(&path).ok();
        let is_ours = |text: &str| {
            let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok);
            let own = certificates.next().and_then(|own| facts(&own));
            let is_signed_here = certificates.any(|one| one.as_ref() == self.authority.der());
            own.is_some_and(|own| own.names == subject.names && !own.validity.is_due(now)) && is_signed_here
        };
        if found.as_deref().is_some_and(is_ours) {
            return Ok(());
        }
        let signed = Request::new().and_then(|request| {
            let signed = self.authority.sign(request.pem(), &subject, self.config.days, now)?;
            Ok(request.credentials(&signed.chain))
        });
        write(&path, &signed.map_err(|not| not.to_string())?)
    }

    /// Signs the list again if two thirds of its validity are over.
    pub(crate) fn renew_list(&self, now: Millis) -> Result<(), String> {
        let mut kept = locked(&self.listed);
        match kept.as_ref().filter(|listed| listed.validity.is_due(now)).map(|listed| listed.revoked.clone()) {
            Some(revoked) => self.replace_list(&mut kept, revoked, now),
            None => Ok(()),
        }
    }

    /// Returns the list of revoked certificates, in PEM.
    pub(crate) fn current_list(&self) -> Option<String> {
        locked(&self.listed).as_ref().map(|found| found.list.list.to_string())
    }

    /// Returns the serial numbers on the list that is handed out.
    #[cfg(test)]
    pub(crate) fn listed_serials(&self) -> Vec<String> {
        locked(&self.listed).iter().flat_map(|found| &found.revoked).map(|(serial, _)| serial.clone()).collect()
    }

    /// Returns the fingerprint for tokens: that of the last certificate in the chain that REST clients see.
    pub(crate) fn pin(&self) -> Result<String, String> {
        let text = read(&self.served)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect();
        chain.last().map(|one| pin(one)).ok_or_else(|| format!("{} has no certificate", self.served.display()))
    }

    /// Counts a join request, before its token is checked.
    pub(crate) fn begin(&self, from: std::net::IpAddr, now: Millis) -> Result<(), TooMany> {
        let limits = SessionsConfig { logins_per_minute: self.config.joins_per_minute, ..SessionsConfig::default() };
        locked(&self.attempts).begin(&limits, from, "", now)
    }

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

    /// Stores that a certificate is revoked, and makes the new list.
    pub(crate) fn revoke(
        &self,
        store: &mut ManagerStore,
        serial: &str,
        who: &str,
        now: Millis,
    ) -> Result<Result<(), String>, ManagerStoreFailure> {
        let key = format!("{CERTIFICATES}{serial}");
        let Some(issued) = store.one::<Issued>(&key)? else {
            return Ok(Err("there is no such certificate; list them".into()));
        };
        if issued.revoked.is_none() {
            let what = format!("revoke certificate {serial} of {}", issued.subject);
            let revoked = Issued { revoked: Some(now), ..issued };
            store.keep(&[(key, Some(json(&revoked)))], &[Entry::new(who, what)], now)?;
        }
        self.read_list(store, now)
    }

    /// Makes the list from the store: after a revocation, and when this manager begins to lead.
    pub(crate) fn read_list(
        &self,
        store: &ManagerStore,
        now: Millis,
    ) -> Result<Result<(), String>, ManagerStoreFailure> {
        let revoked = store
            .all::<Issued>(CERTIFICATES)?
            .into_iter()
            .filter_map(|(serial, issued)| Some((serial, issued.revoked?)));
        Ok(self.list(revoked.collect(), now))
    }

    /// Forgets the list, because this manager leads no longer: it hands out and signs none before it has read the
    /// store.
    pub(crate) fn forget_list(&self) {
        *locked(&self.listed) = None;
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
        let tokens = store.all::<TokenRecord>(TOKENS)?;
        let (over, live): (Vec<_>, Vec<_>) =
            tokens.into_iter().partition(|(_, one)| one.uses_left == 0 || one.expires.0 <= now.0);
        if live.len() >= TOKENS_MAX {
            return Ok(Err(format!("there are {TOKENS_MAX} join tokens; delete one first")));
        }
        let past = store.all::<Issued>(CERTIFICATES)?.into_iter();
        let past = past.filter(|(_, issued)| issued.until.0.saturating_add(KEPT_MS) < now.0);
        let keys = over.into_iter().map(|(id, _)| format!("{TOKENS}{id}"));
        let keys = keys.chain(past.map(|(serial, _)| format!("{CERTIFICATES}{serial}")));
        let mut values: Vec<(String, Option<Vec<u8>>)> = keys.take(DELETED_AT_ONCE).map(|key| (key, None)).collect();
        values.push((format!("{TOKENS}{id}"), Some(json(record))));
        let what = format!("create token {id} for {} ({} uses)", record.subject, record.uses_left);
        store.keep(&values, &[Entry::new(&record.by, what)], now)?;
        Ok(Ok(()))
    }

    /// Makes the list and its file.
    fn list(&self, revoked: Vec<(String, Millis)>, now: Millis) -> Result<(), String> {
        self.replace_list(&mut locked(&self.listed), revoked, now)
    }

    /// Signs a list and writes its file. The list's number grows, even if the clock is set back.
    fn replace_list(
        &self,
        kept: &mut Option<Listed>,
        revoked: Vec<(String, Millis)>,
        now: Millis,
    ) -> Result<(), String> {
        let number = now.0.max(self.number.load(Ordering::Relaxed) + 1);
        let mut text = String::new();
        for authority in std::iter::once(&self.authority).chain(self.second.as_ref().map(|second| &second.authority)) {
            let list = authority.revocations(&revoked, number, now).map_err(|not| not.to_string())?;
            text.push_str(&list.list);
        }
        let list = Revocations { number, list: text.into() };
        write(&self.place("revocations.pem"), &list.list)?;
        // The lock orders the lists.
        self.number.store(number, Ordering::Relaxed);
        let validity = Validity { from: now, until: Millis(now.0.saturating_add(u64::from(LIST_DAYS) * DAY_MS)) };
        *kept = Some(Listed { list, revoked, validity });
        Ok(())
    }
}

/// Returns the certificates of both authorities, the one that signs first.
fn trusted(first: &Authority, second: Option<&Second>) -> String {
    let mut text = String::new();
    for pem in std::iter::once(first.pem()).chain(second.map(|second| second.authority.pem())) {
        text.push_str(pem);
        if !pem.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

/// Returns the certificate of the authority in a directory; creates the authority if there is none. Writes the key
/// first: a crash can only leave a key that has signed nothing, and the next start replaces it.
fn make_or_read(directory: &Path, ca: &CaConfig) -> Result<String, String> {
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca-key.pem"));
    if !certificate.exists() {
        let (made, secret) = Authority::make_files(&ca.domain, now()).map_err(|not| not.to_string())?;
        write(&key, &secret)?;
        write(&certificate, &made)?;
    }
    read(&certificate)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    // A file with the same contents is not written, so that nobody reloads it needlessly.
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    replace(path, text).map_err(|error| format!("{}: {error}; free space in the state directory", path.display()))
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

/// Returns the validity of the first certificate of a chain, for answers.
pub(crate) fn validity(chain: &str) -> Option<aquifer_authority::Validity> {
    first_of(chain).and_then(|certificate| facts(&certificate)).map(|facts| facts.validity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuance(name: &str) -> (PathBuf, Issuance) {
        let directory = std::env::temp_dir().join(format!("aquifer-{name}-{}", std::process::id()));
        let text = format!("state = {directory:?}\n[peers]\nkind = \"simulated\"\n[ca]\n");
        let opened = Issuance::open(&mut Config::parse(&text).expect("enough"));
        (directory, opened.expect("usable").expect("there is one"))
    }

    /// A list that is not renewed expires, and programs then refuse to start.
    #[test]
    fn a_list_is_signed_again_even_if_the_managers_own_certificate_cannot_be() {
        let (directory, issuance) = issuance("both");
        let start = now();
        issuance.list(Vec::new(), start).expect("written");
        let own = issuance.place("manager.pem");
        fs::remove_file(&own).expect("ours");
        fs::create_dir(&own).expect("no file can replace it");
        let later = Millis(start.0 + 21 * DAY_MS);
        let why = issuance.renew(later).expect_err("it cannot be written");
        assert!(why.contains("manager.pem"), "{why}");
        assert_eq!(locked(&issuance.listed).as_ref().map(|listed| listed.list.number), Some(later.0));
        fs::remove_dir_all(&directory).expect("ours");
    }

    /// While this manager stood by, another one may have revoked more.
    #[test]
    fn a_manager_that_leads_no_longer_hands_out_no_list_and_signs_none() {
        let (directory, issuance) = issuance("tenure");
        let (issuance, start) = (Arc::new(issuance), now());
        let handed_out = || Renewals(Arc::clone(&issuance)).revocations().map(|list| list.number);
        assert_eq!((handed_out(), issuance.current_list()), (None, None), "nothing was read yet");
        issuance.list(Vec::new(), start).expect("written");
        let first = handed_out().expect("it leads");
        issuance.forget_list();
        let file = || fs::read_to_string(issuance.place("revocations.pem")).expect("there is one");
        let before = file();
        issuance.renew(Millis(start.0 + 21 * DAY_MS)).expect("written");
        assert_eq!((handed_out(), file()), (None, before));
        issuance.list(Vec::new(), Millis(0)).expect("written");
        assert!(handed_out() > Some(first), "the number grows, even if the clock is set back");
        fs::remove_dir_all(&directory).expect("ours");
    }

    /// A manager may lead for months without a revocation, and programs refuse to start with an expired list.
    #[test]
    fn a_list_is_signed_again_before_it_expires() {
        let (directory, issuance) = issuance("list");
        let (start, revoked) = (now(), vec![("0a".to_owned(), now())]);
        issuance.list(revoked.clone(), start).expect("written");
        let kept = || locked(&issuance.listed).as_ref().map(|listed| (listed.list.number, listed.revoked.clone()));
        let after = |days: u64| Millis(start.0 + days * DAY_MS);
        let first = kept();
        issuance.renew_list(after(19)).expect("not due");
        assert_eq!(kept(), first);
        issuance.renew_list(after(21)).expect("written");
        let (number, still) = kept().expect("there is one");
        assert_eq!((number, still), (after(21).0, revoked), "a new number, so that it is sent to donors and hosts");
        assert_eq!(fs::read_to_string(issuance.place("revocations.pem")).ok(), issuance.current_list());
        issuance.renew_list(after(22)).expect("not due");
        assert_eq!(kept().expect("there is one").0, number);
        fs::remove_dir_all(&directory).expect("ours");
    }
}
