// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Simulated peers: a rack of donors and hosts, and a box of memory devices behind one switch, for trying the manager
//! out, for tests, and for measuring scale.
//!
//! They keep the contract that `aquifer_fabric` states for real ones: a gate against stale commands, tokens, wiping
//! before memory is lent again, copies before a member leaves. No bytes are kept. Each peer is one file in a directory,
//! replaced by rename before what changed is reported or confirmed (`saved_peer.rs`), so that peers survive when the
//! daemon is killed, as real ones would. (They are not synchronised: they do not survive a power failure.)

mod agent;
mod donor;
mod rack;
mod saved_peer;
mod switch;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aquifer_cxl_peers::Reached;
use aquifer_fabric::{Command, DonorId, End, HostId, MemberId, Term, Topology, VolumeId};

use crate::config::SimulatedConfig;
use crate::crash::CrashPoint;
use crate::peers::{Asked, Peers, Reports, SendFailure, Silent};
use agent::SimulatedAgent;
use donor::SimulatedDonor;
pub(crate) use rack::{DEVICES_MAX, SWITCH_HOSTS_MAX, topology};
use saved_peer::SavedPeer;
use switch::SimulatedSwitch;

/// A rack of donors, hosts and a switch that exists only in files.
pub(crate) struct Simulated {
    topology: Arc<Topology>,
    directory: PathBuf,
    /// The lock of a rack that several managers share.
    shared: Option<File>,
    donors: BTreeMap<DonorId, SavedPeer<SimulatedDonor>>,
    agents: BTreeMap<HostId, SavedPeer<SimulatedAgent>>,
    switch: SavedPeer<SimulatedSwitch>,
    /// What hosts reach of devices that are not simulated.
    reached: Reached,
    crash: CrashPoint,
}

impl Simulated {
    /// Reads the peers from their directory; those that have no file yet are empty.
    pub(crate) fn open(config: &SimulatedConfig, directory: &Path, crash: CrashPoint) -> io::Result<Simulated> {
        let directory = config.directory.as_deref().unwrap_or(directory);
        for kind in ["donors", "hosts"] {
            fs::create_dir_all(directory.join(kind))?;
        }
        let lock = || OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"));
        let mut simulated = Simulated {
            topology: Arc::new(rack::topology(config)),
            directory: directory.to_owned(),
            shared: config.directory.is_some().then(lock).transpose()?,
            donors: BTreeMap::new(),
            agents: BTreeMap::new(),
            switch: SavedPeer::open(directory.join("switch.json"))?,
            reached: Reached::default(),
            crash,
        };
        simulated.take_turn()?;
        simulated.load()?;
        simulated.end_turn();
        Ok(simulated)
    }

    fn load(&mut self) -> io::Result<()> {
        let parts = self.topology.parts();
        self.switch = SavedPeer::open(self.directory.join("switch.json"))?;
        self.switch.peer.add_devices(&self.topology);
        let (donors, hosts) = (self.directory.join("donors"), self.directory.join("hosts"));
        for (name, donor) in &parts.donors {
            let mut kept: SavedPeer<SimulatedDonor> = SavedPeer::open(donors.join(format!("{name}.json")))?;
            kept.peer.capacity = donor.capacity;
            self.donors.insert(name.clone(), kept);
        }
        for name in parts.hosts.keys() {
            self.agents.insert(name.clone(), SavedPeer::open(hosts.join(format!("{name}.json")))?);
        }
        Ok(())
    }

    /// Waits until no other manager uses a shared rack, and reads what others have changed in it.
    fn take_turn(&mut self) -> io::Result<()> {
        let Some(lock) = &self.shared else { return Ok(()) };
        lock.lock()?;
        self.load().inspect_err(|_| self.end_turn())
    }

    fn end_turn(&self) {
        if let Some(lock) = &self.shared {
            // The kernel ends it with the process if this fails.
            let _ = lock.unlock();
        }
    }

    /// Lets time pass: donors wipe, agents copy, devices sanitize.
    fn tick(&mut self) {
        self.donors.values_mut().for_each(|donor| donor.tick(SimulatedDonor::tick));
        let (donors, switch, reached) = (&self.donors, &self.switch.peer, &self.reached);
        for (name, agent) in &mut self.agents {
            let is_valid = |host: &HostId, key, lease: &aquifer_fabric::MemberLease| match &lease.source {
                aquifer_fabric::Source::Slabs { donor } => {
                    donors.get(donor).is_some_and(|donor| donor.peer.admits(key, lease.token))
                }
                source => switch.is_host_of(source, host, key) || reached.has(host, source, key),
            };
            agent.tick(|agent| agent.tick(name, is_valid));
        }
        self.switch.tick(SimulatedSwitch::tick);
    }

