// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One borrower's connection, as the service knows it. When it ends, the borrower loses its RDMA access and its memory
//! file.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use aquifer_wire::{BorrowerId, EVERY_LEASE};

use super::Service;
use crate::counters::Peer;
use crate::lent_file::LentFile;
use crate::tenants::Tenant;

/// A borrower's connection, from its greeting to its end.
pub(crate) struct Visit<'a> {
    pub(super) service: &'a Service,
    pub(crate) tenant: Arc<Tenant>,
    pub(super) peer: Peer,
    /// The identity that the borrower states, and its identity within this donor.
    pub(super) called: BorrowerId,
    pub(super) who: BorrowerId,
    /// The token of the reservation from which it borrows.
    pub(super) reservation: Option<u64>,
    /// The file that it shares with the donor.
    pub(super) file: Option<Arc<LentFile>>,
}

impl Visit<'_> {
    pub(crate) fn who(&self) -> BorrowerId {
        self.who
    }

    /// The descriptors that it gets with the greeting.
    pub(crate) fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.file.as_ref().map(|file| file.descriptors())
    }
}

impl fmt::Display for Visit<'_> {
    /// The part of an audit line that says who the borrower is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant={} peer={} borrower={:032x}", self.tenant.name, self.peer.word(), self.called.0)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(one_sided) = &self.service.one_sided {
            one_sided.leave(self.who);
        }
        if self.service.slabs.shared().is_some_and(|files| files.leave(self.who)) {
            let _ = self.service.release(self, EVERY_LEASE, 0);
        }
    }
}
