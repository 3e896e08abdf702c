// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A manager's side: accepts ends, registers them, and carries requests to all of them at once.
//!
//! Threads: one accepts (`accepting.rs`); one for each connection (`channel.rs`). `strangers.rs` bounds the connections
//! that are not registered yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aquifer_fabric::{Command, DonorId, End as Receiving, Term};
use aquifer_sys::wakeup::Wakeup;
use aquifer_tls::{DonorSide, Files};

use crate::accepting;
use crate::asking::{Asked, Line};
use crate::channel::{self, Answer, Job};
use crate::end::Refused;
use crate::failure::NotStarted;
use crate::issuing::Issuer;
use crate::measuring::{FaultFigures, Measurements};
use crate::message::Report;
use crate::refusals::Refusals;
use crate::registration::{EndId, Kind};
use crate::reports::Heard;
use crate::roster::{Entry, Patterns, Roster};
use crate::strangers::Strangers;

/// How long a round waits for the reports of prompt ends (`asking.rs`). An end that takes longer is silent until it has
/// answered.
const REPORT_WAIT: Duration = Duration::from_secs(2);
/// How long to wait for the outcome of commands of prompt ends.
const COMMAND_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of commands in one request to an end; the rest is lost, and due again in the next round.
pub const COMMANDS_MAX: usize = 64;
/// Maximum number of log lines about strangers in one second, so that they cannot fill a log.
const LINES_PER_SECOND_MAX: u32 = 10;

/// How ends reach a registrar, and who may.
#[derive(Clone, Debug)]
pub struct RegistrarSettings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The manager's certificate, and the authority of the ends'; `None` for plain text, on this machine only.
    pub tls: Option<Files>,
    /// Lists of revoked certificates, in PEM.
    pub revocations: Option<PathBuf>,
    /// Identities that may register as donors.
    pub donors: Patterns,
    /// Identities that may register as hosts.
    pub hosts: Patterns,
}

/// Why there is no report of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// It has no channel.
    Apart,
    /// It has seen a greater term.
    Deposed {
        /// The greater term that it has seen.
        seen: Term,
    },
    /// It did not answer in time, or its channel was lost.
    Late,
}

/// Why a command was not carried out, as far as the sender knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// It may or may not have arrived.
    Lost,
    /// The end is slow, and its time for an answer is not over. The command may or may not have arrived.
    Pending,
    /// The end has refused it.
    Refused(Refused),
}

/// A registered end that has a channel.
pub(crate) struct Connected {
    /// Counts connections, so that an old one does not remove a newer one.
    pub(crate) connection: u64,
    pub(crate) jobs: SyncSender<Job>,
    pub(crate) line: Arc<Line>,
    /// When the last request that was handed over should be answered.
    pub(crate) due: Instant,
    socket: TcpStream,
}

#[derive(Default)]
struct Lines {
    second: Option<Instant>,
    count: u32,
}

