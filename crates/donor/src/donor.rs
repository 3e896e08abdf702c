// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor from its start to its end.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::Standing;

use crate::listener::{self, Shared};
use crate::service::Service;
use crate::settings::{Settings, StartFailure};

/// One look whether everything was given back.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running donor. Dropped without [`Donor::stop`], it goes on until the process ends.
pub struct Donor {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Donor {
    /// Maps the memory, listens, and lends. `log` gets one line at a time, from any thread.
    pub fn start(settings: Settings, log: Box<dyn Fn(&str) + Send + Sync>) -> Result<Donor, StartFailure> {
        let protection = settings.security.protection()?;
        let service = Service::new(&settings, log)?;
        let listen = settings.listen;
        let listener = TcpListener::bind(listen).map_err(|error| StartFailure::Listen(listen, error))?;
        let address = listener.local_addr().map_err(|error| StartFailure::Listen(listen, error))?;
        listener.set_nonblocking(true).map_err(StartFailure::System)?;
        let bell = Wakeup::new().map_err(|errno| StartFailure::System(std::io::Error::from_raw_os_error(errno.0)))?;
        let shared = Arc::new(Shared::new(service, settings, protection, bell));
        let (accepting, keeping) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            start_thread("donor-accept", move || listener::run(&accepting, &listener))?,
            start_thread("donor-keeper", move || {
                keeping.service.keep(|| keeping.is_over.load(Ordering::Acquire));
            })?,
        ];
        Ok(Donor { shared, address, threads })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it lends, in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.service.capacity_bytes()
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.shared.service.standing(self.shared.count())
    }

    /// Revokes all leases, waits at most `within` for them to be given back, and ends every connection.
    pub fn stop(self, within: Duration) {
        let service = &self.shared.service;
        service.revoke_every(within);
        if !within.is_zero() {
            self.shared.tell_revoked(within);
            let deadline = Instant::now() + within;
            while service.lent_bytes() > 0 && Instant::now() < deadline {
                thread::sleep(LOOK_AGAIN);
            }
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.bell.ring();
        service.ring_keeper();
        self.shared.end_connections();
        for thread in self.threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        service.wipe_all();
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartFailure> {
    thread::Builder::new().name(name.into()).spawn(run).map_err(StartFailure::System)
}
