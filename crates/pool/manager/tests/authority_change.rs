// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool's authority is replaced while real ends are connected over TLS.
//!
//! The trouble it guards against: a manager that was given a new authority trusted only that one. Ends whose
//! certificates were of the old one were cut off, and could not renew them either, since that needs a channel.

mod daemon;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_authority::{Authority, Request, facts, first_of, pin, pinned_client};
use aquifer_control::{Deposed, End, Keeper, KeeperSettings, Kind, Query, Refused, Registration, Report, replace};
use aquifer_fabric::{Bytes, Command, DonorReport, Millis};
use aquifer_tls::Files;
use daemon::{Answer, Daemon, SESSIONS, WAIT_MAX, directory, request};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

const TOKENS: &str = "/redfish/v1/Oem/Aquifer/JoinTokens";
const EXPANDED: &str = "/redfish/v1/Oem/Aquifer/Certificates?$expand=.";
const JOIN: &str = "/redfish/v1/Oem/Aquifer/Actions/Aquifer.Join";

fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    Millis(u64::try_from(since.as_millis()).expect("in range"))
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An authority's files.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    /// Makes the files of an authority. The pool's name is the same for each.
    fn make(directory: &Path, name: &str) -> Pair {
        let (certificate, key) = Authority::make_files("pool.internal", now()).expect("made");
        let place = |kind: &str, text: &str| {
            let path = directory.join(format!("{name}-{kind}.pem"));
            replace(&path, text).expect("written");
            path
        };
        Pair { certificate: place("ca", &certificate), key: place("key", &key) }
    }

    fn pem(&self) -> String {
        fs::read_to_string(&self.certificate).expect("read")
    }

    fn name(&self) -> Vec<u8> {
        facts(&first_of(&self.pem()).expect("a certificate")).expect("an authority").subject
    }

    /// Returns the settings for it, with this word before their names.
    fn settings(&self, word: &str) -> String {
        format!("{word}certificate = {:?}\n{word}key = {:?}\n", self.certificate, self.key)
    }
}

/// A donor that does nothing but report and take lists.
struct Idle(Arc<Mutex<String>>);

impl End for Idle {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        Ok(Report::Donor(DonorReport { term: query.term, ..DonorReport::default() }))
    }

    fn take_revocations(&mut self, list: &str) -> Result<(), Refused> {
        *self.0.lock().expect("no panic") = list.to_owned();
        Ok(())
    }

    fn carry_out(&mut self, _: &Command) -> Result<(), Refused> {
        Err(Refused::new("this donor has no memory; give it some"))
    }
}

/// A donor's channel, what it logged, and the list that it got last.
struct Channel {
    _keeper: Keeper,
    lines: Arc<Mutex<Vec<String>>>,
    list: Arc<Mutex<String>>,
}

impl Channel {
    fn open(name: &str, files: &Files, control: &str) -> Channel {
        let (lines, list) = (Arc::new(Mutex::new(Vec::<String>::new())), Arc::default());
        let registration = Registration {
            kind: Kind::Donor,
            id: name.into(),
            addresses: vec!["127.0.0.1:1".into()],
            capacity: Bytes::gib(1),
            labels: BTreeMap::new(),
        };
        let managers = vec![control.parse().expect("an address")];
        let settings = KeeperSettings { managers, tls: Some(files.clone()), registration };
        let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(Idle(Arc::clone(&list))));
        let log = Arc::clone(&lines);
        let log = Box::new(move |line: &str| log.lock().expect("no panic").push(line.to_owned()));
        Channel { _keeper: Keeper::start(settings, &end, log).expect("it starts"), lines, list }
    }

    fn has_line(&self, part: &str) -> bool {
        self.lines.lock().expect("no panic").iter().any(|line| line.contains(part))
    }

    fn wait_for(&self, part: &str) {
        wait_until(&format!("{part}: {:?}", self.lines), || self.has_line(part));
    }

    fn lists(&self) -> usize {
        self.list.lock().expect("no panic").matches("BEGIN X509 CRL").count()
    }
}

struct Site {
    directory: PathBuf,
    /// The address of this site alone.
    host: String,
}

impl Site {
    fn control(&self) -> String {
        format!("{}:7444", self.host)
    }

    /// Starts the manager with these authorities.
    fn start(&self, authorities: &str) -> Daemon {
        let config = format!(
            "state = {:?}\nlisten = \"{}:0\"\n[ca]\naddresses = [{:?}]\n{authorities}\n[control]\nlisten = {:?}\n\
             [peers]\nkind = \"registered\"\n[rounds]\nidle-ms = 50\nbusy-ms = 5\n",
            self.directory.join("state"),
            self.host,
            self.host,
            self.control(),
        );
        let daemon = Daemon::launch(&self.directory, &config, &[]);
        let log = || fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        assert!(!daemon.address.is_empty(), "it does not start: {}", log());
        daemon
    }

