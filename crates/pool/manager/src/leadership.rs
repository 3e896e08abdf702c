// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The leadership, on the main thread: this manager leads, or stands by until it may.
//!
//! With an embedded store this manager leads until its store fails. With etcd it stands by while another one has the
//! leadership; it takes the leadership, takes a term, reads the state, leads; and when it is deposed, or etcd does not
//! answer, it stands by again. Orders that are waiting at that moment are answered with 503: their clients look at the
//! state and ask the leader.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use aquifer_cxl_peers::Switches;
use aquifer_state_store::{Campaign, Election, EtcdStore, StateStore};
use aquifer_sys::notify::Notify;

use crate::audit_checks::AuditChecker;
use crate::combined_peers::Combined;
use crate::config::{Config, EtcdConfig, PeersConfig, RoundsConfig};
use crate::crash::CrashPoint;
use crate::first_account;
use crate::manager_store::ManagerStore;
use crate::peers::Peers;
use crate::registered::{REGISTRATIONS, Registered};
use crate::rest::{Position, Service, now};
use crate::sessions::Sessions;
use crate::simulated::Simulated;
use crate::subscriptions::Subscriptions;
use crate::tenure::{Keeper, Tenure};
use crate::writer::{Pace, Posted, Stop, Writer};

/// Maximum number of orders that wait for the writer; further ones are answered with 503.
const ORDERS_MAX: usize = 256;
/// How often a standby checks whether the leadership is free. A failover takes the lease's time plus this.
const LOOK: Duration = Duration::from_millis(500);
/// What has been waited for for some time is looked at again after `1 / WAITED_PART` of that time.
const WAITED_PART: u32 = 32;
/// The pause after a term that ended at once, so that a broken manager does not take the leadership again and again.
const PAUSE: Duration = Duration::from_secs(1);

/// A manager that leads.
pub(crate) struct Lead {
    writer: Writer,
    rounds: RoundsConfig,
    control: Option<SocketAddr>,
    audit: AuditChecker,
}

/// Why this manager does not lead, and whether that may change.
pub(crate) struct NotLed {
    pub(crate) line: String,
    pub(crate) may_pass: bool,
}

impl From<Stop> for NotLed {
    fn from(stop: Stop) -> NotLed {
        NotLed { line: stop.to_string(), may_pass: stop.may_pass() }
    }
}

fn lasting(line: impl std::fmt::Display) -> NotLed {
    NotLed { line: line.to_string(), may_pass: false }
}

impl Lead {
    /// Takes a term in a store, and reads what is in it.
    pub(crate) fn begin(
        config: &Config,
        store: Box<dyn StateStore>,
        tenure: Tenure,
        service: &Service,
    ) -> Result<Lead, NotLed> {
        let crash = CrashPoint::at(match &config.peers {
            PeersConfig::Registered(registered) => registered.kill_at_effect,
            PeersConfig::Simulated(simulated) => simulated.kill_at_effect,
        });
        let directory = config.state.directory();
        let shared = &service.shared;
        shared.events.lead(now());
        let store = ManagerStore::open(store, crash.clone()).map_err(Stop::from)?;
        let store = store.counted_by(Arc::clone(&shared.meters));
        // Donors and hosts get the list as soon as they have a channel.
        read_list(service, &store)?;
        let (others, control) = open_peers(config, &store, service, crash)?;
        let peers = Box::new(Combined::new(others, Switches::new(&config.switches)));
        let silent_ms = config.rounds.silent_seconds * 1000;
        let mut writer = Writer::start(Arc::clone(shared), store, tenure, peers, silent_ms, now())?;
        // Until this manager took the term, the previous one may have revoked more.
        read_list(service, &writer.store)?;
        say_old(service, &writer.store)?;
        let sessions = Sessions::load(&writer.store, config.sessions.clone()).map_err(Stop::from)?;
        *service.sessions.lock().expect("a panic ends the daemon") = sessions;
        *shared.subscriptions() = Subscriptions::load(&writer.store, config.events.clone()).map_err(Stop::from)?;
        let first = first_account::make_first(&service.sessions, &mut writer.store, directory, now());
        if first.map_err(Stop::from)?.map_err(lasting)? {
            eprintln!(
                "aquifer-fabricd: account admin was made; its password is in initial-password of the state directory"
            );
        }
        shared.meters.count_term();
        shared.audit.restart();
        Ok(Lead { writer, rounds: config.rounds.clone(), control, audit: AuditChecker::default() })
    }

