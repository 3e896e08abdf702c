// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A member's store, which this process may not have a connection to yet: a related process has admitted the member.
//!
//! Without a connection, the member behaves as one that does not answer. Once connected, it stays connected for as long
//! as the array lives, because threads may be using it at any time.
//!
//! Threads: any, including signal handlers. Locks nothing, except for `connect`.

use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use aquifer_sys::raw::Errno;
use aquifer_tier::{TierFailure, TierQueue};
use aquifer_wire::RangeIndex;

use super::member::{Room, Store};
use super::tier_failure;
use crate::access_failure::{AccessFailure, LinkFailure};

/// How often to look for a member without a connection. A choice.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const ABSENT: AccessFailure = AccessFailure::Link(LinkFailure::NoGreeting);

/// A member's store, once this process has connected to it.
pub(crate) struct Connection(OnceLock<Box<dyn Store>>);

impl Connection {
    pub(crate) fn to(store: Box<dyn Store>) -> Connection {
        Connection(OnceLock::from(store))
    }

    pub(crate) fn none() -> Connection {
        Connection(OnceLock::new())
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.0.get().is_some()
    }

    /// Sets the store, unless there is one.
    pub(crate) fn connect(&self, store: Box<dyn Store>) {
        let _ = self.0.set(store);
    }
}

impl Deref for Connection {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        self.0.get().map_or(&Unconnected, |store| &**store)
    }
}

struct Unconnected;

impl Store for Unconnected {
    fn name(&self) -> &str {
        "an address that is not known yet"
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn take(&self, _: RangeIndex) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn room(&self, _: RangeIndex) -> Option<Room> {
        None
    }

    fn give_back(&self, _: RangeIndex, _: Room) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn open_queue(&self, _: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Err(tier_failure(aquifer_tier::Activity::Queue, 0, ABSENT))
    }

    fn after_fork_in_child(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn look(&self) -> Result<(), AccessFailure> {
        Err(ABSENT)
    }

    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }

    fn start_over(&self, _: &dyn Fn(&dyn Fn() -> bool)) -> bool {
        false
    }
}
