// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The server: one thread that alternates between its sockets and the contexts of the requests that have arrived.
//!
//! The executor of the library asks for another context when none can run and the tier could carry out more fetches.
//! Only then does the server look at its sockets, without waiting. So requests that arrive while others wait for a tier
//! are carried out meanwhile, and an idle server sleeps in epoll(7) alone.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aquifer::{OpenError, Space, contexts};

use crate::figures::{self, Figures};
use crate::net::Net;
use crate::session;
use crate::settings::Settings;
use crate::store::{Store, StoreFailure};

/// Batches that are begun before the sockets are checked again, so that a client that sends much does not keep others
/// out.
const BATCHES_PER_LOOK: u32 = 16;

/// Why a server could not be started, or ended. Its text says the cause and the remedy.
#[derive(Debug)]
pub enum ServerFailure {
    /// The address cannot be served.
    Address(SocketAddr, io::Error),
    /// The memory space cannot go on.
    Ended(String),
    /// The space cannot be opened.
    Space(OpenError),
    /// The log cannot be made.
    Store(StoreFailure),
    /// A socket call failed unexpectedly.
    System(io::Error),
}

impl fmt::Display for ServerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address, error) => {
                write!(f, "{address} cannot be served: {error}; name another address with --listen")
            }
            Self::Ended(why) => f.write_str(why),
            Self::Space(error) => write!(f, "the memory space cannot be opened: {error}"),
            Self::Store(failure) => write!(f, "the log cannot be made: {failure}"),
            Self::System(error) => write!(f, "the sockets fail: {error}; check the limits (ulimit -a)"),
        }
    }
}

impl std::error::Error for ServerFailure {}

/// What the contexts share.
pub(crate) struct Shared {
    pub(crate) store: RefCell<Store>,
    pub(crate) net: RefCell<Net>,
    pub(crate) figures: RefCell<Figures>,
    /// Why the server cannot go on.
    pub(crate) end: RefCell<Option<ServerFailure>>,
    space: Space,
    started: Instant,
}

impl Shared {
    /// Returns the Unix time in milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    /// Returns the reply to `INFO`.
    pub(crate) fn info(&self) -> String {
        let (net, mut figures) = (self.net.borrow(), *self.figures.borrow());
        (figures.connections, figures.rejected_connections) = (net.accepted, net.refused);
        figures.evicted_clients = net.evicted;
        let uptime_s = self.started.elapsed().as_secs();
        figures::info(&figures, net.connected(), &self.store.borrow(), &self.space.statistics(), uptime_s)
    }
}

/// A cache that serves.
pub struct Server {
    shared: Shared,
    address: SocketAddr,
    batches: Cell<u32>,
    ender: UnixStream,
}

impl Server {
    /// Opens the space and the address. Clients can connect from now on; they are served by [`run`](Self::run).
    pub fn open(settings: &Settings) -> Result<Self, ServerFailure> {
        let refused = |error| ServerFailure::Address(settings.listen, error);
        let listener = TcpListener::bind(settings.listen).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let builder = Space::builder().dram(settings.space_bytes.to_string());
        let space = settings.tiers.iter().fold(builder, |builder, tier| builder.tier(tier));
        let space = space.open().map_err(ServerFailure::Space)?;
        let store = Store::open(&space, settings.size_bytes, settings.keys_max).map_err(ServerFailure::Store)?;
        let (end, ender) = UnixStream::pair().map_err(ServerFailure::System)?;
        let net = Net::new(listener, end, settings.connections_max, settings.buffers_max);
        let net = net.map_err(ServerFailure::System)?;
        let shared = Shared {
            store: RefCell::new(store),
            net: RefCell::new(net),
            figures: RefCell::default(),
            end: RefCell::new(None),
            space,
            started: Instant::now(),
        };
        Ok(Self { shared, address, batches: Cell::new(0), ender })
    }

    /// Returns the address that is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a socket: a byte that a signal handler or any thread writes to it ends [`run`](Self::run).
    pub fn ender(&self) -> io::Result<UnixStream> {
        self.ender.try_clone()
    }

    /// Serves until it is ended, or cannot go on.
    pub fn run(&self) -> Result<(), ServerFailure> {
        loop {
            contexts::serve(&self.shared.space, || self.next_session());
            if let Some(failure) = self.shared.end.borrow_mut().take() {
                return Err(failure);
            }
            if self.shared.net.borrow().has_ended {
                return Ok(());
            }
            self.shared.net.borrow_mut().look(true).map_err(ServerFailure::System)?;
        }
    }

    /// Returns a context for requests that have arrived, or `None` if there are none now.
    fn next_session(&self) -> Option<impl Future<Output = ()>> {
        let mut net = self.shared.net.borrow_mut();
        let mut batch = None;
        if self.batches.get() < BATCHES_PER_LOOK {
            batch = net.next_batch();
        }
        if batch.is_none() {
            self.batches.set(0);
            if let Err(error) = net.look(false) {
                *self.shared.end.borrow_mut() = Some(ServerFailure::System(error));
            }
            batch = net.next_batch();
        }
        if net.has_ended || self.shared.end.borrow().is_some() {
            return None;
        }
        self.batches.set(self.batches.get() + 1);
        batch.map(|(index, batch)| session::serve(&self.shared, index, batch))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Ends a server through what [`Server::ender`] returns.
pub fn end(ender: &UnixStream) {
    // If the buffer is full, the server has been asked often enough.
    let _ = (&*ender).write(&[0]);
}
