// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps a tenant to its rates: how long each request has to wait. Pure: time is an argument.
//!
//! There are two buckets, one for bytes and one for requests, each with room for a burst of [`BURST_MS`]. A request
//! takes from both at the same time, even more than they contain, and waits until they are replenished. No request
//! waits longer than [`WAIT_MS_MAX`], because its borrower would consider the donor lost. A tenant that has too many
//! requests in progress for this limit is slowed down by the waits of its next requests.

use crate::tenants::Limits;

/// The length of a burst.
const BURST_MS: u64 = 100;
/// The longest wait. A borrower waits three seconds for an answer.
const WAIT_MS_MAX: u64 = 1000;

/// The rates of one tenant, as two token buckets. Each field is the time when its bucket is full again, in
/// microseconds.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    bytes_full_us: u64,
    requests_full_us: u64,
}

impl Pace {
    /// Charges a request of `bytes` bytes. Returns how long it has to wait, in milliseconds.
    pub(crate) fn charge(&mut self, now_ms: u64, bytes: u64, limits: Limits) -> u64 {
        let bytes_ms = charge(&mut self.bytes_full_us, now_ms, bytes, limits.rate_bytes);
        bytes_ms.max(charge(&mut self.requests_full_us, now_ms, 1, limits.requests))
    }
}

fn charge(full_us: &mut u64, now_ms: u64, amount: u64, rate: Option<u64>) -> u64 {
    let Some(rate) = rate.filter(|rate| *rate > 0) else { return 0 };
    let now_us = now_ms.saturating_mul(1000);
    let cost_us = amount.saturating_mul(1_000_000) / rate;
    // No debt beyond the longest wait, because later requests would have to wait for it.
    let debt_us_max = (BURST_MS + WAIT_MS_MAX) * 1000;
    *full_us = (*full_us).max(now_us).saturating_add(cost_us).min(now_us.saturating_add(debt_us_max));
    (full_us.saturating_sub(now_us) / 1000).saturating_sub(BURST_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_as_fast_as_its_rates() {
        let limits = Limits { rate_bytes: Some(100 << 20), requests: Some(1000), ..Limits::default() };
        for (bytes, seconds_expected) in [(1 << 20, 10), (0, 1)] {
            let (mut pace, mut now_ms) = (Pace::default(), 0);
            for _ in 0..1000 {
                now_ms += pace.charge(now_ms, bytes, limits);
            }
            let off_by_ms = now_ms.abs_diff(seconds_expected * 1000);
            assert!(off_by_ms <= BURST_MS + seconds_expected * 50, "{bytes} bytes: {now_ms} ms");
        }
    }

    #[test]
    fn nobody_waits_longer_than_the_bound_and_nobody_without_a_limit() {
        let limits = Limits { rate_bytes: Some(1 << 20), ..Limits::default() };
        let mut pace = Pace::default();
        let waits: Vec<u64> = (0..100).map(|_| pace.charge(5, 2 << 20, limits)).collect();
        assert!(waits.iter().all(|wait| *wait <= WAIT_MS_MAX) && waits[99] == WAIT_MS_MAX);
        assert_eq!(pace.charge(5, 2 << 20, Limits::default()), 0);
        assert_eq!(pace.charge(60_000, 1, limits), 0, "what was long ago is forgotten");
    }
}
