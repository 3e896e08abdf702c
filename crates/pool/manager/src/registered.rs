// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Peers that have registered: donors and host agents, over their control channels.
//!
//! The topology follows from their registrations. A registration is stored before it is part of the topology, so that a
//! restarted manager knows the ends that are silent. It is forgotten when its donor was retired, has no channel, and is
//! in no pool.
//!
//! Threads: the writer's. `aquifer_control` has those of the channels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use aquifer_control::{
    EndId, Entry, FaultFigures, Heard, Issuer, NotSent, NotStarted, Registrar, RegistrarSettings, Registration, Unheard,
};
use aquifer_fabric::{
    Availability, Bytes, Command, Desired, Donor, DonorId, Enclosure, End, Host, Parts, SLAB, Source, Term, Topology,
};

use crate::config::ControlConfig;
use crate::crash::CrashPoint;
use crate::issuance::{Issuance, Renewals};
use crate::manager_store::json;
use crate::peers::{Asked, Peers, Record, Reports, SendFailure, Silent};
use crate::rest::now;

/// The number of ends that a round queries although nothing is awaited from them. In the largest pool that is measured,
/// twenty rounds query all 1,200 ends; in a small pool each round queries every end.
const TURN: usize = 64;

/// The prefix of registrations in the store.
pub(crate) const REGISTRATIONS: &str = "registration/";

/// The peers that have registered at the control port.
pub(crate) struct Registered {
    registrar: Registrar,
    topology: Arc<Topology>,
    /// The registrations in the store.
    stored: BTreeMap<EndId, Entry>,
    /// How many changes of the registrar's roster are stored.
    changes: Option<u64>,
    /// The registrations that are being stored, and the count of the roster's changes that they include.
    recording: Option<(u64, BTreeMap<EndId, Entry>)>,
    drained: BTreeSet<DonorId>,
    /// The last end that was asked in its turn.
    turn: Option<EndId>,
    crash: CrashPoint,
}

/// Why the control port is not opened: one line with the remedy.
#[derive(Debug)]
pub(crate) enum NotOpened {
    Config(crate::config::NotAConfig),
    Registrar(NotStarted),
}

impl std::fmt::Display for NotOpened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(not) => not.fmt(f),
            Self::Registrar(not) => not.fmt(f),
        }
    }
}

impl Registered {
    /// Listens. `entries` are the stored registrations.
    pub(crate) fn open(
        config: &ControlConfig,
        entries: Vec<Entry>,
        issuance: Option<&Arc<Issuance>>,
        crash: CrashPoint,
    ) -> Result<Registered, NotOpened> {
        let stored = entries.iter().filter_map(|entry| Some((entry.registration.check().ok()?, entry.clone())));
        let stored: BTreeMap<EndId, Entry> = stored.collect();
        let settings = RegistrarSettings {
            listen: config.listen,
            tls: config.files().map_err(NotOpened::Config)?,
            revocations: config.revocations.clone(),
            donors: config.donors.clone(),
            hosts: config.hosts.clone(),
        };
        let log = Box::new(|line: &str| eprintln!("aquifer-fabricd: {line}"));
        let issuer = issuance.map(|issuance| Arc::new(Renewals(Arc::clone(issuance))) as Arc<dyn Issuer>);
        let registrar = Registrar::start_issuing(settings, entries, issuer, log).map_err(NotOpened::Registrar)?;
        let topology = Arc::new(topology_of(&stored));
        let (changes, recording, drained, turn) = (None, None, BTreeSet::new(), None);
        Ok(Registered { registrar, topology, stored, changes, recording, drained, turn, crash })
    }

    /// Returns those that are awaited, and the next ones in their order.
    fn turn(&mut self, awaited: &BTreeSet<End>) -> BTreeSet<EndId> {
        let after = self.turn.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.stored.range((after, Bound::Unbounded)).chain(&self.stored).map(|(id, _)| id);
        // Not more than all, and none twice.
        let next: Vec<EndId> = next.take(TURN.min(self.stored.len())).cloned().collect();
        self.turn = next.last().cloned();
        let awaited = awaited.iter().filter_map(|end| match end {
            End::Donor(donor) => Some(EndId::Donor(donor.clone())),
            End::Host(host) => Some(EndId::Host(host.clone())),
            End::Device(_) => None,
        });
        awaited.chain(next).collect()
    }

    /// Returns where ends connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.registrar.address()
    }
}

fn record(id: &EndId, entry: Option<&Entry>) -> Record {
    let what = match entry {
        Some(entry) => format!("{id} registers as {}", entry.identity),
        None => format!("the registration of {id} is forgotten"),
    };
    Record { key: format!("{REGISTRATIONS}{}/{}", id.kind(), id.name()), value: entry.map(json), what }
}

/// Returns the topology of registered ends. Those that cannot be part of one were refused when they registered.
fn topology_of(entries: &BTreeMap<EndId, Entry>) -> Topology {
    let mut parts = Parts::default();
    for (id, Entry { registration, .. }) in entries {
        // A stored registration that a later version does not accept is left out.
        let _ = add(&mut parts, id, registration);
    }
    Topology::new(parts).expect("each end has its enclosure, and whole slabs")
}

