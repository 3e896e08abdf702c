// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Records that SIGHUP, SIGINT or SIGTERM arrived, so that the run can stop at its next step and undo its changes.
//!
//! Nothing is done in the signal handler itself: every resource is released by the drop of its owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::BenchFailure;

/// The signal that arrived, or 0.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From this call on, the three signals no longer end the process.
    pub fn install() -> Result<Self, BenchFailure> {
        let interrupt = Self::default();
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&interrupt.0), signal.unsigned_abs() as usize)
                .map_err(|error| BenchFailure::io("cannot watch for signals", &error))?;
        }
        Ok(interrupt)
    }

    /// Fails once a signal has arrived.
    pub fn check(&self) -> Result<(), BenchFailure> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(BenchFailure::Interrupted(signal)),
        }
    }
}
