// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Donors and agents that follow the protocol but lend no memory, each with its own control channel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use aquifer_control::{Deposed, End, Keeper, KeeperSettings, Kind, Query, Refused, Registration, Report};
use aquifer_fabric::{
    Bytes, Command, DonorReport, Gate, HostReport, Incarnation, LeaseReport, LeaseState, MemberId, MemberLease,
    MemberReport, MemberState, Step, Term, Token, VolumeId, VolumeReport,
};

use crate::RACK;
use crate::running::Failure;

/// The amount that each donor lends.
const CAPACITY: Bytes = Bytes::gib(1);

/// A donor that grants every request.
struct Donor {
    gate: Gate,
    incarnation: Incarnation,
    token: u64,
    leases: BTreeMap<VolumeId, BTreeMap<MemberId, LeaseReport>>,
}

impl Donor {
    fn started(incarnation: u64) -> Donor {
        let incarnation = Incarnation(incarnation);
        Donor {
            gate: Gate::new(incarnation, Term(0)),
            incarnation,
            token: incarnation.0 << 20,
            leases: BTreeMap::new(),
        }
    }
}

impl End for Donor {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        Ok(Report::Donor(DonorReport {
            incarnation: self.incarnation,
            term: self.gate.term(),
            capacity: CAPACITY,
            leases: self.leases.clone(),
            ..DonorReport::default()
        }))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        self.gate.admit(command).map_err(Refused::new)?;
        match &command.step {
            Step::Grant { host, volume, member, bytes, .. } => {
                self.token += 1;
                let state = LeaseState::Lent { token: Token(self.token) };
                let lease = LeaseReport { host: host.clone(), bytes: *bytes, state };
                self.leases.entry(*volume).or_default().entry(*member).or_insert(lease);
            }
            Step::Release { volume, member, .. } => {
                let host = "nobody".parse().map_err(Refused::new)?;
                let none = LeaseReport { host, bytes: Bytes::ZERO, state: LeaseState::Released };
                let lease = self.leases.entry(*volume).or_default().entry(*member).or_insert(none);
                lease.state = LeaseState::Released;
            }
            Step::ForgetLease { volume, member, .. } => {
                if let Some(leases) = self.leases.get_mut(volume) {
                    leases.remove(member);
                }
                self.leases.retain(|_, leases| !leases.is_empty());
            }
            step => return Err(Refused::new(format!("a donor cannot {step}"))),
        }
        Ok(())
    }
}

/// An agent that joins, leaves and withdraws at once.
struct Agent {
    gate: Gate,
    volumes: BTreeMap<VolumeId, VolumeReport>,
    left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
}

const AGENT: Incarnation = Incarnation(1);

impl Agent {
    fn take(&mut self, volume: VolumeId, members: &[MemberLease]) {
        let Some(view) = self.volumes.get_mut(&volume) else { return };
        for lease in members {
            let report = MemberReport { lease: lease.clone(), state: MemberState::InSync };
            view.members.entry(lease.member).or_insert(report);
        }
    }

    fn leave(&mut self, volume: VolumeId, members: impl Iterator<Item = MemberId>) {
        for member in members {
            if let Some(view) = self.volumes.get_mut(&volume) {
                view.members.remove(&member);
            }
            self.left.entry(volume).or_default().insert(member);
        }
        self.volumes.retain(|_, view| !view.members.is_empty());
    }
}

impl End for Agent {
    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|_| Deposed { seen: self.gate.term() })?;
        let (volumes, left) = (self.volumes.clone(), self.left.clone());
        Ok(Report::Host(HostReport {
            incarnation: AGENT,
            term: self.gate.term(),
            volumes,
            left,
            ..HostReport::default()
        }))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        self.gate.admit(command).map_err(Refused::new)?;
        match &command.step {
            Step::Present { volume, name, redundancy, presentation, members, .. } => {
                let presentation = presentation.clone();
                let (name, redundancy) = (name.clone(), *redundancy);
                let new = VolumeReport { name, redundancy, presentation, members: BTreeMap::new() };
                self.volumes.entry(*volume).or_insert(new);
                self.take(*volume, members);
            }
            Step::Join { volume, members, .. } => self.take(*volume, members),
            Step::Leave { volume, members, .. } => self.leave(*volume, members.iter().copied()),
            Step::Withdraw { volume, members, .. } => {
                let had = self.volumes.get(volume).map(|view| view.members.keys().copied().collect::<Vec<_>>());
                self.leave(*volume, had.unwrap_or_default().into_iter().chain(members.iter().copied()));
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

/// The channels of all ends.
pub(crate) struct Ends {
    control: SocketAddr,
    donors: Vec<Option<(Keeper, Arc<Mutex<Donor>>)>>,
    _agents: Vec<Keeper>,
}

impl Ends {
    /// Starts them.
    pub(crate) fn start(donors: usize, hosts: usize, control: &SocketAddr) -> Result<Ends, Failure> {
        let mut ends = Ends { control: *control, donors: Vec::new(), _agents: Vec::new() };
        for number in 0..donors {
            let donor = ends.start_donor(number, 1)?;
            ends.donors.push(Some(donor));
        }
        for number in 0..hosts {
            let agent = Agent { gate: Gate::new(AGENT, Term(0)), volumes: BTreeMap::new(), left: BTreeMap::new() };
            let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(agent));
            ends._agents.push(keep(Kind::Host, format!("h{number:03}"), None, ends.control, &end)?);
        }
        Ok(ends)
    }

    fn start_donor(&self, number: usize, incarnation: u64) -> Result<(Keeper, Arc<Mutex<Donor>>), Failure> {
        let donor = Arc::new(Mutex::new(Donor::started(incarnation)));
        let end: Arc<Mutex<dyn End>> = Arc::<Mutex<Donor>>::clone(&donor);
        let keeper = keep(Kind::Donor, format!("d{number:04}"), Some(number / RACK), self.control, &end)?;
        Ok((keeper, donor))
    }

    /// Returns the number of leases that all donors have lent.
    pub(crate) fn lent(&self) -> u64 {
        let lent = |donor: &Mutex<Donor>| {
            let donor = donor.lock().unwrap_or_else(PoisonError::into_inner);
            let leases = donor.leases.values().flat_map(BTreeMap::values);
            leases.filter(|lease| matches!(lease.state, LeaseState::Lent { .. })).count() as u64
        };
        self.donors.iter().flatten().map(|(_, donor)| lent(donor)).sum()
    }

    /// Reboots a rack: its donors lose their channels and their memory, and come back.
    pub(crate) fn reboot_rack(&mut self, rack: usize) -> Result<(), Failure> {
        let numbers = rack * RACK..((rack + 1) * RACK).min(self.donors.len());
        numbers.clone().for_each(|number| self.donors[number] = None);
        for number in numbers {
            self.donors[number] = Some(self.start_donor(number, 2)?);
        }
        Ok(())
    }
}

fn keep(
    kind: Kind,
    id: String,
    rack: Option<usize>,
    manager: SocketAddr,
    end: &Arc<Mutex<dyn End>>,
) -> Result<Keeper, Failure> {
    let labels = rack.map(|rack| ("rack".to_owned(), format!("r{rack:03}"))).into_iter().collect();
    let capacity = if kind == Kind::Donor { CAPACITY } else { Bytes::ZERO };
    let registration = Registration { kind, id, addresses: vec!["127.0.0.1:7411".into()], capacity, labels };
    let settings = KeeperSettings { managers: vec![manager.to_string().parse()?], tls: None, registration };
    Ok(Keeper::start(settings, end, Box::new(|_| ()))?)
}
