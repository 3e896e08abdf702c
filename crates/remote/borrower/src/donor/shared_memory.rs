// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor on this machine, whose memory is shared: bytes are read and written without the donor, in a memory file that
//! no other borrower has. Grants and all other requests go through its socket.
//!
//! The *status page* says which slabs of the file are ours. It consists of words that only the donor writes: a slab's
//! token while the slab is leased. The status page is read before and after each access. When a lease ends, the donor
//! first removes the token from the status page and then gives the memory away; so bytes that were read while the token
//! was present, before and after, are what was stored. A late write goes to a file of our own, where it harms nobody
//! else, and does not count as stored. Both are described in `crates/remote/donor/src/lent_file.rs`.
//!
//! pread(2) and pwrite(2) are used instead of a mapping: where the file was truncated they return a short count, and no
//! signal is raised in a thread that is resolving a fault. They cost half a microsecond more than a copy.
//!
//! The connection on which the tier was opened, the *anchor*, lasts as long as the process or any of its forked
//! children lives, because they have its socket, too. When it ends, the donor knows that all of them are gone.
//!
//! Threads: any, including signal handlers. Locks nothing, allocates nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::peer_credentials::PeerCredentials;
use aquifer_sys::raw::Errno;
use aquifer_sys::safe_open;
use aquifer_sys::shared_segment::SharedView;
use aquifer_tier::memory_file::file_bytes_max;
use aquifer_tier::plain_queue::PlainQueue;
use aquifer_tier::transfer::{read_fully, write_fully};
use aquifer_tier::{Cause, OpenFailure, TierQueue};
use aquifer_wire::{BorrowerId, Message, Refusal, SLAB_BYTES};
use rustix::net::SocketAddrUnix;

use super::NAME;
use super::channel::{Miss, Security};
use super::endpoint::Endpoint;
use super::incarnation::Incarnation;
use super::link::{Greeting, Link};
use super::links::Links;
use super::passed_descriptors::{DescriptorChannel, PassedDescriptors};
use super::ranges::Lease;
use super::recalls::Recalls;
use super::remote::{Piece, Remote};
use super::timeouts::Timeouts;
use super::transport::{Loss, Transport};
use crate::access_failure::{AccessFailure, LinkFailure};
use crate::borrow_failure::BorrowFailure;
use crate::spec::DonorSpec;

/// Links for requests. One thread at a time asks for a grant, and another renews leases.
const LINKS: usize = 2;
/// A file whose blocks are at least this large uses huge pages.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The transport to a donor on the same host, through a memory file that both map.
pub(crate) struct SharedMemory {
    links: Links,
    _anchor: Link,
    data: KeptFile,
    status_page: SharedView,
}

impl SharedMemory {
    /// Greets the donor, and takes the descriptors that it shares. Also returns notices about them.
    pub(crate) fn open(
        spec: &DonorSpec,
        path: &str,
        who: BorrowerId,
    ) -> Result<(SharedMemory, Greeting, Vec<String>), BorrowFailure> {
        let system = |what, source| BorrowFailure::from(OpenFailure::System { tier: NAME, what, source });
        let errno = |what| move |errno: rustix::io::Errno| system(what, errno.into());
        let endpoint = Endpoint::Local(SocketAddrUnix::new(path).map_err(errno("naming a socket"))?);
        let passed = Arc::new(PassedDescriptors::default());
        let links = Links::new(LINKS, endpoint.clone(), Security::Plain, who, Timeouts::ALONE);
        let links = links.map_err(|errno| system("making sockets", std::io::Error::from_raw_os_error(errno.0)))?;
        let anchor = Link::new(&endpoint, Box::new(DescriptorChannel(Arc::clone(&passed))), links.recalls(), true);
        let anchor = anchor.map_err(errno("making sockets"))?;
        let greeting = links.connect(&anchor).map_err(|miss| refused(spec, miss))?;
        check_user(spec, &anchor)?;
        let address = || spec.address.clone();
        let Some([data, status_page]) = passed.take() else {
            return Err(BorrowFailure::NoAnswer { address: address(), source: std::io::ErrorKind::InvalidData.into() });
        };
        let [data, status_page] = [data, status_page].map(File::from);
        for file in [&data, &status_page] {
            let other = |_| BorrowFailure::OtherUser { address: address() };
            safe_open::check_owner(file, &spec.address).map_err(other)?;
        }
        let status_page = SharedView::open(std::os::fd::AsFd::as_fd(&status_page))
            .map_err(|source| system("mapping a status page", source))?;
        let about = data.metadata().map_err(|source| system("looking at a file in memory", source))?;
        if about.len() < status_page.len() as u64 * SLAB_BYTES {
            return Err(BorrowFailure::NoAnswer { address: address(), source: std::io::ErrorKind::InvalidData.into() });
        }
        // A write beyond the limit would raise SIGXFSZ, which ends the program without a message.
        if file_bytes_max() < about.len() {
            let (wanted_bytes, limit_bytes) = (Some(about.len()), file_bytes_max());
            return Err(OpenFailure::FileLimit { tier: NAME, wanted_bytes, limit_bytes }.into());
        }
        let notices = if about.blksize() < HUGE_PAGE_BYTES {
            vec![format!(
                "the donor at {} shares pages of 4 KiB, which costs about 10 us more per 128 KiB; run it with \
                 CAP_SYS_ADMIN, or write `within_size` to /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                spec.address
            )]
        } else {
            Vec::new()
        };
        Ok((SharedMemory { links, _anchor: anchor, data: KeptFile::new(data), status_page }, greeting, notices))
    }

