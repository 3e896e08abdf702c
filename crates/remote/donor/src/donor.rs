// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor from its start to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aquifer_control::Keeper;
use aquifer_sys::verbs::Port;
use aquifer_sys::wakeup::Wakeup;
use aquifer_wire::{DonorStatus, EVERY_BYTE};

use crate::control::Control;
use crate::control_end::{self, ManagedStatus};
use crate::listen_socket::ListenSocket;
use crate::listener::{self, Shared};
use crate::reload;
use crate::service::Service;
use crate::settings::{Address, Settings, StartFailure};

/// The interval between checks whether everything was given back.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running donor. If it is dropped without [`Donor::stop`], it runs until the process exits.
pub struct Donor {
    shared: Arc<Shared>,
    address: Address,
    control: Option<Arc<Control>>,
    keeper: Option<Arc<Keeper>>,
    threads: Vec<JoinHandle<()>>,
}

/// Reports a donor's figures, even after its end.
#[derive(Clone)]
pub struct Observer(Arc<Shared>, Option<Arc<Keeper>>);

impl Observer {
    /// The donor's figures now, or at its end.
    pub fn status(&self) -> DonorStatus {
        self.0.service.status(self.0.count())
    }

    /// What fabric managers have of it; `None`: it has none.
    pub fn managed(&self) -> Option<ManagedStatus> {
        self.1.as_ref().map(|keeper| ManagedStatus::of(&self.0, keeper))
    }
}

impl Donor {
    /// Maps the memory, listens, and lends. `log` gets one line at a time, from any thread.
    pub fn start(settings: Settings, log: Box<dyn Fn(&str) + Send + Sync>) -> Result<Donor, StartFailure> {
        let protection = settings.security.protection(settings.revocations.as_deref())?;
        let control = settings.control.as_deref().map(Control::listen).transpose()?.map(Arc::new);
        let service = Service::new(&settings, log)?;
        let listen = |error| StartFailure::Listen(settings.listen.clone(), error);
        let listening = ListenSocket::open(&settings.listen).map_err(listen)?;
        let address = listening.address().map_err(listen)?;
        let wakeup = Wakeup::new().map_err(|errno| StartFailure::System(std::io::Error::from_raw_os_error(errno.0)))?;
        let shared = Arc::new(Shared::new(service, settings, protection, wakeup));
        let managed = shared.settings.managed.as_ref();
        let keeper =
            managed.map(|managed| control_end::keep(&shared, &shared.settings, managed, &address)).transpose()?;
        let [accepting, keeping, watching] = [&shared, &shared, &shared].map(Arc::clone);
        let mut threads = vec![
            start_thread("donor-accept", move || listener::run(&accepting, &listening))?,
            start_thread("donor-keeper", move || {
                keeping.service.keep(|| keeping.is_over.load(Ordering::Acquire));
            })?,
        ];
        threads.push(start_thread("donor-watch", move || reload::run(&watching))?);
        if let Some(control) = control.clone() {
            let shared = Arc::clone(&shared);
            threads.push(start_thread("donor-control", move || control.run(&shared))?);
        }
        Ok(Donor { address, control, keeper: keeper.map(Arc::new), threads, shared })
    }

    /// The address at which it listens.
    pub fn place(&self) -> &Address {
        &self.address
    }

    /// The address and port at which it listens.
    ///
    /// # Panics
    /// If it listens at a socket on this machine instead of a port.
    pub fn address(&self) -> SocketAddr {
        match self.address {
            Address::Local(_) => panic!("this donor listens at a socket on this machine"),
            Address::Tcp(address) => address,
        }
    }

    /// The port and RDMA device that borrowers reach, if they use RDMA.
    pub fn rdma_port(&self) -> Option<&Port> {
        self.shared.service.rdma_port()
    }

    /// How many bytes it lends.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.service.capacity_bytes()
    }

    /// The status of the donor now.
    pub fn status(&self) -> DonorStatus {
        self.shared.service.status(self.shared.count())
    }

    /// An observer of these figures, for use on any thread.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.shared), self.keeper.clone())
    }

    /// Soon reloads certificates, revocation lists and tenants' limits, and continues in a new file of audit lines. The
    /// donor does so by itself when one of the files changes.
    pub fn reload(&self) {
        self.shared.watch.ask();
    }

    /// The bytes that borrowers have.
    pub fn lent_bytes(&self) -> u64 {
        self.shared.service.lent_bytes()
    }

    /// Reclaims memory, in whole slabs, and does not lend it again. Free slabs are reclaimed immediately, the rest from
    /// borrowers, which are notified and lose what they have not given back `within` this time. Returns the bytes that
    /// they still have to give back. [`EVERY_BYTE`] reclaims all.
    pub fn reclaim(&self, bytes: u64, within: Duration) -> u64 {
        self.shared.service.reclaim(bytes, within)
    }

    /// Reclaims all memory, and waits until this is done or `is_enough` returns true, at most `within`.
    pub fn drain(&self, within: Duration, mut is_enough: impl FnMut() -> bool) {
        let deadline = Instant::now() + within;
        self.shared.service.order_back(EVERY_BYTE, within);
        let mut left = self.shared.service.draining_bytes();
        while left > 0 && Instant::now() < deadline && !is_enough() {
            thread::sleep(LOOK_AGAIN);
            left = self.shared.service.draining_bytes();
        }
    }

    /// Reclaims all memory, waits at most `within` for borrowers to give it back, and ends every connection.
    pub fn stop(self, within: Duration) {
        self.drain(within, || false);
        let service = &self.shared.service;
        service.order_back(EVERY_BYTE, Duration::ZERO);
        if let Some(keeper) = &self.keeper {
            keeper.stop();
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.wakeup.wake();
        self.shared.watch.ask();
        service.ring_keeper();
        if let Some(control) = &self.control {
            control.wakeup.wake();
        }
        self.shared.end_connections();
        for thread in self.threads {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
        service.wipe_all();
        service.end_one_sided();
    }
}

fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartFailure> {
    thread::Builder::new().name(name.into()).spawn(run).map_err(StartFailure::System)
}
