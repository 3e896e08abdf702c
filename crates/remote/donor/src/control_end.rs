// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes orders from fabric managers: a donor as an end of their control channels.
//!
//! Threads: those of the channels, one at a time. A command is admitted by the gate (`aquifer_fabric::Gate`), whose
//! term is on the disk before anything is done for it (`fencing_file.rs`); `reservations.rs` carries it out.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aquifer_control::{
    ChannelStatus, Deposed, End, Keeper, KeeperSettings, Kind, Query, Refused, Registration, Report,
};
use aquifer_fabric::{Bytes, Command, DonorReport, Gate, Incarnation, Stale, Term};

use crate::fencing_file::Remembered;
use crate::leases::LeaseTable;
use crate::listener::Shared;
use crate::reservations::{Lender, Reservations};
use crate::settings::{Address, Managed, Security, Settings, StartFailure};
use crate::tenants::Tenant;

/// How long borrowers outside of reservations have to move when an operator drains the donor. Nothing is revoked when
/// it is over: a donor that is to end is stopped, which revokes.
const DRAIN_WITHIN: Duration = Duration::from_secs(600);

/// What a donor's metrics say about its fabric managers, besides the reservations, which are in its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedStatus {
    /// Fabric managers that have registered this donor.
    pub managers: u64,
    /// `true` while an operator drains this donor.
    pub is_drained: bool,
}

impl ManagedStatus {
    /// What it is now.
    pub(crate) fn of(shared: &Shared, keeper: &Keeper) -> ManagedStatus {
        let registered = keeper.statuses().iter().filter(|one| **one == ChannelStatus::Registered).count();
        ManagedStatus { managers: registered as u64, is_drained: shared.service.table().is_drained() }
    }
}

/// The donor as an end.
struct Ordered {
    shared: Arc<Shared>,
    gate: Gate,
    incarnation: Incarnation,
    remembered: Remembered,
    reservations: Reservations,
}

/// What the reservations need of it.
struct Parts<'a>(&'a Shared, &'a mut Remembered);

impl Lender for Parts<'_> {
    fn meet(&self, name: &str) -> Arc<Tenant> {
        self.0.service.meet(name)
    }

    fn mint(&mut self) -> Result<u64, String> {
        let minted = self.1.mint().map_err(|failure| failure.to_string())?;
        minted
            .ok_or_else(|| "this donor has no fencing tokens left; remove the file in which it stores the last".into())
    }

    fn table<R>(&self, decide: impl FnOnce(&mut LeaseTable, u64) -> R) -> R {
        let outcome = decide(&mut self.0.service.table(), self.0.service.now_ms());
        // Leases may have ended, and their slabs are to be wiped.
        self.0.service.keeper.notify_all();
        outcome
    }
}

impl Ordered {
    fn stale(&self, stale: Stale) -> Deposed {
        match stale {
            Stale::Term { seen } => Deposed { seen },
            Stale::Incarnation | Stale::Sequence => Deposed { seen: self.gate.term() },
        }
    }
}

impl End for Ordered {
    fn prepare(&mut self, term: Term) -> Result<(), Refused> {
        self.remembered.see(term).map_err(Refused::new)
    }

    fn report(&mut self, query: &Query) -> Result<Report, Deposed> {
        self.gate.report_to(query.term).map_err(|stale| self.stale(stale))?;
        if let Some(directory) = &query.directory {
            self.reservations.hosts.clone_from(&directory.hosts);
        }
        self.shared.service.set_drained(query.is_drained, DRAIN_WITHIN);
        let report = self.reservations.report(&Parts(&self.shared, &mut self.remembered));
        let (incarnation, term) = (self.incarnation, self.gate.term());
        Ok(Report::Donor(DonorReport { incarnation, term, ..report }))
    }

    fn take_revocations(&mut self, list: &str) -> Result<(), Refused> {
        // The thread that watches the files reloads it.
        let Some(path) = &self.shared.settings.revocations else { return Ok(()) };
        aquifer_control::replace(path, list).map_err(|error| {
            Refused::new(format!("{} cannot be written: {error}; let the donor write to its directory", path.display()))
        })
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), Refused> {
        self.remembered.see(command.term).map_err(Refused::new)?;
        self.gate.admit(command).map_err(Refused::new)?;
        let outcome = self.reservations.carry_out(&mut Parts(&self.shared, &mut self.remembered), &command.step);
        let result = if outcome.is_ok() { "done" } else { "refused" };
        let request = command.cause.as_ref().map(|cause| format!(" request={}", cause.request)).unwrap_or_default();
        let (term, step) = (command.term, &command.step);
        self.shared.service.note(format_args!("event=ordered term={term}{request} result={result} step=\"{step}\""));
        outcome.map_err(Refused::new)
    }
}

/// Keeps control channels to the managers that the settings name.
pub(crate) fn keep(
    shared: &Arc<Shared>,
    settings: &Settings,
    managed: &Managed,
    at: &Address,
) -> Result<Keeper, StartFailure> {
    let instance = shared.service.instance;
    let remembered = Remembered::open(managed.state.as_deref(), instance).map_err(StartFailure::Remembered)?;
    let addresses = match (managed.addresses.is_empty(), at) {
        (true, Address::Tcp(address)) => vec![address.to_string()],
        _ => managed.addresses.clone(),
    };
    let registration = Registration {
        kind: Kind::Donor,
        id: managed.id.to_string(),
        addresses,
        capacity: Bytes(shared.service.capacity_bytes()),
        labels: managed.labels.clone(),
    };
    registration.check().map_err(StartFailure::Registration)?;
    let own = match &settings.security {
        Security::Plain => None,
        Security::Tls(files) => Some(files.clone()),
    };
    let tls = managed.tls.clone().or(own);
    let channels = KeeperSettings { managers: managed.managers.clone(), tls, registration };
    let incarnation = Incarnation(instance);
    let ordered = Ordered {
        shared: Arc::clone(shared),
        gate: Gate::new(incarnation, remembered.term()),
        incarnation,
        remembered,
        reservations: Reservations::default(),
    };
    let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(ordered));
    let saying = Arc::clone(shared);
    Keeper::start(channels, &end, Box::new(move |line| saying.service.counters.say(line)))
        .map_err(StartFailure::Managers)
}
