// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve of a space, and what it says about the budget.

use std::time::Duration;

use aquifer_core::mrc::Curve;
use aquifer_core::units::PAGE_BYTES;
use aquifer_stats::CurveFigures;

use crate::{Error, Space};

/// How often memory would have to be fetched, for each amount of DRAM: more than the budget, and less.
///
/// It is the curve of LRU, which keeps the pages that were used last. The default policy does better where a program
/// scans more memory than it has DRAM.
#[derive(Clone, Debug, PartialEq)]
pub struct MissRatioCurve {
    curve: Curve,
    figures: CurveFigures,
}

/// One point of a [`MissRatioCurve`]: it holds for sizes above that of the point before, up to its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The amount of DRAM, in bytes.
    pub dram_bytes: u64,
    /// Bytes fetched each second.
    pub bytes_per_s: f64,
    /// Fetches each second: a block is one.
    pub fetches_per_s: f64,
    /// The part of the touches that need a fetch, from 0 to 1. Use of a page within a millisecond is one touch.
    pub miss_ratio: f64,
}

impl MissRatioCurve {
    /// Returns the points, the smallest DRAM first. With more than that of the last one, nothing is fetched.
    pub fn points(&self) -> Vec<CurvePoint> {
        let point = |point: &aquifer_core::mrc::Point| CurvePoint {
            dram_bytes: point.pages * PAGE_BYTES,
            bytes_per_s: point.pages_per_s * PAGE_BYTES as f64,
            fetches_per_s: point.fetches_per_s,
            miss_ratio: self.curve.miss_ratio(point.pages.saturating_sub(1)),
        };
        self.curve.points().iter().map(point).collect()
    }

    /// Returns the part of the touches that need a fetch with this much DRAM, from 0 to 1.
    pub fn miss_ratio(&self, dram_bytes: u64) -> f64 {
        self.curve.miss_ratio(dram_bytes / PAGE_BYTES)
    }

    /// Returns the number of bytes fetched each second with this much DRAM.
    pub fn fetched_bytes_per_s(&self, dram_bytes: u64) -> f64 {
        self.curve.at(dram_bytes / PAGE_BYTES).pages_per_s * PAGE_BYTES as f64
    }

    /// Returns the least DRAM with which fetches cost at most this part of the time, `0.05` for example, if each delays
    /// the program by `fetch`: an upper bound of their cost, since several threads, contexts and read-ahead overlap
    /// them.
    pub fn least_dram_bytes(&self, loss: f64, fetch: Duration) -> u64 {
        self.curve.least_pages(loss, fetch.as_secs_f64(), self.figures.waited) * PAGE_BYTES
    }

    /// Returns how long a fetch has taken on average, or `None` if nothing was fetched yet.
    pub fn fetch_time(&self) -> Option<Duration> {
        (self.figures.fetch_s > 0.0).then(|| Duration::from_secs_f64(self.figures.fetch_s))
    }

    /// Returns the number of bytes with contents.
    pub fn content_bytes(&self) -> u64 {
        self.figures.content_bytes
    }

    /// Returns the number of pages that were sampled. From some thousand on, the curve is right within a few percent.
    pub fn samples(&self) -> u64 {
        self.figures.samples
    }

    /// Returns how long touches were sampled.
    pub fn measured(&self) -> Duration {
        Duration::from_nanos(self.figures.measured_ns)
    }
}

impl Space {
    /// Samples touches for the [miss-ratio curve](Self::miss_ratio_curve) from now on, for `limit`, at most an hour. If
    /// they are being sampled already, sampling continues.
    ///
    /// Twenty times a second, some pages are chosen at random, and moved to standby if they are resident, so that their
    /// next touch is seen. At most 320 move in a second, and none while nobody asks.
    ///
    /// ```
    /// # if aquifer::probe().is_err() { return Ok(()) }
    /// use std::time::Duration;
    ///
    /// use aquifer::Space;
    ///
    /// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
    /// let mut mapping = space.map(32 << 20)?;
    /// space.sample_touches(Duration::from_secs(60))?;
    /// while space.miss_ratio_curve()?.is_none_or(|curve| curve.samples() < 30) {
    ///     mapping.view_mut::<u8>(..)?.fill(1);
    /// }
    /// space.stop_sampling()?;
    /// let curve = space.miss_ratio_curve()?.expect("it was sampled");
    /// let fetch = curve.fetch_time().unwrap_or(Duration::from_micros(80));
    /// println!("{} MiB of DRAM for a loss of 5 %", curve.least_dram_bytes(0.05, fetch) >> 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] if the thread that samples cannot be started; [`Error::Ended`], [`Error::Forked`].
    pub fn sample_touches(&self, limit: Duration) -> Result<(), Error> {
        Ok(self.shared.memory.sample(limit)?)
    }

    /// Stops sampling touches. The curve stays as it is until sampling begins again.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Forked`].
    pub fn stop_sampling(&self) -> Result<(), Error> {
        Ok(self.shared.memory.stop_sampling()?)
    }

    /// Returns how often memory would have to be fetched with more DRAM, or with less. Returns `None` if nothing has
    /// been [sampled](Self::sample_touches) yet.
    ///
    /// # Errors
    /// [`Error::Ended`], [`Error::Forked`].
    pub fn miss_ratio_curve(&self) -> Result<Option<MissRatioCurve>, Error> {
        let found = self.shared.memory.miss_ratio_curve()?;
        Ok(found.map(|(curve, figures)| MissRatioCurve { curve, figures }))
    }
}
