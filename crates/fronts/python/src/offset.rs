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

/// The size of a block. A number that no size can be is a `BlockSizeError`, too.
#[derive(Clone, Copy)]
pub struct BlockBytes(pub usize);

impl FromPyObject<'_, '_> for Offset {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let message = "a number of bytes is negative, or too large; count from the start of the mapping";
        extract(number, "OutOfRangeError", message).map(Self)
    }
}

impl FromPyObject<'_, '_> for BlockBytes {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let message = "a block cannot have that many bytes; choose a power of two from 4096 to 2097152";
        extract(number, "BlockSizeError", message).map(Self)
    }
}

/// Extracts a number of 64 bits, or raises an exception of this class if it has more, or is negative.
fn extract(number: Borrowed<'_, '_, PyAny>, class: &str, message: &str) -> PyResult<usize> {
    let py = number.py();
    number.extract().map_err(|refused: PyErr| {
        if refused.is_instance_of::<PyOverflowError>(py) { errors::new(py, class, message, None, &[]) } else { refused }
    })
}

/// Returns a range of a mapping of `len` bytes, of which Python gave the start and perhaps the end.
pub fn range(start: Offset, stop: Option<Offset>, len: usize) -> std::ops::Range<usize> {
    start.0..stop.map_or(len, |stop| stop.0)
}
