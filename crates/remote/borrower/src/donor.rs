// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor's memory as a tier. The donor lends slabs, and blocks are read and written over the network, or in memory
//! that the donor shares with programs on its own machine.
//!
//! A demand read is one round trip, made by the faulting thread itself, straight into the frame; background workers
//! have their own connection. From the outside in: `remote.rs` takes and renews leases, and `ranges.rs` has the
//! lease of each range; `transport.rs` is the interface of a transport, and `tcp.rs`, `shared_memory.rs` and `rdma.rs`
//! are the transports; `links.rs` has their connections and `link.rs` is one connection; `channel.rs` protects a
//! connection, with TLS or with nothing; `completion.rs` waits for an RDMA device. The protocol: `docs/formats.md`. The
//! reasons: `docs/decisions/0015-a-donor-lends-slabs.md`, `0019-shared-memory-is-a-file-for-each-borrower.md`,
//! `0022-rdma-is-verbs-in-a-namespace-of-their-own.md`.
//!
//! After fork(2), parent and child read the same slabs, each over connections of its own, and each renews the leases of
//! both. To the donor they are one borrower: its leases expire one lease period after the last message from any of its
//! processes.

mod channel;
mod completion;
mod contact;
mod deadline;
mod endpoint;
mod grant_lock;
mod incarnation;
mod link;
pub(crate) mod links;
mod member;
mod passed_descriptors;
mod plain;
mod queue;
mod ranges;
mod rdma;
mod recalls;
mod remote;
mod shared_memory;
mod spare_sockets;
mod tcp;
mod timeouts;
mod tls;
mod transport;

use std::io;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::{Errno, random};
use aquifer_tier::plain_queue::Blocking;
use aquifer_tier::transfer::{COPY_BYTES_MAX, check_range};
use aquifer_tier::{
    Activity, Cause, Forks, KeepAlive, Leaving, OpenFailure, PAGE, Tier, TierFailure, TierQueue, Upkeep, Verify,
};
use aquifer_tls::{Borrower, CredentialFailure};
use aquifer_wire::{BorrowerId, EVERY_LEASE, Message, RESERVATION_TOKENS, Refusal, SLAB_BYTES};

use self::channel::{Miss, Security};
use self::endpoint::Endpoint;
pub(crate) use self::incarnation::INCARNATION_WORDS;
use self::link::Greeting;
use self::links::Links;
pub(crate) use self::member::{Asked, Missed, Offer};
use self::ranges::Ranges;
pub(crate) use self::ranges::Writers;
use self::rdma::{Rdma, RdmaFailure};
pub(crate) use self::remote::Remote;
use self::remote::Unlent;
pub(crate) use self::remote::{Piece, RENEWALS, pieces};
use self::shared_memory::SharedMemory;
pub(crate) use self::spare_sockets::SpareSockets;
use self::tcp::Tcp;
use self::timeouts::Timeouts;
use self::transport::{Loss, Transport};
use crate::access_failure::AccessFailure;
use crate::borrow_failure::BorrowFailure;
use crate::spec::{DonorSecurity, DonorSpec};

pub(crate) const NAME: &str = "donor";

/// A tier in a donor's memory.
pub struct Donor {
    remote: Arc<Remote>,
    notices: Vec<String>,
}

impl Donor {
    /// Greets the donor. Borrows nothing yet.
    pub fn open(spec: &DonorSpec) -> Result<Donor, BorrowFailure> {
        if let Some(path) = spec.socket_path() {
            let (memory, greeting, notices) = SharedMemory::open(spec, path, who(spec)?)?;
            return Self::with(spec, Box::new(memory), greeting, notices);
        }
        let (links, greeting) = greet(spec, Timeouts::ALONE)?;
        Self::with(spec, network(spec, links, true)?, greeting, Vec::new())
    }

    /// Gives back everything that the processes of the tree have borrowed, after they have ended. If the donor cannot
    /// be reached, the leases expire instead. A donor on this machine notices the end of the processes by itself.
    pub fn report_exit(spec: &DonorSpec) {
        if spec.socket_path().is_some() {
            return;
        }
        let (Some(tree), Ok(security), Ok(addresses)) = (spec.tree, security(spec), spec.address.to_socket_addrs())
        else {
            return;
        };
        let who = BorrowerId(u128::from(tree) << 64).in_reservation(spec.reservation);
        let greeted = addresses.into_iter().find_map(|address| {
            let links = Links::new(tcp::LINKS, Endpoint::Tcp(address), security.clone(), who, Timeouts::ALONE).ok()?;
            links.greet().ok().map(|_| links)
        });
        if let Some(links) = greeted {
            let _ = links.ask(Message::Release { lease: EVERY_LEASE, token: who.tree() }, &[], &mut []);
        }
    }