/// What a registrar's threads share.
pub(crate) struct Shared {
    pub(crate) roster: Mutex<Roster>,
    pub(crate) side: RwLock<Option<Arc<DonorSide>>>,
    pub(crate) connected: Mutex<BTreeMap<EndId, Connected>>,
    pub(crate) strangers: Mutex<Strangers<TcpStream>>,
    pub(crate) refusals: Refusals,
    pub(crate) measurements: Mutex<Measurements>,
    lines: Mutex<Lines>,
    log: Box<dyn Fn(&str) + Send + Sync>,
    is_over: AtomicBool,
    pub(crate) wakeup: Wakeup,
    pub(crate) issuer: Option<Arc<dyn Issuer>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        lock(&self.roster)
    }

    pub(crate) fn strangers(&self) -> MutexGuard<'_, Strangers<TcpStream>> {
        lock(&self.strangers)
    }

    pub(crate) fn side(&self) -> Option<Arc<DonorSide>> {
        self.side.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports why a peer has no channel; once, until the peer has registered.
    pub(crate) fn refuse(&self, peer: IpAddr, why: &str) {
        if self.refusals.is_new(peer, why) {
            self.say(&format!("control channel from {peer}: {why}"));
        }
    }

    /// Reports a line about a peer that anybody could cause.
    pub(crate) fn say(&self, line: &str) {
        let mut lines = lock(&self.lines);
        if lines.second.is_none_or(|second| second.elapsed() > Duration::from_secs(1)) {
            *lines = Lines { second: Some(Instant::now()), count: 0 };
        }
        lines.count += 1;
        let count = lines.count;
        drop(lines);
        match count {
            count if count < LINES_PER_SECOND_MAX => (self.log)(line),
            LINES_PER_SECOND_MAX => (self.log)("control channels: further lines of this second are left out"),
            _ => {}
        }
    }

    /// Notes that an end has a channel now. The connection that it had before ends.
    pub(crate) fn connect(&self, id: &EndId, connection: u64, socket: TcpStream, line: Arc<Line>) -> Receiver<Job> {
        let (jobs, receiver) = sync_channel(1);
        let new = Connected { connection, jobs, line, due: Instant::now(), socket };
        if let Some(old) = lock(&self.connected).insert(id.clone(), new) {
            let _ = old.socket.shutdown(Shutdown::Both);
        }
        receiver
    }

    /// Notes that a connection has ended.
    pub(crate) fn part(&self, id: &EndId, connection: u64) {
        let mut connected = lock(&self.connected);
        if connected.get(id).is_some_and(|one| one.connection == connection) {
            connected.remove(id);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

/// Accepts ends and carries requests to them, until it is dropped.
pub struct Registrar {
    pub(crate) shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrar").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Registrar {
    /// Listens. `stored` are the registrations that are known already; their ends are silent until they connect.
    pub fn start(
        settings: RegistrarSettings,
        stored: Vec<Entry>,
        log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Registrar, NotStarted> {
        Registrar::start_issuing(settings, stored, None, log)
    }

    /// Starts a registrar with an authority that renews the certificates of ends.
    pub fn start_issuing(
        settings: RegistrarSettings,
        stored: Vec<Entry>,
        issuer: Option<Arc<dyn Issuer>>,
        log: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Registrar, NotStarted> {
        if settings.tls.is_none() && !settings.listen.ip().is_loopback() {
            return Err(NotStarted::Plain(settings.listen));
        }
        let side = accepting::load(&settings).map_err(NotStarted::Credentials)?;
        let failure = |error| NotStarted::Listen(settings.listen, error);
        let listener = TcpListener::bind(settings.listen).map_err(failure)?;
        listener.set_nonblocking(true).map_err(failure)?;
        let address = listener.local_addr().map_err(failure)?;
        let wakeup = Wakeup::new().map_err(|errno| NotStarted::Thread(std::io::Error::from_raw_os_error(errno.0)))?;
        let roster = Roster::new(stored, settings.donors.clone(), settings.hosts.clone());
        let shared = Arc::new(Shared {
            roster: Mutex::new(roster),
            side: RwLock::new(side),
            connected: Mutex::default(),
            strangers: Mutex::default(),
            refusals: Refusals::default(),
            measurements: Mutex::default(),
            lines: Mutex::default(),
            log,
            is_over: AtomicBool::new(false),
            wakeup,
            issuer,
        });
        let shared_by = Arc::clone(&shared);
        let thread = thread::Builder::new().name("control-accept".into());
        let thread =
            thread.spawn(move || accepting::accept(&shared_by, &listener, &settings)).map_err(NotStarted::Thread)?;
        Ok(Registrar { shared, address, thread: Some(thread) })
    }

    /// Returns where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts changes of the registrations.
    pub fn changes(&self) -> u64 {
        self.shared.roster().changes()
    }

    /// Returns all registrations, and the number of changes that led to them.
    pub fn entries(&self) -> (u64, BTreeMap<EndId, Entry>) {
        let roster = self.shared.roster();
        (roster.changes(), roster.entries().clone())
    }

    /// Returns the ends that have a channel now.
    pub fn connected(&self) -> BTreeSet<EndId> {
        lock(&self.shared.connected).keys().cloned().collect()
    }

    /// Returns the faults of programs, as the agents of their hosts count them.
    pub fn faults(&self) -> Arc<FaultFigures> {
        lock(&self.shared.measurements).figures(Instant::now())
    }

    /// Forgets a registration and ends its channel. Returns whether there was one. An end that is alive registers
    /// again.
    pub fn forget(&self, id: &EndId) -> bool {
        let had = self.shared.roster().forget(id);
        lock(&self.shared.measurements).forget(id);
        if let Some(old) = lock(&self.shared.connected).remove(id) {
            let _ = old.socket.shutdown(Shutdown::Both);
        }
        had
    }

    /// Asks every registered end for a report.
    pub fn query(&self, term: Term, drained: &BTreeSet<DonorId>) -> BTreeMap<EndId, Result<Report, Unheard>> {
        let all = self.shared.roster().entries().keys().cloned().collect();
        let heard = self.query_these(term, drained, &all).into_iter();
        heard.map(|(id, outcome)| (id, outcome.map(Report::from))).collect()
    }

    /// Asks those of these ends that are registered for a report. A report that has not changed is the same allocation
    /// as before. A slow end whose time is not over is left out.
    pub fn query_these(
        &self,
        term: Term,
        drained: &BTreeSet<DonorId>,
        whom: &BTreeSet<EndId>,
    ) -> BTreeMap<EndId, Result<Heard, Unheard>> {
        let roster = self.shared.roster();
        let registered = whom.iter().filter(|id| roster.entries().contains_key(*id));
        let mut reports: BTreeMap<EndId, Result<Heard, Unheard>> =
            registered.map(|id| (id.clone(), Err(Unheard::Apart))).collect();
        drop(roster);
        let drains = |id: &EndId| matches!(id, EndId::Donor(donor) if drained.contains(donor));
        let requests = reports.keys().map(|id| (id.clone(), channel::Request::Query { term, is_drained: drains(id) }));
        let Asked { answers, apart, pending } = self.ask(requests.collect(), REPORT_WAIT);
        reports.retain(|id, _| !pending.contains(id));
        reports.iter_mut().filter(|(id, _)| !apart.contains(*id)).for_each(|(_, one)| *one = Err(Unheard::Late));
        for (id, answer) in answers {
            let report = match (answer, id.kind()) {
                (Answer::Reported(heard @ Heard::Donor(_)), Kind::Donor) => Ok(heard),
                (Answer::Reported(heard @ Heard::Host(_)), Kind::Host) => Ok(heard),
                (Answer::Deposed(seen), _) => Err(Unheard::Deposed { seen }),
                (Answer::Unable(refused), _) => {
                    self.shared.say(&format!("{id} cannot report: {refused}"));
                    Err(Unheard::Late)
                }
                _ => Err(Unheard::Late),
            };
            reports.insert(id, report);
        }
        reports
    }

    /// Sends commands to donors and hosts. Returns what became of each, in their order.
    pub fn send(&self, commands: &[Command]) -> Vec<Result<(), NotSent>> {
        let mut outcomes = vec![Err(NotSent::Lost); commands.len()];
        let mut by_end: BTreeMap<EndId, Vec<usize>> = BTreeMap::new();
        for (index, command) in commands.iter().enumerate() {
            let id = match command.step.end() {
                Receiving::Donor(donor) => EndId::Donor(donor),
                Receiving::Host(host) => EndId::Host(host),
                Receiving::Device(device) => {
                    let why = format!("device {device} has no control channel; send the step to its switch");
                    outcomes[index] = Err(NotSent::Refused(Refused::new(why)));
                    continue;
                }
            };
            let of_end = by_end.entry(id).or_default();
            if of_end.len() < COMMANDS_MAX {
                of_end.push(index);
            }
        }
        let batch = |indices: &Vec<usize>| indices.iter().map(|index| commands[*index].clone()).collect();
        let requests = by_end.iter().map(|(id, indices)| (id.clone(), channel::Request::Commands(batch(indices))));
        let Asked { answers, pending, .. } = self.ask(requests.collect(), COMMAND_WAIT);
        for indices in pending.iter().filter_map(|id| by_end.get(id)) {
            indices.iter().for_each(|index| outcomes[*index] = Err(NotSent::Pending));
        }
        for (id, answer) in answers {
            let Some(indices) = by_end.get(&id) else { continue };
            match answer {
                Answer::Outcomes(results) => {
                    for (index, result) in indices.iter().zip(results) {
                        outcomes[*index] = result.map_err(|refused| NotSent::Refused(Refused::new(refused.why)));
                    }
                }
                Answer::TooLong(why) => {
                    let refused = NotSent::Refused(Refused::new(why));
                    indices.iter().for_each(|index| outcomes[*index] = Err(refused.clone()));
                }
                Answer::Deposed(_) | Answer::Reported(_) | Answer::Unable(_) => {}
            }
        }
        outcomes
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.wakeup.wake();
        for one in std::mem::take(&mut *lock(&self.shared.connected)).into_values() {
            let _ = one.socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
