// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts everything: the store, the server, the metrics. Then `leadership.rs` runs on the main thread.

use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use aquifer_state_store::EmbeddedStore;
use aquifer_sys::notify::Notify;
use aquifer_telemetry::Telemetry;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::console::Console;
use crate::issuance::Issuance;
use crate::leadership::{Candidate, Lead, make_directory};
use crate::rest::{Position, Service};
use crate::sessions::Sessions;
use crate::tenure::Tenure;
use crate::tls::{self, Served};
use crate::writer::{Posted, Shared};
use crate::{http, push, scrape};

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

/// Who leads: this manager, or the one that etcd elects.
enum Role {
    /// This manager: the store is embedded, so no other can.
    Lead(Box<Lead>, Receiver<Posted>),
    /// The manager that has the leadership in etcd.
    Candidate(Box<Candidate>),
}

/// A daemon that has started but does not serve yet.
pub struct Daemon {
    runtime: Runtime,
    listener: TcpListener,
    scraped: Option<TcpListener>,
    tls: Option<Arc<Served>>,
    service: Arc<Service>,
    role: Role,
    config: Config,
}

fn bind(runtime: &Runtime, address: SocketAddr, setting: &str) -> Result<TcpListener, Failure> {
    runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        failed(format!("{address} cannot be bound: {error}; change `{setting}`, or stop what uses it"))
    })
}

impl Daemon {
    /// Opens an embedded store and takes a term, and binds the addresses.
    pub fn start(config: &Config) -> Result<Daemon, Failure> {
        let mut config = config.clone();
        let named = config.tls.as_ref().map(Served::open).transpose().map_err(failed)?;
        let console = Console::find(config.console.as_deref()).map_err(failed)?;
        make_directory(config.state.directory()).map_err(failed)?;
        // Before anything else is written there, because another manager may be using the directory.
        let store = match config.state.etcd() {
            Some(_) => None,
            None => Some(EmbeddedStore::open(&config.state.directory().join("state.redb")).map_err(failed)?),
        };
        let issuance = Issuance::open(&mut config).map_err(failed)?.map(Arc::new);
        let (config, directory) = (&config, config.state.directory());
        let tls = match (named, &config.tls) {
            (None, Some(own)) => Some(Served::open(own).map_err(failed)?),
            (named, _) => named,
        };
        let tls = tls.map(Arc::new);
        let collector = config.telemetry.as_ref().map(|telemetry| &telemetry.collector);
        let log = Arc::new(|line: &str| eprintln!("aquifer-fabricd: {line}"));
        let telemetry = Telemetry::start(collector, "aquifer-fabricd", &url(config, config.listen), log);
        let telemetry = telemetry.map_err(failed)?;
        let service = Arc::new(Service {
            shared: Arc::new(Shared::recorded_by(telemetry)),
            sessions: Arc::new(Mutex::new(Sessions::none(config.sessions.clone()))),
            hashing: Default::default(),
            position: Position::Standby { leader: None }.into(),
            directory: directory.to_owned(),
            console,
            issuance,
            is_ending: false.into(),
        });
        if let Some(issuance) = &service.issuance {
            issuance.serve(&service);
        }
        let lead = store.map(|store| Lead::begin(config, Box::new(store), Tenure::ForEver, &service));
        let lead = lead.transpose().map_err(|not| failed(not.line))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING_MAX)
            .enable_all()
            .build()
            .map_err(|error| failed(format!("threads cannot be started: {error}; raise the limit on processes")))?;
        let listener = bind(&runtime, config.listen, "listen")?;
        let scraped = config.metrics.map(|address| bind(&runtime, address, "metrics")).transpose()?;
        let role = match (lead, config.state.etcd()) {
            (Some(lead), _) => Role::Lead(Box::new(lead), Lead::take_orders(&service)),
            (None, None) => return Err(failed("nobody leads; report this bug")),
            (None, Some(etcd)) => {
                let address = listener.local_addr().map_err(failed)?;
                Role::Candidate(Box::new(Candidate::new(etcd, &url(config, address)).map_err(failed)?))
            }
        };
        Ok(Daemon { runtime, listener, scraped, tls, service, role, config: config.clone() })
    }

    /// Returns where it listens.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        self.listener.local_addr().map_err(failed)
    }

    /// Returns where donors and hosts register, if they do. A manager that stands by listens there once it leads.
    pub fn control_address(&self) -> Option<SocketAddr> {
        match &self.role {
            Role::Lead(lead, _) => lead.control_address(),
            Role::Candidate(_) => None,
        }
    }

    /// Returns where it gives its metrics.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.scraped.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until the store fails, or a signal ends this manager.
    pub fn serve(self) -> Failure {
        let Daemon { runtime, listener, scraped, tls, service, role, config } = self;
        let notify = Notify::from_environment();
        if let Some(served) = tls.clone() {
            let issuance = service.issuance.clone();
            // If the thread does not start, the certificates are not renewed until a restart.
            let watch = move || tls::watch(&served, issuance.as_deref());
            let _ = std::thread::Builder::new().name("certificates".into()).spawn(watch);
        }
        runtime.spawn(http::serve(listener, tls, Arc::clone(&service)));
        runtime.spawn(push::run(Arc::clone(&service)));
        if let Some(listener) = scraped {
            runtime.spawn(scrape::serve(listener, Arc::clone(&service)));
        }
        notify.ready("started");
        let line = match role {
            Role::Lead(lead, posted) => lead.serve(posted, &service, &notify).to_string(),
            Role::Candidate(candidate) => candidate.serve(&config, &service, &notify),
        };
        notify.stopping();
        service.shared.telemetry.end();
        runtime.shutdown_background();
        failed(line)
    }
}

/// Ends the manager when this signal arrives.
async fn end_by(kind: SignalKind, service: Arc<Service>) {
    // Without a handler, a signal ends the process at once. That is as safe, but the other managers must wait until the
    // lease expires.
    if let Ok(mut signal) = signal(kind) {
        signal.recv().await;
        service.end();
    }
}

fn url(config: &Config, address: SocketAddr) -> String {
    // With an authority of its own, the manager has a certificate without [tls], too.
    let scheme = if config.tls.is_some() || config.ca.is_some() { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Starts and serves. Prints the addresses when clients can connect.
pub fn run(config: &Config) -> Result<(), Failure> {
    let daemon = Daemon::start(config)?;
    println!("listening on {}", url(config, daemon.address()?));
    if let Some(address) = daemon.metrics_address() {
        println!("metrics on http://{address}/metrics");
    }
    if let Some(address) = daemon.control_address() {
        println!("donors and hosts register at {address}");
    }
    let service = Arc::clone(&daemon.service);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        daemon.runtime.spawn(end_by(kind, Arc::clone(&service)));
    }
    let ended = daemon.serve();
    if service.is_ending() { Ok(()) } else { Err(ended) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_has_a_certificate_is_reached_by_https() {
        let url_with = |more: &str| {
            let text = format!("state = \"s\"\n[peers]\nkind = \"simulated\"\n{more}");
            let config = Config::parse(&text).expect("a configuration");
            url(&config, config.listen)
        };
        assert_eq!(url_with(""), "http://127.0.0.1:7443");
        assert_eq!(url_with("[tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n"), "https://127.0.0.1:7443");
        assert_eq!(url_with("[ca]\n"), "https://127.0.0.1:7443", "its authority signs one for it");
    }
}