    /// Refuses credential files that cannot protect a connection.
    pub fn check_place(spec: &DonorSpec) -> Result<(), BorrowFailure> {
        security(spec).map(|_| ()).map_err(|failure| BorrowFailure::Credentials { failure })
    }

    fn with(
        spec: &DonorSpec,
        transport: Box<dyn Transport>,
        greeting: Greeting,
        notices: Vec<String>,
    ) -> Result<Donor, BorrowFailure> {
        let lendable_bytes = greeting.lendable_bytes;
        if lendable_bytes == 0 {
            return Err(BorrowFailure::LendsNothing { address: spec.address.clone() });
        }
        let wanted_bytes = spec.size.map_or(lendable_bytes, |size| size.0);
        if wanted_bytes < SLAB_BYTES {
            return Err(OpenFailure::TooSmall { tier: NAME, wanted_bytes, minimum_bytes: SLAB_BYTES }.into());
        }
        if wanted_bytes > lendable_bytes {
            let address = spec.address.clone();
            return Err(BorrowFailure::LendsTooLittle { address, wanted_bytes, lendable_bytes });
        }
        let slabs = usize::try_from(wanted_bytes / SLAB_BYTES).expect("as many as a donor has");
        let remote = remote(transport, greeting.lease, slabs, Timeouts::ALONE, Unlent::Anything, Writers::One)?;
        Ok(Donor { remote, notices })
    }
}

/// Connections to the donor that `spec` names by address and port, and the donor's greeting.
fn greet(spec: &DonorSpec, timeouts: Timeouts) -> Result<(Links, Greeting), BorrowFailure> {
    let who = who(spec)?;
    let security = security(spec).map_err(|failure| BorrowFailure::Credentials { failure })?;
    let failure = |source| BorrowFailure::NoAnswer { address: spec.address.clone(), source };
    let mut last = failure(io::ErrorKind::NotFound.into());
    for address in spec.address.to_socket_addrs().map_err(failure)? {
        let links = Links::new(tcp::LINKS, Endpoint::Tcp(address), security.clone(), who, timeouts)
            .map_err(|errno| system("making sockets", errno))?;
        last = match links.greet() {
            Ok(greeting) => return Ok((links, greeting)),
            Err(miss) => not_greeted(spec, miss),
        };
    }
    Err(last)
}

/// Why the donor that `spec` names has not greeted.
fn not_greeted(spec: &DonorSpec, miss: Miss) -> BorrowFailure {
    let address = spec.address.clone();
    match miss {
        Miss::Distrust(distrust) => BorrowFailure::Distrust { address, distrust },
        Miss::Refused(Refusal::PlainOnly) | Miss::Unproven(Refusal::PlainOnly) => BorrowFailure::PlainOnly { address },
        Miss::Refused(Refusal::TlsOnly) | Miss::Unproven(Refusal::TlsOnly) => BorrowFailure::TlsOnly { address },
        Miss::Refused(refusal) | Miss::Unproven(refusal) => {
            BorrowFailure::NoAnswer { address, source: io::Error::other(refusal) }
        }
        Miss::Failed(why) => BorrowFailure::NoAnswer { address, source: io::Error::from_raw_os_error(why.errno()) },
    }
}

/// The transport to a donor at a port. `answers`: the donor has answered the greeting, so RDMA to it can be checked.
fn network(spec: &DonorSpec, links: Links, answers: bool) -> Result<Box<dyn Transport>, BorrowFailure> {
    let links = Arc::new(links);
    let Some(wanted) = &spec.rdma else { return Ok(Box::new(Tcp(links))) };
    let opened = Rdma::open(wanted, links).map_err(RdmaFailure::Verbs);
    let checked = opened.and_then(|rdma| if answers { rdma.check().map(|()| rdma) } else { Ok(rdma) });
    let address = || spec.address.clone();
    checked.map(|rdma| Box::new(rdma) as Box<dyn Transport>).map_err(|failure| match failure {
        RdmaFailure::Verbs(failure) => BorrowFailure::Rdma { address: address(), failure },
        RdmaFailure::Path(device) => BorrowFailure::RdmaPath { address: address(), device },
        // The donor does not know this kind of request.
        RdmaFailure::Loss(Loss::Refused(Refusal::UnknownKind)) => BorrowFailure::NoRdma { address: address() },
        RdmaFailure::Loss(Loss::Refused(refusal)) => {
            BorrowFailure::NoAnswer { address: address(), source: io::Error::other(refusal) }
        }
        RdmaFailure::Loss(Loss::Connection(failure)) => {
            BorrowFailure::NoAnswer { address: address(), source: io::Error::from_raw_os_error(failure.errno()) }
        }
    })
}

