// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor from its start to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aquifer_sys::verbs::Port;
use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::{EVERY_BYTE, Standing};

use crate::control::Control;
use crate::entrance::Entrance;
use crate::listener::{self, Shared};
use crate::reload;
use crate::service::Service;
use crate::settings::{Address, Settings, StartFailure};

/// One look whether everything was given back.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running donor. Dropped without [`Donor::stop`], it goes on until the process ends.
pub struct Donor {
    shared: Arc<Shared>,
    address: Address,
    control: Option<Arc<Control>>,
    threads: Vec<JoinHandle<()>>,
}

/// Sees how a donor stands, for as long as one likes.
#[derive(Clone)]
pub struct Observer(Arc<Shared>);

impl Observer {
    /// How it stands, or stood at its end.
    pub fn standing(&self) -> Standing {
        self.0.service.standing(self.0.count())
    }
}

impl Donor {
    /// Maps the memory, listens, and lends. `log` gets one line at a time, from any thread.
    pub fn start(settings: Settings, log: Box<dyn Fn(&str) + Send + Sync>) -> Result<Donor, StartFailure> {
        let protection = settings.security.protection(settings.revocations.as_deref())?;
        let control = settings.control.as_deref().map(Control::listen).transpose()?.map(Arc::new);
        let service = Service::new(&settings, log)?;
        let listen = |error| StartFailure::Listen(settings.listen.clone(), error);
        let entrance = Entrance::open(&settings.listen).map_err(listen)?;
        let address = entrance.address().map_err(listen)?;
        let bell = Wakeup::new().map_err(|errno| StartFailure::System(std::io::Error::from_raw_os_error(errno.0)))?;
        let shared = Arc::new(Shared::new(service, settings, protection, bell));
        let [accepting, keeping, watching] = [&shared, &shared, &shared].map(Arc::clone);
        let mut threads = vec![
            start_thread("donor-accept", move || listener::run(&accepting, &entrance))?,
            start_thread("donor-keeper", move || {
                keeping.service.keep(|| keeping.is_over.load(Ordering::Acquire));
            })?,
        ];
        threads.push(start_thread("donor-watch", move || reload::run(&watching))?);
        if let Some(control) = control.clone() {
            let shared = Arc::clone(&shared);
            threads.push(start_thread("donor-control", move || control.run(&shared))?);
        }
        Ok(Donor { shared, address, control, threads })
    }

    /// Where it listens.
    pub fn place(&self) -> &Address {
        &self.address
    }

    /// At which port.
    ///
    /// # Panics
    /// Where it listens at none, but at a socket of this machine.
    pub fn address(&self) -> SocketAddr {
        match self.address {
            Address::Local(_) => panic!("this donor listens at a socket of this machine"),
            Address::Tcp(address) => address,
        }
    }

    /// Which port of which RDMA device borrowers reach, if they do.
    pub fn rdma_port(&self) -> Option<&Port> {
        self.shared.service.rdma_port()
    }

    /// What it lends, in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.service.capacity_bytes()
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.shared.service.standing(self.shared.count())
    }

    /// Somebody who sees that, on any thread.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.shared))
    }

    /// Reads certificates, revocation lists and tenants' limits again, soon; and goes on in a new file of audit lines.
    /// It does so by itself when one of the files changes.
    pub fn reload(&self) {
        self.shared.watch.ask();
    }

    /// What borrowers have.
    pub fn lent_bytes(&self) -> u64 {
        self.shared.service.lent_bytes()
    }

    /// Takes memory back and does not lend it again, in whole slabs: what nobody has at once, the rest from borrowers,
    /// which are told, and lose what they have not given back `within` this time. Returns how much they have still to
    /// give back. [`EVERY_BYTE`] is all.
    pub fn reclaim(&self, bytes: u64, within: Duration) -> u64 {
        self.shared.service.reclaim(bytes, within)
    }

    /// Takes all memory back, and waits until it has it, at most `within`, or until it `is_enough`.
    pub fn drain(&self, within: Duration, mut is_enough: impl FnMut() -> bool) {
        let deadline = Instant::now() + within;
        self.shared.service.order_back(EVERY_BYTE, within);
        let mut left = self.shared.service.draining_bytes();
        while left > 0 && Instant::now() < deadline && !is_enough() {
            thread::sleep(LOOK_AGAIN);
            left = self.shared.service.draining_bytes();
        }
    }

    /// Takes all memory back, waits at most `within` for borrowers to give it back, and ends every connection.
    pub fn stop(self, within: Duration) {
        self.drain(within, || false);
        let service = &self.shared.service;
        service.order_back(EVERY_BYTE, Duration::ZERO);
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.bell.ring();
        self.shared.watch.ask();
        service.ring_keeper();
        if let Some(control) = &self.control {
            control.bell.ring();
        }
        self.shared.end_connections();
        for thread in self.threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        service.wipe_all();
        service.end_one_sided();
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartFailure> {
    thread::Builder::new().name(name.into()).spawn(run).map_err(StartFailure::System)
}
