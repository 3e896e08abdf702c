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
use std::time::Duration;

use aquifer_cxl_peers::Switches;
use aquifer_state_store::{Campaign, Election, EtcdStore, StateStore};
use aquifer_sys::notify::Notify;

use crate::combined_peers::Combined;
use crate::config::{Config, EtcdConfig, PeersConfig, RoundsConfig};
use crate::crash::CrashPoint;
use crate::first_account;
use crate::manager_store::{AuditCheck, ManagerStore};
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
/// The pause after a term that ended at once, so that a broken manager does not take the leadership again and again.
const PAUSE: Duration = Duration::from_secs(1);

/// A manager that leads.
pub(crate) struct Lead {
    writer: Writer,
    rounds: RoundsConfig,
    control: Option<SocketAddr>,
    /// The check of the audit log, until it is done.
    audit: Option<AuditCheck>,
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
        let (store, _) = ManagerStore::open(store, crash.clone()).map_err(Stop::from)?;
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
        if first_account::make_first(&service.sessions, &mut writer.store, directory, now()).map_err(lasting)? {
            eprintln!(
                "aquifer-fabricd: account admin was made; its password is in initial-password of the state directory"
            );
        }
        shared.meters.count_term();
        let audit = Some(writer.store.begin_audit_check());
        Ok(Lead { writer, rounds: config.rounds.clone(), control, audit })
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
        let mut pace = Pace::Waiting;
        loop {
            notify.alive();
            let wait = self.wait(pace);
            let mut taken: Vec<Posted> = match posted.recv_timeout(notify.wait_max(wait)) {
                Ok(first) => vec![first],
                // The sender lives as long as this manager leads.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
            };
            taken.extend(posted.try_iter().take(ORDERS_MAX));
            if service.is_ending() {
                return Stop::Ended;
            }
            match self.writer.round(taken, now()) {
                Ok(next) => pace = next,
                Err(stop) => return stop,
            }
            if let Err(stop) = self.check_audit(service) {
                return stop;
            }
        }
    }

    /// Returns how long to wait for orders before the next round. Every end is queried once within `idle-ms`.
    fn wait(&self, pace: Pace) -> Duration {
        let (busy, idle) = (Duration::from_millis(self.rounds.busy_ms), Duration::from_millis(self.rounds.idle_ms));
        match pace {
            Pace::Moving => Duration::ZERO,
            Pace::Waiting => busy,
            Pace::Idle if self.audit.is_some() => busy,
            Pace::Idle => (idle / self.writer.turns()).max(busy),
        }
    }

    /// Checks one page of the audit log in each round, until all of it is checked, so that a log that has grown for
    /// years does not delay a failover. Damage is only reported: if it stopped the manager, anyone who can change one
    /// record could stop the pool's management.
    fn check_audit(&mut self, service: &Service) -> Result<(), Stop> {
        let Some(check) = &mut self.audit else { return Ok(()) };
        let Some(verified) = self.writer.store.continue_audit_check(check)? else { return Ok(()) };
        self.audit = None;
        service.shared.meters.note_audit(verified.is_err());
        if let Err(damage) = verified {
            eprintln!("aquifer-fabricd: {}", damage.0);
            service.shared.events.add(now(), "AuditDamaged", "Critical", damage.0);
        }
        Ok(())
    }
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
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::sync::Mutex;

    use aquifer_authority::{Kind, Subject};
    use aquifer_fabric::Millis;
    use aquifer_state_store::{Entry, Key, MemoryStore, NotCommitted, StoreFailure, Transaction};

    use crate::issuance::{CERTIFICATES, Issuance, Issued};
    use crate::manager_store::json;

    /// A manager with an authority that does not lead yet.
    struct Standby {
        directory: PathBuf,
        config: Config,
        service: Service,
        issuance: Arc<Issuance>,
    }

    impl Standby {
        fn new(name: &str, peers: &str) -> Standby {
            let directory = std::env::temp_dir().join(format!("aquifer-{name}-{}", std::process::id()));
            make_directory(&directory).expect("ours");
            let text = format!("state = {directory:?}\n[ca]\n{peers}");
            let mut config = Config::parse(&text).expect("enough");
            let issuance = Issuance::open(&mut config).expect("usable").map(Arc::new).expect("there is one");
            let service = Service {
                shared: Arc::default(),
                sessions: Arc::new(Mutex::new(Sessions::none(config.sessions.clone()))),
                hashing: Default::default(),
                position: Position::Standby { leader: None }.into(),
                directory: directory.clone(),
                console: Default::default(),
                issuance: Some(Arc::clone(&issuance)),
                is_ending: false.into(),
            };
            Standby { directory, config, service, issuance }
        }

        fn finish(self) {
            std::fs::remove_dir_all(&self.directory).expect("ours");
        }
    }

    fn key(serial: &str) -> Key {
        Key::new(format!("{CERTIFICATES}{serial}")).expect("it is plain")
    }

    fn revoked() -> Vec<u8> {
        let subject = Subject::new(Kind::Donor, "d1", "pool.internal", &[]).expect("a subject");
        json(&Issued {
            subject,
            from: Millis(0),
            until: Millis(u64::MAX),
            is_renewal: false,
            revoked: Some(now()),
            authority: None,
            is_replaced: false,
        })
    }

    /// Returns a store with one revoked certificate.
    fn store() -> MemoryStore {
        let mut store = MemoryStore::default();
        store.commit(&Transaction::new().put(key("0a"), revoked())).expect("it is empty");
        store
    }

    /// A store in which the previous leader revokes another certificate before it is deposed.
    struct Overtaken {
        store: MemoryStore,
        has_revoked: bool,
    }

    impl StateStore for Overtaken {
        fn read(&self, key: &Key) -> Result<Option<Entry>, StoreFailure> {
            self.store.read(key)
        }

        fn scan(&self, prefix: &str, after: Option<&Key>) -> Result<Vec<(Key, Entry)>, StoreFailure> {
            self.store.scan(prefix, after)
        }

        fn commit(&mut self, transaction: &Transaction) -> Result<u64, NotCommitted> {
            // The first commit takes the term.
            if !std::mem::replace(&mut self.has_revoked, true) {
                self.store.commit(&Transaction::new().put(key("0b"), revoked()))?;
            }
            self.store.commit(transaction)
        }
    }

    /// The first to connect after a failover gets the list at once: an older one would admit those whose
    /// certificates were revoked since.
    #[test]
    fn the_list_is_read_from_the_store_before_the_control_port_is_opened() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let listen = taken.local_addr().expect("a port");
        let peers = format!("[peers]\nkind = \"registered\"\n[control]\nlisten = \"{listen}\"\n");
        let standby = Standby::new("list-first", &peers);
        let led = Lead::begin(&standby.config, Box::new(store()), Tenure::ForEver, &standby.service);
        let line = led.err().expect("the port is taken").line;
        assert!(line.contains(&listen.to_string()), "{line}");
        assert_eq!(standby.issuance.listed_serials(), ["0a"]);
        standby.finish();
    }

    /// Until it is deposed, the previous leader may revoke more.
    #[test]
    fn the_list_is_read_again_once_the_term_is_taken() {
        let standby = Standby::new("list-again", "[peers]\nkind = \"simulated\"\n");
        let store = Overtaken { store: store(), has_revoked: false };
        let led = Lead::begin(&standby.config, Box::new(store), Tenure::ForEver, &standby.service);
        assert!(led.is_ok(), "{:?}", led.err().map(|not| not.line));
        assert_eq!(standby.issuance.listed_serials(), ["0a", "0b"]);
        standby.finish();
    }

    /// Another manager may revoke more from now on, and this one's list would be signed again when it is due.
    #[test]
    fn a_manager_that_leads_no_longer_forgets_its_list() {
        let standby = Standby::new("list-forgotten", "[peers]\nkind = \"simulated\"\n");
        standby.service.end();
        let Standby { config, service, .. } = &standby;
        let notify = Notify::from_environment();
        let ended = lead_once(config, Box::new(store()), Tenure::ForEver, service, &notify);
        assert_eq!(ended.line, Stop::Ended.to_string());
        let file = std::fs::read_to_string(standby.directory.join("ca/revocations.pem"));
        assert!(file.is_ok_and(|file| file.contains("X509 CRL")), "it had one");
        assert_eq!((standby.issuance.listed_serials(), standby.issuance.current_list()), (vec![], None));
        // Nor does it keep one if it cannot lead.
        let broken = store();
        broken.fail_after(Some(12));
        lead_once(config, Box::new(broken), Tenure::ForEver, service, &notify);
        assert_eq!(standby.issuance.current_list(), None);
        standby.finish();
    }
}
