// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Real donors, each in its own process, and a host whose agent keeps its contract and no bytes.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aquifer_control::{Deposed, End, Keeper, KeeperSettings, Kind, Query, Refused, Registration, Report};
use aquifer_donor::{Donor, Managed, Security, Settings, Source};
use aquifer_fabric::{
    Bytes, Command, Gate, HostReport, Incarnation, MemberId, MemberLease, MemberReport, MemberState, SLAB, Step, Term,
    VolumeId, VolumeReport,
};

use crate::daemon::{Daemon, WAIT_MAX};

/// Slabs of each donor.
pub const SLABS: u64 = 32;
/// How a test program knows that it is to be a donor.
const ROLE: &str = "AQUIFER_TEST_DONOR";

/// Lends until it is killed, if this process is to be a donor. Each test program calls it from a separate test.
pub fn be_a_donor() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [id, state, managers @ ..] = words.as_slice() else { panic!("not a role: {role}") };
    let managed = Managed {
        managers: managers.iter().map(|manager| manager.parse().expect("an address")).collect(),
        id: id.parse().expect("a name"),
        addresses: Vec::new(),
        labels: BTreeMap::new(),
        tls: None,
        state: Some(state.into()),
    };
    let settings = Settings::new(([127, 0, 0, 1], 0).into(), SLABS * SLAB.0, Source::Anonymous, Security::Plain);
    let settings = Settings { managed: Some(managed), ..settings };
    let _donor = Donor::start(settings, Box::new(|line| eprintln!("{line}"))).expect("it starts");
    let parent = parent_id();
    // A test that is ended by force leaves no donors.
    while parent_id() == parent {
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A donor in its own process, which ends with this.
pub struct DonorProcess {
    child: Child,
    role: String,
}

impl DonorProcess {
    pub fn start(directory: &Path, id: &str, managers: &[SocketAddr]) -> DonorProcess {
        let state = directory.join(format!("{id}.json"));
        let managers: Vec<String> = managers.iter().map(ToString::to_string).collect();
        let role = format!("{id} {} {}", state.display(), managers.join(" "));
        DonorProcess { child: spawn(&role), role }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }

    pub fn restart(&mut self) {
        self.child = spawn(&self.role);
    }
}

impl Drop for DonorProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(role: &str) -> Child {
    Process::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "donor_process", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// An agent that joins, leaves and withdraws at once.
pub struct Agent {
    gate: Gate,
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

const INCARNATION: Incarnation = Incarnation(1);

impl Agent {
    fn take(&mut self, volume: VolumeId, members: &[MemberLease]) {
        let left = self.left.get(&volume);
        if members.iter().any(|lease| left.is_some_and(|left| left.contains(&lease.member))) {
            return;
        }
        let Some(view) = self.volumes.get_mut(&volume) else { return };
        for lease in members {
            let report = MemberReport { lease: lease.clone(), state: MemberState::InSync };
            view.members.entry(lease.member).or_insert(report);
        }
    }

    fn leave(&mut self, volume: VolumeId, members: &[MemberId]) {
        for member in members {
            if let Some(view) = self.volumes.get_mut(&volume) {
                view.members.remove(member);
            }
            self.left.entry(volume).or_default().insert(*member);
        }
        self.volumes.retain(|_, view| !view.members.is_empty());
    }
}

impl End for Agent {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        Ok(Report::Host(HostReport {
            incarnation: INCARNATION,
            term: self.gate.term(),
            volumes: self.volumes.clone(),
            left: self.left.clone(),
            ..HostReport::default()
        }))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        self.gate.admit(command).map_err(Refused::new)?;
        match &command.step {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                let (name, redundancy, presentation) = (name.clone(), *redundancy, presentation.clone());
                let new = VolumeReport { name, redundancy, presentation, members: BTreeMap::new() };
                self.volumes.entry(*volume).or_insert(new);
                self.take(*volume, members);
                self.volumes.retain(|_, view| !view.members.is_empty());
            }
            Step::Join { volume, members, .. } => self.take(*volume, members),
            Step::Leave { volume, members, .. } => self.leave(*volume, members),
            Step::Withdraw { volume, members, .. } => {
                let had = self.volumes.get(volume).map(|view| view.members.keys().copied().collect::<Vec<_>>());
                self.leave(*volume, &had.unwrap_or_default());
                self.leave(*volume, members);
            }
            Step::ForgetLeft { volume, member, .. } => {
                if let Some(left) = self.left.get_mut(volume) {
                    left.remove(member);
                }
                self.left.retain(|_, left| !left.is_empty());
            }
            step => return Err(Refused::new(format!("an agent cannot {step}"))),
        }
        Ok(())
    }
}

/// A host with such an agent.
pub struct HostEnd {
    pub agent: Arc<Mutex<Agent>>,
    _keeper: Keeper,
}

impl HostEnd {
    pub fn start(id: &str, managers: &[SocketAddr]) -> HostEnd {
        let gate = Gate::new(INCARNATION, Term(0));
        let agent = Arc::new(Mutex::new(Agent { gate, volumes: BTreeMap::new(), left: BTreeMap::new() }));
        let end: Arc<Mutex<dyn End>> = Arc::clone(&agent) as Arc<Mutex<dyn End>>;
        HostEnd { agent, _keeper: keep(Kind::Host, id, Bytes::ZERO, managers, &end) }
    }

    /// Returns how many members it has of all volumes.
    pub fn members(&self) -> usize {
        self.agent.lock().expect("no panic").volumes.values().map(|view| view.members.len()).sum()
    }
}

/// Keeps the channels of an end of this process.
pub fn keep(kind: Kind, id: &str, capacity: Bytes, managers: &[SocketAddr], end: &Arc<Mutex<dyn End>>) -> Keeper {
    let managers = managers.iter().map(|manager| manager.to_string().parse().expect("an address")).collect();
    let addresses = vec!["127.0.0.1:7411".into()];
    let registration = Registration { kind, id: id.into(), addresses, capacity, labels: BTreeMap::new() };
    Keeper::start(KeeperSettings { managers, tls: None, registration }, end, Box::new(|_| ())).expect("it starts")
}

/// Waits until something holds.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a manager has these donors and hosts, and hears them.
pub fn wait_until_registered(daemon: &Daemon, token: &str, ends: &[&str]) {
    wait_until("all ends answer", || {
        ends.iter().all(|end| {
            let path = format!("/redfish/v1/Fabrics/Aquifer/Endpoints/{end}");
            let answer = daemon.ask("GET", &path, token, "");
            answer.is_some_and(|answer| answer.status == 200 && answer.body["Status"]["State"] == "Enabled")
        })
    });
}
