// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve of a space.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How often memory would have to be fetched, for each amount of DRAM.
#[pyclass(frozen, module = "aquifer._native")]
pub struct MissRatioCurve(aquifer::MissRatioCurve);

impl MissRatioCurve {
    pub fn of(curve: aquifer::MissRatioCurve) -> Self {
        Self(curve)
    }
}

#[pymethods]
impl MissRatioCurve {
    /// The points, the smallest DRAM first: bytes of DRAM, bytes fetched each second, fetches each second, and the part
    /// of the touches that need a fetch.
    #[getter]
    fn points(&self) -> Vec<(u64, f64, f64, f64)> {
        let point =
            |point: aquifer::CurvePoint| (point.dram_bytes, point.bytes_per_s, point.fetches_per_s, point.miss_ratio);
        self.0.points().into_iter().map(point).collect()
    }

    /// The number of pages that were sampled.
    #[getter]
    fn samples(&self) -> u64 {
        self.0.samples()
    }

    /// How long touches were sampled, in seconds.
    #[getter]
    fn measured_seconds(&self) -> f64 {
        self.0.measured().as_secs_f64()
    }

    /// Bytes with contents.
    #[getter]
    fn content_bytes(&self) -> u64 {
        self.0.content_bytes()
    }

    /// How long a fetch has taken on average, in seconds; None if nothing was fetched.
    #[getter]
    fn fetch_seconds(&self) -> Option<f64> {
        self.0.fetch_time().map(|time| time.as_secs_f64())
    }

    /// Returns the part of the touches that need a fetch with this much DRAM, from 0 to 1.
    fn miss_ratio(&self, dram_bytes: u64) -> f64 {
        self.0.miss_ratio(dram_bytes)
    }

    /// Returns the least DRAM with which fetches cost at most this part of the time, 0.05 for example. Returns None if
    /// it is not known how long a fetch takes, and not given.
    #[pyo3(signature = (loss, fetch_seconds = None), text_signature = "($self, loss, fetch_seconds=None)")]
    fn least_dram_bytes(&self, loss: f64, fetch_seconds: Option<f64>) -> PyResult<Option<u64>> {
        if !(loss > 0.0 && loss < 1.0) {
            return Err(PyValueError::new_err(
                "the loss is a part of the time, between 0 and 1; give 0.05, for example",
            ));
        }
        let given = fetch_seconds.map(Duration::try_from_secs_f64).transpose();
        let given =
            given.map_err(|_| PyValueError::new_err("the time of a fetch is not a time; give 80e-6, for example"))?;
        Ok(given.or(self.0.fetch_time()).map(|fetch| self.0.least_dram_bytes(loss, fetch)))
    }

    fn __repr__(&self) -> String {
        format!("<aquifer.MissRatioCurve of {} samples>", self.0.samples())
    }
}
