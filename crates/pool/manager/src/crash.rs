// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Kills the daemon at a chosen effect, to test recovery by a restart.
//!
//! `[peers] kill-at-effect = N` counts each transaction of the store and each command to a peer twice: before it and
//! after it. At number N the process sends itself SIGKILL. It is for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The number of effects until the kill, which clones share.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashPoint(Option<Arc<AtomicU64>>);

impl CrashPoint {
    /// Returns a kill at effect `number`, counted from 1, or none.
    pub(crate) fn at(number: Option<u64>) -> CrashPoint {
        CrashPoint(number.map(|number| Arc::new(AtomicU64::new(number))))
    }

    /// Counts one effect. Returns unless it is the chosen one.
    pub(crate) fn pass(&self) {
        let Some(left) = &self.0 else { return };
        // Relaxed: only the count matters, and the chosen thread ends the process.
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SIGKILL cannot be refused or delayed, so that the process is gone when this returns.
            let _ = kill(Pid::this(), Signal::SIGKILL);
        }
    }
}
