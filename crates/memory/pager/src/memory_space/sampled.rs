// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve of a caller's space (`sampling.rs`).
//!
//! Threads: any of the caller's.

use std::time::Duration;

use aquifer_core::mrc::Curve;
use aquifer_stats::CurveFigures;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::Blocked;

use super::{MemorySpace, SpaceFailure};
use crate::ledger::SAMPLED_MAX;
use crate::pager::StartFailure;

impl MemorySpace {
    /// Samples touches from now on for `limit`, an hour at the most. Goes on if they are being sampled already.
    pub fn sample(&self, limit: Duration) -> Result<(), SpaceFailure> {
        self.check()?;
        let _blocked = Blocked::all();
        let limit_ns = u64::try_from(limit.min(SAMPLED_MAX).as_nanos()).expect("an hour at the most");
        self.pager.sample_until(now_ns() + limit_ns).map_err(|failure| match failure {
            StartFailure::Thread(error) => SpaceFailure::System(Errno(error.raw_os_error().unwrap_or(libc::EAGAIN))),
            _ => SpaceFailure::System(Errno(libc::EAGAIN)),
        })
    }

    /// Samples touches no more. What was sampled is kept until sampling begins again.
    pub fn stop_sampling(&self) -> Result<(), SpaceFailure> {
        self.check()?;
        let _blocked = Blocked::all();
        self.pager.stop_sampling();
        Ok(())
    }

    /// The curve of what was sampled, and what it was measured under. `None` without samples.
    pub fn miss_ratio_curve(&self) -> Result<Option<(Curve, CurveFigures)>, SpaceFailure> {
        self.check()?;
        let _blocked = Blocked::all();
        Ok(self.pager.miss_ratio_curve())
    }
}