    /// Returns where donors and hosts register, if they do.
    pub(crate) fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// Lets this manager answer requests as the leader from now on, and keeps what they post for [`Lead::serve`].
    pub(crate) fn take_orders(service: &Service) -> Receiver<Posted> {
        let (sender, posted) = sync_channel(ORDERS_MAX);
        service.take_position(Position::Leader { orders: sender });
        service.shared.events.add(now(), "Leads", "OK", "this manager leads".into());
        posted
    }

    /// Leads until it cannot.
    pub(crate) fn serve(mut self, posted: Receiver<Posted>, service: &Service, notify: &Notify) -> Stop {
        notify.status("leads");
        let stop = self.rounds(&posted, service, notify);
        service.take_position(Position::Standby { leader: None });
        stop
    }

    /// Runs rounds: at once when something is posted, soon while something is under way, else now and then.
    fn rounds(&mut self, posted: &Receiver<Posted>, service: &Service, notify: &Notify) -> Stop {
        let (mut pace, mut since) = (Pace::Waiting, Instant::now());
        loop {
            notify.alive();
            let wait = self.wait(pace, since.elapsed(), service.shared.audit.is_under_way());
            let mut taken: Vec<Posted> = match posted.recv_timeout(notify.wait_max(wait)) {
                Ok(first) => vec![first],
                // The sender lives as long as this manager leads.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
            };
            taken.extend(posted.try_iter().take(ORDERS_MAX));
            if service.is_ending() {
                return Stop::Ended;
            }
            if pace != Pace::Waiting || !taken.is_empty() {
                since = Instant::now();
            }
            match self.writer.round(taken, now()) {
                Ok(next) => pace = next,
                Err(stop) => return stop,
            }
            if let Err(failure) = self.audit.step(&self.writer.store, &service.shared) {
                return failure.into();
            }
        }
    }

    /// Returns how long to wait for orders before the next round. Every end is queried once within `idle-ms`. `waited`
    /// is how long the same thing has been waited for.
    fn wait(&self, pace: Pace, waited: Duration, is_checking: bool) -> Duration {
        let busy = Duration::from_millis(self.rounds.busy_ms);
        let idle = (Duration::from_millis(self.rounds.idle_ms) / self.writer.turns()).max(busy);
        match pace {
            Pace::Moving => Duration::ZERO,
            Pace::Waiting => wait_again(busy, idle, waited),
            Pace::Idle if is_checking => busy,
            Pace::Idle => idle,
        }
    }
}

/// Returns how long to wait until something is looked at again that has been waited for as long as `waited`: at first
/// `busy`, later a small part of what it has taken so far, and at most `idle`. An unbound volume may be waited for
/// until its programs end, which may be days.
fn wait_again(busy: Duration, idle: Duration, waited: Duration) -> Duration {
    (waited / WAITED_PART).clamp(busy, idle)
}

fn read_list(service: &Service, store: &ManagerStore) -> Result<(), NotLed> {
    let Some(issuance) = &service.issuance else { return Ok(()) };
    issuance.read_list(store, now()).map_err(Stop::from)?.map_err(lasting)
}

/// Reports which ends have certificates of another authority.
fn say_old(service: &Service, store: &ManagerStore) -> Result<(), NotLed> {
    let Some(issuance) = &service.issuance else { return Ok(()) };
    if let Some(line) = issuance.about_old(store, now()).map_err(Stop::from)? {
        eprintln!("aquifer-fabricd: {line}");
        service.shared.events.add(now(), "OldCertificates", "Warning", line);
    }
    Ok(())
}

