// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a donor counts, and its reports of refused peers: each kind of refusal is reported once for each peer, and all
//! are counted.
//!
//! Threads: any.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aquifer_wire::{DonorStatus, FIGURES, Figure, Refusal};

/// The maximum number of lines about refusals: otherwise a peer with many addresses could fill a disk. A choice.
const REPORTED_MAX: usize = 4096;

/// Receives lines for the operator.
pub(crate) type Log = Box<dyn Fn(&str) + Send + Sync>;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Host(IpAddr),
    /// A process of this user on this machine.
    User(u32),
}

impl Peer {
    /// The peer as one word.
    pub(crate) fn word(self) -> String {
        match self {
            Peer::Host(address) => address.to_canonical().to_string(),
            Peer::User(user) => format!("uid:{user}"),
        }
    }

    /// The name of its tenant if nothing better is known.
    pub(crate) fn tenant(self) -> String {
        match self {
            Peer::Host(address) => aquifer_tls::address_name(address),
            Peer::User(user) => format!("uid:{user}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Host(address) => write!(f, "{address}"),
            Peer::User(user) => write!(f, "a process of user {user}"),
        }
    }
}

pub(crate) struct Counters {
    figures: [AtomicU64; FIGURES],
    refusals: [AtomicU64; Refusal::ALL.len()],
    reported: Mutex<BTreeSet<(Peer, Refusal)>>,
    log: Log,
}

impl Counters {
    pub(crate) fn new(log: Log) -> Counters {
        Counters {
            figures: [const { AtomicU64::new(0) }; FIGURES],
            refusals: [const { AtomicU64::new(0) }; Refusal::ALL.len()],
            reported: Mutex::default(),
            log,
        }
    }

    pub(crate) fn add(&self, figure: Figure, count: u64) {
        self.figures[figure as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a refusal, and reports it unless the same refusal of this peer was reported before.
    pub(crate) fn refuse(&self, peer: Peer, refusal: Refusal) {
        self.refusals[refusal.index()].fetch_add(1, Ordering::Relaxed);
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < REPORTED_MAX && reported.insert((peer, refusal)) {
            drop(reported);
            self.say(&format!("refused {peer}: {} ({}); further ones are only counted", refusal, refusal.word()));
        }
    }

    pub(crate) fn say(&self, line: &str) {
        (self.log)(line);
    }

    /// The counters; the caller fills in the figures that describe the present state.
    pub(crate) fn status(&self) -> DonorStatus {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DonorStatus {
            figures: std::array::from_fn(|index| load(&self.figures[index])),
            refusals: std::array::from_fn(|index| load(&self.refusals[index])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_changes_its_address_within_its_network_stays_the_same_tenant() {
        for (address, tenant) in [
            ("10.0.0.7", "address:10.0.0.7"),
            ("::ffff:10.0.0.7", "address:10.0.0.7"),
            ("2001:db8::1", "address:2001:db8::/64"),
            ("2001:db8::dead:beef:1:2", "address:2001:db8::/64"),
            ("::1", "address:::1"),
        ] {
            assert_eq!(Peer::Host(address.parse().unwrap()).tenant(), tenant);
        }
        assert_eq!(Peer::User(7).tenant(), "uid:7");
    }
}