    /// Whether the slab of a lease is ours now.
    fn check(&self, lease: Lease) -> Result<(), Loss> {
        let slab = lease.slab().index();
        if slab >= self.status_page.len() {
            return Err(Loss::Connection(LinkFailure::Protocol));
        }
        match self.status_page.load(slab) {
            token if token == lease.token() => Ok(()),
            0 => Err(Loss::Refused(Refusal::NoLease)),
            _ => Err(Loss::Refused(Refusal::StaleToken)),
        }
    }

    /// Accesses the bytes of a slab, which must be ours before and afterwards.
    fn access(&self, lease: Lease, act: impl FnOnce() -> Result<(), Cause>) -> Result<(), Loss> {
        if !self.links.is_own() {
            return Err(Loss::Connection(LinkFailure::Inherited));
        }
        self.check(lease)?;
        let acted = act();
        // Pairs with the donor's order: if `act` saw a hole, the token had gone before.
        fence(Ordering::SeqCst);
        self.check(lease)?;
        acted.map_err(|cause| match cause {
            Cause::Errno(errno) => Loss::Connection(LinkFailure::of_errno(errno)),
            // The file was truncated, which no donor of ours does.
            _ => Loss::Connection(LinkFailure::System(Errno(libc::EIO))),
        })
    }
}

fn place_of(piece: Piece, lease: Lease) -> u64 {
    lease.slab().offset() + piece.offset % SLAB_BYTES
}

impl Transport for SharedMemory {
    fn ask(&self, message: Message) -> Result<Message, Loss> {
        self.links.ask(message, &[], &mut [])
    }

    fn read(&self, piece: Piece, lease: Lease, into: &mut [u8]) -> Result<(), Loss> {
        self.access(lease, || read_fully(&self.data, place_of(piece, lease), into))
    }

    fn write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss> {
        self.access(lease, || write_fully(&self.data, place_of(piece, lease), bytes))
    }

    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno> {
        Ok(Box::new(PlainQueue::new(Arc::clone(remote), depth)))
    }

    fn recalls(&self) -> &Recalls {
        self.links.recalls()
    }

    fn lease(&self) -> Option<Duration> {
        self.links.lease()
    }

    fn incarnation(&self) -> &Incarnation {
        self.links.incarnation()
    }

    fn waits(&self) -> bool {
        false
    }

    fn replace_in_child(&self) -> Result<bool, Errno> {
        // The anchor, the file and the status page are the same as the parent's.
        self.links.replace_in_child()
    }
}

/// Shared memory is only for the same user and root.
fn check_user(spec: &DonorSpec, anchor: &Link) -> Result<(), BorrowFailure> {
    let own = rustix::process::geteuid().as_raw();
    match PeerCredentials::of(anchor.socket()) {
        Ok(peer) if peer.uid == own || peer.uid == 0 => Ok(()),
        _ => Err(BorrowFailure::OtherUser { address: spec.address.clone() }),
    }
}

fn refused(spec: &DonorSpec, miss: Miss) -> BorrowFailure {
    let address = spec.address.clone();
    match miss {
        Miss::Refused(Refusal::OtherUser) => BorrowFailure::OtherUser { address },
        Miss::Refused(refusal) => BorrowFailure::NoAnswer { address, source: std::io::Error::other(refusal) },
        miss => {
            let source = std::io::Error::from_raw_os_error(AccessFailure::from(Loss::from(miss)).errno());
            BorrowFailure::NoAnswer { address, source }
        }
    }
}
