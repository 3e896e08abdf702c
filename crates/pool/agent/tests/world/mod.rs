// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Real donors, a real agent as a process, and a manager's side of the control channel in the hands of a test.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aquifer_control::{EndId, FaultFigures, Issuer, Kind, NotSent, Patterns, Registrar, RegistrarSettings, Report};
use aquifer_donor::{Donor, Files, Security, Settings, Source};
use aquifer_fabric::{
    Bytes, Command as FabricCommand, HostReport, Incarnation, MemberId, MemberLease, Place, Presentation, Redundancy,
    SpanId, Step, Term, Token, VolumeId, Why,
};
use aquifer_tiers::{Tier, TierSpec, open};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// What each donor lends, in slabs.
pub const SLABS: u64 = 16;
pub const VOLUME: VolumeId = VolumeId(0xa1);

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub struct World {
    pub directory: PathBuf,
    pub donors: Vec<Donor>,
    pub agent: Option<Child>,
    programs: usize,
    registrar: Option<Registrar>,
    manager: SocketAddr,
    sequence: u64,
    protection: Option<Protection>,
}

/// How the ends of a world know each other.
pub struct Protection {
    /// The manager's certificate.
    pub manager: Files,
    /// A certificate for each donor.
    pub donors: Vec<Files>,
    /// The host's certificate.
    pub tenant: Files,
    /// The file with the list that programs read.
    pub list: PathBuf,
    /// What the manager sends as the newest list.
    pub issuer: Arc<dyn Issuer>,
}

impl World {
    /// Starts this many donors, a manager and an agent, which serves up to `programs` programs.
    pub fn start(donors: usize, programs: usize) -> World {
        let securities = (0..donors).map(|_| Security::Plain).collect();
        World::start_with(securities, programs, None)
    }

    /// Starts the same with TLS, and a donor for each of its certificates.
    pub fn start_protected(protection: Protection) -> World {
        let securities = protection.donors.iter().cloned().map(Security::Tls).collect();
        World::start_with(securities, 64, Some(protection))
    }

    fn start_with(donors: Vec<Security>, programs: usize, protection: Option<Protection>) -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Short, because the length of a socket path is limited.
        let name = format!("aq-agent-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let settings =
            |security| Settings::new(([127, 0, 0, 1], 0).into(), SLABS * (2 << 20), Source::Anonymous, security);
        let start = |security| Donor::start(settings(security), Box::new(|line| println!("donor: {line}"))).unwrap();
        let donors: Vec<Donor> = donors.into_iter().map(start).collect();
        let registrar = registrar(([127, 0, 0, 1], 0).into(), protection.as_ref());
        let manager = registrar.address();
        let (agent, registrar) = (None, Some(registrar));
        let mut world = World { directory, donors, agent, programs, registrar, manager, sequence: 0, protection };
        // Who runs this test may use the volumes.
        let uid = world.uid();
        world.write_configuration(&format!(
            "[[volume]]\nname = 'db'\nid = '{VOLUME}'\nuids = [{uid}]\n\
             [[volume]]\nname = 'other'\nid = '00000000000000b2'\nuids = [{uid}]\n"
        ));
        world.start_agent();
        world
    }

    /// The user that runs this test.
    pub fn uid(&self) -> u32 {
        let own = std::fs::metadata(&self.directory).expect("it was just made");
        std::os::unix::fs::MetadataExt::uid(&own)
    }

    /// Writes the agent's configuration with these permits.
    pub fn write_configuration(&self, permits: &str) {
        let mut text = format!(
            "host = 'web-1'\nsocket = '{0}/s'\nstate = '{0}/state'\nprograms_max = {1}\n[manager]\n\
             addresses = ['{2}']\n{permits}",
            self.directory.display(),
            self.programs,
            self.manager
        );
        for (index, donor) in self.donors.iter().enumerate() {
            write!(text, "[donors.d{index}]\naddress = '{}'\n", donor.address()).expect("text");
        }
        if let Some(Protection { tenant: Files { cert, key, ca }, list, .. }) = &self.protection {
            write!(text, "[tenant]\ncert = {cert:?}\nkey = {key:?}\nca = {ca:?}\ncrl = {list:?}\n").expect("text");
        }
        std::fs::write(self.directory.join("agent.toml"), text).expect("a file");
    }

