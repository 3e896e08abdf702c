// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Simulated peers: a rack of donors and hosts, and a box of memory devices behind one switch, for trying the manager
//! out, for tests, and for measuring scale.
//!
//! They keep the contract that `aquifer_fabric` states for real ones: a gate against stale commands, tokens, wiping
//! before memory is lent again, copies before a member leaves. No bytes are kept. Each peer is one file in a directory,
//! replaced by rename when it changes, so that peers survive when the daemon is killed, as real ones would. (They are
//! not
//! synchronised: they do not survive a power failure.)

mod agent;
mod donor;
mod rack;
mod switch;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aquifer_fabric::{Command, DonorId, End, HostId, MemberId, Term, Topology, VolumeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::SimulatedConfig;
use crate::crash::CrashPoint;
use crate::peers::{Peers, Reports, SendFailure, Silent};
use agent::SimulatedAgent;
use donor::SimulatedDonor;
pub(crate) use rack::{DEVICES_MAX, SWITCH_HOSTS_MAX};
use switch::SimulatedSwitch;

/// The simulated peers.
pub(crate) struct Simulated {
    topology: Arc<Topology>,
    directory: PathBuf,
    donors: BTreeMap<DonorId, SimulatedDonor>,
    agents: BTreeMap<HostId, SimulatedAgent>,
    switch: SimulatedSwitch,
    crash: CrashPoint,
}

fn load<T: DeserializeOwned + Default>(path: &Path) -> io::Result<T> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

fn save(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(value)?)?;
    fs::rename(&new, path)
}

impl Simulated {
    /// Reads the peers from their directory; those that have no file yet are empty.
    pub(crate) fn open(config: &SimulatedConfig, directory: &Path, crash: CrashPoint) -> io::Result<Simulated> {
        let topology = rack::topology(config);
        for kind in ["donors", "hosts"] {
            fs::create_dir_all(directory.join(kind))?;
        }
        let mut simulated = Simulated {
            topology: Arc::new(topology.clone()),
            directory: directory.to_owned(),
            donors: BTreeMap::new(),
            agents: BTreeMap::new(),
            switch: load(&directory.join("switch.json"))?,
            crash,
        };
        simulated.switch.add_devices(&topology);
        for (name, donor) in &topology.parts().donors {
            let mut loaded: SimulatedDonor = load(&simulated.donor_path(name))?;
            loaded.capacity = donor.capacity;
            simulated.donors.insert(name.clone(), loaded);
        }
        for name in topology.parts().hosts.keys() {
            simulated.agents.insert(name.clone(), load(&simulated.host_path(name))?);
        }
        Ok(simulated)
    }

    fn donor_path(&self, name: &DonorId) -> PathBuf {
        self.directory.join("donors").join(format!("{name}.json"))
    }

    fn host_path(&self, name: &HostId) -> PathBuf {
        self.directory.join("hosts").join(format!("{name}.json"))
    }

    /// Time passes: donors wipe, agents copy, devices sanitize. What changed is saved.
    fn tick(&mut self) -> io::Result<()> {
        let names: Vec<DonorId> =
            self.donors.iter_mut().filter_map(|(name, donor)| donor.tick().then(|| name.clone())).collect();
        for name in names {
            save(&self.donor_path(&name), &self.donors[&name])?;
        }
        let (donors, switch) = (&self.donors, &self.switch);
        let changed = self.agents.iter_mut().filter_map(|(name, agent)| {
            let is_valid = |host: &HostId, key, lease: &aquifer_fabric::MemberLease| match &lease.source {
                aquifer_fabric::Source::Slabs { donor } => {
                    donors.get(donor).is_some_and(|donor| donor.admits(key, lease.token))
                }
                source => switch.is_host_of(source, host, key),
            };
            agent.tick(name, is_valid).then(|| name.clone())
        });
        let names: Vec<HostId> = changed.collect();
        for name in names {
            save(&self.host_path(&name), &self.agents[&name])?;
        }
        if self.switch.tick() {
            save(&self.directory.join("switch.json"), &self.switch)?;
        }
        Ok(())
    }

    /// Carries a command out, and saves its receiver before it answers.
    fn carry_out(&mut self, command: &Command) -> Result<(), SendFailure> {
        let refused = |why: String| SendFailure::Refused { why };
        let saved = match command.step.end() {
            End::Donor(name) => {
                let donor = self.donors.get_mut(&name).ok_or_else(|| refused(format!("there is no donor {name}")))?;
                donor.obey(command).map_err(refused)?;
                save(&self.donor_path(&name), &self.donors[&name])
            }
            End::Host(name) => {
                let agent = self.agents.get_mut(&name).ok_or_else(|| refused(format!("there is no host {name}")))?;
                agent.obey(command).map_err(refused)?;
                save(&self.host_path(&name), &self.agents[&name])
            }
            End::Device(_) => {
                self.switch.obey(&command.step).map_err(refused)?;
                save(&self.directory.join("switch.json"), &self.switch)
            }
        };
        saved.map_err(|error| refused(format!("its file cannot be written: {error}; free space for simulated peers")))
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

    fn reports(&mut self, term: Term) -> Reports {
        if let Err(error) = self.tick() {
            eprintln!("aquifer-fabricd: simulated peers: {error}; free space for their directory");
        }
        let deposed = |seen| Silent::Deposed { seen };
        Reports {
            donors: self
                .donors
                .iter_mut()
                .map(|(name, one)| (name.clone(), one.report(term).map_err(deposed)))
                .collect(),
            hosts: self
                .agents
                .iter_mut()
                .map(|(name, one)| (name.clone(), one.report(term).map_err(deposed)))
                .collect(),
            devices: self
                .topology
                .parts()
                .devices
                .keys()
                .map(|name| (name.clone(), Ok(self.switch.report(name))))
                .collect(),
        }
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        let one = |command| {
            self.crash.pass();
            let outcome = self.carry_out(command);
            self.crash.pass();
            outcome
        };
        commands.iter().map(one).collect()
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
        let (lent, lost) = donor.slabs_lent();
        held.lost += lost;
        held.lent.extend(lent.into_iter().map(|((volume, member), slabs)| ((name.clone(), volume, member), slabs)));
    }
    for (name, agent) in &simulated.agents {
        let members = agent.members();
        held.joined.extend(members.into_iter().map(|(volume, members)| ((name.clone(), volume), members)));
    }
    Ok(held)
}
