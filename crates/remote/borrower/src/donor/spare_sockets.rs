// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sockets for donors that will be borrowed from later.
//!
//! Every thread of the pager has its own descriptor table (`sys/src/own_descriptors.rs`), so a socket that one of
//! them opens exists in no other. Hence the sockets for members that may join an array are created when the array is
//! opened, before those threads start. A TCP socket can be connected to any address of its family later.
//!
//! Threads: any takes sockets; they lock nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_sys::own_descriptors::{KeptFile, replace};
use aquifer_sys::raw::Errno;

use super::endpoint::Endpoint;

/// Links to one donor: half as many as to a donor that is there from the beginning, since descriptors are limited.
const LINKS: usize = 4;

/// The sockets for one donor.
#[derive(Debug)]
struct Bundle {
    sockets: Box<[Arc<KeptFile>]>,
    is_taken: AtomicBool,
}

/// Sockets that are not connected yet, in bundles for one donor each.
#[derive(Debug)]
pub(crate) struct SpareSockets {
    /// Any address of their family.
    family: SocketAddr,
    bundles: Box<[Bundle]>,
}

/// The sockets for one donor, which go back when this is dropped before it was kept.
#[derive(Debug)]
pub(crate) struct Taken<'a> {
    bundle: &'a Bundle,
    is_kept: bool,
}

impl SpareSockets {
    /// Sockets of the family of this address for up to `donors` donors: fewer if the process may not open as many.
    pub(crate) fn new(family: SocketAddr, donors: usize) -> SpareSockets {
        let endpoint = Endpoint::Tcp(family);
        let bundle = |_| {
            let sockets = (0..LINKS).map(|_| endpoint.socket().map(|socket| Arc::new(KeptFile::new(socket))));
            let sockets = sockets.collect::<Result<_, _>>().ok()?;
            Some(Bundle { sockets, is_taken: AtomicBool::new(false) })
        };
        SpareSockets { family, bundles: (0..donors).map_while(bundle).collect() }
    }

    /// Whether the sockets can be connected to this address.
    pub(crate) fn reach(&self, address: &SocketAddr) -> bool {
        address.is_ipv4() == self.family.is_ipv4()
    }

    /// The sockets for one donor. `None` if there are no more.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let is_free = |bundle: &&Bundle| {
            bundle.is_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.bundles.iter().find(is_free).map(|bundle| Taken { bundle, is_kept: false })
    }

    /// How many donors there were sockets for.
    pub(crate) fn count(&self) -> usize {
        self.bundles.len()
    }

    /// Called in a forked child: replaces the parent's sockets that are not in use.
    pub(crate) fn replace_in_child(&self) -> Result<(), Errno> {
        let endpoint = Endpoint::Tcp(self.family);
        for bundle in self.bundles.iter().filter(|bundle| !bundle.is_taken.load(Ordering::Acquire)) {
            for socket in &bundle.sockets {
                let own = endpoint.socket().map_err(|errno| Errno(errno.raw_os_error()))?;
                replace(own, std::os::fd::AsFd::as_fd(&**socket))?;
            }
        }
        Ok(())
    }
}

impl Taken<'_> {
    /// The sockets.
    pub(crate) fn sockets(&self) -> &[Arc<KeptFile>] {
        &self.bundle.sockets
    }

    /// Keeps them for good.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let endpoint = Endpoint::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
            self.bundle.sockets.iter().for_each(|socket| endpoint.disconnect(std::os::fd::AsFd::as_fd(&**socket)));
            self.bundle.is_taken.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_were_not_kept_are_reused() {
        let spares = SpareSockets::new(SocketAddr::from(([127, 0, 0, 1], 0)), 2);
        assert_eq!(spares.count(), 2);
        let first = spares.take().unwrap();
        assert_eq!(first.sockets().len(), LINKS);
        first.keep();
        let second = spares.take().unwrap();
        assert!(spares.take().is_none());
        drop(second);
        assert!(spares.take().is_some());
        assert!(spares.reach(&"10.0.0.1:1".parse().unwrap()) && !spares.reach(&"[::1]:1".parse().unwrap()));
    }
}
