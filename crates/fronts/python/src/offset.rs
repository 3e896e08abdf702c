// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Offsets and sizes as Python gives them.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::errors;

/// A number of bytes. A negative number, and one beyond 64 bits, is an `OutOfRangeError` like any other that is outside
/// a mapping.
#[derive(Clone, Copy)]
pub struct Offset(pub usize);

impl FromPyObject<'_, '_> for Offset {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let py = number.py();
        number.extract().map(Self).map_err(|refused: PyErr| {
            if !refused.is_instance_of::<PyOverflowError>(py) {
                return refused;
            }
            let message = "a number of bytes is negative, or too large; count from the start of the mapping";
            errors::new(py, "OutOfRangeError", message, None, &[])
        })
    }
}

/// A range of a mapping of `len` bytes, of which Python gave the start and perhaps the end.
pub fn range(start: Offset, stop: Option<Offset>, len: usize) -> std::ops::Range<usize> {
    start.0..stop.map_or(len, |stop| stop.0)
}
