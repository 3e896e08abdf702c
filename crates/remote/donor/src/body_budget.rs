// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bounds the memory of all buffers for requests' bodies: the donor's, and each tenant's part of it.
//!
//! A connection reserves what its next body takes before it reads or answers it, and keeps the reservation with its
//! buffer. While less than half is in use, buffers stay with their connections until these are idle; beyond that, they
//! are freed after each answer, so that the requests in progress share the other half.
//!
//! Threads: any connection's. A wait has a time limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::tenants::Tenant;

/// The bound for all buffers together. A choice: 128 of the largest bodies at the same time.
pub const BODIES_BYTES_MAX: u64 = 256 << 20;
/// How long a request waits for room. A borrower waits three seconds for an answer.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Limits the memory of all buffers for the bodies of requests.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    used: Mutex<u64>,
    /// The same, to be read without the lock.
    in_use: AtomicU64,
    freed: Condvar,
    bytes_max: u64,
    tenant_bytes_max: u64,
}

impl BodyBudget {
    pub(crate) fn new(bytes_max: u64, tenant_bytes_max: u64) -> BodyBudget {
        BodyBudget {
            used: Mutex::new(0),
            in_use: AtomicU64::new(0),
            freed: Condvar::new(),
            bytes_max,
            tenant_bytes_max,
        }
    }

    fn used(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` more, and waits for them, within a time limit. Returns whether they were available.
    pub(crate) fn reserve(&self, tenant: &Tenant, bytes: u64) -> bool {
        let deadline = Instant::now() + WAIT_MAX;
        let mut used = self.used();
        loop {
            // Under the lock, as are all its changes.
            let of_tenant = tenant.bodies.load(Ordering::Relaxed);
            if *used + bytes <= self.bytes_max && of_tenant + bytes <= self.tenant_bytes_max {
                *used += bytes;
                self.in_use.store(*used, Ordering::Relaxed);
                tenant.bodies.store(of_tenant + bytes, Ordering::Relaxed);
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            used = self.freed.wait_timeout(used, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives a reservation back.
    pub(crate) fn give_back(&self, tenant: &Tenant, bytes: u64) {
        if bytes > 0 {
            let mut used = self.used();
            *used -= bytes;
            self.in_use.store(*used, Ordering::Relaxed);
            tenant.bodies.fetch_sub(bytes, Ordering::Relaxed);
            drop(used);
            self.freed.notify_all();
        }
    }

    /// Whether a buffer should be freed between requests.
    pub(crate) fn is_scarce(&self, tenant: &Tenant) -> bool {
        self.in_use.load(Ordering::Relaxed) > self.bytes_max / 2
            || tenant.bodies.load(Ordering::Relaxed) > self.tenant_bytes_max / 2
    }
}