/// The borrower's identity: within the tree of `spec` if it names one, otherwise in a new random tree.
fn who(spec: &DonorSpec) -> Result<BorrowerId, BorrowFailure> {
    let id = || random().map_err(|errno| system("drawing a random number", errno));
    // Small trees are tokens of reservations.
    let drawn = || id().map(|tree| tree | RESERVATION_TOKENS);
    let tree = spec.tree.map_or_else(drawn, Ok)?;
    Ok(BorrowerId(u128::from(tree) << 64 | u128::from(id()?)))
}

fn system(what: &'static str, errno: Errno) -> BorrowFailure {
    OpenFailure::System { tier: NAME, what, source: error(errno) }.into()
}

fn remote(
    transport: Box<dyn Transport>,
    lease: Duration,
    slabs: usize,
    timeouts: Timeouts,
    unlent: Unlent,
    writers: Writers,
) -> Result<Arc<Remote>, BorrowFailure> {
    let ranges = Ranges::new(slabs, writers).map_err(|errno| system("mapping the leases", errno))?;
    Ok(Arc::new(Remote::new(transport, ranges, lease, timeouts, unlent, true)))
}

fn security(spec: &DonorSpec) -> Result<Security, CredentialFailure> {
    Ok(match &spec.security {
        DonorSecurity::Local | DonorSecurity::Plain => Security::Plain,
        DonorSecurity::Tls { files, name } => {
            let name = Borrower::name(name).expect("a description has a name that can be one");
            Security::Tls(Arc::new(Borrower::new(files, name)?))
        }
    })
}

impl Tier for Donor {
    fn name(&self) -> &'static str {
        NAME
    }

    fn remedy(&self) -> &'static str {
        "check the donor and the network to it"
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn capacity_bytes(&self) -> u64 {
        self.remote.capacity_bytes()
    }

    fn waits_for_medium(&self) -> bool {
        self.remote.waits()
    }

    fn request_bytes_max(&self) -> usize {
        if self.remote.waits() { usize::MAX - usize::MAX % PAGE } else { COPY_BYTES_MAX }
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        Blocking::read(&*self.remote, offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        Blocking::write(&*self.remote, offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        check_range(NAME, Activity::Discard, offset, len, self.capacity_bytes())?;
        self.remote.discard(offset, len).map_err(|why| access_failed(Activity::Discard, offset, why))
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.remote.open_queue(depth).map_err(|Errno(errno)| failure(Activity::Queue, 0, Cause::Errno(errno)))
    }

    fn leaving(&self, from: u64) -> Option<Leaving> {
        self.remote.leaving(from)
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        Some(self)
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Upkeep for Donor {
    fn turn(&self, _: Option<&Verify<'_>>) -> Duration {
        let refresh = self.remote.refresh();
        self.remote.upkeep().min(refresh.unwrap_or(Duration::MAX))
    }

    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.remote.take_notice().iter().for_each(|line| say(line));
    }

    fn keep_alive_every(&self) -> Option<Duration> {
        Some(self.remote.renewal())
    }

    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        self.remote.begin_keep_alive().into_iter().collect()
    }
}

impl Forks for Donor {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        self.remote.after_fork_in_child()
    }
}

impl Blocking for Remote {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.check(Activity::Read, offset, buffer)?;
        let read = self.read_bytes(offset, buffer.bytes_mut());
        read.map_err(|why| access_failed(Activity::Read, offset, why))
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.check(Activity::Write, offset, buffer)?;
        let written = self.write_bytes(offset, buffer.bytes());
        written.map_err(|why| access_failed(Activity::Write, offset, why))
    }
}

fn failure(activity: Activity, offset: u64, cause: Cause) -> TierFailure {
    TierFailure { tier: NAME, activity, offset, cause }
}

fn access_failed(activity: Activity, offset: u64, why: AccessFailure) -> TierFailure {
    failure(activity, offset, Cause::Errno(why.errno()))
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
