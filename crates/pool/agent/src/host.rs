// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A running agent: the host state that the channel to the managers and the programs' sessions share.
//!
//! Every change goes through [`Shared::change`]: it derives which members have left and which are complete, stores the
//! host state before anybody acts on it, and wakes the sessions whose views may have changed.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use aquifer_agent_wire::TenantFiles;
use aquifer_control::{End, Keeper, KeeperSettings, Kind, Registration};
use aquifer_fabric::{Bytes, DonorId};
use aquifer_sys::wakeup::Wakeup;
use aquifer_telemetry::{Telemetry, TelemetryFailure};

use crate::control_end::HostEnd;
use crate::cxl::CxlThread;
use crate::host_state::{Figures, HostState, Surroundings, host_of};
use crate::observer::Observer;
use crate::permits::Permits;
use crate::processes;
use crate::refusals::Refusals;
use crate::reload::Reloader;
use crate::server::Server;
use crate::settings::{DonorAddress, Settings};
use crate::shown::ShownPrograms;
use crate::state_file::StateFile;

/// Why an agent cannot start: one line with the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum AgentFailure {
    /// The channel to the managers cannot be kept.
    Control {
        /// Why it cannot be kept.
        why: String,
    },
    /// This start of the host cannot be identified.
    NoBoot,
    /// Programs cannot be served.
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The state cannot be read or stored.
    State {
        /// Why, and what to do.
        why: String,
    },
    /// Spans cannot be sent.
    Telemetry {
        /// Why they cannot be sent.
        failure: TelemetryFailure,
    },
    /// A thread cannot be started.
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
}

impl fmt::Display for AgentFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control { why } => write!(f, "no channel to a fabric manager can be kept: {why}"),
            Self::NoBoot => f.write_str("this start of the host cannot be identified; mount /proc"),
            Self::Socket { path, source } => write!(
                f,
                "programs cannot be served at {}: {source}; create its directory for the agent's user, or name another \
                 path with socket=",
                path.display()
            ),
            Self::State { why } => f.write_str(why),
            Self::Telemetry { failure } => write!(f, "{failure}"),
            Self::Thread { source } => write!(f, "a thread cannot be started: {source}; raise the limit of tasks"),
        }
    }
}

impl std::error::Error for AgentFailure {}

/// What the threads of an agent share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) telemetry: Telemetry,
    /// Who may open which volumes: those of the configuration as it was read last.
    permits: Mutex<Arc<Permits>>,
    donors: BTreeMap<DonorId, (String, String)>,
    state: Mutex<State>,
    sessions: Mutex<Vec<Weak<Wakeup>>>,
    /// The programs whose statistics the metrics contain.
    pub(crate) shown: Arc<ShownPrograms>,
    pub(crate) refusals: Refusals,
}

struct State {
    host_state: HostState,
    kept: StateFile,
    /// The host state of which nothing is missing on disk.
    kept_of: Option<HostState>,
    /// The bytes on disk.
    stored: Vec<u8>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the host state, and stores it. If the disk fails, the change is kept in memory, and is stored with the
    /// next one.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut HostState) -> R) -> (R, io::Result<()>) {
        let mut state = self.state();
        let before = state.host_state.revision();
        let outcome = change(&mut state.host_state);
        state.host_state.settle();
        let stored = state.store();
        let is_changed = state.host_state.revision() != before;
        drop(state);
        if is_changed {
            self.wake_sessions();
        }
        (outcome, stored)
    }

    /// Returns the numbers of the host state for metrics, and whether all of it is on disk.
    pub(crate) fn figures(&self) -> (Figures, bool) {
        let state = self.state();
        (state.host_state.figures(), state.kept_of.is_some())
    }

    /// Returns who may open which volumes now.
    pub(crate) fn permits(&self) -> Arc<Permits> {
        Arc::clone(&self.permits.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the permits. Programs that have a volume open keep it.
    pub(crate) fn replace_permits(&self, permits: Permits) {
        *self.permits.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(permits);
        self.wake_sessions();
    }

    /// Returns what a view needs besides the host state.
    pub(crate) fn surroundings(&self) -> Surroundings<'_> {
        let (tenant, crl) = (self.settings.tenant.as_ref(), &self.settings.revocations);
        let files = tenant.map(|files| TenantFiles {
            cert: files.cert.clone(),
            key: files.key.clone(),
            ca: files.ca.clone(),
            crl: crl.clone(),
        });
        Surroundings { files, donors: &self.donors }
    }

    pub(crate) fn watch(&self, wakeup: &Arc<Wakeup>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(Arc::downgrade(wakeup));
    }

    fn wake_sessions(&self) {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| session.wake());
    }
}

impl State {
    fn store(&mut self) -> io::Result<()> {
        if self.kept_of.as_ref() == Some(&self.host_state) {
            return Ok(());
        }
        let text = self.host_state.to_store();
        if self.stored != text {
            // A failure leaves the old bytes or the new ones on disk.
            self.kept_of = None;
            self.stored.clear();
            self.kept.save(&text)?;
            self.stored = text;
        }
        self.kept_of = Some(self.host_state.clone());
        Ok(())
    }
}

