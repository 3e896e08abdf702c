// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why peers have no channel, so that the log says it once: an end that is refused tries again every few seconds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many reasons are remembered. When there are more, all are forgotten, and are logged once more.
const REASONS_MAX: usize = 256;

/// The reasons that were logged since their peers last registered.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<BTreeSet<(IpAddr, String)>>);

impl Refusals {
    /// Returns whether this reason is to be logged, and remembers it.
    pub(crate) fn is_new(&self, peer: IpAddr, why: &str) -> bool {
        let mut reasons = self.reasons();
        if reasons.len() >= REASONS_MAX {
            reasons.clear();
        }
        reasons.insert((peer, why.to_owned()))
    }

    /// Forgets the reasons of a peer that has registered.
    pub(crate) fn forget(&self, peer: IpAddr) {
        self.reasons().retain(|(of, _)| *of != peer);
    }

    fn reasons(&self) -> MutexGuard<'_, BTreeSet<(IpAddr, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_new_once_until_its_peer_has_registered() {
        let (one, other) = ([10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        let refusals = Refusals::default();
        assert!(refusals.is_new(one, "revoked"));
        assert!(!refusals.is_new(one, "revoked"));
        assert!(refusals.is_new(one, "expired") && refusals.is_new(other, "revoked"));
        refusals.forget(one);
        assert!(refusals.is_new(one, "revoked"));
        assert!(!refusals.is_new(other, "revoked"));
    }

    #[test]
    fn no_number_of_peers_fills_the_memory() {
        let refusals = Refusals::default();
        for number in 0..10_000u32 {
            refusals.is_new(number.to_be_bytes().into(), "no answer in time");
        }
        assert!(refusals.reasons().len() <= REASONS_MAX);
    }
}
