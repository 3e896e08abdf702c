// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A fetch that a coroutine waits for. `python/aquifer/_waiting.py` polls it in the event loop.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::prelude::*;

use crate::errors::{self, OrRaise};

/// A fetch that has been asked for.
#[pyclass(frozen, module = "aquifer._native")]
pub struct Fetch {
    fetch: Mutex<aquifer::Fetch>,
    process: u32,
}

impl Fetch {
    pub fn new(fetch: aquifer::Fetch, process: u32) -> Self {
        Self { fetch: Mutex::new(fetch), process }
    }
}

#[pymethods]
impl Fetch {
    /// Returns whether the range is resident. If it is not, `wake` is called, from any thread, when it is time to ask
    /// again.
    fn poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<bool> {
        if self.process != std::process::id() {
            return Err(errors::of(py, &aquifer::Error::Forked));
        }
        let waker = Waker::from(Arc::new(Call { wake }));
        let polled = py.detach(|| {
            let mut fetch = self.fetch.lock().unwrap_or_else(PoisonError::into_inner);
            Pin::new(&mut *fetch).poll(&mut Context::from_waker(&waker))
        });
        match polled {
            Poll::Pending => Ok(false),
            Poll::Ready(outcome) => outcome.or_raise(py).map(|()| true),
        }
    }
}

/// A waker that calls a Python function.
struct Call {
    wake: Py<PyAny>,
}

impl Wake for Call {
    /// Calls the function. The caller has no lock of the space. If the interpreter has ended, nobody waits.
    fn wake(self: Arc<Self>) {
        Python::try_attach(|py| {
            if let Err(failure) = self.wake.call0(py) {
                failure.write_unraisable(py, None);
            }
        });
    }
}
