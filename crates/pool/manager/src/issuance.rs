// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool's authority in a manager: its files (here), the certificates that it has signed
//! (`issuance/certificates.rs`), and the list of those that are revoked (`issuance/list.rs`).
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

mod certificates;
mod list;
mod second;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use aquifer_authority::{Authority, Kind, Request, facts, first_of, pin, replace};
use aquifer_control::Patterns;
use aquifer_fabric::Millis;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use self::list::Listed;
use self::second::Second;
use crate::config::{CaConfig, Config, SessionsConfig, TlsConfig};
use crate::login_attempts::{Attempts, TooMany};
use crate::rest::{Service, now};

pub(crate) use self::certificates::{CERTIFICATES, Issued, Renewals, TOKENS};

const DAY_MS: u64 = 86_400_000;

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
/// first: a crash can only leave a key that has signed nothing, and the next start replaces it. A key that has signed
/// is never replaced, since every certificate of the pool would be void: `trusted.pem` is written after both.
fn make_or_read(directory: &Path, ca: &CaConfig) -> Result<String, String> {
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca-key.pem"));
    let is_there = |path: &Path| {
        path.try_exists().map_err(|error| format!("{}: {error}; make it readable for this user", path.display()))
    };
    if !is_there(&certificate)? {
        let trusted = directory.join("trusted.pem");
        if is_there(&key)? && is_there(&trusted)? {
            return Err(format!(
                "{} is missing, and this authority's key is not; restore it: the first certificate of {} is a copy",
                certificate.display(),
                trusted.display()
            ));
        }
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

/// Returns the validity of the first certificate of a chain, for answers.
pub(crate) fn validity(chain: &str) -> Option<aquifer_authority::Validity> {
    first_of(chain).and_then(|certificate| facts(&certificate)).map(|facts| facts.validity)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key was replaced by a new one: no certificate of the pool could be renewed or revoked any more.
    #[test]
    fn the_key_of_an_authority_that_was_in_use_is_never_replaced() {
        let directory = std::env::temp_dir().join(format!("aquifer-authority-key-{}", std::process::id()));
        let text = format!("state = {directory:?}\n[peers]\nkind = \"simulated\"\n[ca]\n");
        let open = || Issuance::open(&mut Config::parse(&text).expect("enough")).map(drop);
        open().expect("made");
        let of = |name: &str| directory.join("ca").join(name);
        let key = || fs::read_to_string(of("ca-key.pem")).expect("there is one");
        let before = key();
        fs::remove_file(of("ca.pem")).expect("ours");
        let refused = open().expect_err("it may not be made again");
        assert!(refused.contains("ca.pem is missing") && refused.contains("; restore it"), "{refused}");
        assert_eq!(key(), before);
        fs::copy(of("trusted.pem"), of("ca.pem")).expect("ours");
        open().expect("it is as before");
        // A crash before the certificate was written.
        fs::remove_file(of("ca.pem")).expect("ours");
        fs::remove_file(of("trusted.pem")).expect("ours");
        open().expect("made again");
        assert_ne!(key(), before);
        fs::remove_dir_all(&directory).expect("ours");
    }
}
