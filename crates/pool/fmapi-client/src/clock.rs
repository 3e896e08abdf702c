// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The client's clock, an argument so that tests can supply their own.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock that can also sleep.
pub trait Clock: Send + Sync {
    /// Returns the time since the clock's start.
    fn now(&self) -> Duration;

    /// Returns the time since 1970 in UTC, for traces.
    fn unix(&self) -> Duration;

    /// Returns after this time.
    fn sleep(&self, time: Duration);
}

/// The kernel's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Returns a clock that starts now, in the form that `Client::new` takes.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self { start: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// A clock for tests and simulations: time passes only while somebody sleeps.
#[derive(Debug, Default)]
pub struct VirtualClock(Mutex<Duration>);

/// When a virtual clock starts: January 2027.
const VIRTUAL_START: Duration = Duration::from_secs(1_800_000_000);

impl VirtualClock {
    fn time(&self) -> MutexGuard<'_, Duration> {
        self.0.lock().expect("no thread panics with it")
    }

    /// Returns the time since the clock's start, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.now().as_nanos() as u64
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        *self.time()
    }

    fn unix(&self) -> Duration {
        VIRTUAL_START + self.now()
    }

    fn sleep(&self, time: Duration) {
        *self.time() += time;
    }
}
