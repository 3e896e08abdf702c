// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bounds the connections that are not registered yet. They have their own limit and their own deadline, so that they
//! cannot keep registered ends from connecting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::registrar::Shared;

/// Maximum number of connections that are not registered yet. A choice: a thousand ends that reconnect together
/// register within seconds, and strangers use few resources.
const STRANGERS_MAX: usize = 64;
/// Maximum number of such connections from one address.
const STRANGERS_PER_ADDRESS_MAX: usize = 32;
#[derive(Default)]
pub(crate) struct Strangers {
    count: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// A connection that is not registered yet; counts until it is dropped.
pub(crate) struct Stranger {
    shared: Arc<Shared>,
    address: IpAddr,
}

impl Stranger {
    pub(crate) fn admit(shared: &Arc<Shared>, address: IpAddr) -> Option<Stranger> {
        let mut strangers = shared.strangers();
        let of_address = strangers.by_address.get(&address).copied().unwrap_or(0);
        if strangers.count >= STRANGERS_MAX || of_address >= STRANGERS_PER_ADDRESS_MAX {
            return None;
        }
        strangers.count += 1;
        strangers.by_address.insert(address, of_address + 1);
        Some(Stranger { shared: Arc::clone(shared), address })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut strangers = self.shared.strangers();
        strangers.count -= 1;
        let left = strangers.by_address.get(&self.address).map_or(0, |count| count - 1);
        match left {
            0 => strangers.by_address.remove(&self.address),
            left => strangers.by_address.insert(self.address, left),
        };
    }
}
