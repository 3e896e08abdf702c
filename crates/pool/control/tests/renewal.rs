// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Certificates are renewed over the channel while it is in use: with a new key if key and certificate share a file,
//! and otherwise with the old key. An end with a revoked certificate is cut off at once, and the list reaches the other
//! ends.

mod ends;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use aquifer_authority::{Authority, Kind as SubjectKind, Request, Subject, facts, first_of};
use aquifer_control::{
    Deposed, End, Issuer, Keeper, KeeperSettings, Kind, Patterns, Query, Refused, Registrar, RegistrarSettings, Report,
    Revocations, replace,
};
use aquifer_fabric::{Command, DonorReport, Millis, Term};
use aquifer_tls::Files;
use ends::{Lines, Noted, donor, has_line, host, keep, listen, log, registration, report, wait_until};

const DOMAIN: &str = "pool.internal";

fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Millis(u64::try_from(since.as_millis()).expect("in range"))
}

/// An authority that renews certificates once they are due.
struct Issuing {
    authority: Authority,
    is_due: AtomicBool,
    renewals: AtomicU32,
    list: Mutex<Option<Revocations>>,
    /// The chain that the authority returns instead of a signed certificate.
    chain: Mutex<Option<String>>,
}

impl Issuing {
    fn new() -> Arc<Issuing> {
        let authority = Authority::make("lab", now()).expect("made");
        let (is_due, renewals) = (AtomicBool::new(false), AtomicU32::new(0));
        Arc::new(Issuing { authority, is_due, renewals, list: Mutex::default(), chain: Mutex::default() })
    }

    fn sign(&self, kind: SubjectKind, name: &str, request: &Request) -> String {
        let subject = Subject::new(kind, name, DOMAIN, &["127.0.0.1".into()]).expect("good");
        self.authority.sign(request.pem(), &subject, 90, now()).expect("signed").chain
    }
}

impl Issuer for Issuing {
    fn is_due(&self, _certificate: &[u8]) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    fn renew(&self, certificate: &[u8], request: String) -> Receiver<Result<String, Refused>> {
        let (sender, receiver) = sync_channel(1);
        let names = facts(certificate).expect("a certificate").names;
        let subject = Subject::of_names(&names, DOMAIN).expect("ours");
        let chain = self.chain.lock().expect("no panic").clone();
        let chain = chain.unwrap_or_else(|| self.authority.sign(&request, &subject, 90, now()).expect("signed").chain);
        self.renewals.fetch_add(1, Ordering::Relaxed);
        sender.send(Ok(chain)).expect("it has room");
        receiver
    }

    fn revocations(&self) -> Option<Revocations> {
        self.list.lock().expect("no panic").clone()
    }
}

type Lists = Arc<Mutex<Vec<String>>>;

/// A donor that stores revocation lists.
struct Listed(Lists);

impl End for Listed {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        Ok(Report::Donor(DonorReport { term: query.term, ..DonorReport::default() }))
    }

    fn carry_out(&mut self, _command: &Command) -> Result<(), Refused> {
        Err(Refused::new("this donor has no memory; give it some"))
    }

    fn take_revocations(&mut self, list: &str) -> Result<(), Refused> {
        self.0.lock().expect("no panic").push(list.to_owned());
        Ok(())
    }
}

struct Site {
    issuing: Arc<Issuing>,
    directory: PathBuf,
    registrar: Registrar,
    /// What the manager has logged.
    said: Lines,
}