    fn log(&self) -> PathBuf {
        self.directory.join("agent.log")
    }

    /// Asks the agent to read its configuration again, and returns what it has logged since.
    pub fn reload(&self) -> String {
        let read = || std::fs::read_to_string(self.log()).expect("a log");
        let before = read().len();
        let agent = self.agent.as_ref().expect("it runs").id();
        let agent = Pid::from_raw(agent.try_into().expect("a process")).expect("not 0");
        kill_process(agent, Signal::HUP).expect("it is ours");
        let mut lines = String::new();
        wait_until("the agent has read its configuration", || {
            lines = read().split_off(before);
            lines.contains(" permits ") && lines.ends_with('\n')
        });
        lines
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Starts the agent, and waits until it serves.
    pub fn start_agent(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aquifer-agentd"));
        command.arg("--config").arg(self.directory.join("agent.toml")).stdout(Stdio::piped());
        let log = std::fs::File::options().create(true).append(true).open(self.log()).expect("a file");
        command.stderr(log);
        let mut child = command.spawn().expect("the agent starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("serving programs at "), "{line}");
        self.agent = Some(child);
    }

    /// Starts the agent again so that it serves metrics, and returns their address.
    pub fn serve_metrics(&mut self) -> SocketAddr {
        aquifer_test_support::build_beside(Path::new(env!("CARGO_BIN_EXE_aquifer-agentd")), "aquifer-metrics");
        self.kill_agent();
        let file = self.directory.join("agent.toml");
        let settings = std::fs::read_to_string(&file).expect("the configuration");
        std::fs::write(&file, format!("metrics = '127.0.0.1:0'\n{settings}")).expect("a file");
        self.start_agent();
        self.metrics()
    }

    /// Starts an agent that serves metrics again, and returns their new address.
    pub fn serve_metrics_again(&mut self) -> SocketAddr {
        self.kill_agent();
        self.start_agent();
        self.metrics()
    }

    fn metrics(&self) -> SocketAddr {
        let said = self.said();
        let line = said.lines().rev().find_map(|line| line.strip_prefix("aquifer agent: metrics at http://"));
        let address = line.and_then(|line| line.strip_suffix("/metrics")).expect("it says where");
        address.parse().expect("an address")
    }

    /// Returns what the agents of this world have said on standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log()).expect("a log")
    }

    /// Kills the agent, as kill -9 does.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().expect("it is ours");
        let _ = agent.wait();
    }

    pub fn stop_manager(&mut self) {
        self.registrar = None;
    }

    /// Starts the manager again, at the same address.
    pub fn start_manager(&mut self) {
        self.registrar = Some(registrar(self.manager, self.protection.as_ref()));
    }

