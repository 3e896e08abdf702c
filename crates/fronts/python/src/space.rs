// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A budget of DRAM over tiers.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::curve::MissRatioCurve;
use crate::errors::{self, OrRaise, Raised};
use crate::queries::{self, Classes};

/// Opens a space.
#[pyclass(frozen, subclass, module = "aquifer._native")]
pub struct Space {
    /// The space; `None` once it is closed. Calls lock it for reading, so that closing waits for them.
    space: RwLock<Option<aquifer::Space>>,
    /// One share for the space, and one for each open mapping.
    shares: Arc<()>,
    process: u32,
}

#[pymethods]
impl Space {
    #[new]
    #[pyo3(signature = (dram, tiers, policy, block_size, named_in, without_system_calls))]
    fn new(
        py: Python<'_>,
        dram: Option<String>,
        tiers: Vec<String>,
        policy: Option<String>,
        block_size: Option<String>,
        named_in: Option<PathBuf>,
        without_system_calls: bool,
    ) -> PyResult<Self> {
        let mut builder = aquifer::Space::builder();
        if let Some(dram) = dram {
            builder = builder.dram(dram);
        }
        if let Some(policy) = policy {
            builder = builder.policy(policy);
        }
        if let Some(block_size) = block_size {
            builder = builder.block_size(block_size);
        }
        if let Some(named_in) = named_in {
            builder = builder.named_in(named_in);
        }
        if without_system_calls {
            builder = builder.without_system_calls();
        }
        let builder = tiers.into_iter().fold(builder, aquifer::Builder::tier);
        let space = py.detach(|| builder.open()).map_err(|error| errors::of_open(py, &error))?;
        Ok(Self { space: RwLock::new(Some(space)), shares: Arc::default(), process: std::process::id() })
    }

    /// Returns the statistics of the space as JSON.
    fn statistics_json(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |space| Ok(space.statistics().to_json()))
    }

    fn classes(&self, py: Python<'_>) -> PyResult<(Classes, Classes)> {
        self.with(py, aquifer::Space::histogram).map(queries::classes)
    }

    /// Samples touches for the miss-ratio curve from now on, for some seconds, at most an hour.
    #[pyo3(signature = (seconds = 60.0), text_signature = "($self, seconds=60.0)")]
    fn sample_touches(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let limit = Duration::try_from_secs_f64(seconds)
            .map_err(|_| PyValueError::new_err("the number of seconds is not a time; give 60, for example"))?;
        self.with(py, |space| space.sample_touches(limit))
    }

    /// Stops sampling touches. The curve stays as it is until sampling begins again.
    fn stop_sampling(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, aquifer::Space::stop_sampling)
    }

    /// Returns how often memory would have to be fetched with more DRAM, or with less; None if nothing was sampled yet.
    fn miss_ratio_curve(&self, py: Python<'_>) -> PyResult<Option<MissRatioCurve>> {
        Ok(self.with(py, aquifer::Space::miss_ratio_curve)?.map(MissRatioCurve::of))
    }

    /// Maximum number of bytes that one prefetch or fetch can ask for.
    #[getter]
    pub fn prefetch_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |space| Ok(space.prefetch_bytes_max()))
    }

    /// Maximum number of bytes that may be pinned at a time: half of the budget.
    #[getter]
    fn pin_bytes_max(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |space| Ok(space.pin_bytes_max()))
    }

    /// Whether system calls may use memory of the space that is not resident.
    #[getter]
    fn serves_system_calls(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |space| Ok(space.serves_system_calls()))
    }

    /// Whether the space is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        // In a forked child the lock may be that of a thread which the child does not have.
        self.is_foreign() || py.detach(|| self.space.read().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    /// Gives everything back. Raises InUseError, and stays open, while mappings of it are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_foreign() {
            return Ok(());
        }
        let closed = py.detach(|| {
            let mut space = self.space.write().unwrap_or_else(PoisonError::into_inner);
            if space.is_some() && Arc::strong_count(&self.shares) > 1 {
                return Err(aquifer::CloseError::InUse);
            }
            space.take().map_or(Ok(()), aquifer::Space::close)
        });
        closed.map_err(|error| errors::of_close(py, error))
    }
}

impl Space {
    /// Returns whether the space belongs to the process that forked this one.
    fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    /// Makes a call on the space without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&aquifer::Space) -> Result<T, aquifer::Error> + Send,
    ) -> PyResult<T> {
        self.raising(py, call)
    }

    /// Works like `with`, for calls with any kind of error.
    fn raising<T: Send, E: Raised>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&aquifer::Space) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        if self.is_foreign() {
            return Err(errors::of(py, &aquifer::Error::Forked));
        }
        let made = py.detach(|| {
            let space = self.space.read().unwrap_or_else(PoisonError::into_inner);
            space.as_ref().map(call)
        });
        made.ok_or_else(|| errors::closed(py, "space"))?.or_raise(py)
    }

    /// Maps memory. It keeps a reference to the space until it is closed.
    pub fn map(&self, py: Python<'_>, bytes: usize) -> PyResult<(aquifer::Mapping, Arc<()>)> {
        let share = Arc::clone(&self.shares);
        self.with(py, |space| space.map(bytes)).map(|mapping| (mapping, share))
    }

    /// Opens a named mapping; with a size, creates it if there is none.
    pub fn map_named(&self, py: Python<'_>, name: &str, bytes: Option<usize>) -> PyResult<(aquifer::Mapping, Arc<()>)> {
        let share = Arc::clone(&self.shares);
        let mapped = self.raising(py, |space| match bytes {
            Some(bytes) => space.map_named(name, bytes),
            None => space.open_named(name),
        });
        mapped.map(|mapping| (mapping, share))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let space = self.space.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        without_lock(space);
    }
}

/// Drops something whose end may wait for a tier, without the interpreter's lock if the interpreter still runs.
pub fn without_lock<T: Send>(ending: Option<T>) {
    let Some(ending) = ending else { return };
    let mut ending = Some(ending);
    Python::try_attach(|py| py.detach(|| drop(ending.take())));
    drop(ending);
}

/// Returns why this process cannot have spaces; `None` if it can.
#[pyfunction]
pub fn probe() -> Option<String> {
    aquifer::probe().err().map(|why| why.to_string())
}