impl Site {
    fn new(name: &str) -> Site {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("renewal-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        let issuing = Issuing::new();
        replace(&directory.join("ca.pem"), issuing.authority.pem()).expect("written");
        let request = Request::new().expect("made");
        let chain = issuing.sign(SubjectKind::Manager, "m1", &request);
        replace(&directory.join("manager.pem"), &request.credentials(&chain)).expect("written");
        let list = issuing.authority.revocations(&[], 1, now()).expect("signed");
        replace(&directory.join("revocations.pem"), &list.list).expect("written");
        *issuing.list.lock().expect("no panic") = Some(list);
        let said = Lines::default();
        let settings = RegistrarSettings {
            listen: listen(),
            tls: Some(files_in(&directory, "manager.pem", "manager.pem")),
            revocations: Some(directory.join("revocations.pem")),
            donors: Patterns(vec![format!("dns:{{id}}.donor.{DOMAIN}")]),
            hosts: Patterns(vec![format!("dns:{{id}}.host.{DOMAIN}")]),
        };
        let issuer = Some(Arc::clone(&issuing) as Arc<dyn Issuer>);
        let registrar = Registrar::start_issuing(settings, Vec::new(), issuer, log(&said)).expect("it starts");
        Site { issuing, directory, registrar, said }
    }

    /// Returns the files of an end with this name; the key has its own file if `is_split`.
    fn join(&self, kind: SubjectKind, name: &str, is_split: bool) -> Files {
        let request = Request::new().expect("made");
        let chain = self.issuing.sign(kind, name, &request);
        let cert = format!("{kind}-{name}.pem");
        let key = if is_split { format!("{kind}-{name}.key") } else { cert.clone() };
        replace(&self.directory.join(&key), &request.credentials("")).expect("written");
        let text = if is_split { chain } else { request.credentials(&chain) };
        replace(&self.directory.join(&cert), &text).expect("written");
        files_in(&self.directory, &cert, &key)
    }

    fn keep(&self, id: &str, files: &Files) -> (Keeper, Lines, Lists) {
        let (lines, lists) = (Lines::default(), Lists::default());
        let managers = vec![self.registrar.address().to_string().parse().expect("an address")];
        let registration = registration(Kind::Donor, id);
        let settings = KeeperSettings { managers, tls: Some(files.clone()), registration };
        let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Listed(Arc::clone(&lists))));
        (Keeper::start(settings, &end, log(&lines)).expect("it starts"), lines, lists)
    }

    fn finish(self) {
        let Site { directory, registrar, .. } = self;
        drop(registrar);
        fs::remove_dir_all(directory).expect("removed");
    }
}

fn files_in(directory: &Path, cert: &str, key: &str) -> Files {
    Files { cert: directory.join(cert), key: directory.join(key), ca: directory.join("ca.pem") }
}

fn serial(files: &Files) -> String {
    let text = fs::read_to_string(&files.cert).expect("read");
    facts(&first_of(&text).expect("a certificate")).expect("ours").serial
}

#[test]
fn a_certificate_is_renewed_while_the_channel_works() {
    let site = Site::new("renewed");
    for (name, is_split) in [("d1", false), ("d2", true)] {
        site.issuing.is_due.store(true, Ordering::Relaxed);
        let files = site.join(SubjectKind::Donor, name, is_split);
        let readable = fs::Permissions::from_mode(if is_split { 0o644 } else { 0o600 });
        fs::set_permissions(&files.cert, readable.clone()).expect("ours");
        let (key, before) = (fs::read_to_string(&files.key).expect("read"), serial(&files));
        let (keeper, lines, _) = site.keep(name, &files);
        wait_until("it is renewed", || {
            report(&site.registrar, &donor(name), 1);
            serial(&files) != before && has_line(&lines, "has renewed the certificate")
        });
        site.issuing.is_due.store(false, Ordering::Relaxed);
        files.load().and_then(aquifer_tls::Credentials::for_end).expect("key and certificate belong together");
        let is_new_key = fs::read_to_string(&files.key).expect("read") != key;
        assert_eq!(is_new_key, !is_split, "{name}");
        let rights = fs::metadata(&files.cert).expect("there").permissions();
        assert_eq!(rights.mode() & 0o777, readable.mode(), "the rights stay");
        // The next connection uses the new certificate.
        keeper.cut();
        wait_until("it registers again", || {
            lines.lock().expect("no panic").iter().filter(|line| line.starts_with("registered")).count() >= 2
        });
        report(&site.registrar, &donor(name), 1);
    }
    site.finish();
}

