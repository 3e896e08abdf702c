// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which capacity hosts have been asked to give back, and when. Pure.
//!
//! Each request puts records into the host's event log, which has little room, and a host that finds the same extent in
//! two records gives it back twice, which the device refuses. The step is due in every round until the host has
//! answered, so a host is asked again only after a while: it may have lost the record, for instance by a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use aquifer_fabric::DeviceId;

/// How long a host has to answer before it is asked again: longer than migrating a few GiB to other nodes takes.
pub(crate) const ASK_AGAIN: Duration = Duration::from_secs(10);

/// When each host was last asked for the capacity of each tag.
#[derive(Debug, Default)]
pub(crate) struct AskedBack {
    at: BTreeMap<(DeviceId, u16, [u8; 16]), Duration>,
}

impl AskedBack {
    /// Returns whether the host was asked so lately that it may still answer.
    pub(crate) fn is_recent(&mut self, device: &DeviceId, host_id: u16, tag: [u8; 16], now: Duration) -> bool {
        self.at.retain(|_, at| now.saturating_sub(*at) < ASK_AGAIN);
        self.at.contains_key(&(device.clone(), host_id, tag))
    }

    /// Notes that the host has been asked.
    pub(crate) fn note(&mut self, device: &DeviceId, host_id: u16, tag: [u8; 16], now: Duration) {
        self.at.insert((device.clone(), host_id, tag), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_asked_again_after_a_while_and_others_at_once() {
        let (mut asked, device) = (AskedBack::default(), "s0.1001".parse().expect("a name"));
        let second = Duration::from_secs(1);
        assert!(!asked.is_recent(&device, 0, [1; 16], second));
        asked.note(&device, 0, [1; 16], second);
        assert!(asked.is_recent(&device, 0, [1; 16], ASK_AGAIN));
        assert!(!asked.is_recent(&device, 1, [1; 16], second));
        assert!(!asked.is_recent(&device, 0, [2; 16], second));
        assert!(!asked.is_recent(&device, 0, [1; 16], ASK_AGAIN + second));
        assert!(asked.at.is_empty(), "old entries go");
    }
}
