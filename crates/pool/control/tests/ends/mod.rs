// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ends, registrars and certificates for tests.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_control::{
    Deposed, End, EndId, Faults, Keeper, KeeperSettings, Kind, Patterns, Query, Refused, Registrar, RegistrarSettings,
    Registration, Report, Unheard,
};
use aquifer_fabric::{
    Bytes, Command, DonorReport, Gate, HostReport, Incarnation, MemberId, Presentation, Redundancy, Step, Term,
    VolumeId, VolumeName,
};
use aquifer_tls::Files;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An end that records the queries and the commands that it gets.
pub struct Noted {
    pub kind: Kind,
    pub gate: Gate,
    pub queries: Vec<Query>,
    pub carried_out: Vec<Command>,
    /// Whether a command has begun, and whether commands may end.
    pub has_begun: Arc<AtomicBool>,
    pub may_end: Arc<AtomicBool>,
    /// How long it takes for an answer.
    pub delay: Duration,
    /// The faults of its programs, and how often it was asked for them.
    pub faults: Option<Faults>,
    pub measured: u32,
}

impl Noted {
    pub fn new(kind: Kind) -> Arc<Mutex<Noted>> {
        let gate = Gate::new(Incarnation(1), Term(0));
        let (queries, carried_out) = (Vec::new(), Vec::new());
        let (has_begun, may_end) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (delay, faults, measured) = (Duration::ZERO, None, 0);
        Arc::new(Mutex::new(Noted { kind, gate, queries, carried_out, has_begun, may_end, delay, faults, measured }))
    }
}

impl End for Noted {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        self.queries.push(query.clone());
        std::thread::sleep(self.delay);
        let (incarnation, term) = (Incarnation(1), self.gate.term());
        Ok(match self.kind {
            Kind::Donor => Report::Donor(DonorReport { incarnation, term, ..DonorReport::default() }),
            Kind::Host => Report::Host(HostReport { incarnation, term, ..HostReport::default() }),
        })
    }

    fn measure(&mut self) -> Option<Faults> {
        self.measured += 1;
        self.faults.clone()
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        self.gate.admit(command).map_err(Refused::new)?;
        std::thread::sleep(self.delay);
        self.has_begun.store(true, Ordering::Relaxed);
        wait_until("the command may end", || self.may_end.load(Ordering::Relaxed));
        self.carried_out.push(command.clone());
        Ok(())
    }
}

pub fn registration(kind: Kind, id: &str) -> Registration {
    Registration {
        kind,
        id: id.into(),
        addresses: vec!["0.0.0.0:7411".into()],
        capacity: Bytes::gib(1),
        labels: BTreeMap::new(),
    }
}

pub fn listen() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub fn plain() -> RegistrarSettings {
    let (donors, hosts) = (Patterns::default(), Patterns::default());
    RegistrarSettings { listen: listen(), tls: None, revocations: None, donors, hosts }
}

/// Lines that were logged.
pub type Lines = Arc<Mutex<Vec<String>>>;

pub fn log(lines: &Lines) -> Box<dyn Fn(&str) + Send + Sync> {
    let lines = Arc::clone(lines);
    Box::new(move |line| lines.lock().expect("no panic").push(line.to_owned()))
}

pub fn has_line(lines: &Lines, part: &str) -> bool {
    lines.lock().expect("no panic").iter().any(|line| line.contains(part))
}

pub fn registrar(settings: RegistrarSettings) -> (Registrar, Lines) {
    let lines = Lines::default();
    (Registrar::start(settings, Vec::new(), log(&lines)).expect("it starts"), lines)
}

/// Keeps an end's channels to registrars.
pub fn keep(end: &Arc<Mutex<Noted>>, id: &str, managers: &[SocketAddr], tls: Option<&Files>) -> (Keeper, Lines) {
    let lines = Lines::default();
    let kind = end.lock().expect("no panic").kind;
    let managers = managers.iter().map(|address| address.to_string().parse().expect("an address")).collect();
    let settings = KeeperSettings { managers, tls: tls.cloned(), registration: registration(kind, id) };
    let end: Arc<Mutex<dyn End>> = Arc::clone(end) as Arc<Mutex<dyn End>>;
    (Keeper::start(settings, &end, log(&lines)).expect("it starts"), lines)
}

pub fn donor(id: &str) -> EndId {
    EndId::new(Kind::Donor, id).expect("a name")
}

pub fn host(id: &str) -> EndId {
    EndId::new(Kind::Host, id).expect("a name")
}

/// Asks for reports until this end has one.
pub fn report(registrar: &Registrar, id: &EndId, term: u64) -> Report {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match registrar.query(Term(term), &BTreeSet::new()).remove(id) {
            Some(Ok(report)) => return report,
            Some(Err(Unheard::Deposed { seen })) => panic!("{id} has seen term {seen}"),
            other => assert!(Instant::now() < deadline, "{id}: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn release(donor: &str, term: u64, sequence: u64) -> Command {
    let step = Step::Release { donor: donor.parse().expect("a name"), volume: VolumeId(1), member: MemberId(1) };
    Command { term: Term(term), sequence, incarnation: Incarnation(1), step, cause: None }
}

/// Returns the step by which a host presents a volume without members.
pub fn present(host: &str, name: Option<VolumeName>) -> Step {
    let (redundancy, presentation) = (Redundancy::None, Presentation::OneRange);
    let host = host.parse().expect("a name");
    Step::Present { host, volume: VolumeId(7), name, redundancy, presentation, members: Vec::new() }
}

/// An authority for certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    /// Signs a certificate for `name`, and writes it to files. Its holder trusts `ca`.
    pub fn sign(&self, name: &str, ca: &Authority) -> Files {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Files {
            cert: write("cert.pem", &certificate.pem()),
            key: write("key.pem", &key.serialize_pem()),
            ca: write("ca.pem", &ca.0.pem()),
        }
    }
}

fn write(name: &str, text: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("control");
    std::fs::create_dir_all(&directory).expect("a directory");
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{}-{number}-{name}", std::process::id()));
    std::fs::write(&path, text).expect("written");
    // A key that others can read is refused.
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("changed");
    path
}
