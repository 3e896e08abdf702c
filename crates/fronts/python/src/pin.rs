// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A range that stays resident until it is released.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::mapping::Mapping;
use crate::space::without_lock;

/// Keeps a range of a mapping resident and writable.
#[pyclass(frozen, module = "aquifer._native")]
pub struct Pin {
    /// `None` once released.
    pin: Mutex<Option<aquifer::Pin>>,
    mapping: Py<Mapping>,
    range: (usize, usize),
}

impl Pin {
    /// Creates a pin that `mapping` counts already.
    pub fn new(pin: aquifer::Pin, mapping: Py<Mapping>) -> Self {
        let range = (pin.range().start, pin.range().end);
        Self { pin: Mutex::new(Some(pin)), mapping, range }
    }

    fn end(&self) {
        let pin = self.pin.lock().unwrap_or_else(PoisonError::into_inner).take();
        if pin.is_some() {
            without_lock(pin);
            self.mapping.get().lifetime().unpin();
        }
    }
}

#[pymethods]
impl Pin {
    /// The first byte that is pinned.
    #[getter]
    fn start(&self) -> usize {
        self.range.0
    }

    /// One past the last byte that is pinned.
    #[getter]
    fn stop(&self) -> usize {
        self.range.1
    }

    /// Lets the range go. A second call does nothing.
    fn release(&self) {
        self.end();
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.end();
    }

    fn __repr__(&self) -> String {
        format!("Pin({}, {})", self.range.0, self.range.1)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.end();
    }
}
