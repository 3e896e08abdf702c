// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor as a member of an array (`array.rs`), which knows where slabs are and keeps several of them where it can.
//!
//! Threads: any, also in a signal handler, but for opening.

use std::net::ToSocketAddrs;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::raw::Errno;
use aquifer_wire::SLAB_BYTES;

use super::link::Greeting;
use super::links::{Begun, Links};
use super::patience::Patience;
use super::place::Place;
use super::remote::{Piece, Remote, Unlent};
use super::tcp;
use super::{failure, greet, network, remote, security, system, who};
use crate::array::Store;
use crate::failure::{Activity, Cause, TierFailure};
use crate::open_failure::OpenFailure;
use crate::spec::DonorSpec;
use crate::tier::TierQueue;

/// How long leases last of a donor that has not said so: what donors have by default.
const LEASE_UNKNOWN: Duration = Duration::from_secs(60);

/// A donor that has been asked what it lends.
pub(crate) struct Offer {
    links: Links,
    greeting: Result<Greeting, OpenFailure>,
    patience: Patience,
    spec: DonorSpec,
}

impl Offer {
    /// Asks. A donor that does not answer is taken where others have its bytes, too: it may come back.
    pub(crate) fn ask(spec: &DonorSpec, is_redundant: bool) -> Result<Offer, OpenFailure> {
        let patience = if is_redundant { Patience::AMONG_OTHERS } else { Patience::ALONE };
        match greet(spec, patience) {
            Ok((links, greeting)) => Ok(Offer { links, greeting: Ok(greeting), patience, spec: spec.clone() }),
            Err(refused @ OpenFailure::Donor { .. }) if is_redundant => {
                let Some(address) = spec.address.to_socket_addrs().ok().and_then(|mut all| all.next()) else {
                    return Err(refused);
                };
                let who = who(spec)?;
                let security = security(spec).map_err(|failure| OpenFailure::Credentials { failure })?;
                let links = Links::new(tcp::LINKS, Place::Tcp(address), security, who, patience)
                    .map_err(|errno| system("making sockets", errno))?;
                Ok(Offer { links, greeting: Err(refused), patience, spec: spec.clone() })
            }
            Err(refused) => Err(refused),
        }
    }

    /// Slabs that it lends; `None` where it has not answered.
    pub(crate) fn slabs(&self) -> Option<u64> {
        self.greeting.as_ref().ok().map(|greeting| greeting.lendable_bytes / SLAB_BYTES)
    }

    /// Why it has not.
    pub(crate) fn why_absent(self) -> Option<OpenFailure> {
        self.greeting.err()
    }

    /// The donor as a member of an array of `slabs` slabs.
    pub(crate) fn accept(self, slabs: usize) -> Result<Share, OpenFailure> {
        let transport = network(&self.spec, self.links, self.greeting.is_ok())?;
        let lease = self.greeting.map_or(LEASE_UNKNOWN, |greeting| greeting.lease);
        Ok(Share(remote(transport, lease, slabs, self.patience, Unlent::Gone)?))
    }
}

/// See the module.
pub(crate) struct Share(Arc<Remote>);

/// Bytes that a donor has been asked for. Dropped before they are there, it costs the donor's link its connection.
pub(crate) struct Asked<'a> {
    begun: Begun<'a>,
    remote: &'a Remote,
}

impl Asked<'_> {
    /// Readable when they come.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.begun.socket()
    }

    /// Waits for them. False when they do not come: `read` says why, if it is so still.
    pub(crate) fn finish(self, into: &mut [u8]) -> bool {
        self.remote.finish_read(self.begun, into)
    }
}

impl Store for Share {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), i32> {
        self.0.read_bytes(offset, into)
    }

    fn begin_read(&self, piece: Piece) -> Option<Asked<'_>> {
        let begun = self.0.begin_read(piece)?;
        Some(Asked { begun, remote: &self.0 })
    }

    fn take(&self, slab: usize) -> Result<(), i32> {
        self.0.take(slab as u64)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        self.0.write_bytes(offset, bytes)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), i32> {
        self.0.discard(offset, len)
    }

    fn leaving(&self, from: usize) -> Option<usize> {
        self.0.leaving(from as u64 * SLAB_BYTES).map(|leaving| (leaving.offset / SLAB_BYTES) as usize)
    }

    fn has(&self, slab: usize) -> bool {
        self.0.ranges().lease(slab as u64).is_some()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.0.open_queue(depth).map_err(|Errno(errno)| failure(Activity::Queue, 0, Cause::Errno(errno)))
    }

    fn renew(&self) -> Result<(), Errno> {
        self.0.renew()
    }

    fn look(&self) -> Result<(), i32> {
        self.0.look()
    }

    fn look_every(&self) -> Duration {
        self.0.renewal()
    }

    fn start_over(&self) {
        self.0.start_over();
    }
}
