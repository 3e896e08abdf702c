// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Slabs that borrowers reach by RDMA, without the donor: pairs of queues, keys, and the end of access.
//!
//! Next on the path: `one_sided.rs`.

use aquifer_sys::verbs::{Port, VerbsFailure};
use aquifer_wire::{BorrowerId, Message, PairEnd, Refusal};

use super::Service;
use crate::one_sided::{self, OneSided};

impl Service {
    /// The port on which borrowers are reached by RDMA, if they are.
    pub(crate) fn rdma_port(&self) -> Option<&Port> {
        self.one_sided.as_ref().map(OneSided::port)
    }

    pub(super) fn pair(&self, who: BorrowerId, number: u32, end: PairEnd) -> Result<Message, Refusal> {
        let one_sided = self.one_sided.as_ref().ok_or(Refusal::UnknownKind)?;
        match one_sided.pair(who, number, end) {
            Ok(end) => Ok(Message::Paired { end }),
            Err(one_sided::Failure::Refused(refusal)) => Err(refusal),
            Err(one_sided::Failure::Verbs(failure)) => {
                self.counters.say(&format!("a borrower cannot get an RDMA connection: {failure}"));
                Err(Refusal::Full)
            }
        }
    }

    /// The key of a slab. Counts as an access to the whole slab, so that the slab gets no other token and is not wiped
    /// meanwhile.
    pub(super) fn key(&self, who: BorrowerId, lease: u64, token: u64) -> Result<Message, Refusal> {
        let one_sided = self.one_sided.as_ref().ok_or(Refusal::UnknownKind)?;
        let access = self.table().begin_slab(self.now_ms(), who, lease, token)?;
        let key = one_sided.key(who, access.slab, token);
        self.end(access);
        match key {
            Ok(key) => Ok(Message::Keyed { key }),
            Err(failure) => {
                self.counters.say(&format!("a slab cannot be opened to RDMA: {failure}"));
                Err(Refusal::Full)
            }
        }
    }

    /// Closes a window of the device.
    pub(crate) fn shut_out(&self, close: impl Fn(&OneSided) -> Result<(), VerbsFailure>) {
        if let Some(Err(failure)) = self.one_sided.as_ref().map(close) {
            self.counters.say(&format!("a window could not be closed, so its RDMA connections were ended: {failure}"));
        }
    }

    /// Ends all RDMA access to the memory.
    pub(crate) fn end_one_sided(&self) {
        if let Some(one_sided) = &self.one_sided {
            one_sided.end();
        }
    }
}
