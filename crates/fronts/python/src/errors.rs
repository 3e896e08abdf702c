// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which exception stands for which error of the crate `aquifer`. The classes are in `python/aquifer/_errors.py`.

use aquifer::{CloseError, Error, NamedError, OpenError};
use pyo3::prelude::*;

/// Creates an exception of the class with this name. `fields` become its attributes.
pub fn new(py: Python<'_>, class: &str, message: &str, errno: Option<i32>, fields: &[(&str, usize)]) -> PyErr {
    let fields: Vec<(&str, usize)> = fields.to_vec();
    let made = py
        .import("aquifer._errors")
        .and_then(|module| module.getattr("new")?.call1((class, message, errno, fields)).map(PyErr::from_value));
    made.unwrap_or_else(|failure| failure)
}

/// Returns the exception for an error of a call on a space or its memory.
pub fn of(py: Python<'_>, error: &Error) -> PyErr {
    let message = error.to_string();
    let plain = |class| new(py, class, &message, None, &[]);
    match *error {
        Error::BeyondBudget { asked_bytes, bytes_max } => {
            let fields = [("asked_bytes", asked_bytes), ("bytes_max", bytes_max)];
            new(py, "BeyondBudgetError", &message, None, &fields)
        }
        Error::BlockSize { bytes } => new(py, "BlockSizeError", &message, None, &[("bytes", bytes)]),
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

/// Returns the exception that says why a space could not be opened.
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
    let message = match error {
        OpenError::NoTier => "no tier; give tiers=\"flash:/var/tmp/cold\", for example".to_owned(),
        other => other.to_string(),
    };
    new(py, class, &message, None, &[])
}

/// Returns the exception that says why a space was not closed.
pub fn of_close(py: Python<'_>, error: CloseError) -> PyErr {
    let class = if error == CloseError::NoAnswer { "NoAnswerError" } else { "InUseError" };
    new(py, class, &error.to_string(), None, &[])
}

/// Returns the exception of a call on something that was closed.
pub fn closed(py: Python<'_>, what: &str) -> PyErr {
    new(py, "ClosedError", &format!("the {what} is closed; keep it open for as long as it is used"), None, &[])
}

/// Returns the exception that says why a named mapping could not be opened or synced.
pub fn of_named(py: Python<'_>, error: &NamedError) -> PyErr {
    let class = match error {
        NamedError::Memory(error) => return of(py, error),
        NamedError::OtherSize { bytes, asked_bytes } => {
            let fields = [("bytes", *bytes), ("asked_bytes", *asked_bytes)];
            return new(py, "OtherSizeError", &error.to_string(), None, &fields);
        }
        NamedError::System { errno, .. } => return new(py, "NamedError", &error.to_string(), Some(*errno), &[]),
        NamedError::AlreadyOpen => "AlreadyOpenError",
        NamedError::NoDirectory => {
            let message = "no directory for named mappings; open the space with named_in=\"/nvme/stores\", for example";
            return new(py, "BadNameError", message, None, &[]);
        }
        NamedError::BadName => "BadNameError",
        NamedError::FullDisk => "FullDiskError",
        NamedError::NotFound => "NotFoundError",
        NamedError::NotNamed => "NotNamedError",
        NamedError::Refused(_) => "RefusedError",
        NamedError::Replaced => "ReplacedError",
        NamedError::Damaged { .. } | NamedError::NotOurs | NamedError::Truncated | NamedError::Version { .. } => {
            "DamagedError"
        }
        _ => "NamedError",
    };
    new(py, class, &error.to_string(), None, &[])
}

/// An error of the crate that an exception stands for.
pub trait Raised: Send {
    /// Returns the exception.
    fn raised(&self, py: Python<'_>) -> PyErr;
}

impl Raised for Error {
    fn raised(&self, py: Python<'_>) -> PyErr {
        of(py, self)
    }
}

impl Raised for NamedError {
    fn raised(&self, py: Python<'_>) -> PyErr {
        of_named(py, self)
    }
}

/// The result of a call that was made without the interpreter's lock.
pub trait OrRaise<T> {
    /// Returns the value, or the exception that stands for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Raised> OrRaise<T> for Result<T, E> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| error.raised(py))
    }
}