/// Opens the peers. Returns the address of the control port, if there is one.
fn open_peers(
    config: &Config,
    store: &ManagerStore,
    service: &Service,
    crash: CrashPoint,
) -> Result<(Box<dyn Peers>, Option<SocketAddr>), NotLed> {
    match (&config.peers, &config.control) {
        (PeersConfig::Simulated(simulated), _) => {
            let directory = config.state.directory().join("simulated");
            let peers = Simulated::open(simulated, &directory, crash)
                .map_err(|error| lasting(format!("simulated peers: {error}; remove their directory to begin again")))?;
            Ok((Box::new(peers), None))
        }
        (PeersConfig::Registered(_), Some(control)) => {
            let entries = store.all(REGISTRATIONS).map_err(Stop::from)?;
            let entries = entries.into_iter().map(|(_, entry)| entry).collect();
            let peers = Registered::open(control, entries, service.issuance.as_ref(), crash).map_err(lasting)?;
            let address = peers.address();
            Ok((Box::new(peers), Some(address)))
        }
        (PeersConfig::Registered(_), None) => Err(lasting("registered peers need [control]; write it")),
    }
}

/// Leads in a store until it cannot. Afterwards this manager hands out no list of revoked certificates.
fn lead_once(
    config: &Config,
    store: Box<dyn StateStore>,
    tenure: Tenure,
    service: &Service,
    notify: &Notify,
) -> NotLed {
    let ended = match Lead::begin(config, store, tenure, service) {
        Ok(lead) => NotLed::from(lead.serve(Lead::take_orders(service), service, notify)),
        Err(not) => not,
    };
    if let Some(issuance) = &service.issuance {
        issuance.forget_list();
    }
    ended
}

/// The candidate that stands by for the leadership in etcd.
pub(crate) struct Candidate {
    election: Election,
    etcd: EtcdConfig,
}

impl Candidate {
    /// Checks the settings. etcd need not answer yet.
    pub(crate) fn new(etcd: &EtcdConfig, url: &str) -> Result<Candidate, String> {
        let url = etcd.url.as_deref().unwrap_or(url);
        let election =
            Election::new(&etcd.settings(), url, etcd.lease_seconds).map_err(|failure| failure.to_string())?;
        Ok(Candidate { election, etcd: etcd.clone() })
    }

    /// Stands by and leads in turn, until a permanent failure.
    pub(crate) fn serve(&self, config: &Config, service: &Service, notify: &Notify) -> String {
        loop {
            let Some(keeper) = self.stand_by(service, notify) else { return Stop::Ended.to_string() };
            let ended = match EtcdStore::open(&self.etcd.settings()) {
                Ok(store) => lead_once(config, Box::new(store), keeper.tenure.clone(), service, notify),
                Err(failure) => NotLed::from(Stop::Store(failure.into())),
            };
            // The next leader need not wait for the lease.
            drop(keeper);
            if !ended.may_pass {
                return ended.line;
            }
            eprintln!("aquifer-fabricd: {}; it stands by", ended.line);
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the leadership. Returns `None` if a signal ends this manager.
    fn stand_by(&self, service: &Service, notify: &Notify) -> Option<Keeper> {
        let mut last = None;
        loop {
            notify.alive();
            if service.is_ending() {
                return None;
            }
            let (leader, line) = match self.election.campaign() {
                Ok(Campaign::Won(leadership)) => {
                    return Some(Keeper::start(*leadership, Duration::from_secs(self.etcd.lease_seconds)));
                }
                Ok(Campaign::Lost { holder: Some(holder) }) => {
                    (Some(holder.clone()), format!("stands by for {holder}"))
                }
                Ok(Campaign::Lost { holder: None }) => (None, "stands by".to_owned()),
                Err(failure) => (None, failure.to_string()),
            };
            if last.as_ref() != Some(&line) {
                eprintln!("aquifer-fabricd: {line}");
                notify.status(&line);
                last = Some(line);
            }
            service.take_position(Position::Standby { leader });
            std::thread::sleep(notify.wait_max(LOOK));
        }
    }
}

/// Makes the directory that a manager has for itself.
pub(crate) fn make_directory(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| format!("{}: {error}; name a directory that can be made", directory.display()))
}

#[cfg(test)]
mod tests;