fn add(parts: &mut Parts, id: &EndId, registration: &Registration) -> Result<(), aquifer_control::NotARegistration> {
    let (enclosure, rack) = (registration.enclosure()?, registration.rack()?);
    match id {
        EndId::Donor(donor) => {
            let capacity = Bytes(registration.capacity.0 / SLAB.0 * SLAB.0);
            let new = Donor { enclosure: enclosure.clone(), class: registration.class()?, capacity };
            parts.donors.insert(donor.clone(), new);
        }
        EndId::Host(host) => {
            parts.hosts.insert(host.clone(), Host { enclosure: enclosure.clone() });
        }
    }
    parts.enclosures.insert(enclosure, Enclosure { rack });
    Ok(())
}

fn silent(unheard: Unheard) -> Silent {
    match unheard {
        Unheard::Deposed { seen } => Silent::Deposed { seen },
        Unheard::Apart | Unheard::Late => Silent::NoAnswer,
    }
}

impl Peers for Registered {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology)
    }

    fn command_time_max(&self) -> Duration {
        // Each end has a gate, which refuses commands of earlier managers.
        Duration::ZERO
    }

    fn term_min(&self) -> Term {
        // Two managers with new stores would both begin with 1, and ends would not distinguish them.
        Term(now().0)
    }

    fn follow(&mut self, desired: &Desired) {
        self.drained.clone_from(&desired.draining);
        if desired.retired_donors.is_empty() {
            return;
        }
        let connected = self.registrar.connected();
        let uses = |donor: &DonorId| {
            let source = Source::Slabs { donor: donor.clone() };
            desired.volumes.on(&source).next().is_some() || desired.pool_of(&source).is_some()
        };
        for donor in desired.retired_donors.keys() {
            let id = EndId::Donor(donor.clone());
            if self.stored.contains_key(&id) && !connected.contains(&id) && !uses(donor) {
                self.registrar.forget(&id);
            }
        }
    }

    fn records(&mut self) -> Vec<Record> {
        if self.changes == Some(self.registrar.changes()) {
            return Vec::new();
        }
        let (changes, entries) = self.registrar.entries();
        let new = entries.iter().filter(|(id, entry)| self.stored.get(*id) != Some(*entry));
        let gone = self.stored.keys().filter(|id| !entries.contains_key(*id));
        let records: Vec<Record> =
            new.map(|(id, entry)| record(id, Some(entry))).chain(gone.map(|id| record(id, None))).collect();
        if records.is_empty() {
            self.changes = Some(changes);
        } else {
            self.recording = Some((changes, entries));
        }
        records
    }

    fn recorded(&mut self) {
        let Some((changes, entries)) = self.recording.take() else { return };
        (self.changes, self.stored) = (Some(changes), entries);
        self.topology = Arc::new(topology_of(&self.stored));
    }

    fn reports(&mut self, term: Term, asked: Asked<'_>) -> Reports {
        let mut reports = Reports::default();
        let whom = match asked {
            Asked::All => self.stored.keys().cloned().collect(),
            Asked::Awaited(awaited) => self.turn(awaited),
        };
        for (id, outcome) in self.registrar.query_these(term, &self.drained, &whom) {
            // One that has registered since the last round is not part of the topology yet.
            if !self.stored.contains_key(&id) {
                continue;
            }
            // An end that answers is never `Gone`, whatever its report says.
            match (id, outcome) {
                (EndId::Donor(donor), Ok(Heard::Donor(mut report))) => {
                    if !report.availability.answers() {
                        Arc::make_mut(&mut report).availability = Availability::Draining;
                    }
                    reports.donors.insert(donor, Ok(report));
                }
                (EndId::Host(host), Ok(Heard::Host(mut report))) => {
                    if !report.availability.answers() {
                        Arc::make_mut(&mut report).availability = Availability::Draining;
                    }
                    reports.hosts.insert(host, Ok(report));
                }
                (EndId::Donor(donor), Err(unheard)) => {
                    reports.donors.insert(donor, Err(silent(unheard)));
                }
                (EndId::Host(host), Err(unheard)) => {
                    reports.hosts.insert(host, Err(silent(unheard)));
                }
                // The registrar compares the kinds.
                (_, Ok(_)) => {}
            }
        }
        reports
    }

    fn faults(&self) -> Arc<FaultFigures> {
        self.registrar.faults()
    }

    fn turns(&self) -> u32 {
        u32::try_from(self.stored.len().div_ceil(TURN).max(1)).unwrap_or(u32::MAX)
    }

    fn send(&mut self, commands: &[Command]) -> Vec<Result<(), SendFailure>> {
        if commands.is_empty() {
            return Vec::new();
        }
        self.crash.pass();
        let outcomes = self.registrar.send(commands);
        self.crash.pass();
        let one = |outcome: Result<(), NotSent>| {
            outcome.map_err(|not| match not {
                NotSent::Lost => SendFailure::Lost,
                NotSent::Pending => SendFailure::Pending,
                NotSent::Refused(refused) => SendFailure::Refused { why: refused.why },
            })
        };
        outcomes.into_iter().map(one).collect()
    }
}