    /// Returns the agent's report.
    pub fn report(&self) -> HostReport {
        let id = EndId::new(Kind::Host, "web-1").expect("a name");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let registrar = self.registrar.as_ref().expect("it runs");
            match registrar.query(Term(1), &BTreeSet::new()).remove(&id) {
                Some(Ok(Report::Host(report))) => return report,
                other => assert!(Instant::now() < deadline, "{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a step once.
    pub fn try_order(&mut self, step: &Step) -> Result<(), NotSent> {
        let incarnation: Incarnation = self.report().incarnation;
        self.sequence += 1;
        let command =
            FabricCommand { term: Term(1), sequence: self.sequence, incarnation, step: step.clone(), cause: None };
        self.registrar.as_ref().expect("it runs").send(&[command]).remove(0)
    }

    /// Returns the faults that the manager knows of.
    pub fn faults(&self) -> Arc<FaultFigures> {
        self.registrar.as_ref().expect("it runs").faults()
    }

    /// Returns whether the agent has a channel to the manager, and what became of a query over it.
    pub fn query(&self) -> (bool, bool) {
        let id = EndId::new(Kind::Host, "web-1").expect("a name");
        let registrar = self.registrar.as_ref().expect("it runs");
        let is_heard = matches!(registrar.query(Term(1), &BTreeSet::new()).remove(&id), Some(Ok(_)));
        (registrar.connected().contains(&id), is_heard)
    }

    /// Sends a step until it was carried out.
    pub fn order(&mut self, step: &Step) {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(failure) = self.try_order(step) {
            assert!(Instant::now() < deadline, "{failure:?}");
        }
    }

    pub fn present(&mut self, redundancy: Redundancy, members: Vec<MemberLease>) {
        self.present_as(VOLUME, None, redundancy, members);
    }

    /// Presents a volume with the name that it has in the pool.
    pub fn present_as(&mut self, volume: VolumeId, name: Option<&str>, of: Redundancy, members: Vec<MemberLease>) {
        let (name, redundancy) = (name.map(|name| name.parse().expect("a name")), of);
        let presentation = Presentation::OneRange;
        self.order(&Step::Present { host: host(), volume, name, redundancy, presentation, members });
    }

    /// Presents a volume without redundancy, whose host sees it in this way.
    pub fn present_ranges(&mut self, presentation: Presentation, members: Vec<MemberLease>) {
        let redundancy = Redundancy::None;
        self.order(&Step::Present { host: host(), volume: VOLUME, name: None, redundancy, presentation, members });
    }

    pub fn join(&mut self, members: Vec<MemberLease>) {
        self.order(&Step::Join { host: host(), volume: VOLUME, members });
    }

    pub fn leave(&mut self, members: &[u64], why: Why) {
        let members = members.iter().copied().map(MemberId).collect();
        self.order(&Step::Leave { host: host(), volume: VOLUME, members, why });
    }

    pub fn has_left(&self, member: u64) -> bool {
        self.report().has_left(VOLUME, MemberId(member))
    }

    /// Opens the volume as a tier with this capacity.
    pub fn open(&self, size: &str) -> Box<dyn Tier> {
        self.try_open(&format!("pool:db,agent={},size={size}", self.socket().display())).expect("it opens")
    }

    pub fn try_open(&self, spec: &str) -> Result<Box<dyn Tier>, String> {
        let spec: TierSpec = spec.parse().map_err(|failure: aquifer_tiers::SpecFailure| failure.to_string())?;
        open(&spec).map_err(|failure| failure.to_string())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        }
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn host() -> aquifer_fabric::HostId {
    "web-1".parse().expect("a name")
}

fn registrar(listen: SocketAddr, protection: Option<&Protection>) -> Registrar {
    let (donors, hosts) = (Patterns::default(), Patterns::default());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let tls = protection.map(|protection| protection.manager.clone());
        let issuer = protection.map(|protection| Arc::clone(&protection.issuer));
        let settings =
            RegistrarSettings { listen, tls, revocations: None, donors: donors.clone(), hosts: hosts.clone() };
        let log = Box::new(|line: &str| println!("manager: {line}"));
        match Registrar::start_issuing(settings, Vec::new(), issuer, log) {
            Ok(registrar) => return registrar,
            // The address may be in use for a moment.
            Err(failure) => assert!(Instant::now() < deadline, "{failure}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns member `member`, with all memory of donor number `member`.
pub fn lease(member: u64, span: u32, shard: u8) -> MemberLease {
    MemberLease {
        member: MemberId(member),
        place: Place { span: SpanId(span), shard },
        source: aquifer_fabric::Source::Slabs { donor: format!("d{member}").parse().expect("a name") },
        bytes: Bytes::slabs(SLABS),
        token: Token(member + 1),
    }
}