/// Programs of other users read a host's key through its group. As root, this shows the mode alone.
#[test]
fn a_hosts_renewed_key_is_as_readable_for_its_group_as_the_old_one() {
    let site = Site::new("group");
    site.issuing.is_due.store(true, Ordering::Relaxed);
    let files = site.join(SubjectKind::Host, "h1", false);
    fs::set_permissions(&files.cert, fs::Permissions::from_mode(0o640)).expect("ours");
    let before = serial(&files);
    let (keeper, lines) = keep(&Noted::new(Kind::Host), "h1", &[site.registrar.address()], Some(&files));
    wait_until("it is renewed", || {
        report(&site.registrar, &host("h1"), 1);
        serial(&files) != before && has_line(&lines, "has renewed the certificate")
    });
    assert_eq!(fs::metadata(&files.cert).expect("there").permissions().mode() & 0o777, 0o640);
    drop(keeper);
    site.finish();
}

#[test]
fn a_certificate_for_another_key_is_not_taken() {
    let site = Site::new("foreign");
    let files = site.join(SubjectKind::Donor, "d1", false);
    let before = fs::read_to_string(&files.cert).expect("read");
    let other = Request::new().expect("made");
    *site.issuing.chain.lock().expect("no panic") = Some(site.issuing.sign(SubjectKind::Donor, "d1", &other));
    site.issuing.is_due.store(true, Ordering::Relaxed);
    let (keeper, lines, _) = site.keep("d1", &files);
    wait_until("it was asked", || {
        report(&site.registrar, &donor("d1"), 1);
        site.issuing.renewals.load(Ordering::Relaxed) > 0
    });
    // The certificate is sent after the next report, at the latest.
    for _ in 0..3 {
        report(&site.registrar, &donor("d1"), 1);
    }
    drop(keeper);
    assert!(!has_line(&lines, "has renewed"));
    assert_eq!(fs::read_to_string(&files.cert).expect("read"), before);
    assert!(!site.directory.join("donor-d1.pem.renewed").exists(), "nothing is left");
    site.finish();
}

#[test]
fn a_revoked_end_is_cut_off_and_the_others_get_the_list() {
    let site = Site::new("revoked");
    let (bad, good) = (site.join(SubjectKind::Donor, "d1", false), site.join(SubjectKind::Donor, "d2", false));
    let (d1, _, _) = site.keep("d1", &bad);
    let (d2, _, lists) = site.keep("d2", &good);
    report(&site.registrar, &donor("d1"), 1);
    report(&site.registrar, &donor("d2"), 1);
    let count = lists.lock().expect("no panic").len();
    let list = site.issuing.authority.revocations(&[(serial(&bad), now())], 2, now()).expect("signed");
    replace(&site.directory.join("revocations.pem"), &list.list).expect("written");
    *site.issuing.list.lock().expect("no panic") = Some(list.clone());
    wait_until("d1 is cut off, and d2 is not", || {
        let reports = site.registrar.query(Term(1), &BTreeSet::new());
        reports[&donor("d1")].is_err() && reports[&donor("d2")].is_ok()
    });
    wait_until("d2 has the list", || {
        site.registrar.query(Term(1), &BTreeSet::new());
        lists.lock().expect("no panic").last().map(String::as_str) == Some(&*list.list)
    });
    assert!(count >= 1, "it had the list from the start");
    wait_until("the manager says whose certificate was revoked", || {
        has_line(&site.said, "control channel from 127.0.0.1: its certificate was revoked")
    });
    drop((d1, d2));
    site.finish();
}

#[test]
fn a_certificate_registers_its_own_name_alone() {
    let site = Site::new("names");
    let (host, own) = (site.join(SubjectKind::Host, "d1", false), site.join(SubjectKind::Donor, "d1", false));
    let (as_donor, lines, _) = site.keep("d1", &host);
    wait_until("a host's certificate is refused", || has_line(&lines, "may not register a donor"));
    let (as_other, lines, _) = site.keep("d2", &own);
    wait_until("another name is refused", || has_line(&lines, "may not register a donor"));
    let (itself, _, _) = site.keep("d1", &own);
    report(&site.registrar, &donor("d1"), 1);
    drop((as_donor, as_other, itself));
    site.finish();
}