    /// Sends one request over TLS, and returns its answer.
    fn ask(&self, daemon: &Daemon, by: &Pair, method: &str, path: &str, token: &str, body: &Value) -> Answer {
        let certificate = first_of(&by.pem()).expect("a certificate");
        let config: Arc<ClientConfig> = Arc::new(pinned_client(&pin(&certificate)).expect("a configuration"));
        let name = ServerName::try_from(self.host.clone()).expect("a name");
        let socket = TcpStream::connect(&daemon.address).expect("it listens");
        let mut stream = StreamOwned::new(ClientConnection::new(config, name).expect("a session"), socket);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        stream.write_all(request(method, path, token, &body).as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        Answer::parse(&answer).expect("an answer")
    }

    fn log_in(&self, daemon: &Daemon, by: &Pair) -> String {
        let body = json!({ "UserName": "admin", "Password": daemon.password() });
        let answer = self.ask(daemon, by, "POST", SESSIONS, "", &body);
        assert_eq!(answer.status, 201, "{answer:?}");
        format!("x-auth-token: {}\r\n", answer.header("x-auth-token").expect("a token"))
    }

    /// Lets a donor join, and returns its files.
    fn join(&self, daemon: &Daemon, by: &Pair, session: &str, name: &str) -> Files {
        let body = json!({ "Kind": "donor", "EndName": name });
        let token = self.ask(daemon, by, "POST", TOKENS, session, &body);
        let request = Request::new().expect("made");
        let body = json!({ "Token": token.body["Token"], "CertificateSigningRequest": request.pem() });
        let joined = self.ask(daemon, by, "POST", JOIN, "", &body);
        assert_eq!(joined.status, 200, "{joined:?}");
        let text = |name: &str| joined.body[name].as_str().expect("a text").to_owned();
        let place = |kind: &str| self.directory.join(format!("{name}-{kind}.pem"));
        replace(&place("ca"), &text("Authority")).expect("written");
        replace(&place("cert"), &request.credentials(&text("CertificateString"))).expect("written");
        Files { cert: place("cert"), key: place("cert"), ca: place("ca") }
    }

    /// Returns the donors whose certificates the manager reports as those of the old authority.
    fn old(&self, daemon: &Daemon, by: &Pair, session: &str) -> Vec<String> {
        let answer = self.ask(daemon, by, "GET", EXPANDED, session, &Value::Null);
        let members = answer.body["Members"].as_array().expect("members").iter();
        let old = members.filter(|one| one["IsOfOldAuthority"] == true);
        let mut names: Vec<String> = old.map(|one| one["EndName"].as_str().expect("a name").to_owned()).collect();
        names.sort_unstable();
        names
    }
}

/// Returns the name of the authority that signed the certificate in a file.
fn issuer(files: &Files) -> Vec<u8> {
    let text = fs::read_to_string(&files.cert).expect("read");
    facts(&first_of(&text).expect("a certificate")).expect("ours").issuer
}

#[test]
fn ends_of_the_old_authority_are_served_and_renewed_until_it_is_dropped() {
    let directory = directory("authority-change");
    let site = Site { host: daemon::address(), directory: directory.clone() };
    let (old, new) = (Pair::make(&directory, "old"), Pair::make(&directory, "new"));
    let daemon = site.start(&old.settings(""));
    let session = site.log_in(&daemon, &old);
    let (d1, d2) = (site.join(&daemon, &old, &session, "d1"), site.join(&daemon, &old, &session, "d2"));
    let channel = Channel::open("d1", &d1, &site.control());
    channel.wait_for("registered");
    wait_until("it has the list of one authority", || channel.lists() == 1);
    drop((daemon, channel));
    // Kept by somebody until the end.
    let stolen = Files { cert: directory.join("stolen.pem"), key: directory.join("stolen.pem"), ca: d1.ca.clone() };
    fs::copy(&d1.cert, &stolen.cert).expect("copied");

    // Every end trusts both; then the manager does, and hands the lists of both out.
    for files in [&d1, &d2] {
        replace(&files.ca, &format!("{}{}", old.pem(), new.pem())).expect("written");
    }
    let daemon = site.start(&format!("{}{}", old.settings(""), new.settings("next-")));
    let channel = Channel::open("d1", &d1, &site.control());
    wait_until("it has the lists of both", || channel.lists() == 2);
    assert_eq!((issuer(&d1), site.old(&daemon, &old, &session)), (old.name(), vec![]), "nothing is due yet");
    drop((daemon, channel));

    // The new one signs. An end with a certificate of the old one has a channel, and renews it at once.
    let daemon = site.start(&format!("{}{}", new.settings(""), old.settings("old-")));
    let log = fs::read_to_string(directory.join("log")).expect("a log");
    assert!(log.contains("still have certificates of the old authority: donor d1, donor d2; keep"), "{log}");
    assert_eq!(site.old(&daemon, &new, &session), ["d1", "d2"]);
    let channel = Channel::open("d1", &d1, &site.control());
    channel.wait_for("registered");
    wait_until("d1 has a new certificate", || issuer(&d1) == new.name());
    wait_until("the manager knows", || site.old(&daemon, &new, &session) == ["d2"]);
    let late = Channel::open("d2", &d2, &site.control());
    wait_until("d2 has a new certificate, too", || issuer(&d2) == new.name());
    wait_until("nobody has an old one", || site.old(&daemon, &new, &session).is_empty());
    drop((daemon, channel, late));

    // The operator drops the old one.
    let daemon = site.start(&new.settings(""));
    let channels = [("d1", &d1), ("d2", &d2)].map(|(name, files)| Channel::open(name, files, &site.control()));
    channels.iter().for_each(|channel| channel.wait_for("registered"));
    wait_until("the list is that of one", || channels.iter().all(|channel| channel.lists() == 1));
    let thief = Channel::open("d1", &stolen, &site.control());
    thief.wait_for("signed by another authority");
    assert!(!thief.has_line("registered"), "{:?}", thief.lines);
    drop((daemon, channels, thief));
    fs::remove_dir_all(directory).expect("removed");
}

/// The old authority's files are those that the manager has made itself.
#[test]
fn an_authority_that_the_manager_made_can_be_replaced() {
    let directory = directory("authority-made");
    let site = Site { host: daemon::address(), directory: directory.clone() };
    drop(site.start(""));
    let place = |name: &str| directory.join("state/ca").join(name);
    let made = Pair { certificate: place("ca.pem"), key: place("ca-key.pem") };
    let (before, new) = (made.pem(), Pair::make(&directory, "new"));
    for _ in 0..2 {
        drop(site.start(&format!("{}{}", new.settings(""), made.settings("old-"))));
        assert_eq!(made.pem(), before, "its certificate stays beside its key");
        assert_eq!(fs::read_to_string(place("trusted.pem")).expect("read"), format!("{}{before}", new.pem()));
    }
    drop(site.start(&new.settings("")));
    assert_eq!(fs::read_to_string(place("trusted.pem")).expect("read"), new.pem());
    fs::remove_dir_all(directory).expect("removed");
}

/// Ends find the authority and the list of a certificate by name.
#[test]
fn two_authorities_of_one_name_are_refused() {
    let directory = directory("authority-names");
    let text = |name: &str| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "the pool");
        let key = rcgen::KeyPair::generate().expect("a key");
        let (certificate, secret) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        fs::write(&certificate, params.self_signed(&key).expect("signed").pem()).expect("written");
        fs::write(&secret, key.serialize_pem()).expect("written");
        Pair { certificate, key: secret }
    };
    let (one, other) = (text("one"), text("other"));
    let config = format!(
        "state = {:?}\nlisten = \"127.0.0.1:0\"\n[ca]\n{}{}[peers]\nkind = \"simulated\"\n",
        directory.join("state"),
        one.settings(""),
        other.settings("old-"),
    );
    let config = aquifer_manager::Config::parse(&config).expect("settings");
    let refused = aquifer_manager::Daemon::start(&config).err().expect("it is refused").to_string();
    assert!(refused.contains("ca.old-certificate: this authority has the name of the one that signs"), "{refused}");
    assert!(refused.contains("; make the new one with another common name"), "{refused}");
    fs::remove_dir_all(directory).expect("removed");
}

#[test]
fn a_manager_whose_directory_another_one_uses_makes_no_authority_there() {
    let directory = directory("authority-second");
    let state = directory.join("state");
    fs::create_dir(&state).expect("made");
    let first = aquifer_state_store::EmbeddedStore::open(&state.join("state.redb")).expect("the first one's store");
    let config = format!(
        "state = {state:?}\nlisten = \"127.0.0.1:0\"\n[ca]\naddresses = [\"127.0.0.1\"]\n[peers]\nkind = \"simulated\"\n"
    );
    let config = aquifer_manager::Config::parse(&config).expect("settings");
    let names = || {
        let entries = fs::read_dir(&state).expect("listed");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort_unstable();
        names
    };
    let before = names();
    let refused = aquifer_manager::Daemon::start(&config).err().expect("it is refused").to_string();
    assert!(refused.contains("is open in another process; stop that fabric manager"), "{refused}");
    assert_eq!(names(), before);
    drop(first);
    drop(aquifer_manager::Daemon::start(&config).expect("the directory is free"));
    assert!(names().len() > before.len(), "it has made its authority");
    fs::remove_dir_all(directory).expect("removed");
}