/// A running agent. It ends when it is stopped or dropped.
pub struct Host {
    shared: Arc<Shared>,
    log: Arc<dyn Fn(&str) + Send + Sync>,
    server: Option<Server>,
    thread: Option<JoinHandle<()>>,
    keeper: Option<Arc<Keeper>>,
    cxl: Option<CxlThread>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Host {
    /// Reads the state, and starts to serve programs and to keep the channel to the managers. `log` gets lines for the
    /// operator.
    pub fn start(mut settings: Settings, log: Arc<dyn Fn(&str) + Send + Sync>) -> Result<Host, AgentFailure> {
        let state = |why| AgentFailure::State { why };
        let boot = processes::boot().ok_or(AgentFailure::NoBoot)?;
        let kept = StateFile::open(&settings.state).map_err(state)?;
        let mut host_state = kept.load().map_err(state)?.unwrap_or_else(|| HostState::new(&boot));
        host_state.start(&boot);
        if settings.cxl.is_some() {
            host_state.take_devices();
        }
        let donors = settings.donors.iter().map(|(id, donor)| (id.clone(), place_of(donor))).collect();
        let state = Mutex::new(State { host_state, kept, kept_of: None, stored: Vec::new() });
        let telemetry =
            Telemetry::start(settings.collector.as_ref(), "aquifer-agent", settings.host.as_str(), Arc::clone(&log));
        let telemetry = telemetry.map_err(|failure| AgentFailure::Telemetry { failure })?;
        let permits = Mutex::new(Arc::new(std::mem::take(&mut settings.volumes)));
        let shared = Arc::new(Shared {
            settings,
            telemetry,
            permits,
            donors,
            state,
            sessions: Mutex::default(),
            shown: Arc::default(),
            refusals: Refusals::default(),
        });
        shared.change(|_| ()).1.map_err(|error| AgentFailure::State {
            why: format!("the state cannot be stored: {error}; free space in the state directory"),
        })?;
        let path = shared.settings.socket.clone();
        let server = Server::bind(&path).map_err(|source| AgentFailure::Socket { path, source })?;
        let keeper = Arc::new(keep(&shared, &log)?);
        let cxl = shared.settings.cxl.clone().map(|settings| CxlThread::start(&shared, settings, &log));
        let cxl = cxl.transpose().map_err(|source| AgentFailure::Thread { source })?;
        let thread = std::thread::Builder::new().name("agent-server".into()).spawn({
            let (shared, server, log) = (Arc::clone(&shared), server.clone(), Arc::clone(&log));
            move || server.run(&shared, &log)
        });
        let thread = thread.map_err(|source| AgentFailure::Socket { path: shared.settings.socket.clone(), source })?;
        Ok(Host { shared, log, server: Some(server), thread: Some(thread), keeper: Some(keeper), cxl })
    }

    /// Returns a socket that ends the agent when anything is written to it or it is closed.
    pub fn ender(&self) -> io::Result<UnixStream> {
        self.server.as_ref().expect("it runs").ender()
    }

    /// Returns what writes the agent's metrics.
    pub fn observer(&self) -> Observer {
        Observer::new(Arc::clone(&self.shared), Arc::clone(self.keeper.as_ref().expect("it runs")))
    }

    /// Returns what takes a configuration that is read again.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(Arc::clone(&self.shared), Arc::clone(&self.log))
    }

    /// Waits until the agent is ended.
    pub fn wait(mut self) {
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }

    /// Ends the agent.
    pub fn stop(self) {}
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop();
        }
        self.cxl = None;
        self.server.take().into_iter().for_each(|server| server.end());
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
        self.shared.telemetry.end();
    }
}

fn keep(shared: &Arc<Shared>, log: &Arc<dyn Fn(&str) + Send + Sync>) -> Result<Keeper, AgentFailure> {
    let settings = &shared.settings;
    let registration = Registration {
        kind: Kind::Host,
        id: settings.host.as_str().to_owned(),
        addresses: Vec::new(),
        capacity: Bytes::ZERO,
        labels: settings.labels.clone(),
    };
    let end: Arc<Mutex<dyn End>> = Arc::new(Mutex::new(HostEnd::new(Arc::clone(shared), Arc::clone(log))));
    let keeper = KeeperSettings { managers: settings.managers.clone(), tls: settings.tenant.clone(), registration };
    let log = Arc::clone(log);
    Keeper::start(keeper, &end, Box::new(move |line| log(line)))
        .map_err(|failure| AgentFailure::Control { why: failure.to_string() })
}

fn place_of(donor: &DonorAddress) -> (String, String) {
    (donor.address.clone(), donor.name.clone().unwrap_or_else(|| host_of(&donor.address)))
}
