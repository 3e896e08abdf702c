// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts everything: the store, the writer's thread, the server.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use aquifer_cxl_peers::Switches;
use aquifer_state_store::EmbeddedStore;
use tokio_rustls::TlsAcceptor;

use crate::combined::Combined;
use crate::config::{Config, PeersConfig, RoundsConfig};
use crate::crash::CrashPoint;
use crate::events::Events;
use crate::ledger::Ledger;
use crate::peers::Peers;
use crate::rest::{Posted, Service, now};
use crate::sessions::Sessions;
use crate::simulated::Simulated;
use crate::snapshot::Snapshot;
use crate::writer::{Shared, Stop, Writer};
use crate::{http, initial, tls};

/// Orders that wait for the writer at most; further ones are answered with 503.
const ORDERS_MAX: usize = 256;
/// Threads that answer requests.
const BLOCKING_MAX: usize = 32;

/// Why the daemon does not start or ends: one line with the remedy.
#[derive(Debug)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn failed(line: impl fmt::Display) -> Failure {
    Failure(line.to_string())
}

/// A daemon that has started but does not serve yet.
pub struct Daemon {
    runtime: tokio::runtime::Runtime,
    listener: tokio::net::TcpListener,
    tls: Option<TlsAcceptor>,
    service: Arc<Service>,
    writer: Writer,
    orders: Receiver<Posted>,
    rounds: RoundsConfig,
}

impl Daemon {
    /// Opens the store, takes a term, and binds the address.
    pub fn start(config: &Config) -> Result<Daemon, Failure> {
        let tls = config.tls.as_ref().map(tls::server).transpose().map_err(failed)?;
        let directory = &config.state;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| failed(format!("{}: {error}; name a directory that can be made", directory.display())))?;
        let PeersConfig::Simulated(simulated) = &config.peers;
        let crash = CrashPoint::at(simulated.kill_at_effect);
        let store = EmbeddedStore::open(&directory.join("state.redb")).map_err(failed)?;
        let (mut ledger, desired) = Ledger::open(Box::new(store), crash.clone()).map_err(failed)?;
        let mut sessions = Sessions::load(&ledger, config.sessions.clone()).map_err(failed)?;
        if initial::make_first(&mut sessions, &mut ledger, directory, now()).map_err(failed)? {
            eprintln!(
                "aquifer-fabricd: account admin was made; its password is in initial-password of the state directory"
            );
        }
        let peers = Simulated::open(simulated, &directory.join("simulated"), crash)
            .map_err(|error| failed(format!("simulated peers: {error}; remove their directory to begin again")))?;
        let peers = Combined::new(Box::new(peers), Switches::new(&config.switches));
        let snapshot =
            Snapshot { topology: peers.topology(), desired: Arc::new(desired.clone()), ..Snapshot::default() };
        let shared = Arc::new(Shared {
            ledger: Arc::new(Mutex::new(ledger)),
            snapshot: RwLock::new(Arc::new(snapshot)),
            events: Events::new(),
        });
        let silent_ms = config.rounds.silent_seconds * 1000;
        let writer = Writer::start(Arc::clone(&shared), Box::new(peers), desired, silent_ms, now()).map_err(failed)?;
        let (sender, orders) = sync_channel(ORDERS_MAX);
        let service = Service { shared, sessions: Mutex::new(sessions), orders: sender, directory: directory.clone() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING_MAX)
            .enable_all()
            .build()
            .map_err(|error| failed(format!("threads cannot be started: {error}; raise the limit on processes")))?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(config.listen)).map_err(|error| {
            failed(format!("{} cannot be bound: {error}; change `listen`, or stop what uses it", config.listen))
        })?;
        let (tls, service, rounds) = (tls.map(TlsAcceptor::from), Arc::new(service), config.rounds.clone());
        Ok(Daemon { runtime, listener, tls, service, writer, orders, rounds })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        self.listener.local_addr().map_err(failed)
    }

    /// Serves until the store fails or another manager takes over.
    pub fn serve(self) -> Failure {
        let Daemon { runtime, listener, tls, service, mut writer, orders, rounds } = self;
        runtime.spawn(http::serve(listener, tls, service));
        // The writer has this thread.
        let stop = write(&mut writer, &orders, &rounds);
        runtime.shutdown_background();
        failed(stop)
    }
}

/// Runs rounds: at once when orders wait, soon while something is under way, else now and then.
fn write(writer: &mut Writer, orders: &Receiver<Posted>, rounds: &RoundsConfig) -> Stop {
    let mut is_busy = true;
    loop {
        let wait = Duration::from_millis(if is_busy { rounds.busy_ms } else { rounds.idle_ms });
        let mut posted: Vec<Posted> = match orders.recv_timeout(wait) {
            Ok(first) => vec![first],
            // The sender lives as long as the server, which ends after this loop.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
        };
        posted.extend(orders.try_iter().take(ORDERS_MAX));
        match writer.round(posted, now()) {
            Ok(busy) => is_busy = busy,
            Err(stop) => return stop,
        }
    }
}

/// Starts and serves. Prints the address when clients can connect.
pub fn run(config: &Config) -> Result<(), Failure> {
    let daemon = Daemon::start(config)?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    println!("listening on {scheme}://{}", daemon.address()?);
    Err(daemon.serve())
}