    /// Reports in which no peer answers.
    fn silence(&self) -> Reports {
        let parts = self.topology.parts();
        Reports {
            donors: parts.donors.keys().map(|name| (name.clone(), Err(Silent::NoAnswer))).collect(),
            hosts: parts.hosts.keys().map(|name| (name.clone(), Err(Silent::NoAnswer))).collect(),
            devices: parts.devices.keys().map(|name| (name.clone(), Err(Silent::NoAnswer))).collect(),
        }
    }

    /// Carries a command out, and saves its receiver before it answers.
    fn carry_out(&mut self, command: &Command) -> Result<(), SendFailure> {
        let refused = |why: String| SendFailure::Refused { why };
        match command.step.end() {
            End::Donor(name) => {
                let donor = self.donors.get_mut(&name).ok_or_else(|| refused(format!("there is no donor {name}")))?;
                donor.carry_out(|donor| donor.obey(command))
            }
            End::Host(name) => {
                let agent = self.agents.get_mut(&name).ok_or_else(|| refused(format!("there is no host {name}")))?;
                agent.carry_out(|agent| agent.obey(command))
            }
            End::Device(_) => self.switch.carry_out(|switch| switch.obey(&command.step)),
        }
    }
}

impl Peers for Simulated {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    fn command_time_max(&self) -> Duration {
        // Commands are carried out before `send` returns, or never.
        Duration::ZERO
    }

    fn reports(&mut self, term: Term, _asked: Asked<'_>) -> Reports {
        if let Err(error) = self.take_turn() {
            eprintln!("aquifer-fabricd: simulated peers: {error}; make their directory readable and writable");
            return self.silence();
        }
        self.tick();
        let (devices, switch) = (self.topology.parts().devices.keys(), &mut self.switch);
        let mut device = |name| switch.report(|_| Ok(false), |switch| switch.report(name));
        let reports = Reports {
            donors: self
                .donors
                .iter_mut()
                .map(|(name, one)| (name.clone(), one.report(|donor| donor.see(term), SimulatedDonor::report)))
                .collect(),
            hosts: self
                .agents
                .iter_mut()
                .map(|(name, one)| (name.clone(), one.report(|agent| agent.see(term), SimulatedAgent::report)))
                .collect(),
            devices: devices.map(|name| (name.clone(), device(name))).collect(),
        };
        self.end_turn();
        reports
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        let one = |command| {
            self.crash.pass();
            self.take_turn().map_err(|_| SendFailure::Lost)?;
            let outcome = self.carry_out(command);
            self.end_turn();
            self.crash.pass();
            outcome
        };
        commands.iter().map(one).collect()
    }

    fn see_reached(&mut self, reached: Reached) {
        self.reached = reached;
    }
}

/// What a simulated host has, or a donor has lent, of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Slabs that each donor has lent, by donor, volume and member: their numbers on the donor.
    pub lent: BTreeMap<(DonorId, VolumeId, MemberId), Vec<u64>>,
    /// Slabs that are neither free nor in a lease.
    pub lost: usize,
    /// Members that each host has joined.
    pub joined: BTreeMap<(HostId, VolumeId), Vec<MemberId>>,
}

/// Reads what the simulated peers in a directory hold, for audits from outside the daemon.
pub fn read_directory(config: &SimulatedConfig, directory: &Path) -> io::Result<Held> {
    let simulated = Simulated::open(config, directory, CrashPoint::default())?;
    let mut held = Held::default();
    for (name, donor) in &simulated.donors {
        let (lent, lost) = donor.peer.slabs_lent();
        held.lost += lost;
        held.lent.extend(lent.into_iter().map(|((volume, member), slabs)| ((name.clone(), volume, member), slabs)));
    }
    for (name, agent) in &simulated.agents {
        let members = agent.peer.members();
        held.joined.extend(members.into_iter().map(|(volume, members)| ((name.clone(), volume), members)));
    }
    Ok(held)
}
