// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which exception stands for which error of the crate `aquifer`. The classes are in `python/aquifer/_errors.py`.

use aquifer::{CloseError, Error, OpenError};
use pyo3::prelude::*;

/// An exception of the class with this name. `fields` become its attributes.
pub fn new(py: Python<'_>, class: &str, message: &str, errno: Option<i32>, fields: &[(&str, usize)]) -> PyErr {
    let fields: Vec<(&str, usize)> = fields.to_vec();
    let made = py
        .import("aquifer._errors")
        .and_then(|module| module.getattr("new")?.call1((class, message, errno, fields)).map(PyErr::from_value));
    made.unwrap_or_else(|failure| failure)
}

/// An error of a call on a space or its memory.
pub fn of(py: Python<'_>, error: &Error) -> PyErr {
    let message = error.to_string();
    let plain = |class| new(py, class, &message, None, &[]);
    match *error {
        Error::BeyondBudget { asked_bytes, bytes_max } => {
            let fields = [("asked_bytes", asked_bytes), ("bytes_max", bytes_max)];
            new(py, "BeyondBudgetError", &message, None, &fields)
        }
        Error::Closed => plain("ClosedError"),
        Error::EmptyRange => plain("EmptyRangeError"),
        Error::Ended(_) => plain("EndedError"),
        Error::Forked => plain("ForkedError"),
        Error::Lost => plain("LostError"),
        Error::MappingSize { bytes } => new(py, "MappingSizeError", &message, None, &[("bytes", bytes)]),
        Error::NoRoom => plain("NoRoomError"),
        Error::OutOfRange { start, end, len } => {
            let fields = [("start", start), ("stop", end), ("length", len)];
            new(py, "OutOfRangeError", &message, None, &fields)
        }
        Error::Pinned => plain("PinnedError"),
        Error::PinnedTooMuch { bytes_max } => {
            new(py, "PinnedTooMuchError", &message, None, &[("bytes_max", bytes_max)])
        }
        Error::System { errno } => new(py, "KernelError", &message, Some(errno), &[]),
        Error::Unaligned { start, end, unit } => {
            let fields = [("start", start), ("stop", end), ("unit", unit)];
            new(py, "UnalignedError", &message, None, &fields)
        }
        _ => plain("Error"),
    }
}

/// Why a space could not be opened.
pub fn of_open(py: Python<'_>, error: &OpenError) -> PyErr {
    let class = match error {
        OpenError::BlockSize(_)
        | OpenError::Dram(_)
        | OpenError::NoDram
        | OpenError::NoTier
        | OpenError::Policy(_)
        | OpenError::TierSpec(_) => "SettingError",
        OpenError::Start(_) => "StartError",
        OpenError::Tier(_) => "TierError",
        _ => "OpenError",
    };
    new(py, class, &error.to_string(), None, &[])
}

/// Why a space was not closed.
pub fn of_close(py: Python<'_>, error: CloseError) -> PyErr {
    let class = if error == CloseError::NoAnswer { "NoAnswerError" } else { "InUseError" };
    new(py, class, &error.to_string(), None, &[])
}

/// A call on something that was closed.
pub fn closed(py: Python<'_>, what: &str) -> PyErr {
    new(py, "ClosedError", &format!("the {what} is closed; keep it open for as long as it is used"), None, &[])
}

/// The result of a call that was made without the interpreter's lock.
pub trait OrRaise<T> {
    /// The value, or the exception that stands for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| of(py, &error))
    }
}
