// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a workload could not be run, as one line.

use std::fmt;

/// A failed run: cause, then remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    /// What failed, and why.
    pub fn of(what: &str, why: impl fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<aquifer::Error> for Failure {
    fn from(error: aquifer::Error) -> Self {
        Self::of("far memory fails", error)
    }
}
